"""`mtp-launcher quality`: judge how a quant, KV cache types and MTP change a model's answers."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from launcher.app.measuring.quality import REFERENCE_KV, prepare_check, run_check
from launcher.app.measuring.saved_tunes import check_no_tune
from launcher.app.serving.session import ServerSession
from launcher.base.errors import BadOption
from launcher.base.text import one_line
from launcher.cli.layout import UNKNOWN, format_table, wrap_text
from launcher.cli.measured_subject import resolve_model_and_options
from launcher.cli.output import Note, Result, print_result
from launcher.cli.progress import Reporter
from launcher.engine.settings import parse_settings

if TYPE_CHECKING:
    from launcher.app.measuring.quality import QualityCheck, QualityReport
    from launcher.tuning.quality import QualityRow

_ANSWERS = {"kept": "kept", "beyond": "BEYOND THE LIMIT", "shown": "shown only"}


async def run(options: argparse.Namespace) -> int:
    """Judge the settings and print the result. Exit code 1 if any is beyond the limits, or nothing was judged."""
    if taken := {"draft", "kv"} & parse_settings(dict(options.changes)).keys():
        raise BadOption("The draft length and the KV cache type are what is judged here.", f"Use --{min(taken)}.")
    await asyncio.to_thread(check_no_tune)
    reporter = Reporter(as_json=options.json)
    model, serve_options = await resolve_model_and_options(options, reporter)
    check = await prepare_check(
        serve_options,
        model,
        kv_types=options.kv,
        draft=options.draft,
        against=options.against,
        tokens=options.tokens,
        fill=options.fill,
        needle=options.needle,
    )
    reporter.show_event(None, [Note(wrap_text(_describe_check(check)))])

    def show_step(name: str, done: int, positions: int) -> None:
        reporter.show_status(f"{name}: {done} of {positions}" if positions else f"{name}: starting")

    session = ServerSession()
    try:
        report = await run_check(session, check, show_step)
    finally:
        reporter.close()
        await session.stop()
    failed = report.beyond or not report.rows
    return print_result(Result(report, _format_report(report), exit_code=1 if failed else 0), as_json=options.json)


def _describe_check(check: QualityCheck) -> str:
    starts = len(check.candidates)
    return (
        f"{one_line(check.model_name)}: {starts} start{'' if starts == 1 else 's'} against {check.reference_quant}, KV"
        f" {REFERENCE_KV}, MTP off ({one_line(check.reference.model.name)})."
    )


def _format_report(report: QualityReport) -> Iterator[str]:
    if report.rows:
        yield from format_table([_HEAD, *map(_format_row, report.rows)], right={3, 4, 5, 6}, indent="")
        if report.text is not None:
            yield wrap_text(
                f"{report.text.positions} positions after {report.text.fill:,} tokens of context. The limit is a KL"
                " divergence of 0.05 nats, or 95 % of positions with the same most likely token. The fact stood in the"
                f" middle of {report.check.needle:,} tokens.",
                "  ",
            )
        yield ""
    yield wrap_text(report.sentence)


_HEAD = ("FILE", "KV", "MTP", "KL", "KL AT 99 %", "SAME TOKEN", "EQUAL REPLIES", "FACT FOUND", "TOOL CALL", "QUALITY")


def _format_row(row: QualityRow) -> Sequence[str]:
    kl = UNKNOWN if row.kl is None else f"{row.kl:.4f}" + (f" ± {row.kl_error:.4f}" if row.kl_error else "")
    return (
        row.quant,
        row.kv,
        row.drafts.label(off="off"),
        kl,
        UNKNOWN if row.kl_99 is None else f"{row.kl_99:.3f}",
        UNKNOWN if row.same_top is None else f"{100 * row.same_top:.1f} %",
        f"{row.greedy_equal} of {row.greedy_replies}",
        _format_known(row.needle),
        _format_known(row.tool_call),
        _ANSWERS[row.answer],
    )


def _format_known(value: bool | None) -> str:
    """Return "yes" or "no"; if the reference itself fails, a text saying that this was not judged."""
    return "not judged" if value is None else "yes" if value else "no"
