"""Bounded series of samples on one clock."""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from launcher.machine.reading import Reading

CAPACITY = 6_000
"""Ten minutes at 10 Hz."""


class Sample(NamedTuple):
    """A value at a time of the monitor's clock, in seconds; None where it was unknown."""

    time_s: float
    value: float | None


class Series:
    """The last samples of one quantity. The name ends in the unit."""

    def __init__(self, name: str, capacity: int = CAPACITY) -> None:
        self.name = name
        self.absent: str | None = "Not sampled yet."
        self._samples: deque[Sample] = deque(maxlen=capacity)

    def add(self, time_s: float, reading: Reading) -> None:
        """Append a reading; `absent` is then its reason, or None when it has a value."""
        self._samples.append(Sample(time_s, reading.value))
        self.absent = None if reading.value is not None else (reading.absent or "Not known.")

    @property
    def last(self) -> float | None:
        """The newest value, None when it is unknown."""
        return self._samples[-1].value if self._samples else None

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._samples)

    def since(self, time_s: float) -> list[Sample]:
        """Return the samples taken at `time_s` or later, oldest first."""
        newest_first = []
        for sample in reversed(self._samples):
            if sample.time_s < time_s:
                break
            newest_first.append(sample)
        return newest_first[::-1]
