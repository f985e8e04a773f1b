"""Sharing with the network: only on request, never without the key."""

import hashlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from launcher.base.errors import BadOption, PortBusy
from launcher.engine.serve_options import ServeOptions, check_options
from launcher.engine.server.endpoint import Endpoint, claim_endpoint, is_port_free
from launcher.engine.server.launch import prepare_launch
from launcher.machine.addresses import firewall_hint, list_lan_addresses
from tests.security.conftest import Served, in_terminal, serve


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("shared") / "home", "--lan") as server:
        yield server


def listens_on(pid: int) -> set[str]:
    return {each.laddr.ip for each in psutil.Process(pid).net_connections("tcp") if each.status == psutil.CONN_LISTEN}


def test_by_default_only_this_computer_has_access(demo_server: Served) -> None:
    assert listens_on(demo_server.launcher_pid) == listens_on(demo_server.pid) == {"127.0.0.1"}
    assert demo_server.lan == ()


def test_a_shared_server_listens_everywhere_and_prints_its_addresses(shared_server: Served) -> None:
    assert listens_on(shared_server.launcher_pid) == {"0.0.0.0"}
    assert listens_on(shared_server.pid) == {"127.0.0.1"}, "other computers could reach the engine past the gateway"
    port = shared_server.url.rpartition(":")[2]
    assert shared_server.lan == tuple(f"https://{address}:{port}" for address in list_lan_addresses())
    trusting = ssl.create_default_context(cafile=str(shared_server.home / "state" / "certificate.pem"))
    for url in (shared_server.url, *shared_server.lan):
        with httpx.Client(base_url=url, verify=trusting, trust_env=False) as client:
            assert client.get("/v1/models").status_code == 401
            key = {"Authorization": f"Bearer {shared_server.api_key}"}
            assert client.get("/v1/models", headers=key).status_code == 200


@pytest.fixture(scope="module")
def other_url(shared_server: Served) -> str:
    """The server at 127.0.0.2, whose clients it treats as other computers; this needs no network."""
    return shared_server.url.replace("http://127.0.0.1", "https://127.0.0.2")


def test_other_computers_get_no_answer_without_tls(shared_server: Served, other_url: str) -> None:
    for url in (other_url, *shared_server.lan):
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"{url.replace('https', 'http')}/health", trust_env=False)


def test_a_client_trusts_the_certificate_by_its_environment(shared_server: Served, other_url: str) -> None:
    """The variables are those that docs/clients.md names for clients in Python and Node.js."""
    certificate = str(shared_server.home / "state" / "certificate.pem")
    script = "import sys, httpx; print(httpx.get(sys.argv[1] + '/v1/models').status_code)"
    python = [sys.executable, "-c", script, other_url]
    result = subprocess.run(python, env=os.environ | {"SSL_CERT_FILE": certificate}, capture_output=True, text=True)
    assert result.stdout.strip() == "401", result.stderr
    if node := shutil.which("node"):
        script = "fetch(process.argv[1] + '/v1/models').then(reply => console.log(reply.status))"
        environment = os.environ | {"NODE_EXTRA_CA_CERTS": certificate}
        result = subprocess.run([node, "-e", script, other_url], env=environment, capture_output=True, text=True)
        assert result.stdout.strip() == "401", result.stderr


@pytest.mark.parametrize(
    ("name", "shared", "alone"),
    [
        (socket.gethostname(), 401, 421),
        (f"{socket.gethostname().partition('.')[0].upper()}.local", 401, 421),
        ("host.docker.internal", 401, 401),
        ("192.168.77.7", 401, 401),
        ("evil.example", 421, 421),
    ],
)
def test_a_server_accepts_only_names_that_no_site_can_point_to_it(
    shared_server: Served, demo_server: Served, name: str, shared: int, alone: int
) -> None:
    for server, expected in ((shared_server, shared), (demo_server, alone)):
        host = f"{name}:{server.url.rpartition(':')[2]}"
        assert httpx.get(f"{server.url}/v1/models", headers={"Host": host}, trust_env=False).status_code == expected


def test_status_reports_sharing(shared_server: Served) -> None:
    code, result = in_terminal("status", home=shared_server.home)
    assert code == 0
    assert "shared with the network" in result
    certificate = (shared_server.home / "state" / "certificate.pem").read_text()
    fingerprint = hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate)).digest().hex(":").upper()
    assert fingerprint in result
    code, result = in_terminal("status", "--json", home=shared_server.home)
    (server,) = json.loads(result)
    assert (server["encrypted"], server["fingerprint"]) == (True, fingerprint)


def test_sharing_without_tls_needs_an_option(tmp_path: Path) -> None:
    for words in (["--no-tls"], ["--lan", "--direct"]):
        code, result = in_terminal("serve", "demo", *words, home=tmp_path / "home")
        assert (code, "--no-tls" in result) == (1, True)
    with serve(tmp_path / "home", "--lan", "--no-tls") as server:
        for url in server.lan:
            assert httpx.get(f"{url}/v1/models", trust_env=False).status_code == 401
            assert url.startswith("http://")
        assert not (server.home / "state" / "certificate.pem").exists()


async def test_the_next_start_is_not_shared(demo_model: Path) -> None:
    assert claim_endpoint(None, shared=True).host == "0.0.0.0"
    again = claim_endpoint(None)
    assert again.host == "127.0.0.1"
    launch = await prepare_launch(ServeOptions(model=demo_model, built_in=True), again)
    arguments = list(launch.command.arguments)
    assert arguments[arguments.index("--host") + 1] == "127.0.0.1"
    assert launch.command.environment["LLAMA_API_KEY"] == again.api_key


async def test_a_shared_server_requires_a_key_and_refuses_web_pages(demo_model: Path) -> None:
    launch = await prepare_launch(
        ServeOptions(model=demo_model, built_in=True), Endpoint(20_001, "k" * 43, shared=True)
    )
    arguments = list(launch.command.arguments)
    assert arguments[arguments.index("--host") + 1] == "0.0.0.0"
    assert arguments[arguments.index("--cors-origins") + 1] == "localhost"
    assert launch.command.environment["LLAMA_API_KEY"] == "k" * 43


@pytest.mark.parametrize("word", ["--host", "--host=0.0.0.0", "--api-key", "--api-key-file=x", "--api_key"])
def test_extra_arguments_cannot_share_the_server(word: str) -> None:
    with pytest.raises(BadOption):
        check_options(ServeOptions(model=Path("m"), extra=(word,)))


def test_a_port_in_use_on_another_address_cannot_be_shared() -> None:
    port = next(port for port in range(22_000, 30_000) if is_port_free(port))  # below the ports that the system assigns
    with socket.create_server(("127.0.0.2", port)):
        assert is_port_free(port)
        assert not is_port_free(port, "0.0.0.0")
        with pytest.raises(PortBusy):
            claim_endpoint(port, shared=True)


@pytest.mark.parametrize(
    ("system", "wsl", "mirrored", "words"),
    [
        ("windows", None, False, ["New-NetFirewallRule", "-LocalPort 20001", "-Profile Private"]),
        ("linux", 2, False, ["networkingMode=mirrored", "portproxy", "connectport=20001", "New-NetFirewallRule"]),
        ("linux", 2, True, ["New-NetFirewallHyperVRule", "-LocalPorts 20001"]),
        ("linux", 1, False, ["New-NetFirewallRule"]),
    ],
)
def test_the_hint_opens_the_port_in_the_firewall(
    system: str, wsl: int | None, mirrored: bool, words: list[str]
) -> None:
    hint = firewall_hint(20_001, system=system, wsl=wsl, wsl_mirrored=mirrored)
    assert all(word in hint for word in words)
    assert firewall_hint(20_001, system="linux", wsl=None) == ""
