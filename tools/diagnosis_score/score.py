"""Scores the diagnosis on logs whose fault is known: how often it names the first cause, and where it does not.

python -m tools.diagnosis_score [FOLDER ...]
"""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.engine.diagnosis.explain import Diagnosis, diagnose_log
from launcher.engine.diagnosis.log_reading import read_log

LOGS = Path(__file__).parents[2] / "tests" / "data" / "logs"


@dataclass(frozen=True)
class LogLabel:
    """What a diagnosis of one log should be.

    `codes` are those of the fault, () if the log shows none. Labels of reports have no codes (None), but what a person
    needs: `says` are words that its sentences and actions contain, `cures` the kinds of action of which one comes
    first. `source` is the public report from which the log was made.
    """

    exit_code: int | None = None
    codes: tuple[str, ...] | None = None
    says: tuple[str, ...] = ()
    cures: tuple[str, ...] = ()
    source: str = ""

    def agrees_with(self, found: Diagnosis | None) -> bool:
        """Return whether a diagnosis is right."""
        if self.codes == ():
            return found is None
        if found is None or (self.codes is not None and found.code not in self.codes):
            return False
        text = " ".join((found.title, found.cause, found.hint, *(action.label for action in found.actions))).lower()
        return all(words.lower() in text for words in self.says) and (
            not self.cures or found.actions[0].kind in self.cures
        )


@dataclass(frozen=True)
class JudgedLog:
    """One log with its label and its diagnosis."""

    name: str
    label: LogLabel
    diagnosis: Diagnosis | None

    @property
    def is_right(self) -> bool:
        """Whether the diagnosis is what the label says."""
        return self.label.agrees_with(self.diagnosis)


def judge_logs(folder: Path) -> Iterator[JudgedLog]:
    """Diagnose every log of a folder with labels.toml, with the exit code that the launcher would know."""
    labels: dict[str, dict[str, Any]] = tomllib.loads((folder / "labels.toml").read_text("utf-8"))
    for name, values in labels.items():
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
        }
        label = LogLabel(**fields)
        yield JudgedLog(name, label, diagnose_log(read_log(folder / name), exit_code=label.exit_code))
