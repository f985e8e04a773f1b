"""Bounded series of samples on one clock."""

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from math import isnan, nan
from typing import NamedTuple

from launcher.base.messages import message
from launcher.machine.gpu import Reading

SPAN_S = 600.0
"""Time span that a series keeps, in seconds."""
_SLACK = 512
"""Number of outdated samples that are deleted together."""


class Sample(NamedTuple):
    """A value, or None if unknown, at a time in seconds of the monitor's clock."""

    time_s: float
    value: float | None


class Series:
    """The samples of one quantity over the last `span_s` seconds. The name ends in the unit.

    Samples are kept in arrays, at 16 bytes each: as objects, all series took 7 MiB for ten minutes at 10 Hz.
    """

    def __init__(self, name: str, span_s: float = SPAN_S) -> None:
        self.name = name
        self.absent: str | None = message("Not measured yet.")
        self._span_s = span_s
        self._times, self._values = array("d"), array("d")
        self._first = 0  # index of the oldest valid sample; older ones are deleted in blocks, which is cheaper

    def add(self, time_s: float, reading: Reading) -> None:
        """Append a reading, which must not be older than the last one. If it is unknown, `absent` gets its reason."""
        self._times.append(time_s)
        self._values.append(nan if reading.value is None else reading.value)
        self.absent = None if reading.value is not None else (reading.absent or message("Unknown."))
        while self._times[self._first] <= time_s - self._span_s:
            self._first += 1
        if self._first >= _SLACK:
            del self._times[: self._first], self._values[: self._first]
            self._first = 0

    @property
    def last(self) -> float | None:
        """The newest value, or None if unknown."""
        return _none_for_nan(self._values[-1]) if self._values else None

    def __len__(self) -> int:
        return len(self._times) - self._first

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._samples_from(self._first))

    def since(self, time_s: float) -> list[Sample]:
        """Return the samples taken at `time_s` or later, oldest first."""
        return self._samples_from(bisect_left(self._times, time_s, self._first))

    def _samples_from(self, index: int) -> list[Sample]:
        return [
            Sample(time_s, _none_for_nan(value))
            for time_s, value in zip(self._times[index:], self._values[index:], strict=True)
        ]


def _none_for_nan(value: float) -> float | None:
    return None if isnan(value) else value
