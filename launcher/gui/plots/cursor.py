"""The read-out at one moment in all plots: where the pointer is, or where the arrow keys put it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from launcher.gui.plots.card import PlotCard
from launcher.gui.plots.marks import MarkLog
from launcher.gui.plots.span import Span
from launcher.gui.words import tr

if TYPE_CHECKING:
    from launcher.gui.plots.samples import Samples

_NEAR, _STEP = 0.012, 0.008
"""Shares of the width: how near a mark must be to be told, and how far an arrow key goes."""
_MOST_MARKS = 4


@dataclass(frozen=True, slots=True)
class Said:
    """What the read-out says: in a line, and as a whole."""

    line: str = ""
    whole: str = ""


class Cursor:
    """Where values are read."""

    def __init__(self, span: Span, marks: MarkLog, cards: Sequence[PlotCard]) -> None:
        self._span = span
        self._marks = marks
        self._cards = cards
        self._pointer: tuple[PlotCard, float] | None = None
        self._at_s: float | None = None

    @property
    def share(self) -> float | None:
        """Where it is, as a share of the width, None when it is nowhere."""
        if self._at_s is not None:
            return self._span.share(self._at_s)
        return self._pointer[1] if self._pointer is not None else None

    def point(self, card: PlotCard | None, share: float) -> None:
        """Follow the pointer over a card; None when it left."""
        self._pointer = None if card is None else (card, share)
        if card is not None:
            self._at_s = None

    def clear(self) -> None:
        """Take what the keys had put away."""
        self._at_s = None

    def step(self, samples: "Samples", way: int, *, to_mark: bool) -> None:
        """Go to the left (-1) or right (1), or to the next mark there; the axis follows where it must."""
        span, share = self._span, self.share
        at_s = span.end_s if share is None else span.start_s + share * span.length_s
        if to_mark:
            mark = self._marks.next(at_s, back=way < 0)
            if mark is None:
                return
            at_s = mark.time_s
        else:
            at_s += way * max(_STEP * span.length_s, 0.1)
        self._pointer = None
        self._at_s = min(max(at_s, samples.oldest_s), samples.newest_s)
        span.show(self._at_s)

    def show(self, samples: "Samples") -> Said:
        """Show it in all cards, and return what it says."""
        share, cards = self.share, [card for card in self._cards if card.isVisible()]
        at_s = None if share is None else self._span.start_s + share * self._span.length_s
        index = None if at_s is None else samples.nearest(at_s)
        if at_s is None or index is None:
            for card in cards:
                card.hover(samples, self._span, None, ())
            return Said()
        near_s = _NEAR * self._span.length_s
        words = [mark.text for mark in self._marks.between(at_s - near_s, at_s + near_s)[-_MOST_MARKS:]]
        with_words = self._pointer[0] if self._pointer else next((c for c in cards if c.absent is None), None)
        moment = _moment(samples, index)
        head = (moment, *words)
        said = [card.hover(samples, self._span, index, head if card is with_words else ()) for card in cards]
        return Said(" · ".join(head), ". ".join(filter(None, [*head, *said])))


def _moment(samples: "Samples", index: int) -> str:
    at_s, wall_s = samples.time_at(index)
    minutes, seconds = divmod(round(samples.newest_s - at_s), 60)
    ago = tr("{m} min {s} s ago", m=minutes, s=seconds) if minutes else tr("{s} s ago", s=seconds)
    return f"{datetime.fromtimestamp(wall_s).astimezone():%H:%M:%S} · {ago}"
