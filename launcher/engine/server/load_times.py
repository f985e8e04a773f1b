"""Measured load times by model and engine build, used to predict how long a restart takes."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from launcher.base.files import write_atomically
from launcher.base.kept_files import KeptFile
from launcher.base.paths import state_dir
from launcher.engine.server.launch import Launch
from launcher.engine.server.state import ServerEvent, ServerState, ServerStatus

_TIMES_PER_MODEL, _MOST_MODELS = 5, 200
_LONGEST_S = 24 * 3_600.0
"""Longest credible load in seconds; a longer one is ignored."""


@dataclass(frozen=True, slots=True)
class LoadTime:
    """The expected duration of a restart: the median in seconds of the last `loads` loads."""

    seconds: float
    loads: int


class LoadTimer:
    """Measures load times from a supervisor's events.

    A load begins when the previous engine is stopped, or when the first one is started, and lasts until the engine has
    answered its first request. The pause before a restart after a crash is not counted.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds: float | None = None
        self._clock = clock
        self._began_s: float | None = None

    def take_seconds(self) -> float | None:
        """Return the duration of the last load in seconds and forget it; None if there is none or it failed."""
        seconds, self._seconds = self._seconds, None
        return seconds

    def handle_event(self, event: ServerEvent) -> None:
        """Process an event of the supervisor."""
        if not isinstance(event, ServerStatus):
            return
        match event.state:
            case ServerState.RESTARTING:
                self._began_s = self._clock() if event.error is None else None
            case ServerState.LOADING if self._began_s is None:
                self._began_s, self._seconds = self._clock(), None
            case ServerState.READY if self._began_s is not None:
                self._seconds, self._began_s = self._clock() - self._began_s, None
            case ServerState.STOPPED | ServerState.FAILED:
                self._began_s = None
            case _:
                pass


def save_load_time(launch: Launch, seconds: float) -> None:
    """Save a load time in seconds; the last five of each model and build are kept. Write errors are ignored."""
    if not 0.0 <= seconds <= _LONGEST_S:
        return
    known, key = _read_load_times(), _times_key(launch)
    times = [*known.pop(key, []), round(seconds, 3)][-_TIMES_PER_MODEL:]
    kept = dict(list(known.items())[1 - _MOST_MODELS :]) | {key: times}
    with suppress(OSError):
        write_atomically(_times_file(), json.dumps(kept, indent=1).encode())


def expected_load_time(launch: Launch) -> LoadTime | None:
    """Return the expected load time of this model with this build; None if it was never measured."""
    times = _read_load_times().get(_times_key(launch))
    return LoadTime(median(times), len(times)) if times else None


def _times_key(launch: Launch) -> str:
    return " | ".join((str(launch.options.model.absolute()), str(launch.build.program), launch.build.version))


def _times_file() -> Path:
    return state_dir() / "load-times.json"


def _read_load_times() -> dict[str, list[float]]:
    """Return the saved load times; empty if the file is missing or damaged."""
    with suppress(OSError):
        return _FILE.load(_times_file())
    return {}


def _parse_times(data: bytes) -> dict[str, list[float]]:
    return {
        str(key): [float(each) for each in times if isinstance(each, int | float) and 0 <= each <= _LONGEST_S]
        for key, times in json.loads(data).items()
        if isinstance(times, list)
    }


_FILE: KeptFile[dict[str, list[float]]] = KeptFile("The list of load times", _parse_times, dict)
