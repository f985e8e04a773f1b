"""How long a model took to load here, by engine: what a restart costs, as far as it was measured."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from launcher.base.files import write_atomically
from launcher.base.paths import state_dir
from launcher.engine.launch import Launch
from launcher.engine.state import Event, State, Status

_KEPT, _MOST = 5, 200
_LONGEST_S = 24 * 3_600.0


@dataclass(frozen=True, slots=True)
class LoadTime:
    """How long a restart is expected to take, in seconds: the median of `measured` loads."""

    seconds: float
    measured: int


class LoadClock:
    """Times loads by what a supervisor tells: from the end of the engine before, or from the start of the first one,
    until it has answered its first request. Waiting after a crash is not counted."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds: float | None = None
        self._clock = clock
        self._begun_s: float | None = None

    def take(self) -> float | None:
        """Return how long the last load took, in seconds, once; None when there was none since, or it failed."""
        seconds, self._seconds = self._seconds, None
        return seconds

    def note(self, event: Event) -> None:
        """Take in what the supervisor tells."""
        if not isinstance(event, Status):
            return
        match event.state:
            case State.RESTARTING:
                self._begun_s = self._clock() if event.error is None else None
            case State.LOADING if self._begun_s is None:
                self._begun_s, self._seconds = self._clock(), None
            case State.READY if self._begun_s is not None:
                self._seconds, self._begun_s = self._clock() - self._begun_s, None
            case State.STOPPED | State.FAILED:
                self._begun_s = None
            case _:
                pass


def keep_load_time(launch: Launch, seconds: float) -> None:
    """Keep how long a load took; the last few count. Where it cannot be written, nothing is kept."""
    if not 0.0 <= seconds <= _LONGEST_S:
        return
    known, key = _read(), _key(launch)
    times = [*known.pop(key, []), round(seconds, 3)][-_KEPT:]
    kept = dict(list(known.items())[1 - _MOST :]) | {key: times}
    with suppress(OSError):
        write_atomically(_file(), json.dumps(kept, indent=1).encode())


def load_time(launch: Launch) -> LoadTime | None:
    """Return how long this model took with this engine on this machine; None while that was not measured."""
    times = _read().get(_key(launch))
    return LoadTime(median(times), len(times)) if times else None


def _key(launch: Launch) -> str:
    return " | ".join((str(launch.options.model.absolute()), launch.build.command[-1], launch.build.version))


def _file() -> Path:
    return state_dir() / "load-times.json"


def _read() -> dict[str, list[float]]:
    """What was kept; nothing when the file is missing, or is not what we write."""
    with suppress(OSError, ValueError):
        data = json.loads(_file().read_bytes())
        if isinstance(data, dict):
            return {
                str(key): [float(each) for each in times if isinstance(each, int | float) and 0 <= each <= _LONGEST_S]
                for key, times in data.items()
                if isinstance(times, list)
            }
    return {}
