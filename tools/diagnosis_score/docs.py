"""The tables of docs/diagnosis.md: every fault with its sentences and actions, and the score on recorded logs."""

import re
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from launcher.engine.diagnosis.explain import diagnose_log
from launcher.engine.diagnosis.signatures import fault_signatures
from tools.diagnosis_score.score import LOGS, judge_logs
from tools.markdown import format_table

DOCUMENT = Path(__file__).parents[2] / "docs" / "diagnosis.md"


class FirstScore(NamedTuple):
    """The result of the first diagnosis of a set, before anything was changed for it: date, and how many were right."""

    date: str
    right: int


HELD_OUT = {
    "held-out": FirstScore("2026-11-21", 53),
    "held-out-2": FirstScore("2026-11-21", 66),
    "held-out-3": FirstScore("2026-11-21", 42),
    "reports": FirstScore("2026-11-28", 5),
    "reports-2": FirstScore("2026-11-28", 8),
    "reports-3": FirstScore("2026-11-28", 8),
    "reports-4": FirstScore("2026-11-28", 8),
    "reports-5": FirstScore("2026-11-28", 5),
}
"""The sets of logs that were not known while the patterns were written, each with its first score."""
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_OPTIONAL_PART = re.compile(r"\[([^\[\]]*)\]")


def make_sections() -> dict[str, str]:
    """Return the text of each generated part of the document."""
    return {"faults": fault_table(), "score": score_table()}


def update_document(document: str) -> str:
    """Return the document with its generated parts up to date."""
    for name, text in make_sections().items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        place = pattern.search(document)
        if place is None:
            raise ValueError(f"{DOCUMENT.name} has no place for {name}")
        document = f"{document[: place.end(1)]}\n{text}\n\n{document[place.start(2) :]}"
    return document


def fault_table() -> str:
    """Return a row for every fault, in the order of the signatures' numbers."""
    origins = _list_origins()
    rows = [
        (
            str(fault.data.number),
            f"`{fault.code}`",
            fault.data.severity,
            _make_sentence(fault.data.title),
            ", ".join(f"`{action.kind}`" for action in fault.data.actions),
            ", ".join(sorted(origins[fault.code])),
        )
        for fault in sorted(fault_signatures(), key=lambda fault: fault.data.number)
    ]
    return format_table(("#", "code", "severity", "what a person reads", "actions", "proven on"), rows)


def score_table() -> str:
    """Return a row for every set of held-out logs, and one for the examples of the signatures."""
    rows = []
    for name, first in HELD_OUT.items():
        judged = list(judge_logs(LOGS / name))
        right = sum(each.is_right for each in judged)
        sound = sum(each.label.codes == () for each in judged)
        rows.append(
            (
                name,
                str(len(judged)),
                str(sound),
                _format_share(first.right, len(judged)),
                first.date,
                _format_share(right, len(judged)),
            )
        )
    right, examples = count_examples()
    rows.append(("examples (fitted)", str(examples), "0", "", "", _format_share(right, examples)))
    return format_table(("set", "logs", "of them sound", "right at first", "on", "right now"), rows)


def _format_share(right: int, count: int) -> str:
    return f"{right} ({100 * right / count:.0f} %)"


def count_examples() -> tuple[int, int]:
    """Return how many examples of the signatures are diagnosed with their code, and how many there are."""
    examples = _read_examples()
    found = [
        diagnose_log(each["text"], exit_code=None if each.get("no_exit_code") else each.get("exit_code", 1))
        for each in examples
    ]
    return sum(one is not None and one.code == each["code"] for one, each in zip(found, examples, strict=True)), len(
        examples
    )


def _read_examples() -> list[dict[str, Any]]:
    examples: list[dict[str, Any]] = tomllib.loads((LOGS / "signatures.toml").read_text("utf-8"))["example"]
    return examples


def _list_origins() -> dict[str, set[str]]:
    origins: dict[str, set[str]] = defaultdict(set)
    for example in _read_examples():
        origins[example["code"]].add(example["origin"])
    for name in HELD_OUT:
        for judged in judge_logs(LOGS / name):
            if judged.is_right and judged.diagnosis is not None:
                origins[judged.diagnosis.code].add("reported" if judged.label.codes is None else "recorded")
    return origins


def _make_sentence(template: str) -> str:
    text = _OPTIONAL_PART.sub(lambda part: part[1], template)
    return _PLACEHOLDER.sub(lambda name: f"*{name[1].replace('_', ' ')}*", text).replace("|", "\\|")
