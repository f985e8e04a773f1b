"""`mtp-launcher compare A B`: compare the speed of two measurements."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from launcher.cli.layout import format_table, wrap_text
from launcher.cli.output import Result

if TYPE_CHECKING:
    from launcher.tuning.history_records import Session
    from launcher.tuning.report import SessionComparison

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


async def run(options: argparse.Namespace) -> Result:
    """Compare the two; exit code 0 whatever the result."""
    return await asyncio.to_thread(_compare_named, options)


def _compare_named(options: argparse.Namespace) -> Result:
    from launcher.tuning.history import History, load_session, parse_session_choice
    from launcher.tuning.report import compare_sessions

    named = [parse_session_choice(text) for text in (options.first, options.second)]
    with History() as history:
        first, second = (load_session(history, name) for name, _ in named)
    comparison = compare_sessions(first, second, named[0][1], named[1][1])
    return Result(comparison.as_json(), _format_comparison(first, second, comparison))


def _format_comparison(first: Session, second: Session, comparison: SessionComparison) -> Iterator[str]:
    from launcher.base.text import one_line, visible_reply
    from launcher.tuning.history_environment import join_clauses
    from launcher.tuning.report_export import interval_text, session_title
    from launcher.tuning.statistics import INTERVAL_NOTE

    for letter, session in (("A", first), ("B", second)):
        yield f"{letter}  {session.id}  {one_line(session_title(session))}"
    for difference in comparison.differences:
        yield wrap_text(join_clauses([difference]), "   different: ")
    rows = [("SETTINGS", "A TOKENS/S", "B TOKENS/S", "B AGAINST A")]
    for each in comparison.rows:
        ratio = each.sentence or "one of them has no valid run"
        rows.append((each.label, interval_text(each.first.decode), interval_text(each.second.decode), ratio))
    yield from format_table(rows, right={1, 2})
    yield wrap_text(INTERVAL_NOTE, "  ")
    for note in comparison.notes:
        yield wrap_text(visible_reply(note), "  ")
