"""Derives the traffic of all clients of a server from the growth of its /metrics counters."""

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from launcher.base.messages import message
from launcher.monitor.meter import Acceptance

_PREFIX = "llamacpp:"
_ACCEPTED_BY_POSITION = f"{_PREFIX}spec_decode_num_accepted_tokens_per_pos_total"


@dataclass(frozen=True, slots=True)
class Counters:
    """One reading of /metrics. The counters grow when a request ends; `processing` and `waiting` are always current.

    Names in `_n` count tokens, `predicted_s` is seconds. `prompt_n` includes tokens from the cache. `counts_drafts` is
    whether the engine build counts drafts; `waiting` is None if it does not count requests that wait for a slot.
    """

    predicted_n: float
    predicted_s: float
    drafted: int
    accepted: int
    drafts: int
    accepted_by_position: tuple[int, ...]
    processing: int
    prompt_n: float = 0.0
    waiting: int | None = None
    counts_drafts: bool = False


@dataclass(frozen=True, slots=True)
class Traffic:
    """The work done between two readings of the counters."""

    predicted_n: int
    tokens_per_second: float | None
    acceptance: Acceptance


def parse_counters(text: str) -> Counters:
    """Parse the text of /metrics; missing metrics count as 0. Raises ValueError if it is not in that format."""
    try:
        return _parse_samples(text)
    except (KeyError, OverflowError) as error:  # a counter without its label, or an infinite one
        raise ValueError(message("No metrics: {error}.", error=error)) from error


def _parse_samples(text: str) -> Counters:
    values: dict[str, float] = {}
    by_position: dict[int, int] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == _ACCEPTED_BY_POSITION:
                by_position[int(sample.labels["position"])] = int(sample.value)
            else:
                values[sample.name.removeprefix(_PREFIX)] = float(sample.value)
    return Counters(
        predicted_n=values.get("tokens_predicted_total", 0.0),
        predicted_s=values.get("tokens_predicted_seconds_total", 0.0),
        drafted=int(values.get("spec_decode_num_draft_tokens_total", 0)),
        accepted=int(values.get("spec_decode_num_accepted_tokens_total", 0)),
        drafts=int(values.get("spec_decode_num_drafts_total", 0)),
        accepted_by_position=_list_by_position(by_position),
        processing=int(values.get("requests_processing", 0)),
        prompt_n=values.get("prompt_tokens_total", 0.0) + values.get("prompt_tokens_cached_total", 0.0),
        waiting=int(values["requests_deferred"]) if "requests_deferred" in values else None,
        counts_drafts="spec_decode_num_draft_tokens_total" in values,
    )


def measure_traffic(before: Counters, after: Counters) -> Traffic | None:
    """Return the work of the requests that ended between two readings; None if none ended or the server restarted.

    The engine does not count the lengths of drafts. So every draft is assumed to reach the last position with an
    accepted token, which makes the acceptance of later positions a little too low.
    """
    tokens = after.predicted_n - before.predicted_n
    seconds = after.predicted_s - before.predicted_s
    drafts = after.drafts - before.drafts
    drafted = after.drafted - before.drafted
    accepted = after.accepted - before.accepted
    padded = before.accepted_by_position + (0,) * len(after.accepted_by_position)
    accepted_by_position = tuple(now - then for now, then in zip(after.accepted_by_position, padded, strict=False))
    if tokens <= 0 or min(seconds, drafts, drafted, accepted, *accepted_by_position) < 0:
        return None
    return Traffic(
        predicted_n=int(tokens),
        tokens_per_second=tokens / seconds if seconds > 0 else None,
        acceptance=Acceptance(
            drafted=drafted,
            accepted=accepted,
            drafted_by_position=(drafts,) * len(accepted_by_position) if drafts else (),
            accepted_by_position=accepted_by_position if drafts else (),
        ),
    )


def _list_by_position(by_position: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(by_position.get(position, 0) for position in range(max(by_position, default=-1) + 1))
