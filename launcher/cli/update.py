"""`mtp-launcher update`: whether there is a newer version of this program, and how it is installed."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from launcher import __version__
from launcher.cli.bar import Bar, size
from launcher.cli.layout import filled
from launcher.cli.output import print_json

if TYPE_CHECKING:
    from launcher.fetch.transfer import Progress
    from launcher.updates.check import Newest


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
    """Ask for the newest release, tell it with its notes, and with --install get it. --copies asks nothing."""
    from launcher.updates.check import check

    if options.copies:
        return _list_copies(as_json=options.json)
    newest = await check()
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
    from launcher.base.copies import how_to_restore, original
    from launcher.updates.before_update import kept_copies

    found = kept_copies()
    if as_json:
        print_json([{"copy": str(each), "of": str(original(each)), "restore": how_to_restore(each)} for each in found])
        return 0
    for each in found:
        print(f"{each}\n{filled(how_to_restore(each), '  ')}")
    if not found:
        print("No update has changed your files: there are no copies.")
    return 0


def _tell(newest: Newest) -> None:
    from launcher.base.text import prose

    manifest = newest.manifest
    if not newest.is_newer:
        newest_is = "the newest version" if manifest.version == __version__ else f"newer than {manifest.version}"
        print(f"This is {__version__}, {newest_is}.")
        return
    print(f"MTP Launcher {manifest.version} is out; this is {__version__}.")
    if notes := prose(manifest.notes).strip():
        print(f"\n{notes}\n")


def _tell_how(newest: Newest) -> None:
    from launcher.updates.errors import NotOffered
    from launcher.updates.install import offered

    try:
        artefact = offered(newest)
    except NotOffered as error:
        print(filled(str(error)))
    else:
        print(filled(f"`mtp-launcher update --install` gets and installs it ({artefact.name}, {size(artefact.size)})."))


async def _install(newest: Newest, *, as_json: bool) -> int:
    from launcher.updates.install import install, receive
    from launcher.updates.way import Way

    bar = Bar()

    def show(progress: Progress) -> None:
        if not as_json:
            bar.show(
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
        received = await receive(newest, show)
    finally:
        bar.close()
    if received.way is Way.SCRIPT and not as_json:
        print(f"Installing version {received.version}", file=sys.stderr, flush=True)
    done = await install(received)
    if as_json:
        line = None if done else received.line
        print_json(_as_json(newest) | {"path": str(received.path), "installed": done, "line": line})
    elif not done:
        print(f"Version {received.version} is here, and verified. Close this program, then run:\n  {received.line}")
    elif received.way is Way.SCRIPT:
        print(f"Version {received.version} is installed. It is the one that starts from now on.")
    else:
        print(f"The installer of version {received.version} is open.")
    return 0


def _as_json(newest: Newest) -> dict[str, object]:
    from launcher.updates.way import way

    manifest = newest.manifest
    return {
        "version": __version__,
        "newest": manifest.version,
        "newer": newest.is_newer,
        "notes": manifest.notes,
        "way": way().name.lower(),
    }
