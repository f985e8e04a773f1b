"""Prometheus metrics of the gateway: counts of requests and tokens by model and key, in the text format 0.0.4.

Written by hand, because importing prometheus_client takes 0.07 s, half of what the gateway may add to a start.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from launcher.gateway.exchange import ExchangeState
from launcher.gateway.request_log import RequestLog, RequestRecord

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "mtp_launcher_"
FIRST_TOKEN_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_STATES = (ExchangeState.RUNNING, ExchangeState.WAITING, ExchangeState.PAUSED)
_COUNTERS: Mapping[str, str] = {
    "prompt_tokens": "Prompt tokens of ended requests, those from the cache included",
    "reused_tokens": "Prompt tokens that came from the cache",
    "restored_tokens": "Prompt tokens that came from states on disk",
    "spared_seconds": "Time that reading them again would have taken",
    "reply_tokens": "Tokens of replies",
    "drafted_tokens": "Tokens that were drafted",
    "accepted_tokens": "Drafted tokens that were accepted",
    "handovers": "Requests that were sent on to a restarted engine",
    "handover_gap_seconds": "Pauses that restarts of the engine made in streams",
}
_Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Histogram:
    buckets: list[int] = field(default_factory=lambda: [0] * (len(FIRST_TOKEN_BUCKETS_S) + 1))
    total_s: float = 0.0

    def add_value(self, seconds: float) -> None:
        self.buckets[bisect_left(FIRST_TOKEN_BUCKETS_S, seconds)] += 1
        self.total_s += seconds


class RequestMetrics:
    """Counts the requests of a log from now on. Unknown figures are not counted."""

    def __init__(self, log: RequestLog) -> None:
        self._log = log
        self._requests: defaultdict[_Labels, int] = defaultdict(int)
        self._counters: dict[str, defaultdict[_Labels, float]] = {name: defaultdict(float) for name in _COUNTERS}
        self._first_tokens: defaultdict[_Labels, _Histogram] = defaultdict(_Histogram)
        log.add_listener(self._note_record)

    def close(self) -> None:
        """Stop counting."""
        self._log.remove_listener(self._note_record)

    def _note_record(self, record: RequestRecord) -> None:
        if record.end is None:
            return
        labels = (("model", record.model or ""), ("key", record.key_name))
        self._requests[(*labels, ("end", record.end))] += 1
        for name, value in (
            ("prompt_tokens", record.prompt_tokens),
            ("reused_tokens", record.reused_tokens),
            ("restored_tokens", record.restored_tokens),
            ("spared_seconds", record.spared_s),
            ("reply_tokens", record.reply_tokens),
            ("drafted_tokens", record.drafted),
            ("accepted_tokens", record.accepted),
            ("handovers", record.handovers),
            ("handover_gap_seconds", sum(record.gaps_s)),
        ):
            self._counters[name][labels] += value or 0
        if record.first_token_s is not None:
            self._first_tokens[labels].add_value(record.first_token_s)

    def sum_counter(self, name: str) -> float:
        """Return a counter's sum over all models and keys."""
        return sum(self._counters[name].values())

    def format_text(self) -> str:
        """Return the metrics in Prometheus' text format."""
        return "".join(f"{line}\n" for line in self._format_lines())

    def _format_lines(self) -> Iterator[str]:
        yield from _format_head("requests_total", "counter", "Requests that have ended")
        yield from (_format_sample("requests_total", labels, count) for labels, count in self._requests.items())
        for name, meaning in _COUNTERS.items():
            yield from _format_head(f"{name}_total", "counter", meaning)
            yield from (_format_sample(f"{name}_total", *each) for each in self._counters[name].items())
        name = "first_token_seconds"
        yield from _format_head(name, "histogram", "Time from a request's arrival to the first token of its reply")
        for labels, histogram in self._first_tokens.items():
            count = 0
            for bound, in_bucket in zip((*FIRST_TOKEN_BUCKETS_S, "+Inf"), histogram.buckets, strict=True):
                count += in_bucket
                yield _format_sample(f"{name}_bucket", (*labels, ("le", str(bound))), count)
            yield _format_sample(f"{name}_sum", labels, histogram.total_s)
            yield _format_sample(f"{name}_count", labels, count)
        states = self._log.count_states()
        yield from _format_head("requests_in_progress", "gauge", "Requests that run, wait for a slot or are paused")
        for state in _STATES:
            yield _format_sample("requests_in_progress", (("state", state.value),), states[state])


def _format_head(name: str, kind: str, meaning: str) -> tuple[str, str]:
    return f"# HELP {PREFIX}{name} {meaning}", f"# TYPE {PREFIX}{name} {kind}"


def _format_sample(name: str, labels: _Labels, value: float) -> str:
    written = ",".join(f'{label}="{_escape_label(text)}"' for label, text in labels)
    return f"{PREFIX}{name}{{{written}}} {value:.12g}"


def _escape_label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
