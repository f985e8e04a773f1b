"""Is it slower than it was? Only like is compared with like.

Two things make a reply's tokens/s differ although nothing is wrong: how many drafts its text lets through, and how much
context is in use. The first is taken out by counting verification steps, each of which costs the same whether its
drafts were accepted or not: steps = tokens - accepted drafts. The second by comparing only replies whose context was
filled alike: an RTX 5060 Ti goes from 123 t/s at 10K to 82 t/s at 55K, so a class is half an octave wide. Replies
made beside other streams, or while other programs took the processor, are compared with none or their own kind.
"""

from collections import deque
from dataclasses import dataclass
from math import floor, log2
from statistics import median

from launcher.engine.action import Action, ActionKind
from launcher.monitor.health_event import Code, Finding, Finished, Moment

_FEWEST_TOKENS = 32
_SHORTEST_S = 0.1
_MOST_OTHERS_PERCENT = 25.0
_FIRST_REPLIES = 6
"""So many replies of one kind say what is usual for it."""
_LAST_REPLIES, _TOLD = 5, 3
_RECENT_S, _LAST_S, _LEAST_SPAN_S = 60.0, 600.0, 30.0
"""All replies of the last minute, or the last five where there were fewer; never from less than half a minute."""
_LEAST_FILL = 256
_SLOW, _FINE = 0.70, 0.85

_Kind = tuple[int, int, bool]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The last replies against the usual, in verification steps a second.

    `ratio` 1 is as fast as usual: the median of all that are judged. `latest`, to be told, is of the newest three.
    """

    ratio: float
    latest: float
    usual_per_s: float
    now_per_s: float
    replies: int
    span_s: float


@dataclass(frozen=True, slots=True)
class _Judged:
    time_s: float
    ratio: float
    rate: float


class SpeedBook:
    """Remembers how fast this server's replies are, by kind, and says how the last ones compare."""

    def __init__(self) -> None:
        self.compared = 0
        self.too_short = 0
        self.disturbed = 0
        self._first: dict[_Kind, list[float]] = {}
        self._last: deque[_Judged] = deque(maxlen=1_000)

    def add(self, time_s: float, reply: Finished) -> None:
        """Take in a reply that ended at `time_s`."""
        if reply.predicted_n < _FEWEST_TOKENS or reply.predicted_s < _SHORTEST_S or reply.fill is None:
            self.too_short += 1
            return
        if reply.others_percent is not None and reply.others_percent > _MOST_OTHERS_PERCENT:
            self.disturbed += 1
            return
        steps = reply.predicted_n - (reply.accepted or 0)
        if steps <= 0:  # accepted drafts that the end of the reply cut off count, too
            self.too_short += 1
            return
        rate = steps / reply.predicted_s
        fill_class = floor(2 * log2(max(reply.fill, _LEAST_FILL) / _LEAST_FILL))
        first = self._first.setdefault((fill_class, reply.streams, bool(reply.drafted)), [])
        if len(first) < _FIRST_REPLIES:
            first.append(rate)
            return
        self.compared += 1
        self._last.append(_Judged(time_s, rate / median(first), rate))

    def forget_last(self) -> None:
        """Compare only replies to come; what is usual stays."""
        self._last.clear()

    def compare(self, now_s: float) -> Comparison | None:
        """Return how the last replies compare; None while there are too few, or all within a short while."""
        known = [one for one in self._last if now_s - one.time_s <= _LAST_S]
        recent = [one for one in known if now_s - one.time_s <= _RECENT_S]
        if len(recent) < _LAST_REPLIES:
            recent = known[-_LAST_REPLIES:]
        if len(recent) < _LAST_REPLIES:
            return None
        newest = recent[-_TOLD:]
        latest, rate = median(one.ratio for one in newest), median(one.rate for one in newest)
        span_s = recent[-1].time_s - recent[0].time_s
        return Comparison(median(one.ratio for one in recent), latest, rate / latest, rate, len(recent), span_s)


class SpeedFalling:
    """Replies that got much slower, for no reason that another detector names (that is for Health to see)."""

    def __init__(self, book: SpeedBook) -> None:
        self._book = book
        self._since_s: float | None = None

    def look(self, moment: Moment) -> Finding | bool | None:
        """See Detector."""
        if self._since_s is None:
            self._since_s = moment.time_s
        if not moment.finished:
            return None
        now = self._book.compare(moment.time_s)
        if now is None or now.span_s < _LEAST_SPAN_S:
            return None
        if now.ratio > _FINE:
            return False
        if now.ratio > _SLOW:
            return None
        minutes = (moment.time_s - self._since_s) / 60
        return Finding(
            Code.SPEED_FALLING,
            f"Replies take {1 / now.latest:.1f} times as long as this server's first ones with as much context in use:"
            f" {now.now_per_s:.1f} steps/s now, {now.usual_per_s:.1f} then.",
            {
                "ratio": now.latest,
                "steps_per_s": now.now_per_s,
                "usual_steps_per_s": now.usual_per_s,
                "replies": float(now.replies),
                "running_min": minutes,
            },
            Action(ActionKind.RESTART, "Restart the server"),
        )
