"""A newer version, received and verified, and installed in the way in which this one was; never while it is in use."""

import asyncio
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from launcher import settings
from launcher.base.files import private_folder
from launcher.base.paths import cache_dir
from launcher.engine import registry
from launcher.fetch.transfer import Progress, Source, fetch
from launcher.tuner_kept import check_no_tune
from launcher.updates.check import Newest
from launcher.updates.errors import NotOffered, UpdateFailed, UpdateWaits
from launcher.updates.manifest import Artefact, this_platform
from launcher.updates.way import Way, way

_LAST_LINES = 5


@dataclass(frozen=True, slots=True)
class Received:
    """A release's file for this computer, verified, and how it is installed."""

    path: Path
    way: Way
    version: str

    @property
    def line(self) -> str:
        """What installs it, as a user types it."""
        return subprocess.list2cmdline(self.command) if sys.platform == "win32" else shlex.join(self.command)

    @property
    def command(self) -> list[str]:
        """The same, as a program and its arguments."""
        before = {
            Way.DEB: ["sudo", "apt", "install"],
            Way.TOOL: [shutil.which("uv") or "uv", "tool", "install", "--force"],
        }
        return [*before.get(self.way, []), str(self.path)]


def offered(newest: Newest) -> Artefact:
    """Return the release's file for this installation. Raises NotOffered when there is none."""
    if way() is Way.SOURCE:
        raise NotOffered(
            "This program runs from a checkout or an environment of your own, which is yours to renew.",
            "In a checkout: `git pull`, then `./start`.",
        )
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
    source = Source(f"{newest.folder}/{artefact.name}", artefact.size, artefact.sha256, name=artefact.name)
    fetched = await fetch(source, folder / artefact.name, settings=settings.transfer(), on_progress=on_progress)
    return Received(fetched.path, way(), newest.manifest.version)


async def install(received: Received) -> bool:
    """Install what was received; return whether it is done, False when the user has to run its `line`.

    The installer for Windows is only started: it waits for this program to end. Raises UpdateWaits or TuneUnderWay
    while the program is in use, and UpdateFailed.
    """
    await asyncio.to_thread(check_idle)
    if received.way is Way.SETUP:
        await asyncio.to_thread(_start, received.path)
        return True
    if received.way is Way.TOOL and sys.platform != "win32":  # there, files in use cannot be replaced
        await asyncio.to_thread(_renew_tool, received)
        return True
    return False


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
    """Start the installer for Windows, so that it outlives this process."""
    flags = getattr(subprocess, "DETACHED_PROCESS", 0) | getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
    nothing = subprocess.DEVNULL
    try:
        installer = subprocess.Popen([setup], creationflags=flags, stdin=nothing, stdout=nothing, stderr=nothing)
    except OSError as error:
        raise UpdateFailed(
            f"The installer cannot be started: {error.strerror or error}.", f"Start it yourself: {setup}"
        ) from error
    threading.Thread(target=installer.wait, daemon=True).start()  # so that it is known when it has ended


def _renew_tool(received: Received) -> None:
    """Let uv put the new wheel in this one's place, and ask what is there then for its version."""
    if others := _others():
        raise UpdateWaits(
            f"This program is open: process {others[0]}. Its files cannot be exchanged meanwhile.", "Close it first."
        )
    again = f"Run it again: {received.line}"
    try:
        _run(received.command)
        told = _run([str(Path(sys.prefix, "bin", "mtp-launcher")), "--version"])
    except FileNotFoundError as error:
        raise UpdateFailed(f"There is no {error.filename} any more, or it is not on PATH.", again) from error
    except subprocess.CalledProcessError as error:
        said = " ".join(str(error.stderr).split("\n")[-_LAST_LINES:]).strip()
        raise UpdateFailed(f"{error.cmd[0]} failed: {said or f'exit code {error.returncode}'}", again) from error
    if received.version not in told.split():
        raise UpdateFailed(f"What is installed now says that it is {told.strip()}.", again)


def _run(command: Sequence[str]) -> str:
    nothing = subprocess.DEVNULL
    return subprocess.run(command, stdin=nothing, capture_output=True, check=True, text=True, errors="replace").stdout


def _others() -> Sequence[int]:
    """Return other processes that run from this program's environment: windows, servers."""
    ours = {process.pid for process in (psutil.Process(), *psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid not in ours and any(word.startswith(sys.prefix) for word in process.cmdline()[:2]):
                found.append(process.pid)
    return found
