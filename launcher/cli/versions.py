"""`mtp-launcher versions`: what runs here, by version, for a report."""

from __future__ import annotations

import argparse

from launcher.cli.output import print_json


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options: there are none."""


async def run(options: argparse.Namespace) -> int:
    """Print the versions."""
    from launcher.versions import as_text, versions

    told = await versions()
    if options.json:
        print_json([{"what": each.what, "version": each.version, "absent": each.absent} for each in told])
    else:
        print(as_text(told))
    return 0
