"""API keys are in the places that need them, and in no others."""

import json
import logging
import os
import subprocess
import sys
import traceback
from pathlib import Path

import httpx
import psutil
import pytest
from pydantic import ValidationError

from launcher.base.errors import FolderNotOurs
from launcher.base.files import make_private_folder, read_private_file
from launcher.engine.environment import engine_environment
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server import registry
from launcher.engine.server.client import EngineClient
from launcher.engine.server.endpoint import Endpoint, _KeptEndpoints, claim_endpoint
from launcher.engine.server.launch import prepare_launch
from launcher.engine.server.registry import ServerEntry
from tests.security.conftest import NOBODY, Served, as_another_user, in_terminal

KEY = "k" * 43


def test_a_key_has_256_random_bits() -> None:
    keys: dict[int, str] = {}
    while len(keys) < 20:  # each endpoint gets a free port
        endpoint = claim_endpoint(None, taken=frozenset(keys))
        keys[endpoint.port] = endpoint.api_key
    assert len(set(keys.values())) == 20
    assert all(len(key) == 43 for key in keys.values())  # 32 bytes in base64url


def test_no_command_line_of_a_process_contains_the_key(demo_server: Served) -> None:
    ours = psutil.Process(demo_server.launcher_pid)
    processes = [ours, *ours.children(recursive=True)]
    assert demo_server.pid in [process.pid for process in processes], "the engine is among them"
    for process in processes:
        assert demo_server.api_key not in " ".join(process.cmdline())
    assert len(engine_key(demo_server)) == 43, "the engine's own goes by environment"


def test_key_and_port_of_the_engine_are_not_in_any_answer(demo_server: Served) -> None:
    (port,) = {
        each.laddr.port
        for each in psutil.Process(demo_server.pid).net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    }
    assert demo_server.api_key != engine_key(demo_server)
    headers = {"Authorization": f"Bearer {demo_server.api_key}"}
    with httpx.Client(base_url=demo_server.url, headers=headers, trust_env=False, timeout=60) as client:
        answers = [client.get(path) for path in ("/props", "/slots", "/metrics", "/v1/models", "/health", "/nowhere")]
        question = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
        for body in (question, {**question, "stream": True}, {"messages": 1}, {"stream": True}):
            answers.append(client.post("/v1/chat/completions", json=body))  # noqa: PERF401 -- a loop reads better
        for path in ("/tokenize", "/apply-template", "/v1/embeddings", "/v1/messages", "/props"):
            answers.append(client.post(path, json={"content": "a", "messages": []}))  # noqa: PERF401
    assert {200, 404, 405} <= {answer.status_code for answer in answers}
    for answer in answers:
        shown = f"{answer.headers} {answer.text}"
        assert engine_key(demo_server) not in shown
        assert f":{port}" not in shown
    assert httpx.get(f"http://127.0.0.1:{port}/v1/models", headers=headers, trust_env=False).status_code == 401


def engine_key(served: Served) -> str:
    return psutil.Process(served.pid).environ()["LLAMA_API_KEY"]


def test_no_log_and_cache_contains_the_key(demo_server: Served) -> None:
    holders = [
        path
        for path in demo_server.home.rglob("*")
        if path.is_file() and demo_server.api_key.encode() in path.read_bytes()
    ]
    port = demo_server.url.rpartition(":")[2]
    assert sorted(path.name for path in holders) == ["endpoints.json", "endpoints.json.copy", f"server-{port}.json"]
    assert list(demo_server.home.rglob("*.log")), "there is a log that could hold it"


@pytest.mark.parametrize(
    "command",
    [["status"], ["logs"], ["doctor", "--json"], ["models", "list"], ["export", "compose"], ["export", "curl"]],
)
def test_commands_print_the_key_on_request_only(demo_server: Served, command: list[str]) -> None:
    code, result = in_terminal(*command, home=demo_server.home)
    assert demo_server.api_key not in result
    assert result.strip()
    assert "Traceback" not in result
    assert code in (0, 1)


def test_an_error_message_does_not_contain_the_key(demo_server: Served) -> None:
    code, result = in_terminal("chat", "hello", "--max-tokens", "-7", "--temperature", "1e9", home=demo_server.home)
    assert demo_server.api_key not in result
    assert code in (0, 1)


async def test_objects_with_the_key_do_not_show_it(demo_model: Path, tmp_path: Path) -> None:
    """The repr of a value can appear in logs and crash reports."""
    endpoint = Endpoint(20_001, KEY)
    entry = ServerEntry(url="u", port=1, api_key=KEY, pid=1, created_s=0.0, models=(registry.ServedModel(model="m"),))
    launch = await prepare_launch(ServeOptions(model=demo_model, built_in=True), endpoint)
    async with EngineClient(endpoint.url, KEY) as client:
        shown = repr([endpoint, entry, launch, launch.command, client, vars(client), registry.Registration(entry)])
        shown += repr(vars(client._http)).replace(repr(f"Bearer {KEY}"), "")
    kept = _KeptEndpoints.model_validate({"endpoints": [{"port": 1, "api_key": KEY, "named_keys": {"a": KEY}}]})
    shown += repr(kept.endpoints[0].to_endpoint())
    assert KEY not in shown + repr(kept) + str(kept) + str(entry)


@pytest.mark.parametrize("model", [ServerEntry, _KeptEndpoints])
def test_an_error_about_a_damaged_file_does_not_quote_it(model: type) -> None:
    damaged = json.dumps({"endpoints": [{"port": "x", "api_key": f"{KEY} !"}], "api_key": [KEY]})
    with pytest.raises(ValidationError) as raised:
        model.model_validate_json(damaged)  # type: ignore[attr-defined]
    assert KEY not in str(raised.value)
    assert KEY not in "".join(traceback.format_exception(raised.value))


class TestFolders:
    def test_files_of_a_server_are_private_for_every_umask(self, demo_server: Served) -> None:
        state = demo_server.home / "state"
        open_to_others = [path for path in (state, *state.rglob("*")) if path.stat().st_mode & 0o077]
        assert not [path for path in open_to_others if not path.is_symlink()]
        assert state.stat().st_mode & 0o777 == 0o700

    def test_files_are_private_without_the_umask_of_the_command(self, tmp_path: Path) -> None:
        script = (
            "import os; os.umask(0); from launcher.engine.server import registry;"
            "endpoint, mine = registry.register_server(None, registry.ServedModel(model='m', engine='e', draft=0))"
        )
        subprocess.run(
            [sys.executable, "-c", script], check=True, env=os.environ | {"MTP_LAUNCHER_HOME": str(tmp_path)}
        )
        state = tmp_path / "state"
        assert state.stat().st_mode & 0o777 == 0o700
        assert (state / "endpoints.json").stat().st_mode & 0o777 == 0o600

    def test_wrong_permissions_are_corrected_and_reported(self, home: Path, caplog: pytest.LogCaptureFixture) -> None:
        before = claim_endpoint(None)
        state, keys = home / "state", home / "state" / "endpoints.json"
        state.chmod(0o755)
        keys.chmod(0o644)
        with caplog.at_level(logging.WARNING):
            assert claim_endpoint(None) == before
        assert (state.stat().st_mode & 0o777, keys.stat().st_mode & 0o777) == (0o700, 0o600)
        assert caplog.messages == [
            f"Other users could enter {state}. Now they cannot.",
            f"Other users could read {keys}. Now they cannot.",
        ]
        caplog.clear()
        claim_endpoint(None)
        assert not caplog.messages

    def test_a_folder_of_another_user_gets_no_keys(self, tmp_path: Path) -> None:
        """The owner of a folder could exchange its files; root is allowed, as in containers with a mounted home."""
        theirs = tmp_path / "theirs"
        theirs.mkdir(mode=0o777)
        theirs.chmod(0o777)
        if os.geteuid() == 0:
            make_private_folder(theirs)
            os.chown(theirs, 1, 1)
            uids = (NOBODY, 1)
        else:
            uids = (os.geteuid() + 1, os.geteuid())
        script = (
            "import os, sys; from pathlib import Path; from launcher.base.files import make_private_folder\n"
            f"os.geteuid = lambda: {uids[0]}\n"
            "try: make_private_folder(Path(sys.argv[1]))\n"
            "except Exception as error: print(type(error).__name__)\n"
        )
        result = subprocess.run([sys.executable, "-c", script, str(theirs)], capture_output=True, text=True, check=True)
        assert result.stdout.strip() == FolderNotOurs.__name__

    def test_a_file_system_without_owners_is_reported_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """On a Windows drive in WSL, for example, chmod does nothing."""
        file = tmp_path / "keys"
        file.write_bytes(b"k")
        file.chmod(0o644)
        monkeypatch.setattr(Path, "chmod", lambda *_args, **_kw: None)
        assert read_private_file(file) == read_private_file(file) == b"k"
        assert caplog.messages == [f"Other users can read {file}, and its file system does not keep them out."]


class TestAnotherUser:
    """A process of the user nobody, without our rights. Everybody may enter the folder above the home."""

    def test_another_user_cannot_read_key_and_log(self, demo_server: Served) -> None:
        (demo_server.home.parent / "open").write_text("canary")
        (demo_server.home.parent / "open").chmod(0o644)
        secrets = [path for path in (demo_server.home / "state").rglob("*") if path.is_file()]
        assert len(secrets) >= 3
        if os.geteuid() != 0:  # only root can act as another user; without root the file modes are checked
            assert not (demo_server.home / "state").stat().st_mode & 0o077
            return
        script = (
            "for path in sys.argv[1:]:\n"
            "    try: print(len(open(path, 'rb').read()))\n"
            "    except PermissionError: print('refused')\n"
        )
        result = as_another_user(script, str(demo_server.home.parent / "open"), *map(str, secrets)).split()
        assert result == ["6", *["refused"] * len(secrets)]

    def test_another_user_cannot_use_the_control_socket(self, demo_server: Served) -> None:
        port = demo_server.url.rpartition(":")[2]
        entry = json.loads(next(demo_server.home.rglob(f"server-{port}.json")).read_text())
        place = Path(entry["control"])
        assert place.is_socket()
        assert not place.stat().st_mode & 0o077
        if os.geteuid() == 0:
            script = (
                "line = socket.socket(socket.AF_UNIX)\n"
                "try: line.connect(sys.argv[1]); print('in')\n"
                "except PermissionError: print('refused')\n"
            )
            assert as_another_user(script, str(place)) == "refused"

    def test_another_user_gets_no_answer_without_the_key(self, demo_server: Served) -> None:
        script = (
            "for path in ('/v1/models', '/slots', '/props', '/metrics', '/health'):\n"
            "    try: print(urllib.request.urlopen(sys.argv[1] + path).status)\n"
            "    except urllib.error.HTTPError as error: print(error.code)\n"
        )
        if os.geteuid() != 0:
            script = "import sys, urllib.error, urllib.request\n" + script
            run = subprocess.run(
                [sys.executable, "-c", script, demo_server.url], capture_output=True, text=True, check=True
            )
            result = run.stdout.split()
        else:
            result = as_another_user(script, demo_server.url).split()
        assert result == ["401"] * 4 + ["200"]

    def test_another_user_cannot_read_the_environment_of_the_engine(self, demo_server: Served) -> None:
        environment = Path(f"/proc/{demo_server.pid}/environ")
        assert engine_key(demo_server).encode() in environment.read_bytes(), "it is there to be read, by us"
        if os.geteuid() == 0:
            script = "try: print(len(open(sys.argv[1], 'rb').read()))\nexcept PermissionError: print('refused')\n"
            assert as_another_user(script, str(environment)) == "refused"


SECRETS = (
    "HF_TOKEN HUGGING_FACE_HUB_TOKEN GITHUB_TOKEN GH_TOKEN NPM_TOKEN AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY"
    " AWS_SESSION_TOKEN OPENAI_API_KEY ANTHROPIC_API_KEY AZURE_CLIENT_SECRET GOOGLE_APPLICATION_CREDENTIALS"
    " MYSQL_PWD PGPASSWORD DATABASE_URL REDIS_URL SSH_AUTH_SOCK KUBECONFIG HTTPS_PROXY https_proxy PIP_INDEX_URL"
    " SESSION_SECRET MY_PASSWORD LLAMA_API_KEY LLAMA_ARG_HOST"
)
NEEDED = (
    "PATH HOME LD_LIBRARY_PATH LD_PRELOAD CUDA_VISIBLE_DEVICES GGML_CUDA_FORCE_MMQ HSA_OVERRIDE_GFX_VERSION"
    " VK_ICD_FILENAMES XDG_RUNTIME_DIR WSL_DISTRO_NAME SYSTEMROOT TEMP OMP_NUM_THREADS __GL_SHADER_DISK_CACHE_PATH"
    " MESA_SHADER_CACHE_DIR NVIDIA_VISIBLE_DEVICES PATHEXT COMSPEC DRI_PRIME ONEAPI_DEVICE_SELECTOR PWD"
)


@pytest.mark.parametrize("name", SECRETS.split())
def test_secrets_in_the_environment_are_not_passed_to_the_engine(name: str) -> None:
    assert "theirs" not in engine_environment(api_key=KEY, inherited={name: "theirs"}).values()


@pytest.mark.parametrize("name", NEEDED.split())
def test_variables_for_gpus_and_systems_are_passed(name: str) -> None:
    assert engine_environment(inherited={name: "1"})[name] == "1"


def test_a_running_engine_has_no_foreign_secrets(demo_server: Served) -> None:
    environment = psutil.Process(demo_server.pid).environ()
    assert not {"hf_theirs", "aws_theirs"} & set(environment.values())
    assert environment["PATH"]
