"""The unfinished file of a download: written by several threads, read back by the one that hashes it."""

import errno
import hashlib
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from launcher.fetch import journal
from launcher.fetch.journal import Identity, Stretch
from launcher.fetch.ranges import Span, clipped, gaps, merged, n_bytes

_log = logging.getLogger(__name__)
_HASH_BLOCK = 2**20
UNKNOWN = 2**62
"""The end of a file whose size nobody has told yet."""


@dataclass(slots=True, eq=False)
class Segment:
    """A stretch of the file that one connection fills: from `begin`, by now up to `position`, in the end up to `end`.

    `line` is its line in the journal, `synced` how far it is on the disk for certain, `asked` the end that a server
    was asked for. It is guarded by the part's lock.
    """

    begin: int
    position: int
    end: int
    synced: int
    line: int
    asked: int
    idle: bool = False


def part_path(target: Path) -> Path:
    """Return where the unfinished file lies."""
    return target.with_name(f"{target.name}.part")


def journal_path(target: Path) -> Path:
    """Return where its journal lies."""
    return target.with_name(f"{target.name}.part.journal")


def unfinished(target: Path) -> int | None:
    """Return how many bytes of an unfinished download wait, or None when there is none."""
    record = journal.read(journal_path(target))
    try:
        size = part_path(target).stat().st_size
    except OSError:
        return None
    return n_bytes(clipped(record.finished, size)) if record else None


class Part:
    """The file and its journal, open. All methods may be called from any thread; after `close` nothing is written.

    What the journal of an earlier run says is taken over if `same` says that it meant the same file.
    Methods that write raise OSError.
    """

    def __init__(self, target: Path, identity: Identity, same: Callable[[Identity], bool]) -> None:
        self.path = part_path(target)
        self._journal_path = journal_path(target)
        self._changed = threading.Condition()
        self._syncing = threading.Lock()
        self._sync_failed: OSError | None = None
        self._closed = False
        self._promised = identity
        self.generation = 0
        record = journal.read(self._journal_path)
        there: list[Stretch] = []
        if record is not None and self.path.is_file() and same(record.identity):
            known = record.identity
            size = identity.bytes if identity.bytes is not None else known.bytes
            identity = Identity(identity.url, size, identity.sha256, known.etag)
            end = min(self.path.stat().st_size, UNKNOWN if size is None else size)
            there = [
                Stretch(each.begin, min(each.written, end), min(each.synced, end))
                for each in record.stretches
                if each.begin < min(each.written, end)
            ]
        elif record is not None and (lost := unfinished(target)):
            _log.warning("%s: %s bytes that waited belong to another file, and are given up.", target.name, f"{lost:,}")
        self.identity = identity
        self.received_bytes = 0
        if not there:
            self.path.unlink(missing_ok=True)
        self._file = FileIO(os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644), "r+")
        try:
            self._segments = [
                Segment(each.begin, each.written, each.written, each.synced, index, each.written, idle=True)
                for index, each in enumerate(there)
            ]
            self.resumed_bytes = self._done()
            self._write_journal()
        except BaseException:
            self._file.close()
            raise

    def _write_journal(self) -> None:
        stretches = [Stretch(each.begin, each.position, each.synced) for each in self._segments]
        self._head = journal.create(self._journal_path, self.identity, stretches)
        self._journal = FileIO(self._journal_path, "r+")

    @property
    def size(self) -> int | None:
        """The finished file's size in bytes, None while it is unknown."""
        return self.identity.bytes

    @property
    def done_bytes(self) -> int:
        """How many of its bytes are there. Waits for no lock, which is held while the journal is written."""
        return self._done()

    @property
    def complete(self) -> bool:
        """Whether all are there."""
        return self.size is not None and self.done_bytes == self.size

    def gaps(self) -> list[Span]:
        """Return what is neither there nor being fetched."""
        with self._changed:
            return self._gaps()

    def running(self) -> list[Span]:
        """Return what is still to come on the connections that there are."""
        with self._changed:
            return [Span(each.position, each.end) for each in self._segments if not each.idle]

    def identify(self, *, size: int, etag: str | None) -> None:
        """Note what a server told of the file: it belongs to the bytes that follow. Its size is from now on fixed."""
        with self._changed:
            known = self.identity
            if self._closed or (known.bytes, known.etag) == (size, etag):
                return
            self.identity = Identity(known.url, size, known.sha256, etag)
            for segment in self._segments:
                segment.end = min(segment.end, size)
            self._journal.close()
            self._write_journal()
            self._changed.notify_all()

    def claim(self, span: Span) -> Segment:
        """Return a segment for the bytes of `span`, which go on from a finished one where there is one."""
        with self._changed:
            for each in self._segments:
                if each.idle and each.position == span.begin > each.begin:
                    each.end = each.asked = span.end
                    each.idle = False
                    return each
            segment = Segment(span.begin, span.begin, span.end, span.begin, len(self._segments), span.end)
            self._segments.append(segment)
            self._note(segment)
            return segment

    def release(self, segment: Segment) -> None:
        """Let go of a segment whose connection has ended; what is missing of it becomes a gap."""
        with self._changed:
            segment.idle = True
            self._changed.notify_all()

    def shorten(self, span: Span) -> None:
        """Take `span` from the running segment that would reach into it; it becomes a gap."""
        with self._changed:
            for each in self._segments:
                if not each.idle and each.position < span.begin < each.end:
                    each.end = span.begin

    def rejoin(self) -> None:
        """Let running segments go on into the gaps behind them, as far as their servers were asked for that."""
        with self._changed:
            behind = {gap.begin: gap.end for gap in self._gaps()}
            for each in self._segments:
                if not each.idle:
                    each.end = max(each.end, min(behind.get(each.end, 0), each.asked))

    def write(self, segment: Segment, data: memoryview) -> bool:
        """Write what follows in a segment, no further than its end, and note it. Return False when nobody wants it."""
        with self._changed:
            if self._closed or segment.idle:
                return False
            if self._sync_failed is not None:
                raise self._sync_failed
            data = data[: segment.end - segment.position]
            while data:
                self._file.seek(segment.position)
                written = self._file.write(data)
                segment.position += written
                self.received_bytes += written
                data = data[written:]
                self._note(segment)
            self._changed.notify_all()
            return segment.position < segment.end

    def sync(self) -> None:
        """Bring what is written to the disk, and note that. It takes long; nobody waits for it meanwhile.

        What failed once fails again: the system tells only once that it could not write, and forgets the data.
        """
        with self._syncing:
            if self._sync_failed is not None:
                raise self._sync_failed
            with self._changed:
                marks = [(each, each.position) for each in self._segments if each.position > each.synced]
                if self._closed or not marks:
                    return
                generation = self.generation
                duplicate = os.dup(self._file.fileno())
            try:
                (os.fdatasync if hasattr(os, "fdatasync") else os.fsync)(duplicate)
            except OSError as error:
                self._sync_failed = error
                raise
            finally:
                os.close(duplicate)
            with self._changed:
                if not self._closed and generation == self.generation:
                    for segment, position in marks:
                        segment.synced = max(segment.synced, min(position, segment.position))
                        self._note(segment)

    def start_anew(self) -> None:
        """Forget all bytes: the file is another one now."""
        with self._changed:
            for segment in self._segments:
                segment.idle = True
            self.identity = self._promised
            self._journal.close()
            self._segments = []
            self._write_journal()
            self._file.truncate(0)
            self.resumed_bytes = 0
            self.generation += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Close both files; threads that come late write nothing any more."""
        with self._changed:
            if self._sync_failed is not None and not self._closed:  # the rest may be lost: it is not to be resumed
                for segment in self._segments:
                    segment.position = segment.synced
                    self._note(segment)
            self._closed = True
            self._file.close()
            self._journal.close()
            self._changed.notify_all()

    def remove(self) -> None:
        """Delete both files, closed before: nothing has arrived."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
        with suppress(OSError):
            journal.remove(self._journal_path)

    def _gaps(self) -> list[Span]:
        taken = [Span(each.begin, each.position if each.idle else each.end) for each in self._segments]
        return gaps(taken, UNKNOWN if self.size is None else self.size)

    def _done(self) -> int:
        return n_bytes([Span(each.begin, each.position) for each in tuple(self._segments)])

    def _note(self, segment: Segment) -> None:
        self._journal.seek(journal.offset(self._head, segment.line))
        self._journal.write(journal.line(Stretch(segment.begin, segment.position, segment.synced)))

    def _prefix(self) -> int:
        spans = merged(Span(each.begin, each.position) for each in self._segments)
        return spans[0].end if spans and spans[0].begin == 0 else 0

    def wait_beyond(self, position: int, generation: int) -> int | None:
        """Wait until more than the first `position` bytes are there, or all, and return how many.

        None when the file was closed, or started anew since it was in that generation.
        """
        with self._changed:
            while not self._closed and generation == self.generation:
                if (end := self._prefix()) > position or end == self.size:
                    return end
                self._changed.wait()
        return None


class Follower:
    """Hashes the file while it grows: it reads back what is there from the beginning on, from the page cache."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._generation = part.generation
        self.hashed_bytes = 0

    def run(self) -> str:
        """Return the SHA-256 once the file is complete, "" when it was closed or started anew. Raises OSError."""
        part, digest, view = self._part, hashlib.sha256(), memoryview(bytearray(_HASH_BLOCK))
        with FileIO(part.path) as file:
            while (end := part.wait_beyond(self.hashed_bytes, self._generation)) is not None:
                while self.hashed_bytes < end and (n := file.readinto(view[: end - self.hashed_bytes])):
                    digest.update(view[:n])
                    self.hashed_bytes += n
                if self.hashed_bytes == part.size:
                    return digest.hexdigest()
                if self.hashed_bytes < end and self._generation == part.generation:
                    raise OSError(errno.EIO, "It is shorter than what was written to it")
        return ""
