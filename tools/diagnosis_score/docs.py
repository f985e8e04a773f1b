"""The tables of docs/diagnosis.md: every fault with its sentences and actions, and the score on recorded logs."""

import re
import tomllib
from collections import defaultdict
from pathlib import Path

from launcher.engine.diagnosis.signatures import fault_signatures
from tools.diagnosis_score.score import LOGS, judge_logs
from tools.markdown import format_table

DOCUMENT = Path(__file__).parents[2] / "docs" / "diagnosis.md"
HELD_OUT = ("held-out", "held-out-2", "held-out-3")
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
    """Return a row for every set of held-out logs."""
    rows = []
    for name in HELD_OUT:
        judged = list(judge_logs(LOGS / name))
        right = sum(each.is_right for each in judged)
        sound = sum(not each.codes for each in judged)
        kinds = len({each.codes for each in judged if each.codes})
        rows.append((name, str(len(judged)), str(kinds), str(sound), f"{right} ({100 * right / len(judged):.0f} %)"))
    return format_table(("set", "logs", "kinds of fault", "of them sound", "right now"), rows)


def _list_origins() -> dict[str, set[str]]:
    origins: dict[str, set[str]] = defaultdict(set)
    for example in tomllib.loads((LOGS / "signatures.toml").read_text("utf-8"))["example"]:
        origins[example["code"]].add(example["origin"])
    for name in HELD_OUT:
        for judged in judge_logs(LOGS / name):
            for code in judged.codes:
                if judged.diagnosis == code:
                    origins[code].add("recorded")
    return origins


def _make_sentence(template: str) -> str:
    text = _OPTIONAL_PART.sub(lambda part: part[1], template)
    return _PLACEHOLDER.sub(lambda name: f"*{name[1].replace('_', ' ')}*", text).replace("|", "\\|")
