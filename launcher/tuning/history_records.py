"""What is kept of a measurement."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from launcher.monitor.meter import Acceptance
from launcher.tuning.history_environment import Environment
from launcher.tuning.records import Run, Settings

Row = tuple[Any, ...]
RUN_COLUMNS = (
    "prompt", "settings", "began_s", "wall_s", "prompt_tokens", "cached_tokens", "reply_tokens", "prefill_rate",
    "decode_rate", "first_token_s", "drafted", "accepted", "by_position", "power_w", "energy_j", "temperature_c",
    "clock_mhz", "spoilt", "error", "clock",
)  # fmt: skip
"""The columns of a run, in the order of `run_row`."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A measurement in a list. Times are seconds since the epoch; `ended_s` None: it still runs, unless `sentence` says
    that it was cut off.

    `runs` counts all runs, `counted` those that may be used; `decode_rate` is the mean of these in tokens a second;
    of a tune only with the settings that it recommends, None where it recommends none.
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


@dataclass(frozen=True, slots=True)
class Session:
    """A measurement with all its runs, in the order in which they were made.

    `settings` are those of the server at its beginning, `result` what it ended in: a verdict, say, or an error.
    """

    id: str
    kind: str
    workload: str
    began_s: float
    ended_s: float | None
    environment: Environment
    settings: Settings
    result: Mapping[str, Any]
    runs: tuple[Run, ...]


def new_id() -> str:
    """Return an id for a measurement that is not there yet: 10 hexadecimal digits."""
    return uuid4().hex[:10]


def packed(data: object) -> str:
    """Return a JSON value as it is kept."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), sort_keys=True, default=str)
    return text.encode("utf-8", "replace").decode()  # a file's name may hold halves of characters


def run_row(run: Run) -> Row:
    """Return a run as the values of RUN_COLUMNS."""
    drafts = run.acceptance
    positions = packed([drafts.drafted_by_position, drafts.accepted_by_position]) if drafts else None
    return (
        run.prompt, packed(dict(run.settings)), run.began_s, run.wall_s, run.prompt_tokens, run.cached_tokens,
        run.reply_tokens, run.prefill_rate, run.decode_rate, run.first_token_s,
        drafts.drafted if drafts else None, drafts.accepted if drafts else None, positions,
        run.power_w, run.energy_j, run.temperature_c, run.clock_mhz, run.spoilt, run.error, run.clock,
    )  # fmt: skip


def run_of(row: Row, settings: Settings) -> Run:
    """Return the run of a row of RUN_COLUMNS; `settings` are its own, as many runs share them."""
    prompt, _, began_s, wall_s, read, cached, written, prefill, decode, first_s, drafted, accepted, positions, *rest = (
        row
    )
    drafts = None
    if drafted is not None:
        by_position = json.loads(positions)
        drafts = Acceptance(drafted, accepted, tuple(by_position[0]), tuple(by_position[1]))
    return Run(prompt, settings, began_s, wall_s, read, cached, written, prefill, decode, first_s, drafts, *rest)
