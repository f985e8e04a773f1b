"""`mtp-launcher prove`: check the documented claims on this machine, and write a report to send."""

from __future__ import annotations

import argparse
import asyncio
import csv
import io
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.app.measuring.machine_proof import MachineProof, check_nothing_runs
from launcher.app.measuring.sweeps import prepare_model
from launcher.base.codec import to_json
from launcher.base.errors import BadOption
from launcher.base.files import write_atomically
from launcher.base.text import one_line
from launcher.cli.layout import UNKNOWN, format_path, format_table, wrap_text
from launcher.cli.measured_subject import resolve_model_and_options
from launcher.cli.progress import Reporter
from launcher.tuning.workloads import DEFAULT_WORKLOAD, load_workload

if TYPE_CHECKING:
    from launcher.app.measuring.proof_checks import CheckOutcome

_ANSWERS = {"confirmed": "confirmed", "refuted": "REFUTED", "not_tried": "not tried"}


async def run(options: argparse.Namespace) -> int:
    """Try all checks and print the report. Exit code 1 if a claim is refuted; Ctrl-C reports what was tried."""
    _check_output(options.output)
    await asyncio.to_thread(check_nothing_runs)
    workload = await asyncio.to_thread(load_workload, options.workload or DEFAULT_WORKLOAD)
    reporter = Reporter(as_json=options.json)
    name, serve_options = await resolve_model_and_options(options, reporter)
    model = await prepare_model(serve_options, name)
    show_note(f"{one_line(name)}: at most about {options.minutes:g} min. Ctrl-C ends it.")
    if options.output is None and not options.json:
        show_note("With --output FILE it also writes a report that you can send.")

    def show_step(text: str) -> None:
        show_note(f"{proof.spent_s / 60:4.1f} min  {text} ...")

    def show_outcome(outcome: CheckOutcome) -> None:
        check = to_json(outcome)
        result, _, measured = _result_cells(check)
        show_note(f"{proof.spent_s / 60:4.1f} min    {check['id']}: {result}, {measured}")

    def show_report() -> int:
        reporter.close()
        report = proof.report()
        data = to_json(report)
        reporter.show_event(data, _format_report(data))
        if options.output is not None:  # after the report is printed, which a full disk must not lose
            write_atomically(options.output, format_markdown(data).encode())
            show_note(f"Wrote {format_path(options.output)}.")
        return 1 if report.refuted else 0

    proof = MachineProof(model, workload, 60 * options.minutes, show_step, show_outcome)
    try:
        await proof.run()
    except (asyncio.CancelledError, KeyboardInterrupt):
        show_report()
        raise
    return show_report()


def show_note(text: str) -> None:
    """Print a line on stderr, also beside JSON: what is done and found during minutes without a result."""
    print(wrap_text(text), file=sys.stderr, flush=True)


def _check_output(path: Path | None) -> None:
    """Raise BadOption if the report cannot be written to `path`, before anything is measured."""
    if path is None:
        return
    if path.exists():
        raise BadOption(f"{format_path(path)} already exists.", "Give another name.")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise BadOption(f"There is no folder {format_path(folder)}.", "Create it first.")
    if not os.access(folder, os.W_OK):
        raise BadOption(f"The folder {format_path(folder)} cannot be written.", "Name a file in another folder.")


def _format_report(data: Mapping[str, Any]) -> Iterator[str]:
    rows = [("CHECK", "RESULT", "EXPECTED", "MEASURED")]
    rows += [(each["id"], *_result_cells(each)) for each in data["checks"]]
    yield from format_table(rows, indent="")
    for each in data["checks"]:
        if each["result"] == "refuted":
            yield ""
            yield wrap_text(f"{each['claim']} ({each['line']})", f"REFUTED {each['id']}: ")
    yield ""
    yield wrap_text(count_results(data))


def _result_cells(check: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return result, expectation and measurement of a check, with the reason why it was not tried."""
    measured = ". ".join(filter(None, (check["measured"], check["reason"]))) or UNKNOWN
    return _ANSWERS[check["result"]], check["expected"] or UNKNOWN, measured


def count_results(data: Mapping[str, Any]) -> str:
    """Return a sentence that counts the results of a report in JSON."""
    results = [each["result"] for each in data["checks"]]
    counts = [f"{results.count(name)} {text.lower()}" for name, text in _ANSWERS.items()]
    return f"{len(results)} checks: {', '.join(counts)}."


def format_markdown(data: Mapping[str, Any]) -> str:
    """Return the report in JSON as Markdown."""
    return "\n".join([*_list_facts(data), "", *_list_checks(data), *_list_evidence(data)]) + "\n"


def _list_facts(data: Mapping[str, Any]) -> Iterator[str]:
    yield f"# Report of `mtp-launcher prove`, {data['date']}\n"
    if machine := data["machine"]:
        cards = [
            f"{gpu['name']}, {gpu['memory_bytes'] / 2**30:.0f} GiB, driver {gpu['driver'] or 'unknown'}"
            if gpu["memory_bytes"]
            else gpu["name"]
            for gpu in machine["gpus"]
        ]
        memory = machine["memory_bytes"]
        facts = {
            "GPU": "; ".join(cards) or "none",
            "Processor": f"{machine['cpu'] or 'unknown'}, {machine['cores'] or 'an unknown number of'} cores",
            "Memory": f"{memory / 2**30:.0f} GiB" if memory else "unknown",
            "System": machine["system"],
            "Engine": f"{machine['engine']} {machine['engine_version']}",
            "Model": " ".join(filter(None, (machine["model"]["name"], machine["model"]["quant"]))),
            "MTP Launcher": machine["program"],
        }
        yield from (f"- {name}: {fact}" for name, fact in facts.items())
        yield ""
    yield count_results(data)


def _list_checks(data: Mapping[str, Any]) -> Iterator[str]:
    yield "| check | claim | line | expected | measured | result |"
    yield "|---|---|---|---|---|---|"
    for each in data["checks"]:
        result, expected, measured = _result_cells(each)
        cells = (f"`{each['id']}`", each["claim"], each["line"], expected, measured, result)
        yield f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _list_evidence(data: Mapping[str, Any]) -> Iterator[str]:
    if not data["evidence"]:
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, data["evidence"][0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(data["evidence"])
    yield "\n## Rows for presets/evidence/runs.csv\n"
    yield f"```csv\n{text.getvalue()}```"
