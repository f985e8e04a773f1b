"""Ports and keys: stored and claimed. Servers: registered and found."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from launcher.base.errors import BadOption, HomeUnusable, PortBusy, ServerNotFound, SeveralServers
from launcher.base.paths import runtime_dir
from launcher.engine.server import registry
from launcher.engine.server.endpoint import Endpoint, claim_endpoint, is_port_free


def register(port: int | None = None) -> tuple[Endpoint, registry.Registration]:
    return registry.register_server(port, registry.ServedModel(model="demo", engine="built-in", draft=2))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def test_port_and_key_are_the_same_each_time() -> None:
    assert claim_endpoint(None) == claim_endpoint(None)


def test_each_port_has_its_own_permanent_key() -> None:
    first, other = claim_endpoint(None), claim_endpoint(free_port())
    assert first.api_key != other.api_key
    assert len(first.api_key) >= 32
    assert claim_endpoint(other.port) == other


def test_a_default_port_in_use_is_skipped() -> None:
    usual = claim_endpoint(None)
    with socket.create_server(("127.0.0.1", usual.port)):
        assert claim_endpoint(None).port != usual.port
        assert claim_endpoint(None).in_place_of == usual.port
        # The usual port belongs to another server of ours.
        assert claim_endpoint(None, taken=frozenset({usual.port})).in_place_of is None
    assert claim_endpoint(None) == usual
    assert claim_endpoint(None).in_place_of is None


def test_a_requested_port_in_use_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert not is_port_free(port)
        with pytest.raises(PortBusy, match=str(port)):
            claim_endpoint(port)


def test_the_error_about_a_port_names_another_server_of_ours() -> None:
    endpoint, registration = register()
    with pytest.raises(PortBusy, match="another server of yours"):
        register(endpoint.port)
    registration.remove()


@pytest.mark.parametrize("port", [0, -1, 65_536])
def test_an_invalid_port_is_an_error(port: int) -> None:
    with pytest.raises(BadOption, match="not a port"):
        claim_endpoint(port)


def test_a_privileged_port_is_not_reported_as_in_use() -> None:
    """Run in a process without root's rights; some systems (containers) allow such ports to everybody."""
    script = (
        "import ctypes, struct; from launcher.engine.server.endpoint import claim_endpoint\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "assert libc.capset(struct.pack('Ii', 0x20080522, 0), struct.pack('6I', *[0] * 6)) == 0\n"
        "try: print(claim_endpoint(1023).port)\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    open_to_all = int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) <= 1023
    refused = (
        "BadOption Port 1023 needs administrator rights, as ports under 1024 do. Choose a port of 1024 or "
        "higher with --port, or omit --port."
    )
    assert result == ("1023" if open_to_all else refused)


def test_keys_are_readable_by_their_owner_only(home: Path) -> None:
    claim_endpoint(None)
    assert (home / "state" / "endpoints.json").stat().st_mode & 0o077 == 0
    _, registration = register()
    (entry,) = runtime_dir().glob("server-*.json")
    assert entry.stat().st_mode & 0o077 == 0
    registration.remove()


@pytest.mark.parametrize("damage", ["{", '{"endpoints": [{"port": 99999999, "api_key": "x"}]}', "\x00"])
def test_a_damaged_file_is_renamed(home: Path, damage: str) -> None:
    (home / "state").mkdir(parents=True)
    (home / "state" / "endpoints.json").write_text(damage)
    assert claim_endpoint(None) == claim_endpoint(None)
    assert (home / "state" / "endpoints.json.bad").read_text() == damage


def test_port_and_key_are_restored_after_damage(home: Path) -> None:
    before = claim_endpoint(None)
    (home / "state" / "endpoints.json").write_text("{")
    assert claim_endpoint(None) == before
    assert (home / "state" / "endpoints.json.bad").read_text() == "{"


def test_two_servers_never_share_a_port() -> None:
    first, mine = register()
    second, other = register()
    assert first.port != second.port
    with pytest.raises(PortBusy):
        register(first.port)
    mine.remove()
    other.remove()
    assert registry.list_entries() == ()


def test_a_registered_server_is_found_by_its_address() -> None:
    endpoint, registration = register()
    for url in (None, endpoint.url, f"{endpoint.url}/", f"{endpoint.url}/v1", f"http://localhost:{endpoint.port}/v1/"):
        assert registry.find_server(url).port == endpoint.port
    registration.update_first(state="ready", engine_pid=17)
    assert registration.wait_written(60)
    assert registry.find_server(None).first.engine_pid == 17
    registration.remove()


def test_no_and_several_matching_servers_are_reported() -> None:
    with pytest.raises(ServerNotFound, match="No server is running"):
        registry.find_server(None)
    first, mine = register()
    second, other = register()
    with pytest.raises(SeveralServers, match="2 servers are running") as raised:
        registry.find_server(None)
    assert "--url" in str(raised.value)
    assert registry.find_server(second.url).port == second.port
    with pytest.raises(ServerNotFound, match=r"runs at http://127\.0\.0\.1:1") as raised:
        registry.find_server("http://127.0.0.1:1")
    assert first.url in str(raised.value)
    mine.remove()
    other.remove()


def test_a_locked_list_blocks_no_change_of_an_entry() -> None:
    endpoint, registration = register()
    (path,) = runtime_dir().glob("server-*.json")
    with FileLock(runtime_dir() / "lock"):
        for number in range(1, 101):
            registration.update_first(engine_pid=number)
        assert registration.wait_written(60)
        assert json.loads(path.read_bytes())["engine_pid"] == 100
        registration.remove()
        assert not path.exists()
    registration.update_first(state="ready")
    assert registration.wait_written(60)
    assert registry.list_entries() == ()
    assert claim_endpoint(None) == endpoint


@pytest.mark.parametrize("lock", ["run/*/lock", "endpoints.lock"])
def test_a_locked_list_does_not_change_the_key(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lock: str
) -> None:
    usual, registration = register()
    registration.remove()
    (held,) = (home / "state").glob(lock)
    monkeypatch.setattr("launcher.engine.server.registry._LOCK_S", 0.05)
    monkeypatch.setattr("launcher.engine.server.endpoint._LOCK_S", 0.05)
    with FileLock(held), pytest.raises(HomeUnusable, match="Another instance of this program holds") as raised:
        register()
    assert "Ctrl-Z" in raised.value.hint
    assert caplog.text == ""
    assert list(runtime_dir().glob("server-*.json")) == []
    endpoint, registration = register()
    assert endpoint == usual
    registration.remove()


def test_the_entry_of_a_killed_launcher_is_removed() -> None:
    script = (
        "from launcher.engine.server import registry; import os;"
        "registry.register_server(None, registry.ServedModel(model='x', engine='y', draft=0)); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script], check=False, env=os.environ)
    assert len(list(runtime_dir().glob("server-*.json"))) == 1
    assert registry.list_entries() == ()
    assert list(runtime_dir().glob("server-*.json")) == []


def test_an_entry_with_a_reused_pid_is_removed() -> None:
    endpoint, _ = register()
    (path,) = runtime_dir().glob("server-*.json")
    entry = json.loads(path.read_text())
    path.write_text(json.dumps(entry | {"created_s": entry["created_s"] - 1_000}))
    assert registry.list_entries() == ()
    assert claim_endpoint(None) == endpoint


def test_an_unreadable_entry_is_renamed_with_its_content() -> None:
    _, registration = registry.register_server(None, registry.ServedModel(model="a", engine="b", draft=1))
    (runtime_dir() / "server-1.json" / "inner").mkdir(parents=True)
    assert len(registry.list_entries()) == 1
    assert (runtime_dir() / "server-1.json.bad" / "inner").is_dir()
    registration.remove()
