"""Options of `mtp-launcher history`."""

import argparse
from datetime import UTC, datetime, timedelta
from pathlib import Path

from launcher.cli.actions import (
    add_actions,
    add_deletion_arguments,
    add_output_file,
)
from launcher.cli.quantities import parse_count

_ACTIONS = {
    "list": "list all measurements, the newest first",
    "show": "show a measurement: figures by setting, and where they were measured",
    "export": "write a measurement into a file: .md, .csv (a line for each run) or .json",
    "chart": "draw a measurement: .png, .svg, or .html as a page of its own",
    "share": "write a measurement into a .json file without personal data",
    "delete": "delete measurements",
    "published": "list the published tables that measurements can be compared with",
}
_ID_HELP = 'as `history` shows it, or its beginning; "last"; published:NAME; or a file that was exported or shared'


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.epilog = "bench, tune, curve and endure add measurements. `mtp-launcher compare A B` compares two."
    _add_filters(parser)
    actions = add_actions(parser, _ACTIONS)
    _add_filters(actions["list"], default=argparse.SUPPRESS)
    for name in ("show", "export", "chart", "share"):
        actions[name].add_argument("id", metavar="ID", help=_ID_HELP)
    actions["chart"].add_argument(
        "--to",
        required=True,
        type=Path,
        action="append",
        metavar="FILE",
        help="the new file; may be given more than once",
    )
    for name in ("export", "share"):
        add_output_file(actions[name])
    add_deletion_arguments(actions["delete"], 'as `history` shows them, or "all", with all counts of use and requests')


def _add_filters(parser: argparse.ArgumentParser, default: object = None) -> None:
    parser.add_argument("--model", metavar="TEXT", default=default, help="only models with this in name or quant")
    parser.add_argument(
        "--kind", metavar="VERB", default=default, help="only measurements by bench, tune, curve or endure"
    )
    parser.add_argument(
        "--since",
        type=_parse_since,
        metavar="DATE",
        default=default,
        help="only since a day, such as 2026-11-21, or of the last days, such as 7d",
    )
    parser.add_argument("--most", type=_parse_most, metavar="N", default=default, help="at most N, the newest")


def _parse_most(text: str) -> int:
    if not (most := parse_count(text)):
        raise argparse.ArgumentTypeError("must be 1 or more")
    return most


def _parse_since(text: str) -> float:
    """Parse a day, or a number of days before now. Returns seconds since the epoch, for a day its start here."""
    if text.lower().endswith("d") and text[:-1].isdecimal():
        days = min(int(text[:-1]), 36_500)
        return (datetime.now(UTC) - timedelta(days=days)).timestamp()
    try:
        return datetime.strptime(text, "%Y-%m-%d").astimezone().timestamp()
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(f'"{text}" is not a day such as 2026-11-21, nor days such as 7d') from None
