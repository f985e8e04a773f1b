"""How fast bytes come, smoothed so that people can read it."""

import math

_MEMORY_S = 5.0
_FIRST_S = 0.5
"""Before that a speed is mostly chance."""


class Pace:
    """An exponentially weighted mean of the speed over the last seconds.

    Its weights are normalised from the start, as Adam's moments are (https://arxiv.org/abs/1412.6980, section 3), so
    that it does not climb from zero.
    """

    def __init__(self, received_bytes: int, now_s: float) -> None:
        self._bytes = received_bytes
        self._seen_s = self._began_s = now_s
        self._mean = 0.0

    def add(self, received_bytes: int, now_s: float) -> None:
        """Take in how many bytes have come in all by now (a monotonic clock's seconds)."""
        passed_s = now_s - self._seen_s
        if passed_s <= 0:
            return
        share = 1.0 - math.exp(-passed_s / _MEMORY_S)
        self._mean += share * (max(received_bytes - self._bytes, 0) / passed_s - self._mean)
        self._bytes, self._seen_s = received_bytes, now_s

    @property
    def bytes_per_second(self) -> float | None:
        """The speed; None in the first half second."""
        elapsed_s = self._seen_s - self._began_s
        if elapsed_s < _FIRST_S:
            return None
        return self._mean / (1.0 - math.exp(-elapsed_s / _MEMORY_S))


def seconds_for(left_bytes: int | None, bytes_per_second: float | None) -> float | None:
    """Return how long so many bytes take; None when either is unknown or nothing moves."""
    if left_bytes is None or bytes_per_second is None or bytes_per_second < 1.0:
        return None
    return max(left_bytes, 0) / bytes_per_second
