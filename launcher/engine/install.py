"""Installing an official build: chosen, downloaded, verified, unpacked aside, tested, and only then put in use.

Whatever fails or is cut short, what was in use stays in use.
"""

import asyncio
import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from launcher.base.errors import DiskFull, DraftsInert, GpuUnseen, LauncherError, LibraryMissing
from launcher.base.files import private_folder
from launcher.base.paths import cache_dir
from launcher.base.words import part
from launcher.engine.archive import unpack
from launcher.engine.assets import Choice, Target, choose, slowness, target_of
from launcher.engine.install_errors import ReleaseMissing, SelfTestFailed
from launcher.engine.installed import (
    AUTOMATIC,
    PROGRAM,
    InstalledEngine,
    Manifest,
    put_in_place,
    read_store,
    switch_after_install,
)
from launcher.engine.offers import Offer, files_of, offered, offers
from launcher.engine.releases import STABLE, Asset, Release, Releases
from launcher.engine.self_test import Passed, self_test
from launcher.engine.staging import installing, store_dir
from launcher.fetch.names import local_name
from launcher.fetch.transfer import Progress, Source, TransferSettings, fetch
from launcher.machine.machine import read_machine

_ABANDONED_S = 86_400.0


@dataclass(frozen=True, slots=True)
class InstallProgress:
    """What an installation does now, or a `note` to keep in sight. `transfer` is of the file being downloaded;
    `done_bytes` of `bytes` are of all files together.
    """

    text: str
    note: bool = False
    transfer: Progress | None = None
    done_bytes: int = 0
    bytes: int | None = None


OnProgress = Callable[[InstallProgress], None]


async def install(
    tag: str | None = None,
    backend: str | None = None,
    *,
    anyway: bool = False,
    on_progress: OnProgress | None = None,
    target: Target | None = None,
    releases: Releases | None = None,
    settings: TransferSettings = TransferSettings(),  # noqa: B008 -- frozen
) -> InstalledEngine:
    """Install the build of `tag` that suits this computer, and put it in use unless another is pinned.

    `tag` is bNNNN, vX.Y.Z, "stable" or "nightly"; None is "stable", but never older than what is in use. Without
    `backend` the next that suits is tried when a build does not see the GPU or fails its self-test. `anyway` takes a
    build that is known to be bad, when `tag` names it. `target` is the computer to choose for, by default this one;
    a GPU that sleeps is woken, since only then it tells what it can do.

    Cancelled, it leaves what was downloaded, and goes on from there next time. Raises what `offered`, `fetch`, `unpack`
    and `self_test` raise, EngineBusy, and ReleaseMissing for a file without a checksum: none is run unverified.
    """
    return await _Installation(on_progress or (lambda _: None), releases or Releases(), settings).run(
        tag, backend, target, anyway=anyway
    )


async def available(
    backend: str | None = None, *, target: Target | None = None, releases: Releases | None = None, count: int = 10
) -> tuple[Offer, ...]:
    """Return what the newest builds offer this computer, or `target`. Raises what Releases raises."""
    target = target or await _this_computer()
    releases = releases or Releases()
    return await asyncio.to_thread(lambda: offers(releases.builds(), target, backend, count))


def discard_downloads(tag: str | None, backend: str | None) -> None:
    """Delete what waits of an installation that was not finished. Raises EngineBusy while one goes on."""
    with installing():
        shutil.rmtree(_downloads(tag, backend), ignore_errors=True)


class _Installation:
    def __init__(self, on_progress: OnProgress, releases: Releases, settings: TransferSettings) -> None:
        self._tell, self._releases, self._settings = on_progress, releases, settings

    async def run(
        self, tag: str | None, backend: str | None, target: Target | None, *, anyway: bool
    ) -> InstalledEngine:
        with installing() as folder:
            self._step(part("Looking at this computer and the releases"))
            target = target or await _this_computer()
            offer = await offered(self._releases, target, tag, backend, anyway=anyway)
            for note in self._releases.notes:
                self._note(note)
            release = offer.release
            newer = self._newer_in_use(release) if tag is None else None
            if newer is not None:
                self._note(f"{newer.name} is in use and newer than the stable {release.tag}: nothing was changed.")
                return newer
            choices = choose(target, release.ready, backend)
            # Nobody else may change what lies there between its check and its unpacking.
            downloads = private_folder(_downloads(tag, backend))
            for place, choice in enumerate(choices):
                for reason in choice.reasons:
                    self._note(reason)
                try:
                    engine = await self._take(release, choice, folder / str(place), downloads)
                    break
                except _TestFailed as failed:
                    following = choices[place + 1] if place + 1 < len(choices) and backend is None else None
                    if following is None or not failed.another_may_pass or self._is_step_down(following):
                        self._note(f"Nothing was changed: {_in_use()} stays in use.")
                        raise failed.reason from failed
                    self._note(f"{choice.build.label} failed its test: {failed.reason.title}")
                    self._note(f"Trying {following.build.label}.")
            if not switch_after_install(engine.name):
                pinned = read_store().current
                self._note(
                    f"{pinned} is pinned and stays in use; `mtp-launcher engine use {engine.name}` changes that."
                )
            shutil.rmtree(downloads, ignore_errors=True)
            _forget_abandoned(downloads.parent)
            return engine

    def _newer_in_use(self, release: Release) -> InstalledEngine | None:
        found = _engine_in_use()
        return found if found and found.number and found.number > int(release.tag[1:]) else None

    def _is_step_down(self, choice: Choice) -> bool:
        """Return whether what is in use computes by something faster: then it is the better one to keep."""
        found = _engine_in_use()
        if (
            found is None
            or found.manifest is None
            or slowness(found.manifest.backend) >= slowness(choice.build.backend)
        ):
            return False
        label = choice.build.label
        self._note(f"{label} would be slower than {found.name}, which is in use; `--backend {label}` takes it.")
        return True

    async def _take(self, release: Release, choice: Choice, folder: Path, downloads: Path) -> InstalledEngine:
        """Return the engine of a choice, installed and tested; one that is there is only tested."""
        build, number = choice.build, int(release.tag[1:])
        there = next((engine for engine in read_store().engines if engine.name == build.folder), None)
        if there is not None and there.program.is_file():
            self._note(f"{there.name} is installed already.")
            try:
                await self._test(there.program, number, choice)
                return there
            except _TestFailed as failed:
                if isinstance(failed.reason, GpuUnseen | LibraryMissing | DraftsInert):
                    raise  # the same files would fail in the same way
                self._note(f"It fails its test, so it is installed anew: {failed.reason.title}")
        archives = await self._download(release, choice, downloads)
        self._step(f"Unpacking {build.name}")
        await self._unpack(archives, folder)
        if not (folder / PROGRAM).is_file():
            raise SelfTestFailed(f"There is no {PROGRAM} in {build.name}.", "Take another release.")
        try:
            passed = await self._test(folder / PROGRAM, number, choice)
        except _TestFailed as failed:
            _leave_out(folder, failed.reason)
            raise
        return put_in_place(folder, build.folder, _manifest(release, choice, passed))

    async def _test(self, program: Path, number: int, choice: Choice) -> Passed:
        backend = choice.build.backend
        try:
            passed = await self_test(program, number=number, backend=backend, gpu=choice.gpu, on_step=self._step)
        except LauncherError as error:
            raise _TestFailed(error) from error
        for note in passed.notes:
            self._note(note)
        return passed

    async def _download(self, release: Release, choice: Choice, folder: Path) -> list[Path]:
        """Fetch the archives, each verified by the size and the checksum that GitHub gives."""
        assets = files_of(release, choice)
        for asset in assets:
            if asset.sha256 is None:
                raise ReleaseMissing(
                    f"GitHub has no checksum for {asset.name}, so it cannot be verified.",
                    "Take a newer release. One that you trust can be unpacked by hand: `mtp-launcher engine add PATH`.",
                )
        total, before, paths = sum(asset.bytes for asset in assets), 0, []
        for asset in assets:
            path = folder / asset.name
            source = Source(asset.url, asset.bytes, asset.sha256, name=asset.name)
            await fetch(source, path, settings=self._settings, on_progress=self._transfer(asset, before, total))
            before += asset.bytes
            paths.append(path)
        return paths

    def _transfer(self, asset: Asset, before: int, total: int) -> Callable[[Progress], None]:
        def told(progress: Progress) -> None:
            done = before + progress.done_bytes
            self._tell(InstallProgress(f"Downloading {asset.name}", transfer=progress, done_bytes=done, bytes=total))

        return told

    async def _unpack(self, archives: Sequence[Path], folder: Path) -> None:
        """Unpack the build, and the runtime beside its program. Cancelling ends the writing, too."""
        cancelled = threading.Event()

        def work() -> None:
            for number, archive in enumerate(archives):
                place = folder if not number else folder.with_name(f"{folder.name}-runtime")
                unpack(archive, place, cancelled=cancelled)
                for each in place.iterdir() if number else ():
                    if not (folder / each.name).exists():  # what a build brings itself is the right one
                        each.rename(folder / each.name)

        working = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            await asyncio.shield(working)
        except asyncio.CancelledError:
            cancelled.set()
            await asyncio.wait([working])  # else it would go on writing where all is cleared away
            working.exception()
            raise
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise DiskFull(
                f"{archives[0].name} cannot be unpacked in {store_dir()}: {error.strerror}.",
                "Make room and start it again; what was downloaded is kept.",
            ) from error

    def _step(self, text: str) -> None:
        self._tell(InstallProgress(text))

    def _note(self, text: str) -> None:
        self._tell(InstallProgress(text, note=True))


class _TestFailed(Exception):
    """A self-test failed; another build may pass it unless the reason is none of the backend's."""

    def __init__(self, reason: LauncherError) -> None:
        super().__init__(reason)
        self.reason = reason
        self.another_may_pass = not (isinstance(reason, SelfTestFailed | LibraryMissing) or reason.facts.get("hidden"))


def _leave_out(folder: Path, error: LauncherError) -> None:
    """Take the name of a folder that is about to be deleted out of an error's words."""
    error.title = error.title.replace(f"{folder}{os.sep}", "")
    if str(folder) in error.hint:
        error.hint = "Take another release, or another of its builds with --backend."


async def _this_computer() -> Target:
    return target_of(await asyncio.to_thread(lambda: read_machine(wake=True)))


def _manifest(release: Release, choice: Choice, passed: Passed) -> Manifest:
    return Manifest(
        tag=release.tag,
        backend=choice.build.label,
        arch=choice.build.arch,
        archives={asset.name: asset.sha256 or "" for asset in files_of(release, choice)},
        version=passed.build.version,
        installed_s=time.time(),
        devices=[f"{device.name}: {device.description}" for device in passed.devices],
        drafted=passed.drafted,
        accepted=passed.accepted,
        tokens_per_second=passed.tokens_per_second,
    )


def _engine_in_use() -> InstalledEngine | None:
    store = read_store()
    return next((engine for engine in store.engines if engine.name == store.current), None)


def _in_use() -> str:
    name = read_store().current
    return "what was used before" if name == AUTOMATIC else name


def _forget_abandoned(folder: Path) -> None:
    """Delete what other installations have downloaded that failed and were not tried again for a day."""
    with suppress(OSError):
        for each in folder.iterdir():
            if time.time() - max(path.stat().st_mtime for path in (each, *each.rglob("*"))) > _ABANDONED_S:
                shutil.rmtree(each, ignore_errors=True)


def _downloads(tag: str | None, backend: str | None) -> Path:
    """Return where an installation keeps what it downloads, as the user asked for it: another one has its own."""
    return cache_dir() / "downloads" / "engines" / local_name(f"{tag or STABLE}-{backend or 'any'}")
