"""`mtp-launcher completion`: print the completion script of a shell, or the manual page."""

from __future__ import annotations

import argparse

from launcher.cli.completion_script import completion_script
from launcher.cli.main import build_full_parser
from launcher.cli.options.completion import MANUAL
from launcher.cli.output import Result


async def run(options: argparse.Namespace) -> Result:
    """Return the script or page, made from the options of all verbs."""
    parser = build_full_parser()
    if options.kind == MANUAL:
        from launcher.cli.manual_page import manual_page

        text = manual_page(parser)
    else:
        text = completion_script(parser, options.kind)
    return Result({"kind": options.kind, "text": text}, [text.rstrip("\n")])
