"""`mtp-launcher update`: check for a newer version of this program, and install it."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from launcher import __version__
from launcher.cli.bar import ProgressBar, format_size
from launcher.cli.layout import wrap_text
from launcher.cli.output import print_json

if TYPE_CHECKING:
    from launcher.fetch.transfer import TransferProgress
    from launcher.updates.check import NewestRelease


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument(
        "--install", action="store_true", help="get it, verified, and install it as this version was installed"
    )
    parser.add_argument(
        "--copies",
        action="store_true",
        help="list copies of your files from before updates, and how to go back to them",
    )
    parser.epilog = "Interrupt the download whenever you like: the same command goes on where it was."


async def run(options: argparse.Namespace) -> int:
    """Check for the newest release and print its notes; with --install download it. --copies makes no request."""
    from launcher.updates.check import check_for_update

    if options.copies:
        return _list_copies(as_json=options.json)
    newest = await check_for_update()
    if options.install and newest.is_newer:
        return await _install(newest, as_json=options.json)
    if options.json:
        print_json(_as_json(newest))
        return 0
    _tell(newest)
    if newest.is_newer:
        _tell_how(newest)
    return 0


def _list_copies(*, as_json: bool) -> int:
    from launcher.base.store import original_path, restore_instructions
    from launcher.updates.before_update import list_copies

    found = list_copies()
    if as_json:
        print_json(
            [
                {"copy": str(each), "of": str(original_path(each)), "restore": restore_instructions(each)}
                for each in found
            ]
        )
        return 0
    for each in found:
        print(f"{each}\n{wrap_text(restore_instructions(each), '  ')}")
    if not found:
        print("No update has changed your files: there are no copies.")
    return 0


def _tell(newest: NewestRelease) -> None:
    from launcher.base.text import visible_reply

    manifest = newest.manifest
    if not newest.is_newer:
        newest_is = "the newest version" if manifest.version == __version__ else f"newer than {manifest.version}"
        print(f"This is {__version__}, {newest_is}.")
        return
    print(f"MTP Launcher {manifest.version} is out; this is {__version__}.")
    if notes := visible_reply(manifest.notes).strip():
        print(f"\n{notes}\n")


def _tell_how(newest: NewestRelease) -> None:
    from launcher.updates.check import NotOffered
    from launcher.updates.install import find_artefact

    try:
        artefact = find_artefact(newest)
    except NotOffered as error:
        print(wrap_text(str(error)))
    else:
        print(
            wrap_text(
                f"`mtp-launcher update --install` gets and installs it ({artefact.name}, {format_size(artefact.size)})."
            )
        )


async def _install(newest: NewestRelease, *, as_json: bool) -> int:
    from launcher.updates.install import download_update, install_update
    from launcher.updates.way import InstallMethod

    bar = ProgressBar()

    def show(progress: TransferProgress) -> None:
        if not as_json:
            bar.show_progress(
                progress.phase.value.capitalize(),
                progress.done_bytes,
                progress.bytes,
                speed=progress.bytes_per_second,
                left_s=progress.seconds_left,
                note=progress.note,
            )

    if not as_json:
        _tell(newest)
        sys.stdout.flush()
    try:
        received = await download_update(newest, show)
    finally:
        bar.close()
    if received.method is InstallMethod.SCRIPT and not as_json:
        print(f"Installing version {received.version}", file=sys.stderr, flush=True)
    done = await install_update(received)
    if as_json:
        line = None if done else received.shell_line
        print_json(_as_json(newest) | {"path": str(received.path), "installed": done, "line": line})
    elif not done:
        print(
            f"Version {received.version} is here, and verified. Close this program, then run:\n  {received.shell_line}"
        )
    elif received.method is InstallMethod.SCRIPT:
        print(f"Version {received.version} is installed. It is the one that starts from now on.")
    else:
        print(f"The installer of version {received.version} is open.")
    return 0


def _as_json(newest: NewestRelease) -> dict[str, object]:
    from launcher.updates.way import find_install_method

    manifest = newest.manifest
    return {
        "version": __version__,
        "newest": manifest.version,
        "newer": newest.is_newer,
        "notes": manifest.notes,
        "way": find_install_method().name.lower(),
    }
