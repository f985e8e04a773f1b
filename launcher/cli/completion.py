"""`mtp-launcher completion`: print the completion script of a shell, or the manual page."""

from __future__ import annotations

import argparse

from launcher.cli.output import Result

_SHELLS = ("bash", "zsh", "fish", "powershell")
_MANUAL = "manual"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("kind", choices=(*_SHELLS, _MANUAL), help="the shell, or 'manual' for a page that man shows")
    parser.epilog = "How each shell loads it: docs/commands.md."


async def run(options: argparse.Namespace) -> Result:
    """Return the script or page, made from the options of all verbs."""
    from launcher.cli.main import build_full_parser

    parser = build_full_parser()
    if options.kind == _MANUAL:
        from launcher.cli.manual_page import manual_page

        text = manual_page(parser)
    else:
        from launcher.cli.completion_script import completion_script

        text = completion_script(parser, options.kind)
    return Result({"kind": options.kind, "text": text}, [text.rstrip("\n")])
