"""Time span shown by all plots: live or held."""

SHORTEST_S, LONGEST_S, USUAL_S = 10.0, 3_600.0, 300.0
GROWING_S = (30.0, 60.0, 120.0, USUAL_S)
"""Lengths until there are samples for the usual span: the shortest that contains all, unless the user chose one."""
STEP = 1.25
"""Zoom factor of one wheel notch."""


class TimeSpan:
    """A span of the monitor's clock. While `live`, its end follows the newest sample."""

    def __init__(self) -> None:
        self.live = True
        self.length_s = GROWING_S[0]
        self.end_s = 0.0
        self._is_chosen = False
        """Whether the user chose the length or position, so that the length no longer grows."""
        self._oldest_s = self._newest_s = 0.0

    @property
    def start_s(self) -> float:
        """Start of the span."""
        return self.end_s - self.length_s

    def share_at(self, time_s: float) -> float:
        """Return a moment's position: 0 at the start, 1 at the end."""
        return (time_s - self.start_s) / self.length_s

    def set_recorded(self, oldest_s: float, newest_s: float) -> None:
        """Set the times of the oldest and the newest sample."""
        self._oldest_s, self._newest_s = oldest_s, newest_s
        if not self._is_chosen:
            recorded_s = newest_s - oldest_s
            self.length_s = next((span for span in GROWING_S if recorded_s <= span), GROWING_S[-1])
        if self.live:
            self.end_s = newest_s

    def set_length(self, length_s: float) -> None:
        """Set the length in seconds. The end stays."""
        self._is_chosen = True
        self.length_s = min(max(length_s, SHORTEST_S), LONGEST_S)

    def zoom(self, notches: float, at_s: float) -> None:
        """Zoom in by wheel notches (negative: out) around a moment. A live end stays."""
        before_s = self.length_s
        self.set_length(before_s * STEP**-notches)
        if not self.live:
            self._hold_at(at_s + (self.end_s - at_s) * self.length_s / before_s)

    def pan(self, by_s: float) -> None:
        """Pan back (negative: forward). At the newest sample it becomes live again."""
        if by_s < 0 and self.live:
            return
        self._is_chosen = True
        end_s = self.end_s - by_s
        if by_s < 0 and end_s >= self._newest_s:
            self.live, self.end_s = True, self._newest_s
        else:
            self._hold_at(end_s)

    def hold(self) -> None:
        """Hold the span; samples are still recorded."""
        self._is_chosen = True
        self.live = False

    def go_live(self) -> None:
        """Follow the newest sample again."""
        self.live, self.end_s = True, self._newest_s

    def reset(self) -> None:
        """Return to the newest sample and the usual length."""
        self._is_chosen = False
        self.go_live()
        self.set_recorded(self._oldest_s, self._newest_s)

    def scroll_to(self, time_s: float) -> None:
        """Scroll to a moment, if it is outside the span, and hold there."""
        if not self.start_s <= time_s <= self.end_s:
            self._is_chosen = True
            self._hold_at(time_s + self.length_s / 2)

    def _hold_at(self, end_s: float) -> None:
        """Hold the span with its end at `end_s`, or as near to it as leaves some samples visible."""
        earliest_s = min(self._oldest_s + self.length_s / 2, self._newest_s)
        self.live = False
        self.end_s = min(max(end_s, earliest_s), self._newest_s)
