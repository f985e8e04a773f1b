"""`mtp-launcher history`: list, show, export and share measurements."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from launcher.base.errors import BadOption
from launcher.base.text import one_line, visible_reply
from launcher.cli.actions import add_actions, add_deletion, add_target, is_all, may_delete, write_new
from launcher.cli.layout import print_table, wrap_text
from launcher.cli.output import parse_count, print_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.tuning.history import History
    from launcher.tuning.history_records import Session, Summary

_ACTIONS = {
    "list": "list what was measured, the newest first",
    "show": "show a measurement: figures by setting, and where they were measured",
    "export": "write a measurement into a file: .md, .csv (a line for each run) or .json",
    "share": "write a measurement into a .json file without personal data",
    "delete": "delete measurements",
    "published": "list the published tables that measurements can be compared with",
}
_WHAT = 'as `history` shows it, or how it begins; "last"; published:NAME; or a file that was exported or shared'
_SENTENCE = 90


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.epilog = "bench, tune, curve and endure put measurements in. `mtp-launcher compare A B` compares two."
    _take_filters(parser)
    actions = add_actions(parser, _ACTIONS)
    _take_filters(actions["list"], default=argparse.SUPPRESS)
    for name in ("show", "export", "share"):
        actions[name].add_argument("id", metavar="ID", help=_WHAT)
    for name in ("export", "share"):
        add_target(actions[name])
    add_deletion(actions["delete"], 'as `history` shows them, or "all", with all counts of use')


def _take_filters(parser: argparse.ArgumentParser, default: object = None) -> None:
    parser.add_argument("--model", metavar="TEXT", default=default, help="only models with this in name or quant")
    parser.add_argument("--kind", metavar="VERB", default=default, help="only bench, tune, curve or endure")
    parser.add_argument(
        "--since", type=_since, metavar="DATE", default=default, help="only since a day, 2026-11-21, or for days: 7d"
    )
    parser.add_argument("--most", type=_most, metavar="N", default=default, help="no more than N")


def _most(text: str) -> int:
    if not (most := parse_count(text)):
        raise argparse.ArgumentTypeError("it is 1 or more")
    return most


def _since(text: str) -> float:
    """Return a time in seconds since the epoch: the start of a local day, or some days ago."""
    if text.lower().endswith("d") and text[:-1].isdecimal():
        days = min(int(text[:-1]), 36_500)
        return (datetime.now(UTC) - timedelta(days=days)).timestamp()
    try:
        return datetime.strptime(text, "%Y-%m-%d").astimezone().timestamp()
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(f'"{text}" is not a day such as 2026-11-21, nor days such as 7d') from None


async def run(options: argparse.Namespace) -> int:
    """Run the action `options.action`."""
    if options.action == "delete" and not await may_delete(options, "measurements, and all counts of use"):
        return 1
    return await asyncio.to_thread(_run, options)


def _run(options: argparse.Namespace) -> int:
    from launcher.tuning.history import History

    if options.action == "published":
        return _published(as_json=options.json)
    with History() as history:
        if history.notice:
            print(f"Note: {history.notice}", file=sys.stderr)
        verb = {"list": _list, "show": _show, "export": _export, "share": _share, "delete": _delete}[options.action]
        return verb(history, options)


def _list(history: History, options: argparse.Namespace) -> int:
    found = history.find(kind=options.kind, model=options.model, since_s=options.since, most=options.most)
    if options.json:
        print_json({"measurements": [asdict(each) for each in found]})
    elif not found:
        filtered = any(value is not None for value in (options.kind, options.model, options.since))
        print(
            "Nothing of that kind was measured." if filtered else "Nothing was measured yet. `mtp-launcher tune` does."
        )
    else:
        head = ("ID", "WHEN", "KIND", "MODEL", "WORKLOAD", "RUNS", "TOKENS/S", "RESULT")
        print_table([head, *map(_row, found)], right={5, 6}, indent="")
    return 0


def _row(each: Summary) -> tuple[str, ...]:
    from launcher.tuning.history_environment import ModelFacts

    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.began_s))
    rate = "" if each.decode_rate is None else f"{each.decode_rate:.1f}"
    result = one_line(each.sentence or ("" if each.ended_s else "still measured"), _SENTENCE)
    return (
        each.id,
        when,
        each.kind,
        ModelFacts(each.model, each.quant).words,
        each.workload,
        str(each.runs),
        rate,
        result,
    )


def _show(history: History, options: argparse.Namespace) -> int:
    from launcher.tuning.history import CUT_OFF, load_session
    from launcher.tuning.report import report_data, settings_line, tune_note
    from launcher.tuning.report_export import TABLE_HEAD, baseline_report, session_facts, session_title, table_row
    from launcher.tuning.statistics import INTERVAL_NOTE

    session = load_session(history, options.id)
    told = baseline_report(session)
    if options.json:
        data = {name: getattr(session, name) for name in ("id", "kind", "workload", "began_s", "ended_s", "result")}
        print_json({**data, "environment": session.environment.as_json(), "rows": report_data(told)})
        return 0
    print(one_line(session_title(session)))
    if sentence := session.result.get("sentence") or (CUT_OFF if history.is_cut_off(session.id) else ""):
        print(wrap_text(visible_reply(str(sentence)), "  "))
    if told.rows:
        print_table([TABLE_HEAD, *(table_row(told, row) for row in told.rows)], right={1, 2, 3})
        print(wrap_text(INTERVAL_NOTE, "  "))
        if told.common:
            print(wrap_text(settings_line(told.common), "  all with "))
        if note := tune_note(session):
            print(wrap_text(note, "  "))
    else:
        print("  Nothing was measured.")
    print_table([(name, text) for name, text in session_facts(session).items()])
    return 0


def _export(history: History, options: argparse.Namespace) -> int:
    from launcher.tuning.report_export import writer_for

    return _write(history, options, writer_for(options.to))


def _share(history: History, options: argparse.Namespace) -> int:
    from launcher.tuning.session_file import anonymous_json

    if options.to.suffix.lower() != ".json":
        raise BadOption("A shared measurement is a JSON file.", "End its name in .json.")
    return _write(history, options, anonymous_json, least=1)


def _write(history: History, options: argparse.Namespace, write: Callable[[Session], str], *, least: int = 0) -> int:
    from launcher.tuning.history import load_session

    session = load_session(history, options.id)
    if len(session.runs) < least:
        raise BadOption(
            f"{session.id} has no runs, so there is nothing to share.", "`mtp-launcher history` lists those that have."
        )
    write_new(options.to, write(session))
    if options.json:
        print_json({"id": session.id, "path": str(options.to), "runs": len(session.runs)})
    else:
        print(f"Wrote {len(session.runs)} runs to {one_line(str(options.to), 4_096)}.")
    return 0


def _delete(history: History, options: argparse.Namespace) -> int:
    everything = is_all(options)
    ids = [each.id for each in history.find()] if everything else [history.resolve_id(id_) for id_ in options.ids]
    deleted = history.delete(list(dict.fromkeys(ids)))
    if everything:
        history.forget_use()
    if options.json:
        print_json({"deleted": deleted})
    else:
        print(f"Deleted {deleted} {'measurement' if deleted == 1 else 'measurements'}.")
    return 0


def _published(*, as_json: bool) -> int:
    from launcher.tuning.report_published import published_tables

    found = published_tables()
    if as_json:
        told = [{"id": each.session.id, "about": each.about, "source": each.source} for each in found]
        print_json({"published": told})
        return 0
    print_table([("ID", "ABOUT", "SOURCE"), *((e.session.id, e.about, e.source) for e in found)], indent="")
    return 0
