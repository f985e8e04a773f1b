"""Counts how a session's server is used, and derives advice on the draft length from the counts."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from launcher.app import settings
from launcher.app.serving.serving_session import ServingSession
from launcher.app.settings_declared import ADVICE
from launcher.base.errors import LauncherError
from launcher.engine.server.launch import Launch
from launcher.engine.settings import launched_settings
from launcher.monitor.traffic import Traffic
from launcher.tuning.history import History
from launcher.tuning.history_environment import Environment
from launcher.tuning.records import RunSettings
from launcher.tuning.use_counts import UseCounts, use_counts_key

if TYPE_CHECKING:
    from launcher.tuning.advice import Advice

_PERIOD_S = 60.0
_log = logging.getLogger(__name__)


class UseCounting:
    """Counts the use of a session's server by all clients, and saves the counts once a minute and at the end.

    Nothing is saved while the setting `server.advice` is off. Use it on the session's event loop only.
    """

    def __init__(self, session: ServingSession, clock: Callable[[], float] = time.monotonic) -> None:
        self._session = session
        self._clock = clock
        self._due_s = clock() + _PERIOD_S
        self._counts: dict[str, tuple[Launch, UseCounts]] = {}
        self._writing: asyncio.Task[None] | None = None
        session.monitor.on_traffic = self.add_traffic

    def add_traffic(self, traffic: Traffic) -> None:
        """Add the traffic of one or more requests, and save the counts if a minute has passed."""
        launch = None if self._session.is_idle else self._session.supervisor.launch
        if launch is None:
            return
        counts = UseCounts.from_traffic(settings_for_history(launch), traffic)
        if counts is None:
            return
        key = repr((launch.build.version, launch.options.model, counts.settings))
        if key in self._counts:
            counts = self._counts[key][1].plus(counts)
        self._counts[key] = launch, counts
        if self._clock() >= self._due_s and (self._writing is None or self._writing.done()):
            self._writing = asyncio.create_task(self.save_counts())

    async def save_counts(self) -> None:
        """Save the counts since the last time. Failures are logged as warnings, once a minute at most."""
        self._due_s = self._clock() + _PERIOD_S
        counts, self._counts = self._counts, {}
        if counts:
            await asyncio.to_thread(_save_counts, list(counts.values()))

    async def close(self) -> None:
        """Stop counting, and save the rest."""
        self._session.monitor.on_traffic = None
        if self._writing is not None:
            await self._writing
        await self.save_counts()


def settings_for_history(launch: Launch) -> RunSettings:
    """Return a server's settings as the history stores them: a list of extra arguments becomes one string."""
    chosen = launched_settings(launch)
    return {name: " ".join(map(str, value)) if isinstance(value, list) else value for name, value in chosen.items()}  # type: ignore[misc]


def find_advice(launch: Launch) -> "Advice | None":
    """Return the advice on a server's draft length from its use; None if there is none or `server.advice` is off.

    Blocks while it reads files, so call it in a worker thread.
    """
    # Imported late: this imports numpy, which counting does not need.
    from launcher.tuning.advice import advise_draft_length

    with suppress(LauncherError, OSError):
        if not settings.stored_value(ADVICE):
            return None
        environment = Environment.for_launch(launch)
        settings_in_use = settings_for_history(launch)
        with History() as history:
            all_counts = history.load_use(use_counts_key(environment))
            counts = [each for each in all_counts if each.settings == settings_in_use]
            if not counts:
                return None
            summaries = history.find_sessions(model=environment.model.name)
            sessions = history.load_all([each.id for each in summaries if each.counted])
        runs = [run for session in sessions if not session.environment.differences(environment) for run in session.runs]
        return advise_draft_length(counts[0], runs)
    return None


def _save_counts(counts: list[tuple[Launch, UseCounts]]) -> None:
    try:
        if not settings.stored_value(ADVICE):
            return
        with History() as history:
            for launch, each in counts:
                history.add_use(use_counts_key(Environment.for_launch(launch)), [each])
    except (LauncherError, OSError) as error:
        _log.warning("The counts of use cannot be saved: %s", error)
