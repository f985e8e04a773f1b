"""Real use counted while a session serves, and what follows from it for the draft length."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from launcher import settings
from launcher.base.errors import LauncherError
from launcher.engine.launch import Launch
from launcher.engine.settings import settings_of
from launcher.monitor.traffic import Traffic
from launcher.session import Session
from launcher.settings_declared import ADVICE
from launcher.tuning.advice import Advice, advise
from launcher.tuning.history import History
from launcher.tuning.history_environment import Environment
from launcher.tuning.records import Settings
from launcher.tuning.use_counts import UseCounts, place_of

_PERIOD_S = 60.0
_log = logging.getLogger(__name__)


class UseCounting:
    """Counts what a session's server does for all its clients, and keeps that once a minute and at the end.

    Nothing is counted while the setting `server.advice` is off. Belongs to the session's loop.
    """

    def __init__(self, session: Session, clock: Callable[[], float] = time.monotonic) -> None:
        self._session = session
        self._clock = clock
        self._due_s = clock() + _PERIOD_S
        self._counts: dict[str, tuple[Launch, UseCounts]] = {}
        self._writing: asyncio.Task[None] | None = None
        session.monitor.on_traffic = self.take

    def take(self, traffic: Traffic) -> None:
        """Count what requests did."""
        launch = None if self._session.rests else self._session.supervisor.launch
        counts = UseCounts.of(used_settings(launch), traffic) if launch is not None else None
        if launch is None or counts is None:
            return
        key = repr((launch.build.version, launch.options.model, counts.settings))
        before = self._counts.get(key)
        self._counts[key] = launch, before[1].plus(counts) if before else counts
        if self._clock() >= self._due_s and (self._writing is None or self._writing.done()):
            self._writing = asyncio.create_task(self.keep())

    async def keep(self) -> None:
        """Keep what was counted since the last time; where that cannot be, a warning says so once a minute."""
        self._due_s = self._clock() + _PERIOD_S
        counts, self._counts = self._counts, {}
        if counts:
            await asyncio.to_thread(_keep, list(counts.values()))

    async def close(self) -> None:
        """Count no more, and keep what was counted."""
        self._session.monitor.on_traffic = None
        if self._writing is not None:
            await self._writing
        await self.keep()


def used_settings(launch: Launch) -> Settings:
    """Return the settings of a server as they are counted; the user's own arguments as one text."""
    told = settings_of(launch)
    return {name: " ".join(map(str, value)) if isinstance(value, list) else value for name, value in told.items()}  # type: ignore[misc]


def advice_for(launch: Launch) -> Advice | None:
    """Return what the use of a model with its present settings says about them; None where nothing, or it is off.

    It reads files: call it off the loop.
    """
    with suppress(LauncherError, OSError):
        if not settings.value(ADVICE):
            return None
        here = Environment.of_this_machine(launch)
        wanted = used_settings(launch)
        with History() as history:
            used = [each for each in history.use(place_of(here)) if each.settings == wanted]
            if not used:
                return None
            found = history.find(model=here.model.name)
            sessions = history.load_all([each.id for each in found if each.counted])
        runs = [run for session in sessions if not session.environment.differences(here) for run in session.runs]
        return advise(used[0], runs)
    return None


def _keep(counts: list[tuple[Launch, UseCounts]]) -> None:
    try:
        if not settings.value(ADVICE):
            return
        with History() as history:
            for launch, each in counts:
                history.add_use(place_of(Environment.of_this_machine(launch)), [each])
    except (LauncherError, OSError) as error:
        _log.warning("What was used cannot be counted: %s", error)
