"""Scores the diagnosis on recorded logs: how often it names the first cause, and where it does not.

python -m tools.diagnosis_score [FOLDER ...]
"""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.engine.diagnosis.explain import diagnose_log
from launcher.engine.diagnosis.log_reading import read_log

LOGS = Path(__file__).parents[2] / "tests" / "data" / "logs"


@dataclass(frozen=True)
class JudgedLog:
    """One log: the codes of the deliberate fault (none without a fault), and the code and title of the diagnosis."""

    name: str
    codes: tuple[str, ...]
    diagnosis: str | None
    title: str

    @property
    def is_right(self) -> bool:
        """Whether the diagnosis names the fault, or names none if there was none."""
        return self.diagnosis in self.codes if self.codes else self.diagnosis is None


def judge_logs(folder: Path) -> Iterator[JudgedLog]:
    """Diagnose every log of a folder with labels.toml, with the exit code that the launcher would know."""
    labels = tomllib.loads((folder / "labels.toml").read_text("utf-8"))
    for name, label in labels.items():
        found = diagnose_log(read_log(folder / name), exit_code=label["exit_code"])
        result, title = (found.code, found.title) if found else (None, "")
        yield JudgedLog(name, tuple(label["codes"]), result, title)
