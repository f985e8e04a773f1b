"""`mtp-launcher history`: list, show, export and share measurements."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.base.codec import JsonView, to_json
from launcher.base.errors import BadOption
from launcher.base.text import one_line, visible_reply
from launcher.cli.actions import (
    confirm_deletion,
    deletes_all,
    write_new_file,
)
from launcher.cli.layout import format_path, format_table, format_time, wrap_text
from launcher.cli.output import Result
from launcher.tuning.history import CUT_OFF, History, load_session
from launcher.tuning.history_environment import ModelFacts
from launcher.tuning.report_published import published_tables
from launcher.tuning.session_file import anonymize, session_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from launcher.tuning.history_records import Session, Summary
    from launcher.tuning.report import Report

_MAX_SENTENCE = 90


async def run(options: argparse.Namespace) -> Result | int:
    """Run the action `options.action`. Exit code 1 if the user declined a deletion."""
    if options.action == "delete" and not await confirm_deletion(options, "measurements, and all counts of use"):
        return 1
    if options.action == "chart":
        return await _draw_chart(options)
    return await asyncio.to_thread(_run_action, options)


def _run_action(options: argparse.Namespace) -> Result:
    if options.action == "published":
        return _list_published()
    with History() as history:
        if history.notice:
            print(f"Note: {history.notice}", file=sys.stderr)
        action = {
            "list": _list_measurements,
            "show": _show_measurement,
            "export": _export_measurement,
            "share": _share_measurement,
            "delete": _delete_measurements,
        }[options.action]
        return action(history, options)


async def _draw_chart(options: argparse.Namespace) -> Result:
    from launcher.app.measuring.chart_files import check_chart_files, write_charts

    def load() -> Session:
        with History() as history:
            return load_session(history, options.id)

    check_chart_files(options.to)
    session = await asyncio.to_thread(load)
    await write_charts(session, options.to)
    files = ", ".join(map(format_path, options.to))
    return Result({"id": session.id, "paths": list(map(str, options.to))}, [f"Drew {session.id} into {files}."])


def _list_measurements(history: History, options: argparse.Namespace) -> Result:
    summaries = history.find_sessions(kind=options.kind, model=options.model, since_s=options.since, most=options.most)
    filtered = any(value is not None for value in (options.kind, options.model, options.since))
    return Result({"measurements": summaries}, _format_list(summaries, filtered=filtered))


def _format_list(summaries: Sequence[Summary], *, filtered: bool) -> Iterator[str]:
    if summaries:
        head = ("ID", "WHEN", "KIND", "MODEL", "WORKLOAD", "RUNS", "TOKENS/S", "RESULT")
        yield from format_table([head, *map(_format_row, summaries)], right={5, 6}, indent="")
    elif filtered:
        yield "No measurement matches."
    else:
        yield "Nothing was measured yet. Measure with `mtp-launcher tune`."


def _format_row(summary: Summary) -> tuple[str, ...]:
    rate = "" if summary.decode_rate is None else f"{summary.decode_rate:.1f}"
    result = one_line(summary.sentence or ("" if summary.ended_s else "in progress"), _MAX_SENTENCE)
    return (
        summary.id,
        format_time(summary.began_s),
        summary.kind,
        ModelFacts(summary.model, summary.quant).label_with_quant,
        summary.workload,
        str(summary.runs),
        rate,
        result,
    )


def _show_measurement(history: History, options: argparse.Namespace) -> Result:
    from launcher.tuning.report import report_data
    from launcher.tuning.report_export import baseline_report

    session = load_session(history, options.id)
    report = baseline_report(session)
    data = to_json(session, JsonView("id kind workload began_s ended_s result environment"))
    sentence = session.result.get("sentence") or (CUT_OFF if history.is_cut_off(session.id) else "")
    return Result(
        {**data, "rows": report_data(report)},
        _format_session(session, report, str(sentence)),
    )


def _format_session(session: Session, report: Report, sentence: str) -> Iterator[str]:
    from launcher.tuning.report import settings_line, tune_note
    from launcher.tuning.report_export import figures_table, points_table, session_facts, session_title
    from launcher.tuning.statistics import INTERVAL_NOTE

    yield one_line(session_title(session))
    if sentence:
        yield wrap_text(visible_reply(sentence), "  ")
    if points := points_table(session):
        is_text = session.kind == "curve"  # limits and names, in place of plain figures
        yield from format_table(points, right={0} if is_text else range(8))
    if report.rows:
        yield from format_table(figures_table(report), right={1, 2, 3})
        yield wrap_text(INTERVAL_NOTE, "  ")
        if report.common:
            yield wrap_text(settings_line(report.common), "  all with ")
        if note := tune_note(session):
            yield wrap_text(note, "  ")
    else:
        yield "  Nothing was measured."
    yield from format_table([(name, text) for name, text in session_facts(session).items()])


def _export_measurement(history: History, options: argparse.Namespace) -> Result:
    from launcher.tuning.report_export import writer_for

    make_text = writer_for(options.to)
    session = load_session(history, options.id)
    return _write_measurement(session, make_text(session), options.to)


def _share_measurement(history: History, options: argparse.Namespace) -> Result:
    if options.to.suffix.lower() != ".json":
        raise BadOption("A shared measurement is a JSON file.", "End its name in .json.")
    session = load_session(history, options.id)
    if not session.runs:
        raise BadOption(
            f"{session.id} has no runs, so there is nothing to share.", "`mtp-launcher history` lists those that have."
        )
    return _write_measurement(session, session_json(anonymize(session)), options.to)


def _write_measurement(session: Session, text: str, file: Path) -> Result:
    write_new_file(file, text)
    line = f"Wrote {len(session.runs)} runs to {format_path(file)}."
    return Result({"id": session.id, "path": str(file), "runs": len(session.runs)}, [line])


def _delete_measurements(history: History, options: argparse.Namespace) -> Result:
    if deletes_all(options):
        ids = [each.id for each in history.find_sessions()]
    else:
        ids = [history.resolve_id(id_) for id_ in options.ids]
    deleted = history.delete(list(dict.fromkeys(ids)))
    if deletes_all(options):
        history.forget_use()
        history.forget_requests()
    return Result({"deleted": deleted}, [f"Deleted {deleted} {'measurement' if deleted == 1 else 'measurements'}."])


def _list_published() -> Result:
    tables = published_tables()
    rows = [(each.session.id, each.about, each.source) for each in tables]
    data = [dict(zip(("id", "about", "source"), row, strict=True)) for row in rows]
    return Result({"published": data}, format_table([("ID", "ABOUT", "SOURCE"), *rows], indent=""))
