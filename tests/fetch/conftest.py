"""The fake file server for transfers."""

import itertools
from collections.abc import Iterator

import pytest

from tools.fault_matrix.server import FileServer, serving


@pytest.fixture(scope="session")
def file_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileServer]:
    """The fake file server as a program."""
    with serving(tmp_path_factory.mktemp("served")) as server:
        yield server


_RUNS = itertools.count()


@pytest.fixture
def run_name() -> str:
    """A word of the test's own, under which the server counts."""
    return f"run{next(_RUNS)}"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy of this computer stands between."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
