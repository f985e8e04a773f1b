"""How fast: a limit on the rate, pauses before another try, and how many connections are worth their while."""

import random
import threading
import time
from collections import deque
from collections.abc import Callable


class Bucket:
    """A token bucket that several threads share: at most `bytes_per_second`, after a pause a quarter second's worth."""

    def __init__(self, bytes_per_second: int, now: Callable[[], float] = time.monotonic) -> None:
        self._rate = bytes_per_second
        self._now = now
        self._lock = threading.Lock()
        self._free_from_s = now()

    def take(self, n_bytes: int) -> float:
        """Take what was received, and return for how many seconds to receive nothing."""
        with self._lock:
            now = self._now()
            self._free_from_s = max(self._free_from_s, now - 0.25) + n_bytes / self._rate
            return max(0.0, self._free_from_s - now)


def backoff_s(failures: int, first_s: float, longest_s: float, chance: Callable[[], float] = random.random) -> float:
    """Return how long to wait after that many failures in a row: doubling, then cut by half at most, by chance.

    The jitter keeps clients apart that a server has dropped together ("equal jitter" in Exponential Backoff And
    Jitter, AWS Architecture Blog, 2015).
    """
    return min(longest_s, first_s * 2.0 ** min(failures - 1, 60)) * (0.5 + chance() / 2)


class Speed:
    """Bytes per second over the last seconds, from samples of how many bytes there are."""

    def __init__(self, window_s: float = 5.0) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, int]] = deque()

    def sample(self, now_s: float, done_bytes: int) -> float | None:
        """Add a sample and return the speed, None until there is a quarter second to tell it from."""
        samples = self._samples
        if samples and done_bytes < samples[-1][1]:
            samples.clear()
        samples.append((now_s, done_bytes))
        while len(samples) > 2 and samples[1][0] <= now_s - self._window_s:
            samples.popleft()
        began_s, began = samples[0]
        seconds = now_s - began_s
        return (done_bytes - began) / seconds if seconds >= 0.25 else None


_WORTH = 1.2
"""Doubled connections must bring a fifth more, else the server or the line has no more to give."""
_FAST = 250e6
"""A stream of that many bytes per second (2 Gbit/s) is not multiplied: more threads would only cost processor time."""


class Growth:
    """How many connections to have: doubled from one on, as long as that raises the speed."""

    def __init__(self, most: int, settle_s: float) -> None:
        self.wanted = 1
        self._most = most
        self._settle_s = settle_s
        self._began: tuple[float, int] | None = None
        self._speed_before = 0.0

    def stop(self, at: int) -> None:
        """Have no more than `at` connections from now on, and one at least."""
        self.wanted = self._most = max(1, at)

    def observe(self, now_s: float, received_bytes: int, *, settled: bool) -> None:
        """Take note of what was received by now; `settled` once all wanted connections have brought something."""
        if self.wanted >= self._most:
            return
        if self._began is None:
            self._began = (now_s, received_bytes) if settled else None
        elif (seconds := now_s - self._began[0]) >= self._settle_s:
            speed = (received_bytes - self._began[1]) / seconds
            self._began = None
            if speed < _WORTH * self._speed_before or speed > _FAST * self.wanted:
                self._most = self.wanted
            else:
                self._speed_before = speed
                self.wanted = min(2 * self.wanted, self._most)
