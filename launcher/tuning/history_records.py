"""Records of the history: a session, its summary, and the columns of a run."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from launcher.base.codec import compact_json
from launcher.base.messages import Message, message
from launcher.monitor.meter import Acceptance
from launcher.tuning.history_environment import Environment
from launcher.tuning.records import Run, RunSettings

RunRow = tuple[Any, ...]
RUN_COLUMNS = (
    "prompt", "settings", "began_s", "wall_s", "prompt_tokens", "cached_tokens", "reply_tokens", "prefill_rate",
    "decode_rate", "first_token_s", "drafted", "accepted", "by_position", "power_w", "energy_j", "temperature_c",
    "clock_mhz", "spoilt", "error", "clock",
)  # fmt: skip
"""Columns of a run, in the order of `row_from_run`."""
_DRAFTED = RUN_COLUMNS.index("drafted")


@dataclass(frozen=True, slots=True)
class Summary:
    """A session in a list. Times are seconds since the epoch; `ended_s` is None while it runs or if it was cut off.

    `runs` is the number of all runs and `counted` of the usable ones. `decode_rate` is the mean of the usable ones in
    tokens per second; for a tune, of those with the recommended settings, None without a recommendation. `sentence` is
    the result in words, or says that the session was cut off.
    """

    id: str
    kind: str
    workload: str
    began_s: float
    ended_s: float | None
    model: str
    quant: str | None
    runs: int
    counted: int
    decode_rate: float | None
    sentence: str | None


def format_utc_date(time_s: float) -> str:
    """Return the day of a time in seconds since the epoch, such as 2026-11-28."""
    return f"{datetime.fromtimestamp(time_s, UTC):%Y-%m-%d}"


def measured_line(what: str) -> Message:
    """Return the message that says what was measured on this computer."""
    return message("Measured here: {what}.", what=what)


@dataclass(frozen=True, slots=True)
class LocalSpeed:
    """A model file's decoding speed on this computer, in tokens per second, and a message about it.

    `of_tune` is whether it is that of tuned settings, which are used.
    """

    tokens_per_second: float
    line: str
    of_tune: bool = False


@dataclass(frozen=True, slots=True)
class Session:
    """A measurement session with all its runs in order.

    `settings` are those of the server at the beginning, `result` is for example a verdict or an error.
    """

    id: str
    kind: str
    workload: str
    began_s: float
    ended_s: float | None
    environment: Environment
    settings: RunSettings
    result: Mapping[str, Any]
    runs: tuple[Run, ...]


def new_session_id() -> str:
    """Return a new session id: 10 hexadecimal digits."""
    return uuid4().hex[:10]


def row_from_run(run: Run) -> RunRow:
    """Return a run as the values of RUN_COLUMNS."""
    drafts = run.acceptance
    positions = compact_json([drafts.drafted_by_position, drafts.accepted_by_position]) if drafts else None
    return (
        run.prompt, compact_json(run.settings), run.began_s, run.wall_s, run.prompt_tokens, run.cached_tokens,
        run.reply_tokens, run.prefill_rate, run.decode_rate, run.first_token_s,
        drafts.drafted if drafts else None, drafts.accepted if drafts else None, positions,
        run.power_w, run.energy_j, run.temperature_c, run.clock_mhz, run.spoilt, run.error, run.clock,
    )  # fmt: skip


def run_from_row(row: RunRow, settings: RunSettings) -> Run:
    """Return the run of a row of RUN_COLUMNS, with its `settings`, which the caller parses once for many runs."""
    prompt, _, *measured = row[:_DRAFTED]
    drafted, accepted, positions, *sensors = row[_DRAFTED:]
    acceptance = None
    if drafted is not None:
        drafted_by_position, accepted_by_position = json.loads(positions)
        acceptance = Acceptance(drafted, accepted, tuple(drafted_by_position), tuple(accepted_by_position))
    return Run(*(prompt, settings, *measured, acceptance, *sensors))
