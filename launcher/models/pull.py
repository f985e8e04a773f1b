"""Models, downloaded: each file found on this machine or fetched, verified, its header checked, then kept."""

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from launcher.base.errors import DiskFull, LauncherError, ModelMissing, ModelReplaced, Offline, Unreachable
from launcher.base.paths import MODELS_VARIABLE, expanded
from launcher.fetch.digest import sha256_of
from launcher.fetch.hub import resolve, token
from launcher.fetch.hub_cache import claimed_sha256, find_cached
from launcher.fetch.transfer import Phase, Progress, Source, TransferSettings, fetch, unfinished
from launcher.models.folders import make_folder
from launcher.models.library import quant_of
from launcher.models.library_index import Kind, Record, hash_kept, keep_hash, keep_record, read_index
from launcher.models.locate import refuse_damaged
from launcher.models.received import Checked, check_received, keep_header, promises_head
from launcher.models.wanted import Item, Piece, Wanted, target_of

Origin = Literal["downloaded", "here", "cache"]


@dataclass(frozen=True, slots=True)
class PullProgress:
    """How far a pull is, over all its files: bytes, bytes per second, seconds; None is not known.

    `done_bytes` count those resumed and those found on this machine. `note` says why it waits.
    """

    phase: Phase
    file: str
    number: int
    of: int
    done_bytes: int
    bytes: int | None
    resumed_bytes: int
    bytes_per_second: float | None
    seconds_left: float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class PulledFile:
    """One file that is there now, and how it came to be. `received_bytes` are those that were sent for it this time."""

    path: Path
    kind: Kind
    bytes: int
    sha256: str
    origin: Origin
    resumed_bytes: int = 0
    received_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Pulled:
    """What was pulled. `checked` is what the model's header told; its problem is not raised: the files are kept.

    `notes` are what to know besides.
    """

    files: tuple[PulledFile, ...]
    record: Record
    checked: Checked
    seconds: float
    notes: tuple[str, ...]

    @property
    def path(self) -> Path:
        """The model's first file."""
        return self.files[0].path

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def resumed_bytes(self) -> int:
        """What an earlier, interrupted download had left."""
        return sum(file.resumed_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class _Known:
    """A piece with what is known of it now: where it is fetched from, its size, checksum and commit.

    `absent` is why the hub was not asked or did not answer.
    """

    piece: Piece
    url: str | None
    bytes: int | None
    sha256: str | None
    revision: str | None = None
    absent: LauncherError | None = None


OnPull = Callable[[PullProgress], None]


async def pull(
    wanted: Wanted,
    *,
    to: Path | None = None,
    on_progress: OnPull | None = None,
    settings: TransferSettings | None = None,
) -> Pulled:
    """Bring all files of `wanted` onto this machine, into `to` or the folder for models.

    What is there already, in our folder or, unless `to` is given, in a cache of the hub's tools, is verified once and
    used in place. Cancelling it pauses: the next pull of the same goes on. Whatever is wrong with the model that
    arrived is told in the answer's `checked`.

    Raises ModelReplaced when the hub has other files than the catalogue describes or than are here, ModelBroken for
    what is no whole GGUF or is known to be damaged, what `resolve` raises when a file is not here, and what
    `make_folder` and `fetch` raise.
    """
    began_s = time.monotonic()
    pieces = [piece for item in wanted.items for piece in item.pieces]
    known = await asyncio.gather(*(asyncio.to_thread(_ask, piece, wanted) for piece in pieces))
    notes = [note for each in known for note in _differences(each, wanted)]
    work = _Work(wanted, expanded(to) if to else None, settings or TransferSettings(), on_progress, known)
    brought = [await work.bring(item) for item in wanted.items]
    checks = [
        await asyncio.to_thread(_keep, work.record(item, files), wanted)
        for item, files in zip(wanted.items, brought, strict=True)
    ]
    notes += [str(checked.problem) for _, checked in checks[1:] if checked.problem]
    files = tuple(file for each in brought for file in each)
    return Pulled(files, *checks[0], time.monotonic() - began_s, tuple(notes))


def unfinished_bytes(wanted: Wanted, to: Path | None = None) -> int:
    """Return how many bytes of `wanted` are there when it is paused."""
    targets = [target_of(piece, wanted.folder, to=to) for item in wanted.items for piece in item.pieces]
    return sum(unfinished(target) or (target.stat().st_size if target.is_file() else 0) for target in targets)


def _ask(piece: Piece, wanted: Wanted) -> _Known:
    """Ask the hub about a file. Without the hub, what the catalogue knows must do."""
    if piece.hub is None:
        return _Known(piece, piece.url, piece.bytes, piece.sha256)
    try:
        entry = resolve(piece.hub)
    except (Offline, Unreachable) as error:
        return _Known(piece, None, piece.bytes, piece.sha256, piece.hub.revision, error)
    except ModelMissing as error:
        if wanted.insists != "catalogue":
            raise
        hint = f"The catalogue describes that revision. `--revision main` takes what is there now. {error.hint}"
        raise ModelMissing(error.title, hint, **error.facts) from error
    return _Known(piece, entry.url, entry.bytes, entry.sha256 or piece.sha256, entry.revision)


def _differences(known: _Known, wanted: Wanted) -> Iterator[str]:
    """Yield what to know of a file that is another one than was described. Raises ModelReplaced unless that may be."""
    piece, told = known.piece, []
    if piece.bytes is not None and known.bytes not in (None, piece.bytes):
        told.append(f"{known.bytes:,} bytes in place of {piece.bytes:,}")
    if piece.sha256 is not None and known.sha256 not in (None, piece.sha256):
        told.append(f"SHA-256 {known.sha256[:12]}… in place of {piece.sha256[:12]}…")
    if known.url and known.sha256 is None:
        yield f"Nobody names a checksum of {piece.words}: only its size can be verified."
    if not told:
        return
    what = f"{piece.words} is another file than {{}}: {' and '.join(told)}."
    facts = {"file": piece.words, "bytes": known.bytes, "sha256": known.sha256}
    if wanted.insists == "catalogue":
        hint = "It may have been uploaded again. `--revision main` takes what is there now, as it is."
        raise ModelReplaced(what.format("the catalogue describes"), hint, **facts)
    if wanted.insists == "user":
        hint = "Is --sha256 that of this file? Without it, the hub's own is used."
        raise ModelReplaced(what.format("you asked for"), hint, **facts)
    yield f"{what.format('the catalogue describes')} What the catalogue says of it may not hold."


def _shown(url: str) -> str:
    """Return an address without a password or a signature."""
    there = urlsplit(url)
    return f"{there.scheme}://{there.netloc.rpartition('@')[2]}{there.path}"


def _keep(record: Record, wanted: Wanted) -> tuple[Record, Checked]:
    """Read the header of what is there, and put it into the library with what that told."""
    is_model = record.kind == "model"
    entry, file = (wanted.entry, wanted.file) if is_model else (None, None)
    promised = is_model and promises_head(record.repo, record.file or record.path.name)
    try:
        checked = check_received(record.path, record.kind, entry=entry, file=file, head=promised)
    except LauncherError as error:
        keep_record(record.model_copy(update={"problem": error.title}))
        raise
    problem = checked.problem.title if checked.problem else None
    record = record.model_copy(update={"head": checked.head, "problem": problem})
    keep_record(record)
    if is_model and len(record.paths) == 1 and record.sha256[0]:
        keep_header(record.path, record.sha256[0])
    return record, checked


class _Work:
    """One pull: where its files go, and how far it is."""

    def __init__(
        self,
        wanted: Wanted,
        to: Path | None,
        settings: TransferSettings,
        on_progress: OnPull | None,
        known: Sequence[_Known],
    ) -> None:
        self._wanted = wanted
        self._to = to.absolute() if to else None
        self._settings = settings
        self._on_progress = on_progress
        self._known = {each.piece: each for each in known}
        self._done: list[PulledFile] = []
        sizes = [each.bytes for each in known]
        self._bytes = None if None in sizes else sum(size or 0 for size in sizes)

    async def bring(self, item: Item) -> list[PulledFile]:
        """Return a model's files: those in our folder, else those in a cache, else fetched ones."""
        known = [self._known[piece] for piece in item.pieces]
        files = None
        if self._to is None and not any(self._target(each).exists() for each in known):
            files = await self._in_cache(item.kind, known)
        if files is None:
            files = []
            for each in known:
                files.append(await self._here(item.kind, each) or await self._fetched(item.kind, each))
                self._done.append(files[-1])
        return files

    def record(self, item: Item, files: Sequence[PulledFile]) -> Record:
        """Return what the library keeps of a model, its header aside."""
        first, wanted = self._known[item.pieces[0]], self._wanted
        is_model, hub = item.kind == "model", first.piece.hub
        return Record(
            kind=item.kind,
            paths=tuple(file.path for file in files),
            sha256=tuple(file.sha256 for file in files),
            bytes=sum(file.bytes for file in files),
            model=wanted.entry.id if wanted.entry else None,
            quant=(wanted.file.quant if wanted.file else quant_of(files[0].path.name)) if is_model else None,
            repo=hub.repo if hub else None,
            revision=first.revision,
            file=hub.path if hub else None,
            url=_shown(first.piece.url) if first.piece.url else None,
            received_s=round(time.time(), 3),
        )

    def _target(self, known: _Known) -> Path:
        return target_of(known.piece, self._wanted.folder, to=self._to)

    async def _in_cache(self, kind: Kind, known: Sequence[_Known]) -> list[PulledFile] | None:
        """Return the files in a cache of the hub's tools if they are the very ones, else None."""
        hubs = [each.piece.hub for each in known if each.piece.hub]
        if not hubs:
            return None
        names = [hub.path for hub in hubs]
        for paths in await asyncio.to_thread(lambda: list(find_cached(hubs[0].repo, names, known[0].revision))):
            wanted = [each.sha256 or claimed_sha256(path) for each, path in zip(known, paths, strict=True)]
            sizes = [path.stat().st_size for path in paths]
            if None in wanted or any(each.bytes not in (None, size) for each, size in zip(known, sizes, strict=True)):
                continue
            files: list[PulledFile] = []
            for each, path, sha256 in zip(known, paths, wanted, strict=True):
                if claimed_sha256(path) in (None, sha256) and await self._sha256(path, each) == sha256:
                    files.append(PulledFile(path, kind, path.stat().st_size, sha256 or "", "cache"))
            if len(files) == len(known):
                self._done += files
                return files
        return None

    async def _here(self, kind: Kind, known: _Known) -> PulledFile | None:
        """Return the file where it belongs if it is there. Raises ModelReplaced when that is another one."""
        target = self._target(known)
        if not target.is_file():
            return None
        size = target.stat().st_size
        sha256 = await self._sha256(target, known) if known.bytes in (None, size) else None
        if sha256 is None or known.sha256 not in (None, sha256):
            await asyncio.to_thread(refuse_damaged, target)
            raise ModelReplaced(
                f"{target} is another file than {known.piece.words}.",
                "Remove it first (`mtp-launcher models remove`), or get this one into another folder with --to.",
                path=str(target),
            )
        return PulledFile(target, kind, size, sha256, "here")

    async def _sha256(self, path: Path, known: _Known) -> str:
        """Return a file's SHA-256: the one that was computed before, while the file is as it was then."""
        index, _ = await asyncio.to_thread(read_index)
        kept = hash_kept(index, path)
        if kept is not None:
            return kept.sha256
        began_s, size = time.monotonic(), known.bytes

        def tell(done: int) -> None:
            speed = done / max(time.monotonic() - began_s, 1e-3)
            self._tell(known, Progress(Phase.VERIFYING, done, size, 0, speed))

        stat = await asyncio.to_thread(path.stat)
        sha256 = await sha256_of(path, tell)
        await asyncio.to_thread(keep_hash, path, sha256, stat)
        return sha256

    async def _fetched(self, kind: Kind, known: _Known) -> PulledFile:
        if known.url is None:
            raise known.absent or Offline(f"{known.piece.words} is not here.", "It has to be fetched.")
        target = self._target(known)
        await asyncio.to_thread(make_folder, target.parent, named="--to" if self._to else MODELS_VARIABLE)
        self._check_room()
        source = Source(
            url=known.url,
            bytes=known.bytes,
            sha256=known.sha256,
            token=token() if known.piece.hub else None,
            name=known.piece.words,
        )
        got = await fetch(source, target, settings=self._settings, on_progress=lambda told: self._tell(known, told))
        await asyncio.to_thread(keep_hash, target, got.sha256, target.stat())
        return PulledFile(target, kind, got.bytes, got.sha256, "downloaded", got.resumed_bytes, got.received_bytes)

    def _check_room(self) -> None:
        """Raise DiskFull when several files together do not fit. One alone is the transfer's own business."""
        left = [each for each in self._known.values() if each.bytes and not self._target(each).exists()]
        if len(left) < 2:
            return
        folder = self._target(left[0]).parent
        while not folder.exists():
            folder = folder.parent
        need = sum((each.bytes or 0) - (unfinished(self._target(each)) or 0) for each in left)
        free = shutil.disk_usage(folder).free
        if need + self._settings.reserve_bytes > free:
            raise DiskFull(
                f"{self._wanted.words} needs {need / 1e9:.1f} GB more, and {folder} has {free / 1e9:.1f} GB free.",
                "Make room, or take another folder with --to. What is there already is kept.",
                needed_bytes=need,
                free_bytes=free,
                folder=str(folder),
            )

    def _tell(self, known: _Known, told: Progress) -> None:
        if self._on_progress is None:
            return
        before = sum(file.bytes for file in self._done)
        done, speed = before + told.done_bytes, told.bytes_per_second
        left = (self._bytes - done) / speed if self._bytes is not None and speed else told.seconds_left
        self._on_progress(
            PullProgress(
                phase=told.phase,
                file=self._target(known).name,
                number=list(self._known).index(known.piece) + 1,
                of=len(self._known),
                done_bytes=done,
                bytes=self._bytes if len(self._known) > 1 else told.bytes or self._bytes,
                resumed_bytes=told.resumed_bytes,
                bytes_per_second=speed,
                seconds_left=left,
                note=told.note,
            )
        )
