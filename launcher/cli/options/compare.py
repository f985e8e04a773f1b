"""Options of `mtp-launcher compare`."""

import argparse

_MEASUREMENT_HELP = (
    'a measurement as `history` shows it, "last", published:NAME, or a file that was exported or shared; '
    "with :draft=2,kv=q8_0 only these settings of it"
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.epilog = (
        "Settings of one measurement are compared by naming it twice, as in `compare last:draft=0 last:draft=2`. "
        "`mtp-launcher history published` lists published tables."
    )
    parser.add_argument("first", metavar="A", help=_MEASUREMENT_HELP)
    parser.add_argument("second", metavar="B", help="the same")
