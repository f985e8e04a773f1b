"""The fake file server for transfers."""

import asyncio
import hashlib
import itertools
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.base.progress import Progress
from launcher.fetch.transfer import DownloadSource, TransferSettings, download_file
from tools.fault_matrix.server import FileServer, run_file_server


@pytest.fixture(scope="session")
def file_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileServer]:
    """The fake file server as a program."""
    with run_file_server(tmp_path_factory.mktemp("served")) as server:
        yield server


QUICK = TransferSettings(attempts=3, backoff_s=0.001, stall_s=5.0, reserve_bytes=0, settle_s=0.02)

_RUNS = itertools.count()


@pytest.fixture
def run_name() -> str:
    """A unique word, under which the server counts this test's requests."""
    return f"run{next(_RUNS)}"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use no proxy of this computer."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


_CONTENT = random.Random(2).randbytes(1_000_000)


class FileOnServer:
    """A file on the fake server, and its target on the disk."""

    content = _CONTENT
    sha256 = hashlib.sha256(_CONTENT).hexdigest()

    def __init__(self, server: FileServer, run: str, folder: Path) -> None:
        self.server, self.run = server, run
        self.target = folder / "model.gguf"

    def source(self, faults: str = "none", *, name: str = "model.gguf", **known: object) -> DownloadSource:
        return replace(DownloadSource(self.server.url(self.run, faults, name), len(self.content), self.sha256), **known)  # type: ignore[arg-type]

    async def start_and_interrupt(self, source: DownloadSource, after: int = 1) -> None:
        """Cancel a fetch once that many bytes are there."""
        enough = asyncio.Event()

        def watch(progress: Progress) -> None:
            if progress.done_bytes >= after:
                enough.set()

        task = asyncio.create_task(
            download_file(source, self.target, settings=TransferSettings(reserve_bytes=0), on_progress=watch)
        )
        await asyncio.wait_for(enough.wait(), 120)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    @property
    def requests(self) -> list[dict[str, str]]:
        return self.server.read_record(self.run).requests

    @property
    def other_names(self) -> list[str]:
        return sorted(path.name for path in self.target.parent.iterdir() if path != self.target)


@pytest.fixture
def remote_file(file_server: FileServer, run_name: str, tmp_path: Path) -> FileOnServer:
    (file_server.folder / "model.gguf").write_bytes(FileOnServer.content)
    (file_server.folder / "empty").write_bytes(b"")
    folder = tmp_path / "models"
    folder.mkdir()
    return FileOnServer(file_server, run_name, folder)
