"""Counters of real use: how many tokens, steps and accepted drafts, by draft position. No texts, no times of day."""

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Self

from launcher.monitor.traffic import Traffic
from launcher.tuning.history_environment import Environment
from launcher.tuning.history_records import packed
from launcher.tuning.records import Settings

KEPT_DAYS = 90
DAY_S = 86_400
TABLE = """
CREATE TABLE use_counts (
    day INTEGER NOT NULL, place TEXT NOT NULL, settings TEXT NOT NULL,
    tokens INTEGER NOT NULL, seconds REAL NOT NULL, steps INTEGER NOT NULL, accepted TEXT NOT NULL,
    PRIMARY KEY (day, place, settings)
)
"""


@dataclass(frozen=True, slots=True)
class UseCounts:
    """What was generated with some settings: tokens, the engine's seconds for them, verification steps.

    `accepted` counts accepted drafts by position. They are of a step: how many a step accepts does not depend on what
    is drafted behind them.
    """

    settings: Settings
    tokens: int = 0
    seconds: float = 0.0
    steps: int = 0
    accepted: tuple[int, ...] = ()

    @classmethod
    def of(cls, settings: Settings, traffic: Traffic) -> Self | None:
        """Return the counts of what requests did between two readings; None where their time is not known."""
        rate, accepted = traffic.tokens_per_second, traffic.acceptance.accepted
        if not rate or traffic.predicted_n <= accepted:
            return None
        by_position = traffic.acceptance.accepted_by_position
        tokens = traffic.predicted_n
        return cls(settings, tokens, tokens / rate, tokens - accepted, by_position)

    def plus(self, other: "UseCounts") -> "UseCounts":
        """Return both together, with the first one's settings."""
        accepted = tuple(a + b for a, b in zip_longest(self.accepted, other.accepted, fillvalue=0))
        return UseCounts(
            self.settings,
            self.tokens + other.tokens,
            self.seconds + other.seconds,
            self.steps + other.steps,
            accepted,
        )

    @property
    def step_s(self) -> float | None:
        """Seconds of a step; None without any."""
        return self.seconds / self.steps if self.steps else None


def place_of(environment: Environment) -> str:
    """Return what counts must have in common to be added up: model, engine, GPUs and driver."""
    model = environment.model
    gpus = [[gpu.name, gpu.driver] for gpu in environment.gpus]
    return packed([model.name, model.quant, model.bytes, environment.engine, environment.engine_version, gpus])


def add(db: sqlite3.Connection, day: int, place: str, counts: Iterable[UseCounts]) -> None:
    """Add counts to those of a day, in a transaction of the caller's; those of long ago are forgotten."""
    db.execute("DELETE FROM use_counts WHERE day < ?", (day - KEPT_DAYS,))
    for each in counts:
        settings = packed(dict(each.settings))
        row = db.execute(
            "SELECT tokens, seconds, steps, accepted FROM use_counts WHERE day = ? AND place = ? AND settings = ?",
            (day, place, settings),
        ).fetchone()
        whole = each if row is None else _of_row(each.settings, row).plus(each)
        db.execute(
            "INSERT OR REPLACE INTO use_counts VALUES (?, ?, ?, ?, ?, ?, ?)",
            (day, place, settings, whole.tokens, whole.seconds, whole.steps, packed(whole.accepted)),
        )


def read(db: sqlite3.Connection, place: str, since_day: int) -> dict[str, UseCounts]:
    """Return what was counted at a place since that day, by settings as they are kept."""
    found: dict[str, UseCounts] = {}
    rows = db.execute(
        "SELECT settings, tokens, seconds, steps, accepted FROM use_counts WHERE place = ? AND day >= ? ORDER BY day",
        (place, since_day),
    )
    for settings, *row in rows:
        counts = _of_row(_unpacked(settings), row)
        found[settings] = found[settings].plus(counts) if settings in found else counts
    return found


def _of_row(settings: Settings, row: "list[object] | tuple[object, ...]") -> UseCounts:
    tokens, seconds, steps, accepted = row
    return UseCounts(settings, int(str(tokens)), float(str(seconds)), int(str(steps)), tuple(json.loads(str(accepted))))


def _unpacked(text: str) -> Settings:
    data = json.loads(text)
    return data if isinstance(data, Mapping) else {}
