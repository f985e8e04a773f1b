"""Installation of official builds: choose, download, verify, unpack to a temporary folder, test, then put in use.

If any step fails or is interrupted, the engine in use stays in use.
"""

import asyncio
import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from launcher.base.errors import DiskFull, DraftsInert, GpuUnseen, LauncherError, LibraryMissing
from launcher.base.files import make_private_folder
from launcher.base.messages import command_name, message
from launcher.base.paths import cache_dir
from launcher.base.progress import Phase, Progress
from launcher.engine.builds.archive import unpack_archive
from launcher.engine.builds.assets import BuildChoice, TargetComputer, choose_builds, describe_computer, fallback_rank
from launcher.engine.builds.build import store_dir
from launcher.engine.builds.install_errors import ReleaseMissing, SelfTestFailed
from launcher.engine.builds.installed import (
    AUTOMATIC,
    PROGRAM,
    InstalledEngine,
    Manifest,
    installation_folder,
    put_in_place,
    read_store,
    switch_after_install,
)
from launcher.engine.builds.offers import Offer, archives_of, find_offer, list_offers
from launcher.engine.builds.releases import STABLE, Asset, Release, ReleaseClient
from launcher.engine.builds.self_test import SelfTestResult, run_self_test
from launcher.engine.builds.slower_builds import list_slower_builds
from launcher.fetch.file_names import local_name
from launcher.fetch.transfer import DownloadSource, TransferSettings, download_file
from launcher.machine.machine import read_machine

_ABANDONED_S = 86_400.0
"""Downloads of an unfinished installation are deleted after one day without changes."""


OnProgress = Callable[[Progress], None]
"""Called with the progress of the download of all files together, and with each other step (Phase.WORKING)."""
OnNote = Callable[[str], None]
"""Called with notes for the user that should stay visible."""


async def install_build(
    tag: str | None = None,
    backend: str | None = None,
    *,
    anyway: bool = False,
    on_progress: OnProgress | None = None,
    on_note: OnNote | None = None,
    target: TargetComputer | None = None,
    releases: ReleaseClient | None = None,
    settings: TransferSettings = TransferSettings(),  # noqa: B008 -- the default is frozen
) -> InstalledEngine:
    """Install the build of `tag` for this computer, and put it in use unless another engine is pinned.

    `tag` is bNNNN, vX.Y.Z, "stable" or "nightly"; None means "stable", but never a build older than the one in use.
    Without `backend`, the next fallback is tried if a build does not see the GPU or fails its self-test. `anyway`
    allows a known-bad build if `tag` names it. `target` is the computer to choose for, by default this one; a sleeping
    GPU is woken, because its capabilities cannot be read otherwise.

    A cancelled installation keeps its downloads and resumes from them next time. Raises the errors of `find_offer`,
    `download_file`, `unpack_archive` and `run_self_test`, EngineBusy, and ReleaseMissing for a file without a checksum,
    because no unverified program is run.
    """
    return await _Installation(
        on_progress or (lambda _: None), on_note or (lambda _: None), releases or ReleaseClient(), settings
    ).run(tag, backend, target, anyway=anyway)


async def list_available_builds(
    backend: str | None = None,
    *,
    target: TargetComputer | None = None,
    releases: ReleaseClient | None = None,
    count: int = 10,
) -> tuple[Offer, ...]:
    """Return the offers of the newest `count` builds for `target`, by default this computer.

    Raises the errors of ReleaseClient.
    """
    target = target or await _read_computer()
    releases = releases or ReleaseClient()
    return await asyncio.to_thread(lambda: list_offers(releases.fetch_builds(), target, backend, count))


def discard_downloads(tag: str | None, backend: str | None) -> None:
    """Delete the partial downloads of an unfinished installation. Raises EngineBusy while an installation runs."""
    with installation_folder():
        shutil.rmtree(_downloads_folder(tag, backend), ignore_errors=True)


class _Installation:
    """One run of `install_build`, with its progress callback and download settings."""

    def __init__(
        self, on_progress: OnProgress, on_note: OnNote, releases: ReleaseClient, settings: TransferSettings
    ) -> None:
        self._on_progress, self._on_note = on_progress, on_note
        self._releases, self._settings = releases, settings

    async def run(
        self, tag: str | None, backend: str | None, target: TargetComputer | None, *, anyway: bool
    ) -> InstalledEngine:
        with installation_folder() as folder:
            self._report_step(message("Checking this computer and the releases"))
            target = target or await _read_computer()
            offer = await find_offer(self._releases, target, tag, backend, anyway=anyway)
            for note in self._releases.notes:
                self._on_note(note)
            release = offer.release
            newer = self._find_newer_in_use(release) if tag is None else None
            if newer is not None:
                self._on_note(
                    message(
                        "{name} is in use and newer than the stable release {tag}. No change.",
                        name=newer.name,
                        tag=release.tag,
                    )
                )
                return newer
            choices = choose_builds(target, release.uploaded_names, backend)
            faster = _find_faster_in_use(choices[0]) if tag is None else None
            if faster is not None:
                self._on_note(
                    message(
                        "{name} stays in use: {tag} was slower on this computer.[ To install it anyway: {command}.]",
                        name=faster.name,
                        tag=release.tag,
                        command=command_name(f"engine install {release.tag}"),
                    )
                )
                return faster
            # A private folder: no other user may change an archive between its verification and its unpacking.
            downloads = make_private_folder(_downloads_folder(tag, backend))
            for index, choice in enumerate(choices):
                for reason in choice.reasons:
                    self._on_note(reason)
                try:
                    engine = await self._install_choice(release, choice, folder / str(index), downloads)
                    break
                except _TestFailed as failed:
                    fallback = choices[index + 1] if index + 1 < len(choices) and backend is None else None
                    if fallback is None or not failed.another_may_pass or self._is_step_down(fallback):
                        self._on_note(message("No change: {in_use} stays in use.", in_use=_format_engine_in_use()))
                        raise failed.reason from failed
                    self._on_note(
                        message(
                            "{label} failed its test: {reason}", label=choice.build.label, reason=failed.reason.title
                        )
                    )
                    self._on_note(message("Trying {label}.", label=fallback.build.label))
            if not switch_after_install(engine.name):
                pinned = read_store().current
                self._on_note(
                    message(
                        "{pinned} is pinned and stays in use[; {command} changes that].",
                        pinned=pinned,
                        command=command_name(f"engine use {engine.name}"),
                    )
                )
            shutil.rmtree(downloads, ignore_errors=True)
            _delete_abandoned_downloads(downloads.parent)
            return engine

    def _find_newer_in_use(self, release: Release) -> InstalledEngine | None:
        """Return the engine in use if it is a newer build than `release`, else None."""
        engine = _find_engine_in_use()
        return engine if engine and engine.number and engine.number > int(release.tag[1:]) else None

    def _is_step_down(self, choice: BuildChoice) -> bool:
        """Return whether the engine in use has a faster backend than `choice`, so that keeping it is better."""
        engine = _find_engine_in_use()
        if engine is None or engine.manifest is None:
            return False
        if fallback_rank(engine.manifest.backend) >= fallback_rank(choice.build.backend):
            return False
        label = choice.build.label
        self._on_note(
            message(
                "{label} would be slower than {name}, which is in use; `--backend {label}` installs it anyway.",
                label=label,
                name=engine.name,
            )
        )
        return True

    async def _install_choice(
        self, release: Release, choice: BuildChoice, folder: Path, downloads: Path
    ) -> InstalledEngine:
        """Install and test the chosen build, and return it. A build that is already installed is only tested."""
        build, number = choice.build, int(release.tag[1:])
        installed = next((engine for engine in read_store().engines if engine.name == build.folder), None)
        if installed is not None and installed.program.is_file():
            self._on_note(message("{name} is installed already.", name=installed.name))
            try:
                await self._run_test(installed.program, number, choice)
                return installed
            except _TestFailed as failed:
                if isinstance(failed.reason, GpuUnseen | LibraryMissing | DraftsInert):
                    raise  # the same files would fail in the same way
                self._on_note(
                    message("It failed its test, so it is being reinstalled: {reason}", reason=failed.reason.title)
                )
        archives = await self._download_archives(release, choice, downloads)
        self._report_step(message("Unpacking {name}", name=build.name))
        await self._unpack_archives(archives, folder)
        if not (folder / PROGRAM).is_file():
            raise SelfTestFailed(
                message("{name} contains no {program}.", program=PROGRAM, name=build.name),
                message("Choose another release."),
            )
        try:
            result = await self._run_test(folder / PROGRAM, number, choice)
        except _TestFailed as failed:
            _remove_folder_name(folder, failed.reason)
            raise
        return put_in_place(folder, build.folder, _make_manifest(release, choice, result))

    async def _run_test(self, program: Path, number: int, choice: BuildChoice) -> SelfTestResult:
        backend = choice.build.backend
        try:
            result = await run_self_test(
                program, number=number, backend=backend, gpu=choice.gpu, on_step=self._report_step
            )
        except LauncherError as error:
            raise _TestFailed(error) from error
        for note in result.notes:
            self._on_note(note)
        return result

    async def _download_archives(self, release: Release, choice: BuildChoice, folder: Path) -> list[Path]:
        """Download the archives and verify each by the size and the SHA-256 checksum from GitHub."""
        assets = archives_of(release, choice)
        for asset in assets:
            if asset.sha256 is None:
                raise ReleaseMissing(
                    message("GitHub publishes no checksum for {name}, so it cannot be verified.", name=asset.name),
                    message(
                        "Choose a newer release.[ If you trust this one, unpack it yourself and run {command}.]",
                        command=command_name("engine add PATH"),
                    ),
                )
        total_bytes, done_bytes, paths = sum(asset.bytes for asset in assets), 0, []
        for asset in assets:
            path = folder / asset.name
            source = DownloadSource(asset.url, asset.bytes, asset.sha256, name=asset.name)
            await download_file(
                source,
                path,
                settings=self._settings,
                on_progress=self._transfer_callback(asset, done_bytes, total_bytes),
            )
            done_bytes += asset.bytes
            paths.append(path)
        return paths

    def _transfer_callback(self, asset: Asset, earlier_bytes: int, total_bytes: int) -> OnProgress:
        """Return a callback that reports the transfer of one of several files as the progress of all."""

        def report(progress: Progress) -> None:
            done = earlier_bytes + progress.done_bytes
            # The seconds left are those of this file, so they are reported only if it is the only one.
            left_s = progress.seconds_left if progress.bytes == total_bytes else None
            self._on_progress(
                replace(progress, done_bytes=done, bytes=total_bytes, seconds_left=left_s, item=asset.name)
            )

        return report

    async def _unpack_archives(self, archives: Sequence[Path], folder: Path) -> None:
        """Unpack the build, and the CUDA runtime into the same folder. Cancelling stops the writing thread, too."""
        cancelled = threading.Event()

        def unpack() -> None:
            unpack_archive(archives[0], folder, cancelled=cancelled)
            for archive in archives[1:]:
                runtime = folder.with_name(f"{folder.name}-runtime")
                unpack_archive(archive, runtime, cancelled=cancelled)
                for each in runtime.iterdir():
                    if not (folder / each.name).exists():  # the build's own copy of a library takes precedence
                        each.rename(folder / each.name)

        working = asyncio.ensure_future(asyncio.to_thread(unpack))
        try:
            await asyncio.shield(working)
        except asyncio.CancelledError:
            cancelled.set()
            await asyncio.wait([working])  # otherwise the thread would write into the folder while it is deleted
            working.exception()
            raise
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise DiskFull(
                message(
                    "Cannot unpack {name} in {store_dir}: {strerror}.",
                    name=archives[0].name,
                    store_dir=store_dir(),
                    strerror=error.strerror,
                ),
                message("Free disk space and try again. The download is kept."),
            ) from error

    def _report_step(self, text: str) -> None:
        self._on_progress(Progress(phase=Phase.WORKING, item=text))


class _TestFailed(Exception):
    """A failed self-test. `another_may_pass` is whether a build for another backend may pass it."""

    def __init__(self, reason: LauncherError) -> None:
        super().__init__(reason)
        self.reason = reason
        self.another_may_pass = not (isinstance(reason, SelfTestFailed | LibraryMissing) or reason.facts.get("hidden"))


def _find_faster_in_use(choice: BuildChoice) -> InstalledEngine | None:
    """Return the engine in use if the chosen build was compared with one before, and slower."""
    engine = _find_engine_in_use()
    is_slower = choice.build.folder in list_slower_builds()
    return engine if is_slower and engine is not None and engine.name != choice.build.folder else None


def _remove_folder_name(folder: Path, error: LauncherError) -> None:
    """Remove the path of a temporary folder, which is about to be deleted, from an error's text."""
    error.title = error.title.replace(f"{folder}{os.sep}", "")
    if str(folder) in error.hint:
        error.hint = message("Choose another release, or another build of it with --backend.")


async def _read_computer() -> TargetComputer:
    return describe_computer(await asyncio.to_thread(lambda: read_machine(wake=True)))


def _make_manifest(release: Release, choice: BuildChoice, result: SelfTestResult) -> Manifest:
    return Manifest(
        tag=release.tag,
        backend=choice.build.label,
        arch=choice.build.arch,
        archives={asset.name: asset.sha256 or "" for asset in archives_of(release, choice)},
        version=result.build.version,
        installed_s=time.time(),
        devices=[f"{device.name}: {device.description}" for device in result.devices],
        drafted=result.drafted,
        accepted=result.accepted,
        tokens_per_second=result.tokens_per_second,
    )


def _find_engine_in_use() -> InstalledEngine | None:
    """Return the store's engine in use; None if the choice is automatic or built-in, or the engine no longer exists."""
    store = read_store()
    return next((engine for engine in store.engines if engine.name == store.current), None)


def _format_engine_in_use() -> str:
    name = read_store().current
    return "what was used before" if name == AUTOMATIC else name


def _delete_abandoned_downloads(folder: Path) -> None:
    """Delete downloads of other unfinished installations that have not changed for `_ABANDONED_S` seconds."""
    with suppress(OSError):
        for each in folder.iterdir():
            if time.time() - max(path.stat().st_mtime for path in (each, *each.rglob("*"))) > _ABANDONED_S:
                shutil.rmtree(each, ignore_errors=True)


def _downloads_folder(tag: str | None, backend: str | None) -> Path:
    """Return the download folder of an installation; each combination of tag and backend has a separate one."""
    return cache_dir() / "downloads" / "engines" / local_name(f"{tag or STABLE}-{backend or 'any'}")
