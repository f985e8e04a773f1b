"""When an engine that crashed is started again, and when that ends."""

from collections.abc import Callable
from dataclasses import dataclass

from launcher.base.errors import (
    BadOption,
    CpuUnsupported,
    CrashLoop,
    DraftsInert,
    EngineMissing,
    EngineUnsuitable,
    LauncherError,
    LibraryMissing,
    ModelBroken,
    ModelHasNoHead,
    ModelMissing,
)

_INCURABLE = (
    BadOption,
    CpuUnsupported,
    DraftsInert,
    EngineMissing,
    EngineUnsuitable,
    LibraryMissing,
    ModelBroken,
    ModelHasNoHead,
    ModelMissing,
)
"""What the next start would meet again."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """`pauses_s` are the pauses before the restarts after crashes in a row; one crash more is the end.

    A restart that fails counts as a crash, unless the next one would meet the same again: memory or a port that is
    short for a moment comes back.

    An engine that served for `steady_s` before it crashed begins a new row.
    """

    pauses_s: tuple[float, ...] = (0.5, 2.0, 8.0)
    steady_s: float = 300.0


NEVER = RestartPolicy(())


class Crashes:
    """Counts the crashes in a row. `clock` gives seconds."""

    def __init__(self, policy: RestartPolicy, clock: Callable[[], float]) -> None:
        self._policy = policy
        self._clock = clock
        self._began_s = clock()
        self._ready_s: float | None = None
        self.in_a_row = 0

    @property
    def allowed(self) -> int:
        """How many crashes in a row are followed by a restart."""
        return len(self._policy.pauses_s)

    def forget(self) -> None:
        """Begin a new row: somebody has asked for another start."""
        self.in_a_row = 0

    def ready(self) -> None:
        """Take note that the engine has begun to serve."""
        self._ready_s = self._clock()

    def judge(self, error: LauncherError) -> float | LauncherError:
        """Return the pause before the restart in seconds, or the error to end with."""
        now_s = self._clock()
        if self._ready_s is not None and now_s - self._ready_s >= self._policy.steady_s:
            self.in_a_row = 0
        self._ready_s = None  # what fails before it serves again has served for no time
        if not self.in_a_row:
            self._began_s = now_s
        self.in_a_row += 1
        if not self._policy.pauses_s or isinstance(error, _INCURABLE):
            return error
        if self.in_a_row <= len(self._policy.pauses_s):
            return self._policy.pauses_s[self.in_a_row - 1]
        return CrashLoop(self.in_a_row, now_s - self._began_s, error)
