"""Safe unpacking of untrusted archives: nothing is written outside the target folder or beyond size limits.

Names are checked before entries are written; the extraction functions of zipfile and tarfile are not used. Links are
created last, so that no entry can be written through a link.
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

from launcher.base.messages import message
from launcher.engine.builds.install_errors import ArchiveRefused
from launcher.fetch.file_names import is_local_name

_COPY_BYTES, _TAR_BUFFER_BYTES = 2**20, 2**16
_DAMAGED = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    gzip.BadGzipFile,
    ValueError,  # a file name that is not valid in its declared encoding
)
_MOST_HEADER_BYTES = 2**20
"""Maximum bytes of headers between two entries of a tar archive; headers hold names, not content."""


@dataclass(frozen=True, slots=True)
class UnpackLimits:
    """Limits for the unpacked content. The largest official build with its runtime is about 2 GB in 100 files.

    `bytes` is the total size, `ratio` the total size divided by the archive's; the ratio is not applied below
    `grace_bytes`. `name_characters` is the length of an entry's name.
    """

    entries: int = 4_000
    bytes: int = 2**33
    ratio: int = 60
    grace_bytes: int = 2**26
    name_characters: int = 200


@dataclass(frozen=True, slots=True)
class _ArchiveEntry:
    kind: Literal["file", "folder", "symbolic link", "hard link"]
    name: str
    executable: bool = False
    target: str = ""
    content: IO[bytes] | None = None


def unpack_archive(
    archive: Path, folder: Path, limits: UnpackLimits = UnpackLimits(), *, cancelled: threading.Event | None = None
) -> None:
    """Unpack a .zip or .tar.gz into `folder`, which must be empty or absent; a single top folder is dropped.

    The caller has verified the checksum, so a damaged archive was published that way.

    Raises ArchiveRefused if it is damaged, would write outside of `folder`, contains anything but files, folders and
    links to its own files, or was `cancelled`. The caller deletes what was written until then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    most_bytes = min(limits.bytes, max(limits.grace_bytes, archive.stat().st_size * limits.ratio))
    entries = _zip_entries(archive) if archive.suffix == ".zip" else _tar_entries(archive)
    try:
        _Unpacker(archive, folder, limits, most_bytes, cancelled or threading.Event()).unpack_entries(entries)
    except _DAMAGED as error:
        raise _damaged_error(archive, error) from error
    except OSError as error:
        if error.errno == errno.EINVAL:  # an offset in the archive points before the start of the file
            raise _damaged_error(archive, error) from error
        raise
    except RuntimeError as error:  # zipfile: an unsupported compression method, or a password
        raise ArchiveRefused(
            message("Cannot unpack {name}: {error}.", name=archive.name, error=error),
            message("It is not an official archive."),
        ) from error
    _drop_top_folder(folder)


class _Unpacker:
    """Unpacks one archive: checks names, counts bytes, and collects links for the end."""

    def __init__(
        self, archive: Path, folder: Path, limits: UnpackLimits, most_bytes: int, cancelled: threading.Event
    ) -> None:
        self._archive, self._folder, self._limits = archive, folder, limits
        self._bytes_left, self._cancelled = most_bytes, cancelled
        self._kinds: dict[str, str] = {}
        """The kinds of the entries so far, by their case-folded paths."""

    def unpack_entries(self, entries: Iterator[_ArchiveEntry]) -> None:
        links: list[tuple[PurePosixPath, PurePosixPath]] = []
        for count, entry in enumerate(entries):
            if count == self._limits.entries:
                raise self._refusal(f"it has more than {self._limits.entries:,} entries")
            path = self._check_name(entry.name)
            if path is None:
                continue
            self._claim_name(path, entry.kind)
            target_path = self._folder / path
            match entry.kind:
                case "folder":
                    target_path.mkdir(parents=True, exist_ok=True)
                case "file":
                    target_path.parent.mkdir(parents=True, exist_ok=True)
                    self._write_file(target_path, entry)
                case "hard link":
                    links.append((path, self._link_target(entry, PurePosixPath())))
                case "symbolic link":
                    links.append((path, self._link_target(entry, path.parent)))
        self._make_links(links)

    def _check_name(self, name: str) -> PurePosixPath | None:
        """Return an entry's name as a relative path; None for the folder itself. Raises ArchiveRefused if unsafe."""
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise self._refusal(f"{name[:80]!r} lies outside of its folder")
        if len(name) > self._limits.name_characters:
            raise self._refusal(f"the name {name[:40]!r}... is too long")
        for part in path.parts:
            if not is_local_name(part) or not part.isprintable():
                raise self._refusal(f"{name[:80]!r} is not a valid file name on every system")
        return path if path.parts else None

    def _claim_name(self, path: PurePosixPath, kind: str) -> None:
        """Refuse a duplicate name, ignoring case as Windows and macOS do, and an entry below a file or link."""
        for parent in list(path.parents)[:-1]:
            if self._kinds.setdefault(str(parent).casefold(), "folder") != "folder":
                raise self._refusal(f"{str(path)!r} lies in a file or link")
        key = str(path).casefold()
        if key in self._kinds and (self._kinds[key], kind) != ("folder", "folder"):
            raise self._refusal(f"{str(path)!r} occurs twice")
        self._kinds[key] = kind

    def _write_file(self, target_path: Path, entry: _ArchiveEntry) -> None:
        if entry.content is None:
            raise self._refusal(f"{entry.name!r} has no content")
        with entry.content, target_path.open("xb") as file:
            while data := entry.content.read(_COPY_BYTES):
                self._bytes_left -= len(data)
                if self._bytes_left < 0:
                    raise self._refusal("it unpacks to more than an engine build can have")
                if self._cancelled.is_set():
                    raise self._refusal("it was cancelled")
                file.write(data)
            file.flush()
            os.fsync(file.fileno())  # so that an engine that was put in use is complete even after a power cut
        target_path.chmod(0o755 if entry.executable else 0o644)

    def _link_target(self, entry: _ArchiveEntry, parent: PurePosixPath) -> PurePosixPath:
        path = self._check_name(entry.target)
        if path is None:
            raise self._refusal(f"the link {entry.name!r} leads nowhere")
        return parent / path

    def _make_links(self, links: list[tuple[PurePosixPath, PurePosixPath]]) -> None:
        """Create the links: symbolic links on POSIX, copies on Windows, where links need special rights."""
        targets = dict(links)
        for path, target in links:
            end, steps = target, 0
            while end in targets and steps <= len(links):  # follow links to links; the limit ends a loop of links
                end, steps = targets[end], steps + 1
            content = self._folder / end
            if self._kinds.get(str(end).casefold()) != "file" or not content.is_file():
                raise self._refusal(
                    f"the link {str(path)!r} leads to {str(target)!r}, which is not a file of the archive"
                )
            target_path = self._folder / path
            target_path.parent.mkdir(parents=True, exist_ok=True)
            if sys.platform == "win32":
                self._bytes_left -= content.stat().st_size
                if self._bytes_left < 0:
                    raise self._refusal("it unpacks to more than an engine build can have")
                shutil.copyfile(content, target_path)
            else:
                target_path.symlink_to(os.path.relpath(content, target_path.parent))

    def _refusal(self, why: str) -> ArchiveRefused:
        return _refusal(self._archive, why)


def _refusal(archive: Path, why: str) -> ArchiveRefused:
    return ArchiveRefused(
        message("{name} was not unpacked: {why}.", name=archive.name, why=why),
        message("It does not look like a llama.cpp archive. No file of it was kept."),
        archive=str(archive),
    )


def _damaged_error(archive: Path, error: Exception) -> ArchiveRefused:
    kind = "ZIP" if archive.suffix == ".zip" else "tar.gz"
    return ArchiveRefused(
        message("{name} is damaged or not a {kind} archive.", name=archive.name, kind=kind),
        message("Its checksum is correct, so it was published damaged. Choose another release."),
        archive=str(archive),
        reason=str(error),
    )


def _zip_entries(archive: Path) -> Iterator[_ArchiveEntry]:
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            if not info.filename:
                raise _refusal(archive, "an entry has no name")
            mode = info.external_attr >> 16
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _refusal(archive, f"{info.filename[:80]!r} is neither a file nor a folder")
            if info.is_dir():
                yield _ArchiveEntry("folder", info.orig_filename)
            else:
                yield _ArchiveEntry("file", info.orig_filename, bool(mode & 0o111), content=opened.open(info))


def _tar_entries(archive: Path) -> Iterator[_ArchiveEntry]:
    with gzip.open(archive) as unpacked:
        counted = _CountedStream(unpacked)
        with tarfile.open(fileobj=counted, mode="r|", bufsize=_TAR_BUFFER_BYTES) as opened:
            while True:
                counted.allow_bytes(_MOST_HEADER_BYTES)
                member = opened.next()
                if member is None:
                    return
                counted.allow_bytes(sys.maxsize)  # the bytes of a file's content are counted in _write_file
                yield _tar_entry(archive, opened, member)


def _tar_entry(archive: Path, opened: tarfile.TarFile, member: tarfile.TarInfo) -> _ArchiveEntry:
    if member.isdir():
        return _ArchiveEntry("folder", member.name)
    if member.issym():
        return _ArchiveEntry("symbolic link", member.name, target=member.linkname)
    if member.islnk():
        return _ArchiveEntry("hard link", member.name, target=member.linkname)
    if member.isreg() and not member.issparse():
        return _ArchiveEntry("file", member.name, bool(member.mode & 0o111), content=opened.extractfile(member))
    raise _refusal(archive, f"{member.name[:80]!r} is neither a file, a folder nor a link")


class _CountedStream(io.RawIOBase):
    """A stream that raises tarfile.ReadError if more bytes are read than allowed, because tarfile limits no header."""

    def __init__(self, stream: gzip.GzipFile) -> None:
        self._stream = stream
        self._allowed_bytes = _MOST_HEADER_BYTES

    def allow_bytes(self, count: int) -> None:
        self._allowed_bytes = count

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(size)
        self._allowed_bytes -= len(data)
        if self._allowed_bytes < 0:
            raise tarfile.ReadError("its headers hold more than names")
        return data


def _drop_top_folder(folder: Path) -> None:
    """If `folder` contains only one folder, move its content up and remove it."""
    content = list(folder.iterdir())
    if len(content) != 1 or content[0].is_symlink() or not content[0].is_dir():
        return
    top = folder / f".{content[0].name}"[:100]
    content[0].rename(top)  # rename it first: an entry inside may have the same name
    for each in list(top.iterdir()):
        each.rename(folder / each.name)
    top.rmdir()
