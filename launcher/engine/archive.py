"""Unpacking of archives that nobody is trusted for: nothing leaves the folder, and nothing grows beyond limits.

Every entry is written by us, under a name that was checked; the libraries' own extraction is not used. Links are made
last, so that nothing is written through one.
"""

import errno
import gzip
import io
import lzma
import os
import shutil
import stat
import sys
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Literal

from launcher.engine.install_errors import ArchiveRefused
from launcher.fetch.names import is_local_name

_COPY, _BLOCK = 2**20, 2**16
_DAMAGED = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    gzip.BadGzipFile,
    ValueError,  # a name that is not in the encoding that it claims
)
_HEADERS = 2**20
"""The most that may lie between two entries of a tar archive: names, not content."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an archive may unpack to. The largest official build with its runtime is about 2 GB in 100 files.

    `ratio` is how many times larger than the archive all files together may be, beyond the first `grace_bytes`.
    """

    entries: int = 4_000
    bytes: int = 2**33
    ratio: int = 60
    grace_bytes: int = 2**26
    name_characters: int = 200


@dataclass(frozen=True, slots=True)
class _Entry:
    kind: Literal["file", "folder", "symbolic link", "hard link"]
    name: str
    executable: bool = False
    target: str = ""
    content: IO[bytes] | None = None


def unpack(archive: Path, folder: Path, limits: Limits = Limits(), *, cancelled: threading.Event | None = None) -> None:
    """Unpack a .zip or .tar.gz into `folder`, which must be empty or not there; a single top folder is left out.

    Its checksum has been compared: a damaged one was published so.

    Raises ArchiveRefused when it is damaged, would write outside of `folder`, holds anything but files, folders and
    links among its own files, or was `cancelled`. What was written until then is left to the caller.
    """
    folder.mkdir(parents=True, exist_ok=True)
    most = min(limits.bytes, max(limits.grace_bytes, archive.stat().st_size * limits.ratio))
    entries = _zip_entries if archive.suffix == ".zip" else _tar_entries
    try:
        _Unpacking(archive, folder, limits, most, cancelled or threading.Event()).take(entries(archive))
    except _DAMAGED as error:
        raise _damaged(archive, error) from error
    except OSError as error:
        if error.errno == errno.EINVAL:  # an offset that lies before the file's beginning
            raise _damaged(archive, error) from error
        raise
    except RuntimeError as error:  # a compression nobody uses, or a password
        raise ArchiveRefused(f"{archive.name} cannot be unpacked: {error}.", "It is no official archive.") from error
    _lift(folder)


class _Unpacking:
    """One archive on its way into a folder."""

    def __init__(self, archive: Path, folder: Path, limits: Limits, most: int, cancelled: threading.Event) -> None:
        self._archive, self._folder, self._limits = archive, folder, limits
        self._left, self._cancelled = most, cancelled
        self._seen: dict[str, str] = {}

    def take(self, entries: Iterator[_Entry]) -> None:
        links: list[tuple[PurePosixPath, PurePosixPath]] = []
        for count, entry in enumerate(entries):
            if count == self._limits.entries:
                raise self._refused(f"it has more than {self._limits.entries:,} entries")
            path = self._checked(entry.name)
            if path is None:
                continue
            self._claim(path, entry.kind)
            place = self._folder / path
            match entry.kind:
                case "folder":
                    place.mkdir(parents=True, exist_ok=True)
                case "file":
                    place.parent.mkdir(parents=True, exist_ok=True)
                    self._write(place, entry)
                case "hard link":
                    links.append((path, self._target(entry, PurePosixPath())))
                case "symbolic link":
                    links.append((path, self._target(entry, path.parent)))
        self._link(links)

    def _checked(self, name: str) -> PurePosixPath | None:
        """Return an entry's name as a path below the folder; None for the folder itself."""
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise self._refused(f"{name[:80]!r} lies outside of its folder")
        if len(name) > self._limits.name_characters:
            raise self._refused(f"the name {name[:40]!r}... is too long")
        for part in path.parts:
            if not is_local_name(part) or not part.isprintable():
                raise self._refused(f"{name[:80]!r} is no name for a file on every system")
        return path if path.parts else None

    def _claim(self, path: PurePosixPath, kind: str) -> None:
        """Refuse a second entry of the same name, also where it differs in case, and one that lies in a file."""
        for above in list(path.parents)[:-1]:
            if self._seen.setdefault(str(above).casefold(), "folder") != "folder":
                raise self._refused(f"{str(path)!r} lies in something that is no folder")
        key = str(path).casefold()
        if key in self._seen and (self._seen[key], kind) != ("folder", "folder"):
            raise self._refused(f"{str(path)!r} is there twice")
        self._seen[key] = kind

    def _write(self, place: Path, entry: _Entry) -> None:
        if entry.content is None:
            raise self._refused(f"{entry.name!r} has no content")
        with entry.content, place.open("xb") as file:
            while data := entry.content.read(_COPY):
                self._left -= len(data)
                if self._left < 0:
                    raise self._refused("it unpacks to more than such an archive can hold")
                if self._cancelled.is_set():
                    raise self._refused("it was cancelled")
                file.write(data)
            file.flush()
            os.fsync(file.fileno())  # an engine that was put in use is whole also after a power cut
        place.chmod(0o755 if entry.executable else 0o644)

    def _target(self, entry: _Entry, parent: PurePosixPath) -> PurePosixPath:
        path = self._checked(entry.target)
        if path is None:
            raise self._refused(f"the link {entry.name!r} leads nowhere")
        return parent / path

    def _link(self, links: list[tuple[PurePosixPath, PurePosixPath]]) -> None:
        """Make the links: symbolic ones where the system has them for everybody, else copies."""
        targets = dict(links)
        for path, target in links:
            end, steps = target, 0
            while end in targets and steps <= len(links):
                end, steps = targets[end], steps + 1
            content = self._folder / end
            if self._seen.get(str(end).casefold()) != "file" or not content.is_file():
                raise self._refused(f"the link {str(path)!r} leads to {str(target)!r}, which is no file of it")
            place = self._folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            if sys.platform == "win32":
                self._left -= content.stat().st_size
                if self._left < 0:
                    raise self._refused("it unpacks to more than such an archive can hold")
                shutil.copyfile(content, place)
            else:
                place.symlink_to(os.path.relpath(content, place.parent))

    def _refused(self, why: str) -> ArchiveRefused:
        return _refused(self._archive, why)


def _refused(archive: Path, why: str) -> ArchiveRefused:
    return ArchiveRefused(
        f"{archive.name} was not unpacked: {why}.",
        "It is no archive as llama.cpp makes them. Nothing of it was kept.",
        archive=str(archive),
    )


def _damaged(archive: Path, error: Exception) -> ArchiveRefused:
    kind = "ZIP" if archive.suffix == ".zip" else "tar.gz"
    return ArchiveRefused(
        f"{archive.name} is damaged, or no {kind} archive at all.",
        "It was published like this, for its checksum is right: take another release.",
        archive=str(archive),
        reason=str(error),
    )


def _zip_entries(archive: Path) -> Iterator[_Entry]:
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            if not info.filename:
                raise _refused(archive, "an entry has no name")
            mode = info.external_attr >> 16
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _refused(archive, f"{info.filename[:80]!r} is neither a file nor a folder")
            if info.is_dir():
                yield _Entry("folder", info.orig_filename)
            else:
                yield _Entry("file", info.orig_filename, bool(mode & 0o111), content=opened.open(info))


def _tar_entries(archive: Path) -> Iterator[_Entry]:
    with gzip.open(archive) as unpacked:
        counted = _Counted(unpacked)
        with tarfile.open(fileobj=counted, mode="r|", bufsize=_BLOCK) as opened:
            while True:
                counted.allow(_HEADERS)
                member = opened.next()
                if member is None:
                    return
                counted.allow(sys.maxsize)  # content is counted where it is written
                yield _tar_entry(archive, opened, member)


def _tar_entry(archive: Path, opened: tarfile.TarFile, member: tarfile.TarInfo) -> _Entry:
    if member.isdir():
        return _Entry("folder", member.name)
    if member.issym():
        return _Entry("symbolic link", member.name, target=member.linkname)
    if member.islnk():
        return _Entry("hard link", member.name, target=member.linkname)
    if member.isreg() and not member.issparse():
        return _Entry("file", member.name, bool(member.mode & 0o111), content=opened.extractfile(member))
    raise _refused(archive, f"{member.name[:80]!r} is neither a file, a folder nor a link")


class _Counted(io.RawIOBase):
    """A stream that ends in an error when more is read of it than was allowed."""

    def __init__(self, stream: gzip.GzipFile) -> None:
        self._stream = stream
        self._left = _HEADERS

    def allow(self, count: int) -> None:
        self._left = count

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise tarfile.ReadError("its headers hold more than names")
        return data


def _lift(folder: Path) -> None:
    """Move the content of a single top folder up, and remove that."""
    inside = list(folder.iterdir())
    if len(inside) != 1 or inside[0].is_symlink() or not inside[0].is_dir():
        return
    top = folder / f".{inside[0].name}"[:100]
    inside[0].rename(top)  # something inside may have its name
    for each in list(top.iterdir()):
        each.rename(folder / each.name)
    top.rmdir()
