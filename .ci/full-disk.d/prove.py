"""Proves that a download to a disk of 8 MiB reports a lack of space, at once or later, and resumes afterwards."""
# ruff: noqa: ASYNC240, D103, S101, T201

import asyncio
import errno
import hashlib
import os
import sys
import tempfile
from pathlib import Path

from launcher.base.errors import DiskFull
from launcher.base.progress import Progress
from launcher.fetch.partial_file import count_unfinished_bytes, free_bytes
from launcher.fetch.transfer import DownloadSource, TransferSettings, download_file
from tools.fault_matrix.server import run_file_server

DISK = Path(sys.argv[1])
TARGET = DISK / "model.gguf"
SETTINGS = TransferSettings(reserve_bytes=0)


def fill(path: Path) -> None:
    """Fill the disk to the last byte, as another program would."""
    try:
        with path.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


async def refused(source: DownloadSource, settings: TransferSettings, meanwhile: Path | None = None) -> str:
    """Download a file that needs more space than there is; return the error."""

    def watch(progress: Progress) -> None:
        if meanwhile is not None and progress.done_bytes > 1_000_000:
            fill(meanwhile)

    try:
        await download_file(source, TARGET, settings=settings, on_progress=watch)
    except DiskFull as error:
        return str(error)
    raise SystemExit("the download ended without an error, although the disk was full")


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder, run_file_server(Path(folder)) as server:
        large, fitting = os.urandom(16_000_000), os.urandom(6_000_000)
        (Path(folder) / "large").write_bytes(large)
        (Path(folder) / "fitting").write_bytes(fitting)
        print("too large:", await refused(DownloadSource(server.url("a", "none", "large"), len(large)), SETTINGS))
        assert not server.read_record("a").requests
        assert not list(DISK.iterdir())

        source = DownloadSource(
            server.url("b", "slow=5000000", "fitting"), len(fitting), hashlib.sha256(fitting).hexdigest()
        )
        other = DISK / "other"
        print("filled meanwhile:", await refused(source, SETTINGS, other))
        waiting = count_unfinished_bytes(TARGET)
        assert waiting
        assert free_bytes(DISK) == 0
        print("still full:", await refused(source, SETTINGS))
        assert count_unfinished_bytes(TARGET) == waiting
        other.unlink()
        got = await download_file(source, TARGET, settings=SETTINGS)
        assert TARGET.read_bytes() == fitting
        assert got.resumed_bytes == waiting
        print(f"{got.resumed_bytes:,} bytes were kept, {got.received_bytes:,} came when there was room again")


asyncio.run(main())
