"""`mtp-launcher endure`: check whether the speed holds under sustained load."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from launcher.app.measuring.sweeps import run_agent_tasks, run_endurance
from launcher.base.codec import to_json
from launcher.base.text import one_line
from launcher.cli.layout import UNKNOWN, format_table, merge_similar, wrap_text
from launcher.cli.measured_subject import cost_of_runs, measure_subject, prepare_subject, read_prices
from launcher.cli.output import Note, Result
from launcher.cli.progress import Reporter
from launcher.models.drafters import choice_in
from launcher.tuning.agent_tasks import find_shape, judge_tasks
from launcher.tuning.endurance import judge_endurance
from launcher.tuning.space import DRAFT
from launcher.tuning.workloads import load_workload

if TYPE_CHECKING:
    from launcher.app.measuring.sweeps import SweepModel
    from launcher.tuning.agent_tasks import AgentTask, AgentVerdict
    from launcher.tuning.endurance import EnduranceVerdict
    from launcher.tuning.records import Run


async def run(options: argparse.Namespace) -> int:
    """Put the model under load and print whether its speed holds; exit code 1 if the server ended."""
    prices = read_prices(options)
    if options.agent is not None:
        return await _run_agent(options)
    workload = await asyncio.to_thread(load_workload, options.workload)
    reporter = Reporter(as_json=options.json)
    subject = await prepare_subject(options, () if options.draft is None else (options.draft,), reporter)
    draft = _choose_draft(options, subject)
    runs: list[Run] = []

    def add_run(run: Run) -> None:
        runs.append(run)
        reporter.show_status(_describe_run(run, run.began_s + run.wall_s - runs[0].began_s, options.minutes))

    def make_result() -> Result | None:
        if not runs:
            return None
        verdict = judge_endurance(runs)
        cost, cost_text = cost_of_runs(runs, prices)
        data = {**to_json(verdict), "draft": draft, **cost}
        return Result(data, _format_verdict(verdict, cost_text), exit_code=1 if verdict.answer == "ended" else 0)

    drafts = choice_in({**subject.settings, DRAFT: draft}).label(off="no MTP")
    reporter.show_event(None, [Note(f"{one_line(subject.model_name)}, {drafts}: {options.minutes:g} min of load.")])
    return await measure_subject(
        lambda session, on_begun: run_endurance(
            session, subject, draft, workload, 60 * options.minutes, add_run, on_begun=on_begun
        ),
        make_result,
        reporter,
        options.chart,
    )


async def _run_agent(options: argparse.Namespace) -> int:
    """Do an agent's tasks and print how long one takes; exit code 1 if none was done to its end."""
    shape = await asyncio.to_thread(find_shape, options.agent)
    reporter = Reporter(as_json=options.json)
    subject = await prepare_subject(options, () if options.draft is None else (options.draft,), reporter)
    draft = _choose_draft(options, subject)
    tasks: list[AgentTask] = []

    def add_task(task: AgentTask) -> None:
        tasks.append(task)
        spent_min = (task.from_s + task.seconds) / 60
        status = f"{spent_min:.1f} of {options.minutes:g} min: task {len(tasks)}, {task.seconds:.1f} s"
        reporter.show_status(status if task.error is None else f"{status}, {one_line(task.error)}")

    def make_result() -> Result | None:
        if not tasks:
            return None
        verdict = judge_tasks(shape, tasks)
        failed = verdict.seconds_per_task is None
        return Result({**to_json(verdict), "draft": draft}, _format_tasks(verdict), exit_code=1 if failed else 0)

    drafts = choice_in({**subject.settings, DRAFT: draft}).label(off="no MTP")
    load = f"{options.minutes:g} min of tasks as {shape.name} has them."
    reporter.show_event(None, [Note(f"{one_line(subject.model_name)}, {drafts}: {load}")])
    return await measure_subject(
        lambda session, on_begun: run_agent_tasks(
            session, subject, draft, shape, 60 * options.minutes, add_task, on_begun=on_begun
        ),
        make_result,
        reporter,
        options.chart,
    )


def _choose_draft(options: argparse.Namespace, subject: SweepModel) -> int:
    """Return the draft length to measure with.

    Without --draft, `prepare_subject` may give several draft lengths to compare; then it is the length that `serve`
    would use.
    """
    served = subject.options.draft
    return served if options.draft is None and len(subject.drafts) > 1 else subject.drafts[0]


def _format_tasks(verdict: AgentVerdict) -> Iterator[str]:
    rows = [["from", "seconds", "reading s", "writing s", "turns", "read", "reused", "written", ""]]
    for task in verdict.tasks:
        figures = [f"{each:,.1f}" for each in (task.seconds, task.reading_s, task.writing_s)]
        figures += [f"{each:,}" for each in (task.turns, task.read_tokens, task.reused_tokens, task.reply_tokens)]
        rows.append([f"{task.from_s:.0f} s", *figures, one_line(task.error or "", 200)])
    yield from format_table(rows, right=range(8))
    yield ""
    yield wrap_text(verdict.sentence)


def _describe_run(run: Run, spent_s: float, minutes: float) -> str:
    heat = "" if run.temperature_c is None else f", {run.temperature_c:.0f} °C"
    clock = "" if run.clock_mhz is None else f", {run.clock_mhz:,.0f} MHz"
    speed = f"{run.decode_rate:.1f} tokens/s" if run.decode_rate else run.error or "too short"
    return f"{spent_s / 60:.1f} of {minutes:g} min: {speed}{heat}{clock}"


def _format_verdict(verdict: EnduranceVerdict, cost_text: str) -> Iterator[str]:
    rows = [["from", "tokens/s", "steps/s", "°C", "MHz", "W", ""]]
    for row in verdict.rows:
        start = f"{row.from_s / 60:.0f} min" if verdict.seconds > 300 else f"{row.from_s:.0f} s"
        rates = [_format_figure(each, 1) for each in (row.tokens_rate, row.steps_rate)]
        sensors = [_format_figure(each, 0) for each in (row.temperature_c, row.clock_mhz, row.power_w)]
        rows.append([start, *rates, *sensors, one_line(merge_similar(row.marks), 200)])
    yield from format_table(rows, right=range(6))
    yield ""
    yield wrap_text(verdict.sentence)
    if cost_text:
        yield wrap_text(cost_text)


def _format_figure(value: float | None, digits: int) -> str:
    return UNKNOWN if value is None else f"{value:,.{digits}f}"
