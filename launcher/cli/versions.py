"""`mtp-launcher versions`: print the versions of all parts, for a bug report."""

from __future__ import annotations

import argparse

from launcher.app.versions import read_versions, versions_text
from launcher.cli.output import Result


async def run(_options: argparse.Namespace) -> Result:
    """Return the versions of all parts."""
    versions = await read_versions()
    data = [{"what": each.component, "version": each.version, "absent": each.absent} for each in versions]
    return Result(data, [versions_text(versions)])
