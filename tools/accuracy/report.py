"""The tables of docs/accuracy.md, as markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tools.accuracy.grid import PARTS, Outcome
from tools.accuracy.loads import read_loads
from tools.accuracy.published import CLAIMS, LOGS, STEPS, TOTALS, Run, list_predictions
from tools.accuracy.runs import NEAR, PublishedTotal, read_totals
from tools.markdown import format_table

_MIB = 2**20
_NAMES = {
    "model_mib": "weights",
    "context_mib": "KV cache and states",
    "compute_mib": "compute buffer",
    "draft_context_mib": "draft's KV cache",
    "draft_compute_mib": "draft's compute buffer",
}


def describe_settings(run: Run) -> str:
    """Return the settings of a run in a few words."""
    output = run.setting
    words = [run.quant, f"{output.context:,}", output.kv, f"draft {output.draft}" if output.draft else "no MTP"]
    if output.ubatch != 512:
        words.append(f"ubatch {output.ubatch}")
    if output.n_cpu_moe:
        words.append(f"{output.n_cpu_moe} on CPU")
    return ", ".join(words)


def logs_table() -> str:
    """Return each part that an engine printed in a log, beside the formula's."""
    rows = []
    for log in LOGS:
        found = log.run.estimate()
        formula = {} if found is None else found.parts.as_dict()
        for part, measured in log.parts.items():
            result = formula[part] / _MIB
            percent = 100 * (result / measured - 1)
            rows.append(
                (log.run.model, part.replace("_", " "), f"{measured:,.1f}", f"{result:,.1f}", f"{percent:+.2f} %")
            )
    return format_table(("model", "part", "measured, MiB", "formula, MiB", "difference"), rows, texts=2)


def loads_table() -> str:
    """Return the memory of loads on a card before and after the first prompts, and its growth, beside the formula's."""
    rows = []
    for load in read_loads():
        row, setting = load.row, load.setting
        words = f"{setting.context:,}, {setting.kv}, {f'draft {setting.draft}' if setting.draft else 'no MTP'}"
        pairs = (
            (load.loaded_mib, load.formula_loaded_mib),
            (load.prompted_mib, load.formula_mib),
        )
        figures = [
            text
            for measured, formula in pairs
            for text in (f"{measured:,}", f"{formula:,.0f}", f"{100 * (formula / measured - 1):+.2f} %")
        ]
        growth = (f"{load.prompted_mib - load.loaded_mib}", f"{load.formula_mib - load.formula_loaded_mib:.0f}")
        rows.append((row["gpu"], row["model"], words, *figures, *growth))
    titles = ("loaded, MiB", "formula", "difference", "after prompts, MiB", "formula", "difference")
    return format_table(("GPU", "model", "setting", *titles, "growth, MiB", "formula"), rows, texts=3)


def runs_table() -> str:
    """Return how near the formula is to the published totals of each CUDA card, then the totals that differ much, with
    the causes.
    """
    found, left_out = read_totals()
    near = [run for run in found if run.is_near]
    middle = statistics.median(abs(run.difference) for run in found)
    counts = f"{len(found)} runs, {len(near)} of them within {NEAR:.0%}; half within {middle:.2%}."
    by_card = [
        _by_card(name, [run for run in found if run.card.name == name])
        for name in dict.fromkeys(run.card.name for run in found)
    ]
    cards = format_table(
        ("GPU", "runs", "near", "median difference", "largest difference of the near"), by_card, texts=1
    )
    far = [run for run in found if not run.is_near]
    rows = [
        (run.row["gpu"], f"{run.row['model']} {run.row['quant']}", run.cause or "unknown", *_total_numbers(run))
        for run in far
    ]
    titles = ("GPU", "file", "cause", "measured, MiB", "formula, MiB", "difference")
    reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.most_common())
    others = f"Left out although their memory is known: {reasons}."
    return "\n\n".join((counts, cards, "Beyond:", format_table(titles, rows, texts=3), others))


def _by_card(name: str, found: Sequence[PublishedTotal]) -> tuple[str, ...]:
    near = [run.difference for run in found if run.is_near]
    farthest = f"{max(near, key=abs):+.2%}" if near else "-"
    middle = statistics.median(run.difference for run in found)
    return name, str(len(found)), str(len(near)), f"{middle:+.2%}", farthest


def _total_numbers(run: PublishedTotal) -> tuple[str, str, str]:
    return f"{run.measured_mib:,.0f}", f"{run.formula_mib + run.before_mib:,.0f}", f"{run.difference:+.1%}"


def totals_table() -> str:
    """Return the memory in use on AMD's GPUs, beside the formula's totals."""
    rows = []
    for total in TOTALS:
        result = total.run.total_mib()
        percent = 100 * (result / total.measured_mib - 1)
        words = (total.gpu, total.run.model, describe_settings(total.run))
        numbers = (f"{total.measured_mib:,.0f}", f"{result:,.0f}", f"{percent:+.2f} %")
        rows.append((*words, total.unknown, total.source, *numbers))
    titles = ("GPU", "model", "setting", "left open", "source", "measured, MiB", "formula, MiB", "difference")
    return format_table(titles, rows, texts=5)


def steps_table() -> str:
    """Return by how much memory grew from one run to another, beside the formula's growth."""
    rows = []
    for step in STEPS:
        before, after = step.before.setting, step.after.setting
        change = (
            f"{before.context:,} to {after.context:,}, {f'draft {after.draft}' if after.draft else 'no MTP'}"
            if before.context != after.context
            else f"{before.context:,}, draft {before.draft} to {after.draft}"
        )
        numbers = (f"{step.measured_mib:,.0f}", f"{step.formula_mib():,.1f}")
        rows.append((step.gpu, f"{step.file}, {after.kv}", change, step.source, *numbers))
    return format_table(("GPU", "file", "from, to", "source", "measured, MiB", "formula, MiB"), rows, texts=4)


def presets_table() -> str:
    """Return the published predictions of the presets' memory, beside the formula's totals."""
    rows = []
    for entry, preset, result in list_predictions():
        predicted = preset.predicted_mib or 0
        words = [preset.quant, f"{preset.ctx:,}", preset.kv, str(preset.draft), str(preset.ubatch)]
        words += [str(preset.n_cpu_moe), str(preset.slots)]
        numbers = (f"{predicted:,}", f"{result:,.0f}", f"{100 * (result / predicted - 1):+.2f} %")
        rows.append((entry.id, *words, *numbers))
    titles = ("model", "quant", "context", "KV", "draft", "ubatch", "layers on CPU", "slots")
    return format_table((*titles, "predicted, MiB", "formula, MiB", "difference"), list(dict.fromkeys(rows)), texts=2)


def claims_table() -> str:
    """Return the memory that articles claim, beside the formula's totals."""
    rows = [
        (claim.article, describe_settings(claim.run), claim.claimed, f"{claim.run.total_mib():,.0f}")
        for claim in CLAIMS
    ]
    return format_table(("article", "run", "says", "formula, MiB"), rows, texts=3)


def engine_table(outcomes: Sequence[Outcome]) -> str:
    """Return for each model in how many settings the engine's figure equals the formula's, and the largest difference
    otherwise.
    """
    rows = []
    for model in dict.fromkeys(outcome.case.model for outcome in outcomes):
        of_model = [one for one in outcomes if one.case.model == model]
        rows.append((model, *(_agreement(of_model, part) for part in PARTS)))
    return format_table(("model", *_NAMES.values()), rows, texts=1)


def _agreement(outcomes: Sequence[Outcome], part: str) -> str:
    if part.startswith("draft"):
        outcomes = [one for one in outcomes if one.case.setting.draft]
    equal = sum(one.is_equal(part) for one in outcomes)
    if equal == len(outcomes):
        return f"{equal} of {equal}" if outcomes else "-"
    mib = [one.beyond_mib(part) for one in outcomes]
    percent = max((one.beyond_percent(part) for one in outcomes), key=abs)
    return f"{equal} of {len(outcomes)}, {min(mib):+.1f} to {max(mib):+.1f} MiB, {percent:+.1f} %"


def list_differences(outcomes: Sequence[Outcome]) -> str:
    """Return the settings in which a part is not equal, with the formula's figure and the engine's."""
    lines = [
        f"- {one.case}: {_NAMES[part]} {one.formula[part]:,.1f}, engine {one.engine_mib(part):,}"
        for one in outcomes
        for part in PARTS
        if not one.is_equal(part)
    ]
    return "\n".join(lines) or "None differs."
