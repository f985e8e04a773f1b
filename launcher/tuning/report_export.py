"""Exported report of a session: Markdown with its tables, CSV with a line for each run, or JSON with everything."""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from launcher.base.errors import BadOption
from launcher.base.messages import message, plural_message
from launcher.base.units import format_percent
from launcher.tuning.history_environment import Environment
from launcher.tuning.history_records import Session, format_utc_date
from launcher.tuning.records import Run
from launcher.tuning.report import Report, ReportRow, build_report, describe_speedup, figures_by_prompt, settings_line
from launcher.tuning.session_file import session_json
from launcher.tuning.statistics import Figure, Interval, plus_minus

_TABLE_HEAD = (
    "SETTINGS", "TOKENS/S", "RUNS", "STDEV", "ACCEPTED", "READING", "FIRST TOKEN", "ENERGY", "AGAINST THE BASELINE",
)  # fmt: skip
_IF_KNOWN = ("READING", "ENERGY")
"""Columns that are left out where nothing in them is known."""
_FIGURES = (
    "prompt", "began_s", "wall_s", "prompt_tokens", "cached_tokens", "reply_tokens", "prefill_rate", "decode_rate",
    "first_token_s", "power_w", "energy_j", "temperature_c", "clock_mhz", "clock", "spoilt", "error",
)  # fmt: skip


def as_markdown(session: Session) -> str:
    """Return the session as Markdown: its result, the figures by settings and by prompt, and its environment."""
    report = baseline_report(session)
    parts = [f"# {session_title(session)}", str(session.result.get("sentence") or "")]
    if points := points_table(session):
        parts.append(_markdown_table(points))
    elif report.rows:
        parts.append(_markdown_table(figures_table(report)))
        if report.common:
            parts.append(message("All with {settings}.", settings=settings_line(report.common)))
        prompts = figures_by_prompt(session.runs)
        if len(prompts) > 1:
            head = ("TOKENS/S", *(report.row_label(row) for row in report.rows))
            parts.append(_markdown_table([head, *((name, *map(interval_text, figures)) for name, figures in prompts)]))
    if report.rows:
        parts.append(message("Tokens/s of generation, by the engine's clock; ± is the 95 % interval of the mean."))
    parts.append("\n".join(f"- {name}: {text}" for name, text in session_facts(session).items()))
    return "\n\n".join(filter(None, parts)) + "\n"


def baseline_report(session: Session) -> Report:
    """Return the session's report, compared with MTP off, else with its first settings."""
    by_start = session.kind == "tune"
    report = build_report(session.runs, by_start=by_start)
    return report if report.baseline is not None else build_report(session.runs, session.settings, by_start=by_start)


def as_csv(session: Session) -> str:
    """Return the session's runs as CSV (RFC 4180), one a line, with settings in columns that begin with `set_`.

    A curve has a line for each point instead, with its place on the axis: single runs lack figures that points have.
    """
    if session.kind == "curve" and session.result.get("points"):
        return _curve_csv(session)
    settings = sorted({name for run in session.runs for name in run.settings})
    drafts = max((len(run.acceptance.drafted_by_position) for run in session.runs if run.acceptance), default=0)
    positions = [f"{what}_at_{at}" for what in ("drafted", "accepted") for at in range(1, drafts + 1)]
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([*_FIGURES, "drafted", "accepted", *positions, *(f"set_{name}" for name in settings)])
    for run in session.runs:
        figures = [getattr(run, name) for name in _FIGURES]
        values = [run.settings.get(name) for name in settings]
        writer.writerow(map(_csv_cell, [*figures, *_draft_columns(run, drafts), *values]))
    return text.getvalue()


_POINT_COLUMNS = (
    "at", "series", "tokens_per_second", "low", "high", "times", "times_low", "times_high", "tokens_per_second_each",
    "prefill_per_second", "first_token_s", "acceptance", "power_w", "joules_per_token", "cost_per_million_tokens",
    "context_tokens", "replies", "spoilt", "why",
)  # fmt: skip


def _curve_csv(session: Session) -> str:
    """Return the points of a curve as CSV. `times` is the ratio to the first series; costs have no currency."""
    ratios = {(each.get("series"), each.get("at")): each for each in session.result.get("ratios") or ()}
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["axis", *_POINT_COLUMNS])
    for point in session.result["points"]:
        rate, cost = point.get("tokens_per_second") or {}, point.get("cost") or {}
        ratio = ratios.get((point["series"], point["at"])) or {}
        known = {
            **point,
            "tokens_per_second": rate.get("estimate"),
            "low": rate.get("low"),
            "high": rate.get("high"),
            "times": ratio.get("estimate"),
            "times_low": ratio.get("low"),
            "times_high": ratio.get("high"),
            "joules_per_token": cost.get("joules_per_token"),
            "cost_per_million_tokens": cost.get("per_million_tokens"),
        }
        writer.writerow(map(_csv_cell, [session.result.get("axis"), *(known.get(name) for name in _POINT_COLUMNS)]))
    return text.getvalue()


FORMATS: Mapping[str, Callable[[Session], str]] = {"md": as_markdown, "csv": as_csv, "json": session_json}
"""Writers by file suffix."""


def writer_for(file: PurePath) -> Callable[[Session], str]:
    """Return the writer for a file name. Raises BadOption for a suffix without a format."""
    ending = file.suffix.lower().removeprefix(".")
    ending = {"markdown": "md"}.get(ending, ending)
    if ending not in FORMATS:
        raise BadOption(
            message("The format of {name} is not clear from its name.", name=file.name),
            message("End its name in .md, .csv or .json."),
        )
    return FORMATS[ending]


def session_title(session: Session) -> str:
    """Return the title: "bench of Qwen3.6-35B-A3B UD-Q3_K_XL, code"."""
    name = f"{session.kind} of {session.environment.model.label_with_quant}"
    return f"{name}, {session.workload}" if session.workload else name


def session_facts(session: Session) -> dict[str, str]:
    """Return the environment and the date by name, without unknown ones."""
    where = session.environment
    when = format_utc_date(session.began_s) if session.began_s else ""
    facts = {
        "Model": where.model.label_with_quant,
        "SHA-256": ", ".join(where.model.sha256),
        "GPU": "; ".join(_gpu_texts(where)),
        "Processor": ", ".join(filter(None, (where.cpu, f"{where.cores} cores" if where.cores else ""))),
        "Memory": f"{where.memory_bytes / 2**30:.0f} GiB" if where.memory_bytes else "",
        "System": where.system,
        "Engine": f"{where.engine} {where.engine_version}",
        "Measured": f"{when} with MTP Launcher {where.program}" if where.program else "",
        "Source": str(session.result.get("source") or ""),
        "Measurement": session.id,
    }
    return {name: text for name, text in facts.items() if text}


def figures_table(report: Report) -> list[tuple[str, ...]]:
    """Return the figures by settings as rows, the head first."""
    rows = [_TABLE_HEAD, *(_table_row(report, row) for row in report.rows)]
    kept = [at for at, name in enumerate(_TABLE_HEAD) if name not in _IF_KNOWN or any(row[at] for row in rows[1:])]
    return [tuple(row[at] for at in kept) for row in rows]


def _table_row(report: Report, row: ReportRow) -> tuple[str, ...]:
    figure, first = row.decode, row.first_token_s
    label = report.row_label(row) or settings_line(row.settings) or "as served"
    failed = f" (+{row.failed} not counted)" if row.failed else ""
    return (
        label,
        interval_text(figure) if figure else row.why or "none",
        f"{row.runs}{failed}",
        f"{figure.stdev:.2f}" if figure and figure.stdev is not None else "",
        format_percent(row.acceptance.rate) if row.acceptance and row.acceptance.rate is not None else "",
        f"{row.prefill.mean:,.0f} t/s" if row.prefill else "",
        f"{first.mean:.2f} s" if first else "",
        f"{row.energy_j:.2f} J/token" if row.energy_j else "",
        "baseline" if row is report.baseline else _speedup_text(report, row),
    )


_CURVE_HEAD = (
    "SERIES", "TOKENS/S", "TIMES", "ACCEPTED", "READING", "FIRST TOKEN", "POWER", "COST PER MILLION", "REPLIES",
)  # fmt: skip


def points_table(session: Session) -> list[tuple[str, ...]]:
    """Return the points of a curve, or an agent's tasks, as rows, the head first; none for another measurement."""
    if tasks := session.result.get("tasks"):
        return _task_rows(tasks)
    points = session.result.get("points") if session.kind == "curve" else None
    if not points:
        return []
    ratios = {(each.get("series"), each.get("at")): each for each in session.result.get("ratios") or ()}
    rows: list[tuple[str, ...]] = [(str(session.result.get("axis") or "").upper(), *_CURVE_HEAD)]
    for point in sorted(points, key=lambda each: int(each["at"])):
        rate, ratio = point.get("tokens_per_second"), ratios.get((point["series"], point["at"]))
        figures = (
            _rate_text(rate) if rate else point.get("why") or "",
            f"{ratio['estimate']:.2f}" if ratio else "",
            _format_known(point.get("acceptance"), lambda share: f"{100 * share:.0f} %"),
            _format_known(point.get("prefill_per_second"), lambda value: f"{value:,.0f} t/s"),
            _format_known(point.get("first_token_s"), lambda value: f"{value:.2f} s"),
            _format_known(point.get("power_w"), lambda value: f"{value:.0f} W"),
            _format_known((point.get("cost") or {}).get("per_million_tokens"), lambda value: f"{value:.3g}"),
            str(point.get("replies", "")),
        )
        rows.append((f"{int(point['at']):,}", str(point["series"]), *map(str, figures)))
    used = [at for at in range(len(rows[0])) if any(row[at] for row in rows[1:])]
    return [tuple(row[at] for at in used) for row in rows]


_TASK_HEAD = ("TASK", "SECONDS", "READING S", "WRITING S", "TURNS", "READ", "REUSED", "WRITTEN", "")


def _task_rows(tasks: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [_TASK_HEAD]
    for number, task in enumerate(tasks, 1):
        seconds = (f"{task.get(name) or 0.0:.1f}" for name in ("seconds", "reading_s", "writing_s"))
        counts = (f"{task.get(name) or 0:,}" for name in ("turns", "read_tokens", "reused_tokens", "reply_tokens"))
        rows.append((str(number), *seconds, *counts, str(task.get("error") or "")))
    return rows if any(task.get("error") for task in tasks) else [row[:-1] for row in rows]


def _rate_text(rate: Mapping[str, Any]) -> str:
    known = rate["low"] is not None and rate["high"] is not None
    limits = plus_minus(Interval(rate["estimate"], rate["low"], rate["high"], 0)) if known else ""
    return f"{rate['estimate']:.1f}{limits}"


def _format_known(value: float | None, text: Callable[[float], str]) -> str:
    return "" if value is None else text(value)


def _speedup_text(report: Report, row: ReportRow) -> str:
    """Return the speed-up over the baseline, with its limits or else with the number of starts that it rests on."""
    if row.speedup is None:
        return ""
    if math.isfinite(row.speedup.high) or not report.by_start:
        return describe_speedup(row.speedup)
    few = min(row.starts, report.baseline.starts if report.baseline else row.starts)
    return plural_message(
        "{times:.2f} times as fast ({n} start)",
        "{times:.2f} times as fast ({n} starts)",
        few,
        times=row.speedup.estimate,
    )


def interval_text(figure: Figure | None) -> str:
    """Return a mean with half of its interval: "96.2 ± 1.3"."""
    if figure is None:
        return ""
    digits = 2
    if figure.mean >= 10:
        digits = 0 if figure.mean >= 1_000 else 1
    text = f"{figure.mean:.{digits}f}"
    if figure.low is None or figure.high is None:
        return text
    return text + plus_minus(Interval(figure.mean, figure.low, figure.high, figure.n), digits)


def _gpu_texts(where: Environment) -> list[str]:
    descriptions = []
    for gpu in where.gpus:
        memory = f"{gpu.memory_bytes / 2**30:.0f} GiB" if gpu.memory_bytes else ""
        descriptions.append(", ".join(filter(None, (gpu.name, memory, f"driver {gpu.driver}" if gpu.driver else ""))))
    return descriptions


def _draft_columns(run: Run, length: int) -> list[int | None]:
    """Return drafted and accepted tokens: in total, then by position, padded to `length` positions."""
    drafts = run.acceptance
    if drafts is None:
        return [None] * (2 + 2 * length)
    by_position = (drafts.drafted_by_position, drafts.accepted_by_position)
    padded = [[*each[:length], *[None] * (length - len(each))] for each in by_position]
    return [drafts.drafted, drafts.accepted, *padded[0], *padded[1]]


def _csv_cell(value: object) -> object:
    """Return the value, with a quote before text that a spreadsheet would run as a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value


def _markdown_table(rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0].replace("SETTINGS", "Settings"), "|" + "---|" * len(rows[0]), *lines[1:]])
