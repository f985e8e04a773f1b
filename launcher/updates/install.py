"""Downloads, verifies and installs a newer version, by the method by which this one was installed.

Nothing is installed while a model is served or a tune runs.
"""

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

from launcher.app import settings
from launcher.app.measuring.saved_tunes import check_no_tune
from launcher.base.errors import EngineMissing, FileInTheWay
from launcher.base.files import make_private_folder
from launcher.base.messages import Message, command_name, message
from launcher.base.paths import cache_dir
from launcher.base.progress import Progress
from launcher.engine.server import registry
from launcher.engine.server.process import EngineCommand, Stream, start_process
from launcher.fetch.transfer import DownloadSource, download_file
from launcher.updates.check import (
    RELEASES_VARIABLE,
    Artefact,
    NewestRelease,
    NotOffered,
    UpdateFailed,
    UpdateWaits,
    this_platform,
)
from launcher.updates.install_method import InstallMethod, find_install_method

_UPDATED_BY_USER = {
    InstallMethod.TOOL: (
        message("This program was installed with `uv tool install`."),
        message("Run `uv tool upgrade mtp-launcher`."),
    ),
    InstallMethod.SOURCE: (
        message("This program runs from a checkout or your own environment, which you update yourself."),
        message("In a checkout: `git pull`, then `./start`."),
    ),
}
_INSTALL_COMMANDS = {
    InstallMethod.DEB: ["sudo", "apt", "install"],
    InstallMethod.SCRIPT: ["powershell.exe", "-NoProfile", "-ExecutionPolicy", "Bypass", "-File"]
    if sys.platform == "win32"
    else ["sh"],
}
"""The words before the release's file in the command that installs it; the Windows installer is run directly."""
_STOP_TIMEOUTS_S = (2.0, 2.0)
"""Seconds to wait for a cancelled script after each of two signals. The next script cleans up what it leaves."""


@dataclass(frozen=True, slots=True)
class DownloadedUpdate:
    """A downloaded and verified release file for this computer. `folder` is the URL of the release's other files."""

    path: Path
    method: InstallMethod
    version: str
    folder: str

    @property
    def shell_line(self) -> str:
        """The command that installs the update, as a user types it."""
        return subprocess.list2cmdline(self.command) if sys.platform == "win32" else shlex.join(self.command)

    @property
    def command(self) -> list[str]:
        """The same command as a program and its arguments."""
        return [*_INSTALL_COMMANDS.get(self.method, []), str(self.path)]


def find_artefact(newest: NewestRelease) -> Artefact:
    """Return the release's file for this installation. Raises NotOffered if there is none."""
    method = find_install_method()
    if method in _UPDATED_BY_USER:
        raise NotOffered(*_UPDATED_BY_USER[method])
    found = newest.manifest.find_artefact(method.value, this_platform())
    if found is None:
        raise NotOffered(
            message(
                "Version {version} has no file for this computer ({this_platform}, *{value}).",
                version=newest.manifest.version,
                this_platform=this_platform(),
                value=method.value,
            ),
            message("Available files are at {folder}.", folder=newest.folder),
        )
    return found


async def download_update(
    newest: NewestRelease, on_progress: Callable[[Progress], None] | None = None
) -> DownloadedUpdate:
    """Download the release's file for this computer, and verify it by size and SHA-256. A cancelled download resumes.

    Raises NotOffered, UpdateWaits or TuneUnderWay while the program is in use, and the errors of `download_file`.
    """
    artefact = find_artefact(newest)
    await asyncio.to_thread(check_idle)
    folder = await asyncio.to_thread(_make_version_folder, newest.manifest.version)
    target = folder / artefact.name
    source = DownloadSource(f"{newest.folder}/{artefact.name}", artefact.size, artefact.sha256, name=artefact.name)
    try:
        await download_file(source, target, settings=settings.transfer_settings(), on_progress=on_progress)
    except FileInTheWay:  # left from an earlier build of this version, or from another release folder
        await asyncio.to_thread(target.unlink)
        await download_file(source, target, settings=settings.transfer_settings(), on_progress=on_progress)
    return DownloadedUpdate(target, find_install_method(), newest.manifest.version, newest.folder)


async def install_update(update: DownloadedUpdate) -> bool:
    """Install a downloaded update. Return False if the user has to run `update.shell_line`, as for a Debian package.

    The Windows installer is only started, and asks this program to end. The script installs the new version next to
    this one, for use from the next start; cancelling ends the script, and the next one starts over. Raises UpdateWaits
    or TuneUnderWay while the program is in use, and UpdateFailed.
    """
    await asyncio.to_thread(check_idle)
    try:
        if update.method is InstallMethod.SETUP:
            await asyncio.to_thread(_start_installer, update.path)
        elif update.method is InstallMethod.SCRIPT:
            await _run_script(update)
    except OSError as error:
        why = message("Cannot start the installer: {strerror}.", strerror=error.strerror or error)
        raise UpdateFailed(why, f"Start it yourself: {update.shell_line}") from error
    except EngineMissing as error:
        raise UpdateFailed(error.title, f"Start it yourself: {update.shell_line}") from error
    return update.method is not InstallMethod.DEB


def check_idle() -> None:
    """Raise UpdateWaits while a model is served, TuneUnderWay while a tune runs."""
    for entry in registry.list_entries():
        raise UpdateWaits(
            message("A server is running at {url}. Updates are not installed while a model is loaded.", url=entry.url),
            message("Stop it first[: {command}].", command=command_name("stop")),
            url=entry.url,
        )
    check_no_tune()


def _make_version_folder(version: str) -> Path:
    """Create the folder for a version's file, and delete those of other versions."""
    folders = make_private_folder(cache_dir() / "updates")
    for each in folders.iterdir():
        if each.name != version:
            shutil.rmtree(each, ignore_errors=True)
    return make_private_folder(folders / version)


def _start_installer(setup: Path) -> None:
    """Start the Windows installer as a detached process."""
    flags = getattr(subprocess, "DETACHED_PROCESS", 0)
    installer = subprocess.Popen([setup], stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, creationflags=flags)
    threading.Thread(target=installer.wait, daemon=True).start()  # reaps the process when it ends


async def _run_script(update: DownloadedUpdate) -> None:
    """Run the script to its end; if cancelled, end it with all its children. Raises UpdateFailed, EngineMissing."""
    program, *words = update.command
    command = EngineCommand(
        (shutil.which(program) or program, *words),
        os.environ | {RELEASES_VARIABLE: update.folder},
        update.path.parent,
    )
    output: dict[Stream, list[str]] = {"stdout": [], "stderr": []}
    script = await start_process(command, lambda stream, line: output[stream].append(line))
    try:
        ended = await asyncio.shield(script.exited)
    except asyncio.CancelledError:
        await script.stop(_STOP_TIMEOUTS_S)
        raise
    if ended.code:
        raise _parse_script_error([*output["stdout"], *output["stderr"]], ended.code, update.shell_line)


def _parse_script_error(output: Sequence[str], code: int, shell_line: str) -> UpdateFailed:
    """Return the error of a failed script: its last line that begins with `Error: `, and the lines after it as hint."""
    lines = [each.strip() for each in output if each.strip()]
    retry = message("Run again: {line}", line=shell_line)
    for index in reversed(range(len(lines))):
        if lines[index].startswith("Error: "):
            title = Message(lines[index].removeprefix("Error: "))
            return UpdateFailed(title, Message(" ".join(lines[index + 1 :])) or retry)
    title = message("The installer ended with exit code {code}: {lines}", code=code, lines=" ".join(lines[-2:]))
    return UpdateFailed(title, retry)
