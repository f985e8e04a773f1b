"""Loads of models without data on a real card, from presets/evidence/loads.csv, beside the formula's."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from launcher.app.planning.model_source import estimate_by_formula, read_source
from launcher.base.paths import shipped_file
from launcher.machine.cards import Card, list_cards
from launcher.models.memory import PlanSettings
from launcher.models.overhead import expected_overhead_mib
from tools.sparse_models.models import model as describe_model
from tools.sparse_models.write import write

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Load:
    """A load with the memory of the process when loaded and after the first prompts, and the formula's, in MiB.

    `low_mib` and `high_mib` are the range that the formula gives for the memory after prompts.
    """

    row: Mapping[str, str]
    card: Card
    setting: PlanSettings
    formula_loaded_mib: float
    formula_mib: float
    low_mib: float
    high_mib: float

    @property
    def loaded_mib(self) -> int:
        """The memory before the first prompt."""
        return int(self.row["loaded_mib"])

    @property
    def prompted_mib(self) -> int:
        """The memory after the first prompts."""
        return int(self.row["prompted_mib"])


@cache
def read_loads() -> tuple[Load, ...]:
    """Return the loads; their models are those of tools.sparse_models."""
    with shipped_file("presets", "evidence", "loads.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    with tempfile.TemporaryDirectory(prefix="mtp-loads-") as folder:
        sources = {}
        for name in dict.fromkeys(row["model"] for row in rows):
            path = Path(folder) / f"{name}.gguf"
            write(path, name, describe_model(name))
            sources[name] = read_source(str(path))
    found = []
    for row in rows:
        card = next(each for each in list_cards() if each.name == row["gpu"])
        overhead = expected_overhead_mib("cuda", card, system=row["os"].casefold(), driver=row["driver"])
        setting = PlanSettings(
            int(row["ctx"]),
            row["kv"],
            int(row["draft"]),
            int(row["ubatch"]),
            overheads_mib=(overhead,),
            cards=(card,),
        )
        estimate = estimate_by_formula(sources[row["model"]], setting)
        sizes = (estimate.parts.total - estimate.parts.pool, estimate.parts.total, estimate.low, estimate.high)
        found.append(Load(row, card, setting, *(size / _MIB for size in sizes)))
    return tuple(found)
