"""Downloads models: finds or fetches each file, verifies it, checks its header and adds it to the library."""

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Literal
from urllib.parse import urlsplit

from launcher.base.errors import DiskFull, LauncherError, ModelMissing, ModelReplaced, Offline, Unreachable
from launcher.base.messages import FaceName, command_name, enumerate_texts, join_messages, mark, message
from launcher.base.paths import MODELS_VARIABLE, expand_user
from launcher.base.progress import Phase, Progress
from launcher.fetch.digest import hash_file
from launcher.fetch.hub import hub_token, resolve_file
from launcher.fetch.hub_cache import claimed_sha256, find_cached_files
from launcher.fetch.partial_file import count_unfinished_bytes
from launcher.fetch.retries import call_with_retries
from launcher.fetch.transfer import DownloadSource, TransferSettings, download_file
from launcher.models.download_target import DownloadFile, DownloadItem, DownloadTarget, local_target
from launcher.models.drafters import HEAD_FILE, MTP, find_drafter
from launcher.models.file_kinds import recognise_file, unusable_error
from launcher.models.folders import make_download_folder
from launcher.models.gguf import read_model
from launcher.models.hub_files import read_repository, recognise_remote
from launcher.models.library import classify_record, find_store_copies, parse_quant
from launcher.models.library_index import Kind, Record, find_hash, read_index, store_hash, store_record
from launcher.models.locate import refuse_damaged
from launcher.models.received import HeaderCheck, check_received, promises_head, store_header
from launcher.models.side_files import find_mismatch

Origin = Literal["downloaded", "here", "cache"]


@dataclass(frozen=True, slots=True)
class PulledFile:
    """One local file of a finished download, and its origin. `received_bytes` were transferred this time."""

    path: Path
    kind: Kind
    bytes: int
    sha256: str
    origin: Origin
    resumed_bytes: int = 0
    received_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PullResult:
    """A finished download. `checked` is the result of the header check; a problem in it is not raised, and files stay.

    `notes` are further remarks for the user. `checksums_published` is False if the hub has none for one of the files,
    so that only its size could be verified.
    """

    files: tuple[PulledFile, ...]
    record: Record
    checked: HeaderCheck
    seconds: float
    notes: tuple[str, ...]
    checksums_published: bool

    @property
    def sha256(self) -> str:
        """The checksum of the first file."""
        return self.files[0].sha256

    @property
    def path(self) -> Path:
        """The model's first file."""
        return self.files[0].path

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def resumed_bytes(self) -> int:
        """Bytes received by an earlier, interrupted download."""
        return sum(file.resumed_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class _ResolvedFile:
    """A file to download with its URL, size in bytes, SHA-256 and commit, as far as known.

    `hub_error` is the error if the hub could not be reached.
    """

    file: DownloadFile
    url: str | None
    bytes: int | None
    sha256: str | None
    revision: str | None = None
    hub_error: LauncherError | None = None

    @property
    def lacks_checksum(self) -> bool:
        """Whether the hub answered, but publishes no checksum for the file."""
        return bool(self.url) and self.sha256 is None


OnPull = Callable[[Progress], None]


async def pull_model(
    wanted: DownloadTarget,
    *,
    to: Path | None = None,
    on_progress: OnPull | None = None,
    settings: TransferSettings | None = None,
) -> PullResult:
    """Download all files of `wanted` into `to` (default: the models folder).

    Files that exist in the models folder, or (without `to`) in a cache of the hub's tools, are verified once and used
    in place. Cancelling pauses the download: the next call resumes it. A problem with the downloaded model, such as a
    missing MTP head, is returned in `checked`. If a model of the hub that is not in the catalogue has no head inside,
    the head that its repository has in a file of its own (mtp-*.gguf) is downloaded, too.

    Raises ModelReplaced if the hub's files differ from the catalogue's or from local ones, ModelBroken for a truncated
    or invalid GGUF or a file known to be damaged, the errors of `resolve_file` if a file is not local, and the errors
    of `make_download_folder` and `download_file`.
    """
    began_s = time.monotonic()
    settings = settings or TransferSettings()
    resolved = await _resolve_all(wanted, settings, on_progress)
    notes = [note for each in resolved for note in _check_differences(each, wanted)]
    wanted = await _recognise_target(wanted, resolved, to)
    download = _Download(wanted, expand_user(to) if to else None, settings, on_progress, resolved)
    files_by_item = [await download.get_files(item) for item in wanted.items]
    checks = [
        await asyncio.to_thread(_add_to_library, download.make_record(item, files), wanted)
        for item, files in zip(wanted.items, files_by_item, strict=True)
    ]
    if draft := await _find_head(wanted, *checks[0]):
        resolved += await _resolve_all(replace(wanted, items=(draft,)), settings, on_progress)
        download.add_files(resolved[-1:])
        files_by_item.append(await download.get_files(draft))
        checks.append(await asyncio.to_thread(_add_to_library, download.make_record(draft, files_by_item[-1]), wanted))
    trunk = checks[0][0]
    for path in (files[0].path for files in files_by_item[1:] if files[0].kind == "draft" and not wanted.entry):
        if why := await asyncio.to_thread(_explain_mismatch, path, trunk.path):
            notes.append(message("{name} cannot draft for this model: {why}.", name=path.name, why=why))
        elif draft is not None:
            checks[0] = await asyncio.to_thread(partial(_add_to_library, trunk, wanted, has_head_beside=True))
    notes += [str(checked.problem) for _, checked in checks[1:] if checked.problem]
    files = tuple(file for each in files_by_item for file in each)
    published = not any(each.lacks_checksum for each in resolved)
    return PullResult(files, *checks[0], time.monotonic() - began_s, tuple(notes), published)


def unfinished_bytes(wanted: DownloadTarget, to: Path | None = None) -> int:
    """Return the number of bytes that a paused download of `wanted` has on the disk."""
    targets = [local_target(file, wanted.folder, to=to) for item in wanted.items for file in item.files]
    return sum(
        count_unfinished_bytes(target) or (target.stat().st_size if target.is_file() else 0) for target in targets
    )


async def _resolve_all(
    wanted: DownloadTarget, settings: TransferSettings, on_progress: OnPull | None
) -> list[_ResolvedFile]:
    """Resolve all files on the hub concurrently. If it limits requests, report WAITING and retry."""
    files = [file for item in wanted.items for file in item.files]

    def report(number: int, note: str) -> None:
        if on_progress is not None:
            name = PurePosixPath(files[number].name).name
            on_progress(
                Progress(
                    bytes=wanted.bytes,
                    note=note,
                    phase=Phase.WAITING,
                    item=name,
                    item_number=number + 1,
                    item_count=len(files),
                )
            )

    requests = [
        asyncio.ensure_future(
            call_with_retries(partial(_resolve_file, file, wanted), settings, partial(report, number))
        )
        for number, file in enumerate(files)
    ]
    try:
        return await asyncio.gather(*requests)
    finally:
        for each in requests:  # once one request has failed, the others are pointless
            each.cancel()


def _resolve_file(file: DownloadFile, wanted: DownloadTarget) -> _ResolvedFile:
    """Resolve a file on the hub. If the hub cannot be reached, use the catalogue's figures."""
    if file.hub is None:
        return _ResolvedFile(file, file.url, file.bytes, file.sha256)
    try:
        entry = resolve_file(file.hub)
    except (Offline, Unreachable) as error:
        return _ResolvedFile(file, None, file.bytes, file.sha256, file.hub.revision, error)
    except ModelMissing as error:
        if wanted.pinned_by != "catalogue":
            raise
        hint = join_messages(
            message(
                "The catalogue describes that revision.[ {option} downloads the newest one.]",
                option=FaceName("`--revision main`"),
            ),
            error.hint,
        )
        raise ModelMissing(error.title, hint, **error.facts) from error
    return _ResolvedFile(file, entry.url, entry.bytes, entry.sha256 or file.sha256, entry.revision)


def _check_differences(resolved: _ResolvedFile, wanted: DownloadTarget) -> Iterator[str]:
    """Yield remarks on a file that differs from its description. Raises ModelReplaced if it is pinned."""
    file, differences = resolved.file, []
    if file.bytes is not None and resolved.bytes not in (None, file.bytes):
        differences.append(
            message("{found:,} bytes in place of {expected:,}", found=resolved.bytes, expected=file.bytes)
        )
    if file.sha256 is not None and resolved.sha256 not in (None, file.sha256):
        differences.append(
            message("SHA-256 {found}… in place of {expected}…", found=resolved.sha256[:12], expected=file.sha256[:12])
        )
    if resolved.lacks_checksum:
        yield message("No checksum is published for {file}: only its size can be verified.", file=file.label)
    if not differences:
        return
    other = message(
        "{file} differs from the file in the catalogue: {differences}.",
        file=file.label,
        differences=enumerate_texts(differences),
    )
    facts = {"file": file.label, "bytes": resolved.bytes, "sha256": resolved.sha256}
    if wanted.pinned_by == "catalogue" and wanted.entry and file.hub and file.hub.repo == wanted.entry.repo:
        hint = message(
            "It may have been uploaded again.[ {option} downloads the newest file unchecked.]",
            option=FaceName("`--revision main`"),
        )
        raise ModelReplaced(other, hint, **facts)
    if wanted.pinned_by == "user":
        hint = message("Check --sha256. Without it, the checksum from Hugging Face is used.")
        other = message(
            "{file} differs from the file that you asked for: {differences}.",
            file=file.label,
            differences=enumerate_texts(differences),
        )
        raise ModelReplaced(other, hint, **facts)
    yield join_messages(other, message("The data of the catalogue may not apply to it."))


async def _recognise_target(
    wanted: DownloadTarget, resolved: Sequence[_ResolvedFile], to: Path | None
) -> DownloadTarget:
    """Return the target with the kind that the header of its file has, on the hub or here.

    Raises ModelUnexpected for a file of no use to llama-server. Files of the catalogue are known. If the header cannot
    be read, the check of the downloaded file says why.
    """
    item, first = wanted.items[0], resolved[0]
    hub = first.file.hub
    path = local_target(first.file, wanted.folder, to=to)
    if wanted.entry is not None or hub is None or (first.url is None and not path.exists()):
        return wanted
    try:
        if path.exists():
            kind = recognise_file(await asyncio.to_thread(read_model, path))
        else:
            kind = await asyncio.to_thread(recognise_remote, hub)
    except LauncherError:
        return wanted
    if kind is not None and not kind.beside:
        raise unusable_error(kind, hub.path)
    return replace(wanted, items=(replace(item, kind=kind.role if kind else "model"), *wanted.items[1:]))


def _redact_url(url: str) -> str:
    """Return a URL without user, password and query, which may hold a signature."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


async def _find_head(wanted: DownloadTarget, record: Record, checked: HeaderCheck) -> DownloadItem | None:
    """Return the MTP head in the repository of a model without one.

    It is told by its name; its header is checked once it is here. None for a model of the catalogue, which knows its
    drafts, for one with another draft or a given checksum, and if the hub cannot be asked.
    """
    hub = wanted.items[0].files[0].hub
    is_known = checked.head == "present" or wanted.entry or wanted.pinned_by or len(wanted.items) > 1
    if record.kind != "model" or is_known or hub is None:
        return None
    try:
        repository = await asyncio.to_thread(
            read_repository, hub.repo, None if hub.revision == "main" else hub.revision
        )
    except LauncherError:
        return None
    for draft in repository.list_drafts(find_drafter(MTP.spec_type, (HEAD_FILE,)), record.quant):
        file = DownloadFile(draft.file, replace(hub, path=draft.file), None, draft.size_bytes, draft.sha256)
        return DownloadItem("draft", (file,))
    return None


def _explain_mismatch(draft: Path, trunk: Path) -> str:
    """Return why a downloaded draft is not for a model, "" if it is."""
    try:
        return find_mismatch(read_model(draft), read_model(trunk))
    except LauncherError as error:
        return error.title


def _add_to_library(
    record: Record, wanted: DownloadTarget, *, has_head_beside: bool = False
) -> tuple[Record, HeaderCheck]:
    """Check the header of a downloaded model, and store its record in the library."""
    is_model = record.kind == "model"
    entry, file = (wanted.entry, wanted.file) if is_model else (None, None)
    promised = is_model and not has_head_beside and promises_head(record.repo, record.file or record.path.name)
    try:
        checked = check_received(record.path, record.kind, entry=entry, file=file, head=promised)
    except LauncherError as error:
        store_record(replace(record, problem=error.title))
        raise
    problem = checked.problem.title if checked.problem else None
    if checked.kind is not None or record.kind != "draft":  # a small model may be a draft, too
        record = classify_record(record, checked.kind)
    record = replace(record, head=checked.head, problem=problem)
    store_record(record)
    if is_model and len(record.paths) == 1 and record.sha256[0]:
        store_header(record.path, record.sha256[0])
    return record, checked


class _Download:
    """One download in progress: its target folder and its progress."""

    def __init__(
        self,
        wanted: DownloadTarget,
        to: Path | None,
        settings: TransferSettings,
        on_progress: OnPull | None,
        resolved: Sequence[_ResolvedFile],
    ) -> None:
        self._wanted = wanted
        self._to = to.absolute() if to else None
        self._settings = settings
        self._on_progress = on_progress
        self._resolved: dict[DownloadFile, _ResolvedFile] = {}
        self._done: list[PulledFile] = []
        self._bytes: int | None = 0
        self.add_files(resolved)

    def add_files(self, resolved: Sequence[_ResolvedFile]) -> None:
        """Add further files to the download, and their sizes to its total."""
        self._resolved |= {each.file: each for each in resolved}
        sizes = [each.bytes for each in self._resolved.values()]
        self._bytes = None if None in sizes else sum(size or 0 for size in sizes)

    async def get_files(self, item: DownloadItem) -> list[PulledFile]:
        """Return a model's files: from the models folder, else from a cache, else downloaded."""
        resolved = [self._resolved[file] for file in item.files]
        files = None
        if self._to is None and not any(self._local_path(each).exists() for each in resolved):
            files = await self._find_in_cache(item.kind, resolved)
        if files is None:
            files = []
            for each in resolved:
                files.append(await self._find_local(item.kind, each) or await self._fetch_file(item.kind, each))
                self._done.append(files[-1])
        return files

    def make_record(self, item: DownloadItem, files: Sequence[PulledFile]) -> Record:
        """Return a model's record for the library, without the facts from its header."""
        first, wanted = self._resolved[item.files[0]], self._wanted
        is_model, hub = item.kind == "model", first.file.hub
        return Record(
            kind=item.kind,
            paths=tuple(file.path for file in files),
            sha256=tuple(file.sha256 for file in files),
            bytes=sum(file.bytes for file in files),
            model=wanted.entry.id if wanted.entry else None,
            quant=(wanted.file.quant if wanted.file else parse_quant(files[0].path.name)) if is_model else None,
            repo=hub.repo if hub else None,
            revision=first.revision,
            file=hub.path if hub else None,
            url=_redact_url(first.file.url) if first.file.url else None,
            received_s=round(time.time(), 3),
        )

    def _local_path(self, resolved: _ResolvedFile) -> Path:
        return local_target(resolved.file, self._wanted.folder, to=self._to)

    async def _find_in_cache(self, kind: Kind, resolved: Sequence[_ResolvedFile]) -> list[PulledFile] | None:
        """Return the files in a cache or another program's store if their SHA-256 match, else None."""
        hubs = [each.file.hub for each in resolved if each.file.hub]
        if not hubs:
            return None
        names = [hub.path for hub in hubs]

        def find_copies() -> list[tuple[Path, ...]]:
            cached = find_cached_files(hubs[0].repo, names, resolved[0].revision)
            return [*cached, *find_store_copies(hubs[0].repo, names, resolved[0].sha256)]

        for paths in await asyncio.to_thread(find_copies):
            wanted = [each.sha256 or claimed_sha256(path) for each, path in zip(resolved, paths, strict=True)]
            sizes = [path.stat().st_size for path in paths]
            if None in wanted or any(
                each.bytes not in (None, size) for each, size in zip(resolved, sizes, strict=True)
            ):
                continue
            files: list[PulledFile] = []
            for each, path, sha256 in zip(resolved, paths, wanted, strict=True):
                if claimed_sha256(path) in (None, sha256) and await self._hash_file(path, each) == sha256:
                    files.append(PulledFile(path, kind, path.stat().st_size, sha256 or "", "cache"))
            if len(files) == len(resolved):
                self._done += files
                return files
        return None

    async def _find_local(self, kind: Kind, resolved: _ResolvedFile) -> PulledFile | None:
        """Return the file if it exists at its target path. Raises ModelReplaced if a different file is there."""
        target = self._local_path(resolved)
        if not target.is_file():
            return None
        size = target.stat().st_size
        sha256 = await self._hash_file(target, resolved) if resolved.bytes in (None, size) else None
        if sha256 is None or resolved.sha256 not in (None, sha256):
            await asyncio.to_thread(refuse_damaged, target)
            raise ModelReplaced(
                message("{target} exists but is not {file}.", target=target, file=resolved.file.label),
                message(
                    "Delete it first[ ({command})], or download into another folder[ with {option}].",
                    command=command_name("models remove"),
                    option=FaceName("--to"),
                ),
                path=str(target),
            )
        return PulledFile(target, kind, size, sha256, "here")

    async def _hash_file(self, path: Path, resolved: _ResolvedFile) -> str:
        """Return a file's SHA-256: the stored one if the file is unchanged, else computed with progress reports."""
        index, _ = await asyncio.to_thread(read_index)
        kept = find_hash(index, path)
        if kept is not None:
            return kept.sha256
        began_s, size = time.monotonic(), resolved.bytes

        def report(done: int) -> None:
            speed = done / max(time.monotonic() - began_s, 1e-3)
            self._report_progress(resolved, Progress(done, size, speed, phase=Phase.VERIFYING))

        stat = await asyncio.to_thread(path.stat)
        sha256 = await hash_file(path, report)
        await asyncio.to_thread(store_hash, path, sha256, stat)
        return sha256

    async def _fetch_file(self, kind: Kind, resolved: _ResolvedFile) -> PulledFile:
        if resolved.url is None:
            raise resolved.hub_error or Offline(
                message("{file} is not on this computer.", file=resolved.file.label), message("Download it first.")
            )
        target = self._local_path(resolved)
        await asyncio.to_thread(make_download_folder, target.parent, given_by="--to" if self._to else MODELS_VARIABLE)
        self._check_disk_space()
        source = DownloadSource(
            url=resolved.url,
            bytes=resolved.bytes,
            sha256=resolved.sha256,
            token=hub_token() if resolved.file.hub else None,
            name=resolved.file.label,
        )
        got = await download_file(
            source,
            target,
            settings=self._settings,
            on_progress=lambda progress: self._report_progress(resolved, progress),
        )
        await asyncio.to_thread(store_hash, target, got.sha256, target.stat())
        return PulledFile(target, kind, got.bytes, got.sha256, "downloaded", got.resumed_bytes, got.received_bytes)

    def _check_disk_space(self) -> None:
        """Raise DiskFull if several files together do not fit. For a single file, the transfer checks that."""
        left = [each for each in self._resolved.values() if each.bytes and not self._local_path(each).exists()]
        if len(left) < 2:
            return
        folder = self._local_path(left[0]).parent
        while not folder.exists():
            folder = folder.parent
        need = sum((each.bytes or 0) - (count_unfinished_bytes(self._local_path(each)) or 0) for each in left)
        free = shutil.disk_usage(folder).free
        if need + self._settings.reserve_bytes > free:
            raise DiskFull(
                message(
                    "{file} needs {need:.1f} GB more, but {folder} has only {free:.1f} GB free.",
                    file=self._wanted.label,
                    need=need / 1e9,
                    folder=folder,
                    free=free / 1e9,
                ),
                message(
                    "Free disk space, or choose another folder[ with {option}][ in {page}]. The downloaded part "
                    "is kept.",
                    option=FaceName("--to"),
                    page=FaceName(None, mark("Settings")),
                ),
                needed_bytes=need,
                free_bytes=free,
                folder=str(folder),
            )

    def _report_progress(self, resolved: _ResolvedFile, progress: Progress) -> None:
        if self._on_progress is None:
            return
        before = sum(file.bytes for file in self._done)
        done, speed = before + progress.done_bytes, progress.bytes_per_second
        left = (self._bytes - done) / speed if self._bytes is not None and speed else progress.seconds_left
        self._on_progress(
            replace(
                progress,
                done_bytes=done,
                bytes=self._bytes if len(self._resolved) > 1 else progress.bytes or self._bytes,
                seconds_left=left,
                item=self._local_path(resolved).name,
                item_number=list(self._resolved).index(resolved.file) + 1,
                item_count=len(self._resolved),
            )
        )
