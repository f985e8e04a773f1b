"""Artificial series for the detectors: samples two seconds apart, with published figures."""

from collections.abc import Iterable, Sequence
from typing import Any

from launcher.machine.gpu import GpuActivity, GpuProcess, Reading
from launcher.monitor.health import Health
from launcher.monitor.health_event import FindingCode, FinishedReply, HealthEvent, Moment

Anything = Any
"""The value of any field of a check or a reply."""
PERIOD_S = 2.0
GIB = 2**30


def activity(reasons: Sequence[str] | None = (), processes: Sequence[GpuProcess] | None = ()) -> GpuActivity:
    return GpuActivity(
        None if processes is None else tuple(processes), None if reasons is None else tuple(reasons), absent={}
    )


def moment(time_s: float, /, **what: Anything) -> Moment:
    """Return the data of one check; names that are not fields of Moment are readings."""
    fields = {name: what.pop(name) for name in list(what) if name in Moment.__dataclass_fields__}
    readings = {name: Reading(value) for name, value in what.items() if value is not None}
    return Moment(time_s=time_s, readings=readings, **fields)


def reply(
    tokens_per_second: float,
    *,
    tokens: int = 400,
    context_used: float | None = 2_000,
    acceptance: float = 0.8,
    **what: Anything,
) -> FinishedReply:
    """Return a reply with draft length 2: each step yields its accepted drafts and one more token."""
    steps = tokens / (1 + 2 * acceptance)
    return FinishedReply(
        **{
            "predicted_n": tokens,
            "predicted_s": tokens / tokens_per_second,
            "drafted": round(2 * steps),
            "accepted": round(2 * steps * acceptance),
            "context_used": context_used,
            "streams": 1,
            **what,
        }
    )


def run(health: Health, moments: Iterable[Moment]) -> list[HealthEvent]:
    return [event for one in moments for event in health.check(one)]


def list_changes(events: Iterable[HealthEvent]) -> list[tuple[FindingCode, bool]]:
    """Return the codes that were raised (True) and cleared (False), in order."""
    return [(event.finding.code, not event.cleared) for event in events]


def repeat_moment(count: int, start_s: float = 0.0, /, **what: Anything) -> list[Moment]:
    """Return the data of `count` checks with the same readings."""
    return [moment(start_s + PERIOD_S * index, **what) for index in range(count)]
