"""`mtp-launcher compare A B`: compare the speed of two measurements."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from launcher.base.text import one_line, visible_reply
from launcher.cli.layout import format_table, wrap_text
from launcher.cli.output import Result
from launcher.tuning.history import History, load_session, parse_session_choice
from launcher.tuning.history_environment import join_clauses
from launcher.tuning.report import compare_sessions
from launcher.tuning.report_export import interval_text, session_title
from launcher.tuning.statistics import INTERVAL_NOTE

if TYPE_CHECKING:
    from launcher.tuning.history_records import Session
    from launcher.tuning.report import SessionComparison


async def run(options: argparse.Namespace) -> Result:
    """Compare the two measurements. Exit code 0, whichever is faster."""
    return await asyncio.to_thread(_compare_measurements, options)


def _compare_measurements(options: argparse.Namespace) -> Result:
    first_name, first_settings = parse_session_choice(options.first)
    second_name, second_settings = parse_session_choice(options.second)
    with History() as history:
        first, second = load_session(history, first_name), load_session(history, second_name)
    comparison = compare_sessions(first, second, first_settings, second_settings)
    return Result(comparison, _format_comparison(first, second, comparison))


def _format_comparison(first: Session, second: Session, comparison: SessionComparison) -> Iterator[str]:
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
