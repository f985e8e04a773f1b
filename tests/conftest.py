"""Fixtures of all tests: a home for each, the demo model, engines, and a check that nothing is left running."""

import gc
import importlib.util
import os

from tests.forked import OWN_HOME

# For numpy and the built-in engine. Threads of the engine wait for each other without sleeping: with as many programs
# as processors, a reply of the demo takes ten times as long with two threads as with one.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_THREAD_LIMIT", "1")
# Modules that load the catalogue while tests are collected keep its copy there, not in the user's own home.
os.environ.setdefault("MTP_LAUNCHER_HOME", str(OWN_HOME))

import itertools
import json
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import psutil
import pytest
from hypothesis import settings

from launcher.base.files import write_atomically
from launcher.base.paths import HOME_VARIABLE
from launcher.engine.demo import unpack_demo_model
from tests import forked
from tests.remembered import remember_answers
from tools.fault_matrix.server import FileServer, run_file_server

if TYPE_CHECKING:
    from tests.updates.published import Release

# A test run in the background of a script inherits SIGINT as ignored, and so would every program that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests depend neither on the speed of the machine nor on chance: --hypothesis-profile=default tries other examples.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")
remember_answers()

_NUMBERS = itertools.count()
FAKES = Path(__file__).parent / "fakes"
QUICK_ROOMS = ("base", "conversations", "export", "fetch", "machine", "updates")
_GARBAGE_LIMIT = 100_000
"""Number of objects that may wait for a garbage collection."""
BUILT_IN = Path(__file__).parents[1] / "launcher" / "engine" / "builtin.py"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option of `just golden`."""
    parser.addoption("--write-golden", action="store_true", help="write what commands print into tests/cli/golden")


def pytest_configure(config: pytest.Config) -> None:
    """Compile the translations of this tree, once for all workers; make programs end with their terminal.

    Raises UsageError for a path that does not exist: with several workers pytest itself says only "no tests ran".
    """
    folder = config.invocation_params.dir
    if missing := [each for each in config.args if not (folder / each.partition("::")[0]).exists()]:
        raise pytest.UsageError(f"There is no {', '.join(missing)}.")
    if sys.platform != "win32":
        # Under nohup, SIGHUP is ignored, also by all programs that tests start.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # An installed program has compiled translations, and no Babel (.ci/windows-setup runs tests against one).
    if not hasattr(config, "workerinput") and importlib.util.find_spec("babel"):
        from tools.translations import TRANSLATED, mo_bytes, mo_path, read_catalog

        for language in TRANSLATED:
            write_atomically(mo_path(language), mo_bytes(read_catalog(language)))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases beyond the n of `cases(n)` as `thorough`; then sort the tests."""
    cases: Counter[str] = Counter()
    for item in items:
        if marker := item.get_closest_marker("cases"):
            test = item.nodeid.partition("[")[0]
            cases[test] += 1
            if cases[test] > marker.args[0]:
                item.add_marker(pytest.mark.thorough)
    items.sort(key=lambda item: item.path.parent.name in QUICK_ROOMS)


def pytest_collection() -> None:
    """Switch the garbage collector off: a thread other than Qt's that destroys a widget could wait for Qt for ever.

    The window does so, too. Collecting tests takes a third less time without it.
    """
    gc.disable()


def pytest_collection_finish() -> None:
    """Exclude imported modules and collected tests from garbage collection."""
    gc.collect()
    gc.freeze()


def pytest_runtest_logfinish() -> None:
    """Collect garbage between tests, in this thread."""
    if gc.get_count()[0] > _GARBAGE_LIMIT:
        gc.collect()


@pytest.fixture(autouse=True, scope="session")
def programs_end_with_a_failure() -> Iterator[None]:
    """A test that fails beside a program must not wait for that program's end, which `with Popen(...)` does."""
    wait = subprocess.Popen.__exit__

    def end(program: "subprocess.Popen[Any]", kind: type[BaseException] | None, *rest: Any) -> None:  # noqa: ANN401
        if kind is not None:
            program.kill()
        wait(program, kind, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__exit__", end)
        yield


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As pytest's own, without its link to the newest folder of each name, which takes a millisecond a test."""
    name = re.sub(r"\W", "_", request.node.name)[:26]
    return tmp_path_factory.mktemp(f"{name}{next(_NUMBERS)}", numbered=False)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds everything the program writes."""
    folder = tmp_path / "home"
    monkeypatch.setenv(HOME_VARIABLE, str(folder))
    # No window asks the real project for newer versions.
    monkeypatch.setenv("MTP_LAUNCHER_RELEASES", "http://127.0.0.1:1")
    monkeypatch.setenv("MTP_LAUNCHER_RELEASE_KEY", "a key that signs nothing")
    monkeypatch.setenv("MTP_LAUNCHER_IGNORE_LOAD", "1")  # other tests run at the same time
    for name in list(os.environ):
        foreign = name.startswith(("LLAMA_", "FAKE_", "OLLAMA_", "JAN_"))
        if foreign or name == "COLUMNS":  # workers of pytest-xdist set it
            monkeypatch.delenv(name)
    return folder


def _find_descendants() -> set[int]:
    """Return the processes below this one. On Linux by lists of the kernel's: psutil reads every process there is."""
    if sys.platform != "linux":
        return {child.pid for child in psutil.Process().children(recursive=True)}
    found: set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        threads = f"/proc/{waiting.pop()}/task"
        with suppress(OSError):  # the process has ended
            for thread in os.listdir(threads):  # noqa: PTH208 -- pathlib takes four times as long, three times a test
                children = f"{threads}/{thread}/children"
                with suppress(OSError), open(children, "rb") as file:  # noqa: PTH123 -- the thread may have ended
                    waiting += map(int, file.read().split())
        found.update(waiting)
    return found


@pytest.fixture(autouse=True)
def nothing_left_running() -> Iterator[None]:
    """Fail a test that leaves a process running."""
    before = _find_descendants() | _find_descendants()  # the kernel's list may miss a process while another one ends
    yield
    left = []
    for pid in _find_descendants() - before:
        with suppress(psutil.NoSuchProcess):
            left.append(psutil.Process(pid))
    _, alive = psutil.wait_procs(left, timeout=120)
    names = [f"{child.pid} {shlex.join(child.cmdline())}" for child in alive if child.is_running()]
    for child in alive:
        child.kill()
    assert not names, f"left running: {names}"


@pytest.fixture(scope="session")
def forked_commands() -> Iterator[None]:
    """Provide the process that the commands of tests.forked are forked from."""
    with forked.prepared():
        yield


@pytest.fixture
def forked_sessions(forked_commands: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the server process, too, which saves most of its processor time."""
    monkeypatch.setattr("launcher.app.serving.server_process.Popen", forked.popen)


@pytest.fixture(scope="session")
def no_driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with an NVML library that cannot be loaded. The process that commands are forked from finds it there."""
    folder = tmp_path_factory.mktemp("no-driver")
    (folder / "libnvidia-ml.so.1").touch()
    with forked.prepared(LD_LIBRARY_PATH=str(folder)):
        yield folder


@pytest.fixture(scope="session")
def demo_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model, unpacked once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME_VARIABLE, str(tmp_path_factory.mktemp("demo")))
        return unpack_demo_model()


@pytest.fixture(scope="session")
def headless_model(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model without its MTP head."""
    from tests.models.tiny_models import write_headless

    path = tmp_path_factory.mktemp("headless") / "headless.gguf"
    write_headless(demo_model, path)
    return path


@pytest.fixture(scope="session")
def embedding_model(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model with a header that makes it an embedding model: a text's vector is that of its last token."""
    from tests.models.tiny_models import write_pooled

    path = tmp_path_factory.mktemp("embedding") / "embedding.gguf"
    write_pooled(demo_model, path)
    return path


@pytest.fixture(scope="session")
def reranker(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model with a header that makes it a reranker."""
    from tests.models.tiny_models import PoolingType, write_pooled

    path = tmp_path_factory.mktemp("reranker") / "reranker.gguf"
    write_pooled(demo_model, path, PoolingType.RANK)
    return path


def _program(path: Path, *command: str) -> Path:
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def fake_engine(tmp_path: Path) -> Path:
    """The fake llama-server as a program."""
    return _program(tmp_path / "fake-llama-server", sys.executable, "-S", str(FAKES / "llama_server.py"))


@pytest.fixture
def real_engine(tmp_path: Path) -> Path:
    """The built-in engine as a llama-server program of its own, as one on PATH would be."""
    return _program(tmp_path / "llama-server", sys.executable, "-P", str(BUILT_IN))


@pytest.fixture
def engine_without_checkpoints(tmp_path: Path) -> Path:
    """The built-in engine as a program whose slots have no checkpoints."""
    command = (sys.executable, "-P", str(BUILT_IN), "--ctx-checkpoints", "0")
    return _program(tmp_path / "llama-server", *command)


@dataclass(frozen=True)
class Hub:
    """The fake hub. Files OWNER/NAME/FILE of `folder` are in its repositories."""

    url: str
    store: str
    folder: Path

    def with_faults(self, *faults: str) -> str:
        """Return an endpoint with these faults."""
        return f"{self.url}/fault/{','.join(faults)}"

    def requests(self) -> list[dict[str, Any]]:
        """Return the requests since the last call: server, method, target and headers."""
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{self.url}/requests") as reply:
            return list(json.load(reply))


@pytest.fixture(scope="session")
def running_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """The fake hub as a program."""
    folder = tmp_path_factory.mktemp("hub")
    command = [sys.executable, str(FAKES / "hub.py"), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin
        assert program.stdout
        addresses = json.loads(program.stdout.readline())
        yield Hub(addresses["hub"], addresses["store"], folder)
        program.stdin.close()


@pytest.fixture
def hub(running_hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The fake hub in place of the real one, for a user who has no token and no proxy."""
    for name in list(os.environ):
        if name.startswith("HF_") or name.upper().endswith("_PROXY"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_ENDPOINT", running_hub.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    running_hub.requests()
    return running_hub


@dataclass(frozen=True)
class ReleaseServer:
    """The fake GitHub with llama.cpp's releases; the engines in its archives run `command`."""

    api: str
    store: str
    command: str

    def with_faults(self, *faults: str) -> str:
        """Return an address of the API with these faults."""
        return f"{self.api}/fault/{','.join(faults)}"

    def publish(self, tag: str, *builds: str, **details: object) -> None:
        """Publish a release: see tests/fakes/releases.py."""
        self._post("/publish", {"tag": tag, "builds": builds, "command": self.command, **details})

    def forget(self) -> None:
        """Remove all releases."""
        self._post("/forget", {})

    def requests(self) -> list[dict[str, Any]]:
        """Return the requests since the last call: server, target and headers."""
        with self._opened(f"{self.api}/requests") as reply:
            return list(json.load(reply))

    def _post(self, path: str, data: object) -> None:
        with self._opened(urllib.request.Request(self.api + path, json.dumps(data).encode())):
            pass

    @staticmethod
    def _opened(request: str | urllib.request.Request) -> AbstractContextManager[IO[bytes]]:
        opened = urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request)
        return cast("AbstractContextManager[IO[bytes]]", opened)


@pytest.fixture(scope="session")
def running_releases() -> Iterator[ReleaseServer]:
    """The fake GitHub as a program."""
    with subprocess.Popen(
        [sys.executable, str(FAKES / "releases.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdin
        assert program.stdout
        addresses = json.loads(program.stdout.readline())
        command = shlex.join([sys.executable, "-P", str(BUILT_IN)])
        yield ReleaseServer(addresses["api"], addresses["store"], command)
        program.stdin.close()


@pytest.fixture
def releases(running_releases: ReleaseServer, monkeypatch: pytest.MonkeyPatch) -> ReleaseServer:
    """The fake GitHub in place of the real one, without releases, for a user who has no token and no proxy."""
    for name in list(os.environ):
        if name in ("GITHUB_TOKEN", "GH_TOKEN") or name.upper().endswith("_PROXY"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("MTP_LAUNCHER_GITHUB_API", running_releases.api)
    running_releases.forget()
    running_releases.requests()
    return running_releases


@pytest.fixture(scope="session")
def release_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileServer]:
    """The fake file server as a program, for releases of this program."""
    with run_file_server(tmp_path_factory.mktemp("release")) as server:
        yield server


@pytest.fixture
def release(release_server: FileServer, monkeypatch: pytest.MonkeyPatch) -> "Release":
    """A published version 7.0.0 of this program, downloaded without the proxies of this computer."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    from tests.updates.published import Release

    return Release(release_server, monkeypatch)


@pytest.fixture
def by_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make this process look like an installation by install.sh; return its folder."""
    folder = tmp_path / "mtp-launcher"
    prefix = folder / "0.1.0-0123abcd" / "tools" / "mtp-launcher"
    prefix.mkdir(parents=True)
    (prefix / "uv-receipt.toml").touch()
    (folder / "install.sh").touch()
    monkeypatch.setattr(sys, "prefix", str(prefix))
    return folder
