"""`mtp-launcher compare A B`: how many times as fast one measurement is as another."""

from __future__ import annotations

import argparse
import asyncio

from launcher.cli.layout import filled, print_table
from launcher.cli.output import print_json

_WHAT = (
    'a measurement as `history` shows it, "last", published:NAME, or a file that was exported or shared; '
    "with :draft=2,kv=q8_0 only these settings of it"
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.epilog = (
        "Settings of one measurement are compared by naming it twice, as in `compare last:draft=0 last:draft=2`. "
        "`mtp-launcher history published` lists published tables."
    )
    parser.add_argument("first", metavar="A", help=_WHAT)
    parser.add_argument("second", metavar="B", help="the same")


async def run(options: argparse.Namespace) -> int:
    """Compare the two; exit code 0 whatever comes out."""
    return await asyncio.to_thread(_run, options)


def _run(options: argparse.Namespace) -> int:
    from launcher.base.text import one_line, prose
    from launcher.tuning.history import History
    from launcher.tuning.history_environment import clauses
    from launcher.tuning.history_named import session_named, split_choice
    from launcher.tuning.report_export import interval, title
    from launcher.tuning.report_two import two
    from launcher.tuning.statistics import LEVEL

    named = [split_choice(text) for text in (options.first, options.second)]
    with History() as history:
        first, second = (session_named(history, name) for name, _ in named)
    found = two(first, second, named[0][1], named[1][1])
    if options.json:
        print_json(found.as_json())
        return 0
    for letter, session in (("A", first), ("B", second)):
        print(f"{letter}  {session.id}  {one_line(title(session))}")
    for difference in found.differences:
        print(filled(clauses([difference]), "   different: "))
    rows = [("SETTINGS", "A TOKENS/S", "B TOKENS/S", "B AGAINST A")]
    for each in found.rows:
        ratio = each.sentence or "one of them has no run that counts"
        rows.append((each.label, interval(each.first.decode), interval(each.second.decode), ratio))
    print_table(rows, right={1, 2})
    print(filled(LEVEL, "  "))
    for note in found.notes:
        print(filled(prose(note), "  "))
    return 0
