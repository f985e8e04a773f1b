"""The unfinished file of a download: several threads write it, another one reads it back to hash it."""

import errno
import hashlib
import logging
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from launcher.base.errors import DiskFull, DownloadBroken, DownloadBusy, FileInTheWay, LauncherError, TargetUnusable
from launcher.base.files import replace_file
from launcher.base.locks import hold_lock
from launcher.base.messages import message
from launcher.fetch import journal
from launcher.fetch.journal import DownloadIdentity, Span, Stretch, clip_spans, count_bytes, find_gaps, merge_spans

_log = logging.getLogger(__name__)
_HASH_BLOCK = 2**20
UNKNOWN_END = 2**62
"""Stands for the end of a file of unknown size."""


@dataclass(slots=True, eq=False)
class Segment:
    """A range of the file that one connection fills, from `begin` to `end`; the bytes up to `position` are written.

    The bytes up to `synced` are flushed to disk. `line` is the index of its line in the journal, `requested_end` the
    end of the range requested from the server, `idle` means that no connection fills it. PartialFile's lock guards it.
    """

    begin: int
    position: int
    end: int
    synced: int
    line: int
    requested_end: int
    idle: bool = False


def part_path(target: Path) -> Path:
    """Return the path of the unfinished file."""
    return target.with_name(f"{target.name}.part")


def journal_path(target: Path) -> Path:
    """Return the path of the journal."""
    return target.with_name(f"{target.name}.part.journal")


def count_unfinished_bytes(target: Path) -> int | None:
    """Return the number of bytes of an unfinished download, or None if there is none."""
    record = journal.read_journal(journal_path(target))
    try:
        size = part_path(target).stat().st_size
    except OSError:
        return None
    return count_bytes(clip_spans(record.finished, size)) if record else None


class PartialFile:
    """An open unfinished file and its journal. All methods are thread-safe; after `close` nothing is written.

    Data of an earlier attempt is kept if `is_same_file` returns True for the identity in its journal. Methods that
    write raise OSError.
    """

    def __init__(
        self, target: Path, identity: DownloadIdentity, is_same_file: Callable[[DownloadIdentity], bool]
    ) -> None:
        self.path = part_path(target)
        self._journal_path = journal_path(target)
        self._changed = threading.Condition()
        self._syncing = threading.Lock()
        self._sync_error: OSError | None = None
        self._closed = False
        self._initial_identity = identity
        self.generation = 0
        """Grows each time all data is discarded, so that threads notice that their data is outdated."""
        record = journal.read_journal(self._journal_path)
        stretches: list[Stretch] = []
        if record is not None and self.path.is_file() and is_same_file(record.identity):
            known = record.identity
            size = identity.bytes if identity.bytes is not None else known.bytes
            identity = DownloadIdentity(identity.url, size, identity.sha256, known.etag)
            end = min(self.path.stat().st_size, UNKNOWN_END if size is None else size)
            stretches = [
                Stretch(each.begin, min(each.written, end), min(each.synced, end))
                for each in record.stretches
                if each.begin < min(each.written, end)
            ]
        elif record is not None and (lost := count_unfinished_bytes(target)):
            _log.warning(
                "%s: %s bytes of an earlier download belong to another file and are discarded.",
                target.name,
                f"{lost:,}",
            )
        self.identity = identity
        self.received_bytes = 0
        if not stretches:
            self.path.unlink(missing_ok=True)
        self._file = FileIO(os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644), "r+")
        try:
            self._segments = [
                Segment(each.begin, each.written, each.written, each.synced, index, each.written, idle=True)
                for index, each in enumerate(stretches)
            ]
            self.resumed_bytes = self._count_done()
            self._write_journal()
        except BaseException:
            self._file.close()
            raise

    def _write_journal(self) -> None:
        stretches = [Stretch(each.begin, each.position, each.synced) for each in self._segments]
        self._journal_head = journal.create_journal(self._journal_path, self.identity, stretches)
        self._journal = FileIO(self._journal_path, "r+")

    @property
    def size(self) -> int | None:
        """The finished file's size in bytes, None while it is unknown."""
        return self.identity.bytes

    @property
    def done_bytes(self) -> int:
        """The number of bytes that are written. Takes no lock, so that it does not wait for writes to the disk."""
        return self._count_done()

    @property
    def is_complete(self) -> bool:
        """True if the whole file is written."""
        return self.size is not None and self.done_bytes == self.size

    def find_gaps(self) -> list[Span]:
        """Return the ranges that are neither written nor being fetched."""
        with self._changed:
            return self._find_gaps()

    def open_spans(self) -> list[Span]:
        """Return the ranges that the open connections have yet to fetch."""
        with self._changed:
            return [Span(each.position, each.end) for each in self._segments if not each.idle]

    def set_identity(self, *, size: int, etag: str | None) -> None:
        """Record the size and ETag that a server reported; from now on the size is fixed."""
        with self._changed:
            known = self.identity
            if self._closed or (known.bytes, known.etag) == (size, etag):
                return
            self.identity = DownloadIdentity(known.url, size, known.sha256, etag)
            for segment in self._segments:
                segment.end = min(segment.end, size)
            self._journal.close()
            self._write_journal()
            self._changed.notify_all()

    def claim_segment(self, span: Span) -> Segment:
        """Return a segment for the bytes of `span`; it extends a finished segment that ends where the span begins."""
        with self._changed:
            for each in self._segments:
                if each.idle and each.position == span.begin > each.begin:
                    each.end = each.requested_end = span.end
                    each.idle = False
                    return each
            segment = Segment(span.begin, span.begin, span.end, span.begin, len(self._segments), span.end)
            self._segments.append(segment)
            self._write_journal_line(segment)
            return segment

    def release_segment(self, segment: Segment) -> None:
        """Mark a segment as idle when its connection has ended; the missing rest becomes a gap."""
        with self._changed:
            segment.idle = True
            self._changed.notify_all()

    def cut_segment(self, span: Span) -> None:
        """Shorten the running segment that reaches into `span` so that it ends there; `span` becomes a gap."""
        with self._changed:
            for each in self._segments:
                if not each.idle and each.position < span.begin < each.end:
                    each.end = span.begin

    def extend_into_gaps(self) -> None:
        """Extend running segments into the gaps that follow them, up to the end of the range that was requested."""
        with self._changed:
            gap_ends = {gap.begin: gap.end for gap in self._find_gaps()}
            for each in self._segments:
                if not each.idle:
                    each.end = max(each.end, min(gap_ends.get(each.end, 0), each.requested_end))

    def write(self, segment: Segment, data: memoryview) -> bool:
        """Append data to a segment, up to its end, and update the journal. Returns True if the segment needs more."""
        with self._changed:
            if self._closed or segment.idle:
                return False
            if self._sync_error is not None:
                raise self._sync_error
            data = data[: segment.end - segment.position]
            while data:
                self._file.seek(segment.position)
                written = self._file.write(data)
                segment.position += written
                self.received_bytes += written
                data = data[written:]
                self._write_journal_line(segment)
            self._changed.notify_all()
            return segment.position < segment.end

    def sync(self) -> None:
        """Flush written data to disk and record that in the journal. Takes long, but blocks no other method.

        After one failure every call fails: the system reports a write error only once and discards the data.
        """
        with self._syncing:
            if self._sync_error is not None:
                raise self._sync_error
            with self._changed:
                unsynced = [(each, each.position) for each in self._segments if each.position > each.synced]
                if self._closed or not unsynced:
                    return
                generation = self.generation
                duplicate = os.dup(self._file.fileno())
            try:
                (os.fdatasync if hasattr(os, "fdatasync") else os.fsync)(duplicate)
            except OSError as error:
                self._sync_error = error
                raise
            finally:
                os.close(duplicate)
            with self._changed:
                if not self._closed and generation == self.generation:
                    for segment, position in unsynced:
                        segment.synced = max(segment.synced, min(position, segment.position))
                        self._write_journal_line(segment)

    def discard_data(self) -> None:
        """Discard all data, because the file on the server has changed."""
        with self._changed:
            for segment in self._segments:
                segment.idle = True
            self.identity = self._initial_identity
            self._journal.close()
            self._segments = []
            self._write_journal()
            self._file.truncate(0)
            self.resumed_bytes = 0
            self.generation += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Close both files; threads that still run write nothing any more."""
        with self._changed:
            # Data after the last successful flush may be lost, so a later attempt must not resume from it.
            if self._sync_error is not None and not self._closed:
                for segment in self._segments:
                    segment.position = segment.synced
                    self._write_journal_line(segment)
            self._closed = True
            self._file.close()
            self._journal.close()
            self._changed.notify_all()

    def remove(self) -> None:
        """Delete both files. Call `close` first."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
        with suppress(OSError):
            journal.remove_journal(self._journal_path)

    def _find_gaps(self) -> list[Span]:
        claimed = [Span(each.begin, each.position if each.idle else each.end) for each in self._segments]
        return find_gaps(claimed, UNKNOWN_END if self.size is None else self.size)

    def _count_done(self) -> int:
        return count_bytes([Span(each.begin, each.position) for each in tuple(self._segments)])

    def _write_journal_line(self, segment: Segment) -> None:
        self._journal.seek(journal.line_offset(self._journal_head, segment.line))
        self._journal.write(journal.format_line(Stretch(segment.begin, segment.position, segment.synced)))

    def _prefix_end(self) -> int:
        """Return the number of bytes from the beginning of the file that are written without a gap."""
        spans = merge_spans(Span(each.begin, each.position) for each in self._segments)
        return spans[0].end if spans and spans[0].begin == 0 else 0

    def wait_for_data(self, position: int, generation: int) -> int | None:
        """Wait until the file is complete, or written without a gap beyond `position`; return the end of that part.

        Returns None if the file was closed, or if all data was discarded since `generation`.
        """
        with self._changed:
            while not self._closed and generation == self.generation:
                if (end := self._prefix_end()) > position or end == self.size:
                    return end
                self._changed.wait()
        return None


class FileHasher:
    """Hashes the file while it grows, by reading the written data back, which is still in the page cache."""

    def __init__(self, part: PartialFile) -> None:
        self._part = part
        self._generation = part.generation
        self.hashed_bytes = 0

    def run(self) -> str:
        """Return the SHA-256 once the file is complete; "" if it was closed or its data discarded. Raises OSError."""
        part, digest, view = self._part, hashlib.sha256(), memoryview(bytearray(_HASH_BLOCK))
        with FileIO(part.path) as file:
            while (end := part.wait_for_data(self.hashed_bytes, self._generation)) is not None:
                while self.hashed_bytes < end and (n := file.readinto(view[: end - self.hashed_bytes])):
                    digest.update(view[:n])
                    self.hashed_bytes += n
                if self.hashed_bytes == part.size:
                    return digest.hexdigest()
                if self.hashed_bytes < end and self._generation == part.generation:
                    raise OSError(errno.EIO, "It is shorter than what was written to it")
        return ""


# The files of a transfer: exclusive access, free space, and the move to the final name.

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The disk is full, a quota is used up, or the file is larger than the system allows."""


@contextmanager
def lock_target(target: Path) -> Iterator[None]:
    """Hold the lock of `target`, so that no other transfer or process downloads to it. Raises DownloadBusy."""
    busy = DownloadBusy(
        message("{name} is already being downloaded, perhaps in another window or terminal.", name=target.name),
        message("Wait until it finishes, or stop it there."),
    )
    with ExitStack() as held:
        try:
            held.enter_context(hold_lock(target.with_name(f"{target.name}.part.lock"), busy=busy, remove=True))
        except OSError as error:
            raise write_error(error, target) from error
        yield


def free_bytes(folder: Path) -> int:
    """Return the free bytes on a folder's disk."""
    return shutil.disk_usage(folder).free


def disk_full_error(folder: Path, *, needed: int, free: int, reserve: int) -> DiskFull:
    """Return the error for a disk without room for `needed` more bytes and the `reserve`, which must stay free."""
    return DiskFull(
        message(
            "Not enough disk space in {folder}: {free} are free.[ {needed} are still needed.]"
            "[ {reserve} must stay free for the system.]",
            folder=folder,
            free=_format_size(free),
            needed=_format_size(needed) if needed else None,
            reserve=_format_size(reserve) if needed and reserve else None,
        ),
        message(
            "Free disk space, or choose another folder. The downloaded part is kept; run the same command to continue."
        ),
        folder=str(folder),
        needed_bytes=needed,
        free_bytes=free,
        reserve_bytes=reserve,
    )


def write_error(error: OSError, target: Path, needed: int = 0) -> LauncherError:
    """Return the error for an OSError while writing a file."""
    folder = target.parent
    if error.errno in _FULL:
        free = 0
        with suppress(OSError):
            free = free_bytes(folder)
        if error.errno != errno.ENOSPC and free > needed:
            return DiskFull(
                message(
                    "The system allows no more writes to {folder}: {strerror}.",
                    folder=folder,
                    strerror=error.strerror,
                ),
                message("A disk quota may be used up. The downloaded part is kept; run the same command to continue."),
                folder=str(folder),
                needed_bytes=needed,
            )
        return disk_full_error(folder, needed=needed, free=free, reserve=0)
    return TargetUnusable(
        message(
            "Cannot write {name} to {folder}: {strerror}.",
            name=target.name,
            folder=folder,
            strerror=error.strerror or error,
        ),
        message("Choose another folder."),
    )


def keep_as_bad(target: Path, reason: str, **facts: object) -> DownloadBroken:
    """Rename the unfinished file to .bad, write the reason into a .bad.txt, and return the error.

    Replaces an older .bad file.
    """
    bad = target.with_name(f"{target.name}.bad")
    replace_file(part_path(target), bad)
    journal.remove_journal(journal_path(target))
    with suppress(OSError):
        bad.with_name(f"{bad.name}.txt").write_text(f"{reason}\n", "utf-8")
    return DownloadBroken(
        reason,
        message("The file is kept as {name} but not used. Try again to download it from the start.", name=bad.name),
        path=str(bad),
        **facts,
    )


def move_to_target(target: Path) -> None:
    """Rename the finished file, which must be flushed to disk, to its final name, and flush the folder to disk.

    Raises FileInTheWay if the name was taken meanwhile, and OSError.
    """
    if os.path.lexists(target):
        raise FileInTheWay(
            message("{target} was created by another program during the download.", target=target),
            message("Move or rename it, and try again. The downloaded part is kept."),
            path=str(target),
        )
    replace_file(part_path(target), target)
    journal.remove_journal(journal_path(target))
    if sys.platform != "win32":  # on Windows the file system flushes the folder itself
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _format_size(n_bytes: int) -> str:
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if n_bytes >= unit:
            return f"{n_bytes / unit:.1f} {name}"
    return f"{n_bytes} bytes"
