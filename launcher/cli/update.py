"""`mtp-launcher update`: check for a newer version of this program, and install it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from launcher import __version__
from launcher.base.codec import JsonView, to_json
from launcher.base.kept_files import original_path, restore_instructions
from launcher.base.text import visible_reply
from launcher.cli.layout import wrap_text
from launcher.cli.output import Note, Result
from launcher.cli.progress import Reporter, format_size
from launcher.updates.before_update import list_version_copies
from launcher.updates.check import NotOffered, check_for_update
from launcher.updates.install import download_update, find_artefact, install_update
from launcher.updates.install_method import InstallMethod, find_install_method

if TYPE_CHECKING:
    from launcher.base.progress import Progress
    from launcher.updates.check import NewestRelease


async def run(options: argparse.Namespace) -> Result:
    """Check for the newest release and return its notes; with --install download and install it.

    With --copies return the copies of files instead, without a request.
    """
    if options.copies:
        return _list_version_copies()
    newest = await check_for_update()
    if options.install and newest.is_newer:
        return await _install_release(newest, as_json=options.json)
    return Result(_as_json(newest), [*_describe_release(newest), *_describe_installation(newest)])


def _list_version_copies() -> Result:
    copies = [(each, restore_instructions(each)) for each in list_version_copies()]
    data = [{"copy": each, "of": original_path(each), "restore": text} for each, text in copies]
    lines = [f"{each}\n{wrap_text(text, '  ')}" for each, text in copies]
    return Result(data, lines or ["No update has changed your files: there are no copies."])


def _describe_release(newest: NewestRelease) -> Iterator[str]:
    manifest = newest.manifest
    if not newest.is_newer:
        comparison = "the newest version" if manifest.version == __version__ else f"newer than {manifest.version}"
        yield f"This is {__version__}, {comparison}."
        return
    yield f"MTP Launcher {manifest.version} is available; this is {__version__}."
    if notes := visible_reply(manifest.notes).strip():
        yield f"\n{notes}\n"


def _describe_installation(newest: NewestRelease) -> Iterator[str]:
    """Yield how to install a newer release."""
    if not newest.is_newer:
        return
    try:
        artefact = find_artefact(newest)
    except NotOffered as error:
        yield wrap_text(str(error))
    else:
        size = format_size(artefact.size)
        yield wrap_text(f"`mtp-launcher update --install` downloads and installs it ({artefact.name}, {size}).")


async def _install_release(newest: NewestRelease, *, as_json: bool) -> Result:
    reporter = Reporter(as_json=as_json)
    reporter.show_event(None, _describe_release(newest))

    def show_progress(progress: Progress) -> None:
        reporter.show_progress(progress.phase.value.capitalize(), progress, None)

    try:
        update = await download_update(newest, show_progress)
    finally:
        reporter.close()
    version = update.version
    if update.method is InstallMethod.SCRIPT:
        reporter.show_event(None, [Note(f"Installing version {version}")])
    installed = await install_update(update)
    data = _as_json(newest) | {
        "path": str(update.path),
        "installed": installed,
        "line": None if installed else update.shell_line,
    }
    if not installed:
        line = f"Version {version} is downloaded and verified. Close this program, then run:\n  {update.shell_line}"
    elif update.method is InstallMethod.SCRIPT:
        line = f"Version {version} is installed. The next start uses it."
    else:
        line = f"The installer of version {version} is open."
    return Result(data, [line])


def _as_json(newest: NewestRelease) -> dict[str, object]:
    release = to_json(newest, JsonView("newest=manifest.version newer=is_newer notes=manifest.notes"))
    return {"version": __version__, **release, "way": find_install_method().name.lower()}
