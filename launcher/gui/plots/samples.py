"""One hour of samples by name, and their reduction to the lowest and highest value per pixel column."""

from collections.abc import Mapping, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]

KEPT_S = 3_600.0
_CAPACITY = 36_600
"""Samples of a little more than an hour at 10 Hz."""
_LONGEST_GAP_S = 2.5
"""Idle samples come every second; samples further apart than this, in seconds, are not joined by a line."""


class Samples:
    """Ring buffers. Each value is written twice, a capacity apart, so that any time span is one slice without a copy.

    Times are seconds of the monitor's clock, `wall` seconds since the epoch. Unknown is nan.
    """

    def __init__(self, capacity: int = _CAPACITY) -> None:
        self._capacity = capacity
        self._head = 0
        """Index of the next sample."""
        self._count = 0
        self._times = np.full(2 * capacity, np.nan)
        self._wall = np.full(2 * capacity, np.nan)
        self._columns: dict[str, NDArray[np.float32]] = {}
        self._last: dict[str, tuple[float, float]] = {}
        self._highest: dict[str, float] = {}

    def __len__(self) -> int:
        return self._count

    @property
    def names(self) -> Set[str]:
        """The names that ever had a value."""
        return self._columns.keys()

    @property
    def newest_s(self) -> float:
        """Time of the newest sample, 0 without any."""
        return float(self._times[self._first + self._count - 1]) if self._count else 0.0

    @property
    def oldest_s(self) -> float:
        """Time of the oldest stored sample, at most an hour before the newest."""
        return max(float(self._times[self._first]), self.newest_s - KEPT_S) if self._count else 0.0

    def add(self, time_s: float, wall_s: float, values: Mapping[str, float | None]) -> None:
        """Append a sample. One that is not newer than the last is ignored."""
        if self._count:
            since_s = time_s - self.newest_s
            if since_s <= 0:
                return
            if since_s > _LONGEST_GAP_S:  # a sample without values interrupts the line
                self._append(time_s - since_s / 2, wall_s - since_s / 2, {})
        self._append(time_s, wall_s, values)

    def _append(self, time_s: float, wall_s: float, values: Mapping[str, float | None]) -> None:
        at, copy_at = self._head, self._head + self._capacity
        self._times[at] = self._times[copy_at] = time_s
        self._wall[at] = self._wall[copy_at] = wall_s
        for name, value in values.items():
            if value is not None:
                if name not in self._columns:
                    self._columns[name] = np.full(2 * self._capacity, np.nan, np.float32)
                self._last[name] = (time_s, value)
                self._highest[name] = max(value, self._highest.get(name, value))
        for name, column in self._columns.items():
            value = values.get(name)
            column[at] = column[copy_at] = np.nan if value is None else value
        self._head = (at + 1) % self._capacity
        self._count = min(self._count + 1, self._capacity)

    @property
    def _first(self) -> int:
        return self._head if self._count == self._capacity else 0

    def slice_between(self, from_s: float, to_s: float) -> slice:
        """Return the slice of a time span, with one more sample on either side so that lines reach the edges."""
        first = self._first
        times = self._times[first : first + self._count]
        low, high = map(int, np.searchsorted(times, (from_s, to_s), side="left"))
        if high < self._count and times[high] == to_s:
            high += 1
        return slice(first + max(0, low - 1), first + min(self._count, high + 1))

    def times(self, part: slice) -> Floats:
        """Return the times of a slice. Read-only."""
        return self._times[part]

    def wall_times(self, part: slice) -> Floats:
        """Return the times of a slice in seconds since the epoch."""
        return self._wall[part]

    def values(self, name: str, part: slice) -> Floats:
        """Return the values of one series, nan where unknown. Read-only."""
        column = self._columns.get(name)
        return np.full(part.stop - part.start, np.nan, np.float32) if column is None else column[part]

    def last_known(self, name: str) -> tuple[float, float] | None:
        """Return the newest known value and its age in seconds, or None."""
        return (self._last[name][1], self.newest_s - self._last[name][0]) if name in self._last else None

    def mean(self, name: str, from_s: float, to_s: float) -> float | None:
        """Return the mean of the known values in a time span, or None."""
        part = self.slice_between(from_s, to_s)
        times = self._times[part]
        values = self.values(name, part)[(times >= from_s) & (times <= to_s)]
        known = values[~np.isnan(values)]
        return float(known.mean(dtype=np.float64)) if len(known) else None

    def first_known_time(self, name: str, from_s: float, to_s: float) -> float | None:
        """Return the time of the first known value in a time span, or None."""
        part = self.slice_between(from_s, to_s)
        times = self._times[part]
        known = times[(times >= from_s) & (times <= to_s) & ~np.isnan(self.values(name, part))]
        return float(known[0]) if len(known) else None

    def highest(self, name: str) -> float | None:
        """Return the highest value so far, or None."""
        return self._highest.get(name)

    def nearest_index(self, time_s: float) -> int | None:
        """Return the index of the sample nearest to a time, for `time_at` and `value_at`; None without samples."""
        if not self._count:
            return None
        first = self._first
        times = self._times[first : first + self._count]
        after = min(int(np.searchsorted(times, time_s)), self._count - 1)
        before = max(after - 1, 0)
        return first + (before if time_s - times[before] < times[after] - time_s else after)

    def time_at(self, index: int) -> tuple[float, float]:
        """Return a sample's time and its seconds since the epoch."""
        return float(self._times[index]), float(self._wall[index])

    def value_at(self, name: str, index: int) -> float | None:
        """Return one value, or None where unknown."""
        column = self._columns.get(name)
        value = None if column is None else float(column[index])
        return None if value is None or value != value else value


@dataclass(frozen=True, slots=True)
class Columns:
    """Pixel columns of a plot and the samples in each.

    Columns lie at multiples of their width on the monitor's clock: a column keeps its samples while it scrolls, so
    nothing flickers.
    """

    times: Floats
    starts: NDArray[np.intp] | None

    @classmethod
    def group(cls, times: Floats, width_s: float) -> "Columns":
        """Group samples into columns `width_s` wide. If they are further apart, each is its own column."""
        if len(times) < 2 or times[-1] - times[0] <= 0 or (times[-1] - times[0]) / width_s >= len(times):
            return cls(times, None)
        numbers = np.floor(times / width_s).astype(np.int64)
        starts = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1))
        edges = np.repeat(numbers[starts], 2)
        edges[1::2] += 1
        return cls(edges * width_s, starts)

    def find_isolated(self, values: Floats) -> NDArray[np.intp]:
        """Return the indices of known values between two gaps, which no line would show. See `decimate`."""
        if self.starts is not None:
            return np.empty(0, np.intp)  # a column is as wide as a pixel, so it is visible
        known = np.concatenate(([False], ~np.isnan(values), [False]))
        return np.flatnonzero(known[1:-1] & ~known[:-2] & ~known[2:])

    def decimate(self, values: Floats) -> Floats:
        """Return the values for `times`: the lowest and highest of each column, in the order in which its curve goes.

        A column without a known value is a gap; no peak is lost.
        """
        if self.starts is None:
            return values
        low, high = np.fmin.reduceat(values, self.starts), np.fmax.reduceat(values, self.starts)
        ends = np.append(self.starts[1:], len(values)) - 1
        falling = values[ends] < values[self.starts]
        result = np.empty(2 * len(self.starts), values.dtype)
        result[0::2] = np.where(falling, high, low)
        result[1::2] = np.where(falling, low, high)
        return result
