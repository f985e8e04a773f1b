"""A newer version, received and verified, and installed in the way in which this one was; never while it is in use."""

import asyncio
import os
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL

from launcher import settings
from launcher.base.errors import EngineMissing, FileInTheWay
from launcher.base.files import private_folder
from launcher.base.paths import cache_dir
from launcher.engine import registry
from launcher.engine.process import Command, Stream, start
from launcher.fetch.transfer import Progress, Source, fetch
from launcher.tuner_kept import check_no_tune
from launcher.updates.check import VARIABLE, Newest
from launcher.updates.errors import NotOffered, UpdateFailed, UpdateWaits
from launcher.updates.manifest import Artefact, this_platform
from launcher.updates.way import Way, way

_RENEWED_BY_THE_USER = {
    Way.TOOL: ("This program was installed by a `uv tool install` of your own.", "Run `uv tool upgrade mtp-launcher`."),
    Way.SOURCE: (
        "This program runs from a checkout or an environment of your own, which is yours to renew.",
        "In a checkout: `git pull`, then `./start`.",
    ),
}
_BY = {
    Way.DEB: ["sudo", "apt", "install"],
    Way.SCRIPT: ["powershell.exe", "-NoProfile", "-ExecutionPolicy", "Bypass", "-File"]
    if sys.platform == "win32"
    else ["sh"],
}
"""What runs the file of a release."""
_PATIENCE_S = (2.0, 2.0)
"""For a script that is to end: what it leaves, its next run takes away."""


@dataclass(frozen=True, slots=True)
class Received:
    """The file of a release for this computer, verified, and the folder where the release's other files lie."""

    path: Path
    way: Way
    version: str
    folder: str

    @property
    def line(self) -> str:
        """What installs it, as a user types it."""
        return subprocess.list2cmdline(self.command) if sys.platform == "win32" else shlex.join(self.command)

    @property
    def command(self) -> list[str]:
        """The same, as a program and its arguments."""
        return [*_BY.get(self.way, []), str(self.path)]


def offered(newest: Newest) -> Artefact:
    """Return the release's file for this installation. Raises NotOffered when there is none."""
    if way() in _RENEWED_BY_THE_USER:
        raise NotOffered(*_RENEWED_BY_THE_USER[way()])
    found = newest.manifest.artefact(way().value, this_platform())
    if found is None:
        raise NotOffered(
            f"Version {newest.manifest.version} has no file for this computer ({this_platform()}, *{way().value}).",
            f"What there is lies at {newest.folder}.",
        )
    return found


async def receive(newest: Newest, on_progress: Callable[[Progress], None] | None = None) -> Received:
    """Fetch the release's file for this computer, and verify it by size and SHA-256. Cancelled, it goes on next time.

    Raises NotOffered, UpdateWaits or TuneUnderWay while the program is in use, and what `fetch` raises.
    """
    artefact = offered(newest)
    await asyncio.to_thread(check_idle)
    folder = await asyncio.to_thread(_folder, newest.manifest.version)
    target = folder / artefact.name
    source = Source(f"{newest.folder}/{artefact.name}", artefact.size, artefact.sha256, name=artefact.name)
    try:
        await fetch(source, target, settings=settings.transfer(), on_progress=on_progress)
    except FileInTheWay:  # received before this version was made anew, or from another folder of releases
        await asyncio.to_thread(target.unlink)
        await fetch(source, target, settings=settings.transfer(), on_progress=on_progress)
    return Received(target, way(), newest.manifest.version, newest.folder)


async def install(received: Received) -> bool:
    """Install what was received; return whether this is done, or begun, and False when the user has to run its `line`.

    The installer for Windows is only started: it asks this program to end. The script installs a version beside this
    one, which is used from the next start on; what else it needs it fetches and verifies by itself. Cancelled, it is
    ended, and begins anew next time. Raises UpdateWaits or TuneUnderWay while the program is in use, and UpdateFailed.
    """
    await asyncio.to_thread(check_idle)
    try:
        if received.way is Way.SETUP:
            await asyncio.to_thread(_start, received.path)
        elif received.way is Way.SCRIPT:
            await _run_script(received)
    except OSError as error:
        why = f"The installer cannot be started: {error.strerror or error}."
        raise UpdateFailed(why, f"Start it yourself: {received.line}") from error
    except EngineMissing as error:
        raise UpdateFailed(error.title, f"Start it yourself: {received.line}") from error
    return received.way is not Way.DEB


def check_idle() -> None:
    """Raise UpdateWaits while a model is served, TuneUnderWay while a tune runs."""
    for entry in registry.running():
        raise UpdateWaits(
            f"A model is served at {entry.url}, so nothing is installed meanwhile.",
            "End it first: `mtp-launcher stop`.",
            url=entry.url,
        )
    check_no_tune()


def _folder(version: str) -> Path:
    """Make the folder for a version's file; what was received of others goes."""
    folders = private_folder(cache_dir() / "updates")
    for each in folders.iterdir():
        if each.name != version:
            shutil.rmtree(each, ignore_errors=True)
    return private_folder(folders / version)


def _start(setup: Path) -> None:
    """Start the installer for Windows, which goes on without this process."""
    flags = getattr(subprocess, "DETACHED_PROCESS", 0)
    installer = subprocess.Popen([setup], stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, creationflags=flags)
    threading.Thread(target=installer.wait, daemon=True).start()  # so that its end is known


async def _run_script(received: Received) -> None:
    """Run the script to its end; cancelled, end it and all that it has started. Raises UpdateFailed, EngineMissing."""
    program, *words = received.command
    command = Command(
        (shutil.which(program) or program, *words), os.environ | {VARIABLE: received.folder}, received.path.parent
    )
    said: dict[Stream, list[str]] = {"stdout": [], "stderr": []}
    script = await start(command, lambda stream, line: said[stream].append(line))
    try:
        ended = await asyncio.shield(script.exited)
    except asyncio.CancelledError:
        await script.stop(_PATIENCE_S)
        raise
    if ended.code:
        raise _failure([*said["stdout"], *said["stderr"]], ended.code, received.line)


def _failure(said: Sequence[str], code: int, line: str) -> UpdateFailed:
    """Return what a script says when it fails: `Error: ` and a sentence, and what to do on the next line."""
    lines = [each.strip() for each in said if each.strip()]
    at = next((at for at in range(len(lines) - 1, -1, -1) if lines[at].startswith("Error: ")), None)
    if at is None:
        return UpdateFailed(f"The installer ended with exit code {code}: {' '.join(lines[-2:])}", f"Run again: {line}")
    return UpdateFailed(lines[at].removeprefix("Error: "), " ".join(lines[at + 1 :]) or f"Run again: {line}")
