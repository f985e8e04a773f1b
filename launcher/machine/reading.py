"""A sensor's answer: a value, or why there is none."""

from typing import NamedTuple


class Reading(NamedTuple):
    """One measured value in the unit that the sensor's name carries; unknown is None with a reason, never 0."""

    value: float | None
    absent: str | None = None

    @classmethod
    def unknown(cls, reason: str) -> "Reading":
        """Return a reading without a value."""
        return cls(None, reason)
