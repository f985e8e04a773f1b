"""One file from a server to the disk: resumable, verified, cancellable, as fast as the line or the disk."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from stat import S_ISREG

from launcher.base.errors import FileInTheWay
from launcher.base.net import host_of
from launcher.fetch import journal
from launcher.fetch.digest import sha256_of
from launcher.fetch.part import journal_path, part_path, unfinished
from launcher.fetch.transfer_files import claimed, writing_failed
from launcher.fetch.transfer_run import TICK_S, Transfer
from launcher.fetch.transfer_types import Fetched, Phase, Progress, Source, TransferSettings

__all__ = ["Fetched", "Phase", "Progress", "Source", "TransferSettings", "discard", "fetch", "unfinished"]


class _ListenerFailed(Exception):
    """What `on_progress` raised, which must not be taken for an error of the disk."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


async def fetch(
    source: Source,
    target: Path,
    *,
    settings: TransferSettings = TransferSettings(),  # noqa: B008 -- frozen
    on_progress: Callable[[Progress], None] | None = None,
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> Fetched:
    """Fetch `source` to `target`, verify it by size and SHA-256, and return what was done.

    Cancelling pauses: what has arrived stays beside the target (.part, and a journal), and the next fetch of the same
    file goes on from there. `on_progress` is called on the loop, 10 times a second at most; `pause` waits before
    another try. A target that is there already is returned when it is this file; nothing of the user's is overwritten.

    Raises Unreachable, Untrusted, Refused or RateLimited when the server does not give the file; DownloadBroken when it
    gave another one (kept as .bad); DiskFull; DownloadBusy when another process fetches to the same place; FileInTheWay
    when another file has the target's name; TargetUnusable when nothing can be written there; BadOption for what is no
    web address or a proxy that cannot be used.
    """

    def tell(progress: Progress) -> None:
        try:
            if on_progress is not None:
                on_progress(progress)
        except OSError as error:
            raise _ListenerFailed(error) from error

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with claimed(target):
            if await asyncio.to_thread(os.path.lexists, target):
                return await _found(source, target, tell)
            return await Transfer(source, target, settings, tell, pause).run()
    except _ListenerFailed as failed:
        raise failed.error from None
    except OSError as error:
        needed = max((source.bytes or 0) - (unfinished(target) or 0), 0)
        raise writing_failed(error, target, needed) from error


def discard(target: Path) -> None:
    """Delete what waits of a download that is given up. Raises DownloadBusy while it goes on."""
    if target.parent.is_dir():
        with claimed(target):
            part_path(target).unlink(missing_ok=True)
            journal.remove(journal_path(target))


async def _found(source: Source, target: Path, on_progress: Callable[[Progress], None]) -> Fetched:
    """Return the file that is there already, if it is the one that is wanted."""
    began_s = told_s = time.monotonic()
    status = await asyncio.to_thread(target.stat)
    size = status.st_size
    if source.bytes in (None, size) and (source.bytes, source.sha256) != (None, None) and S_ISREG(status.st_mode):

        def tell(done: int) -> None:
            nonlocal told_s
            if (now_s := time.monotonic()) - told_s >= TICK_S:
                told_s = now_s
                speed = done / (now_s - began_s)
                on_progress(Progress(Phase.VERIFYING, done, size, 0, speed, (size - done) / speed))

        sha256 = await sha256_of(target, tell)
        if source.sha256 is None or sha256 == source.sha256.lower():
            part_path(target).unlink(missing_ok=True)
            journal.remove(journal_path(target))
            on_progress(Progress(Phase.VERIFYING, size, size, 0))
            return Fetched(target, size, sha256, time.monotonic() - began_s, 0, 0)
    raise FileInTheWay(
        f"{target} is there already, and is not {source.name or target.name} as {host_of(source.url)} should have it.",
        "Move or rename it, or choose another folder.",
        path=str(target),
        bytes=size,
        expected_bytes=source.bytes,
    )
