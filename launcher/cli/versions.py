"""`mtp-launcher versions`: print the versions of all parts, for a bug report."""

from __future__ import annotations

import argparse

from launcher.cli.output import print_json


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options: there are none."""


async def run(options: argparse.Namespace) -> int:
    """Print the versions."""
    from launcher.app.versions import read_versions, versions_text

    told = await read_versions()
    if options.json:
        print_json([{"what": each.what, "version": each.version, "absent": each.absent} for each in told])
    else:
        print(versions_text(told))
    return 0
