"""Daily counters of real use: tokens, steps, and accepted drafts by position. Texts are not stored."""

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Self

from launcher.base.codec import compact_json
from launcher.tuning.history_environment import Environment
from launcher.tuning.records import RunSettings

if TYPE_CHECKING:
    from launcher.monitor.traffic import Traffic

KEPT_DAYS = 90
FEWEST_STEPS = 2_000
"""The fewest steps for advice. With fewer, acceptance is too uncertain: a rate of 0.6 would be 0.6 ± 0.02."""
DAY_S = 86_400
TABLE = """
CREATE TABLE use_counts (
    day INTEGER NOT NULL, place TEXT NOT NULL, settings TEXT NOT NULL,
    tokens INTEGER NOT NULL, seconds REAL NOT NULL, steps INTEGER NOT NULL, accepted TEXT NOT NULL,
    PRIMARY KEY (day, place, settings)
)
"""
"""`day` counts from the epoch, `place` is the `use_counts_key`; `settings` and `accepted` are JSON."""


@dataclass(frozen=True, slots=True)
class UseCounts:
    """Tokens generated with some settings, the engine's seconds for them, and verification steps.

    `accepted` counts accepted drafts by their position in the step. Divided by `steps` a count is the share of steps
    that accept so many drafts or more. Unlike a share of the drafted tokens, it does not depend on the draft length.
    """

    settings: RunSettings
    tokens: int = 0
    seconds: float = 0.0
    steps: int = 0
    accepted: tuple[int, ...] = ()

    @classmethod
    def from_traffic(cls, settings: RunSettings, traffic: "Traffic") -> Self | None:
        """Return the counts of the requests between two readings. None if their time is unknown."""
        rate, accepted = traffic.tokens_per_second, traffic.acceptance.accepted
        if not rate or traffic.predicted_n <= accepted:
            return None
        by_position = traffic.acceptance.accepted_by_position
        tokens = traffic.predicted_n
        return cls(settings, tokens, tokens / rate, tokens - accepted, by_position)

    def plus(self, other: "UseCounts") -> "UseCounts":
        """Return the sum of both, with the first one's settings."""
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
        """Seconds per step. None without steps."""
        return self.seconds / self.steps if self.steps else None


def use_counts_key(environment: Environment) -> str:
    """Return the key under which counts are summed: model, engine, GPUs and driver, as JSON."""
    model = environment.model
    gpus = [[gpu.name, gpu.driver] for gpu in environment.gpus]
    return compact_json([model.name, model.quant, model.bytes, environment.engine, environment.engine_version, gpus])


def add_use_counts(db: sqlite3.Connection, day: int, key: str, counts: Iterable[UseCounts]) -> None:
    """Add counts to those of a day, within the caller's transaction. Counts older than KEPT_DAYS are deleted."""
    db.execute("DELETE FROM use_counts WHERE day < ?", (day - KEPT_DAYS,))
    for each in counts:
        settings = compact_json(each.settings)
        row = db.execute(
            "SELECT tokens, seconds, steps, accepted FROM use_counts WHERE day = ? AND place = ? AND settings = ?",
            (day, key, settings),
        ).fetchone()
        total = each if row is None else _counts_from_row(each.settings, row).plus(each)
        db.execute(
            "INSERT OR REPLACE INTO use_counts VALUES (?, ?, ?, ?, ?, ?, ?)",
            (day, key, settings, total.tokens, total.seconds, total.steps, compact_json(total.accepted)),
        )


def read_use_counts(db: sqlite3.Connection, key: str, since_day: int) -> list[UseCounts]:
    """Return the counts under a key since a day, summed by settings."""
    totals: dict[str, UseCounts] = {}
    rows = db.execute(
        "SELECT settings, tokens, seconds, steps, accepted FROM use_counts WHERE place = ? AND day >= ? ORDER BY day",
        (key, since_day),
    )
    for settings, *row in rows:
        counts = _counts_from_row(_parse_settings(settings), row)
        totals[settings] = totals[settings].plus(counts) if settings in totals else counts
    return list(totals.values())


def _counts_from_row(settings: RunSettings, row: "list[object] | tuple[object, ...]") -> UseCounts:
    tokens, seconds, steps, accepted = row
    return UseCounts(settings, int(str(tokens)), float(str(seconds)), int(str(steps)), tuple(json.loads(str(accepted))))


def _parse_settings(text: str) -> RunSettings:
    data = json.loads(text)
    return data if isinstance(data, Mapping) else {}
