"""The samples that the plots show."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.monitor.monitor import Sampled

SPANS_S = (10.0, 30.0, 60.0, 120.0, 300.0)
"""The axis shows the last 5 minutes, and less while there is less to show."""
_CAPACITY = 3_200
_MOST_POINTS = 600


class History:
    """The samples of the last minutes, by name."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_CAPACITY)
        self._values: dict[str, deque[float]] = {}
        self._last: dict[str, tuple[float, float]] = {}

    def add(self, sample: Sampled) -> None:
        """Append one sample; what is unknown leaves a gap."""
        for name, reading in sample.readings.items():
            column = self._values.get(name)
            if column is None:
                column = self._values[name] = deque([float("nan")] * len(self._times), maxlen=_CAPACITY)
            column.append(float("nan") if reading.value is None else reading.value)
            if reading.value is not None:
                self._last[name] = (sample.time_s, reading.value)
        self._times.append(sample.time_s)

    def last_known(self, name: str) -> tuple[float, float] | None:
        """Return the newest known value and its age in seconds, None when there never was one."""
        return self._last.get(name) and (self._last[name][1], self._times[-1] - self._last[name][0])

    @property
    def span_s(self) -> float:
        """The span that the axis should show."""
        length = self._times[-1] - self._times[0] if self._times else 0.0
        return next((span for span in SPANS_S if length <= span), SPANS_S[-1])

    def since(self, name: str, time_s: float) -> tuple[list[float], list[float]]:
        """Return times and values from `time_s` on, oldest first; gaps are nan. Of many, every so many-th."""
        times = list(self._times)
        first = bisect_left(times, time_s)
        step = 1 + (len(times) - first) // _MOST_POINTS
        first += (len(times) - 1 - first) % step  # the newest is always among them
        return times[first::step], list(self._values.get(name, ()))[first::step]
