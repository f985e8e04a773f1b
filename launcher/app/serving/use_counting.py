"""Counts how a session's server is used; suggests other drafts by the counts, or changes to them between requests."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.app import settings
from launcher.app.serving.serving_session import ServingSession
from launcher.app.settings_declared import ADVICE, VALUE_AUTO, VALUE_OFF, VALUE_SUGGEST
from launcher.base.errors import LauncherError, Superseded
from launcher.engine.diagnosis.actions import apply_action
from launcher.engine.server.launch import Launch
from launcher.engine.server.start_request import StartRequest
from launcher.engine.server.state import Notice
from launcher.engine.settings import launched_settings
from launcher.models.drafters import drafter_in
from launcher.models.server_settings import DRAFTING
from launcher.monitor.traffic import Traffic
from launcher.tuning.history import History
from launcher.tuning.history_environment import Environment
from launcher.tuning.records import Run, RunSettings
from launcher.tuning.use_counts import FEWEST_STEPS, UseCounts, use_counts_key

if TYPE_CHECKING:
    from launcher.tuning.advice import Advice, Measured
    from launcher.tuning.draft_follower import DraftFollower

_PERIOD_S = 60.0
_RUNS_VALID_S = 3_600.0
"""The time after which the history is read again for new measurements."""
_QUIET_S, _LONGEST_WAIT_S, _LOOK_S = 2.0, 60.0, 0.25
"""The time without a request before drafts change, the longest wait for it, and the time between two looks."""
DRAFTS_CHANGED = "drafts_changed"
"""Notice code: the drafts of the server change, because others are faster for its traffic."""
_log = logging.getLogger(__name__)


class UseCounting:
    """Counts the use of a session's server by all clients, and saves the counts once a minute and at the end.

    By the setting `server.advice` nothing is saved; or other drafts are suggested, as a finding, when they would be
    faster for the last hours' requests; or the server changes to them between two requests. Use it on the session's
    event loop only.
    """

    def __init__(self, session: ServingSession, clock: Callable[[], float] = time.monotonic) -> None:
        self._session = session
        self._clock = clock
        self._due_s = clock() + _PERIOD_S
        self._counts: dict[str, tuple[Launch, float, UseCounts]] = {}
        """Counts that are not saved yet, and when the last of them came."""
        self._writing: asyncio.Task[None] | None = None
        self._unread: list[tuple[float, UseCounts]] = []
        """Counts that the follower does not have yet."""
        self._follower: DraftFollower | None = None
        self._model: Path | None = None
        self._measured: tuple[str, float, Measured] | None = None
        """What was measured here, for which server, and when it was read."""
        session.monitor.on_traffic = self.add_traffic

    def add_traffic(self, traffic: Traffic) -> None:
        """Add the traffic of one or more requests, and save the counts if a minute has passed."""
        launch = None if self._session.is_idle or self._session.is_lent else self._session.supervisor.launch
        if launch is None:
            return
        counts = UseCounts.from_traffic(settings_for_history(launch), traffic)
        if counts is None:
            return
        key = repr((launch.build.version, launch.options.model, counts.settings))
        if key in self._counts:
            counts = self._counts[key][-1].plus(counts)
        self._counts[key] = launch, self._clock(), counts
        if self._clock() >= self._due_s and (self._writing is None or self._writing.done()):
            self._writing = asyncio.create_task(self._save_and_follow(launch))

    async def save_counts(self) -> None:
        """Save the counts since the last time. Failures are logged as warnings, once a minute at most."""
        self._due_s = self._clock() + _PERIOD_S
        counts, self._counts = self._counts, {}
        if counts:
            self._unread += [(at_s, each) for _, at_s, each in counts.values()]
            await asyncio.to_thread(_save_counts, [(launch, each) for launch, _, each in counts.values()])

    async def close(self) -> None:
        """Stop counting, and save the rest."""
        self._session.monitor.on_traffic = None
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait([self._writing])
        await self.save_counts()

    async def _save_and_follow(self, launch: Launch) -> None:
        """Save the counts; suggest what would be faster for them, or change the drafts to it while nobody asks."""
        await asyncio.shield(self.save_counts())
        mode = await asyncio.to_thread(settings.stored_value, ADVICE)
        if mode == VALUE_OFF or launch.options.model != self._model:
            self._session.monitor.health_watch.advice = None
            self._unread, self._follower, self._model = [], None, launch.options.model
        if self._follower is None and sum(each.steps for _, each in self._unread) < FEWEST_STEPS:
            return
        # This thread imports numpy, which counting does not need.
        measured = await asyncio.to_thread(self._read_measured, launch)
        from launcher.tuning.draft_follower import DraftFollower

        self._follower = self._follower or DraftFollower()
        for at_s, counts in self._unread:
            self._follower.add_counts(at_s, counts)
        self._unread = []
        is_off_by_choice = "draft" in self._session.chosen and not drafter_in(self._session.chosen).drafts
        advice = self._follower.find_change(self._clock(), measured, may_look=not is_off_by_choice)
        if self._session.is_idle or self._session.supervisor.launch is not launch:
            return  # it is about a server that is gone
        suggests = advice is not None and advice.reason != "look" and mode == VALUE_SUGGEST
        self._session.monitor.health_watch.advice = advice.finding if advice is not None and suggests else None
        if advice is not None and mode == VALUE_AUTO:
            await self._change_drafts(self._follower, advice, launch)

    async def _change_drafts(self, follower: "DraftFollower", advice: "Advice", launch: Launch) -> None:
        """Follow advice once nobody asks; not at all if that takes long, or the server is another one by then."""
        from launcher.app.planning.start_settings import with_drafts_here  # imported late, as in the control

        notices = (Notice(DRAFTS_CHANGED, advice.change_sentence),)
        try:
            options = apply_action(advice.action, await asyncio.to_thread(with_drafts_here, launch.options))
            if await self._wait_for_quiet(launch):
                await self._session.start(StartRequest(options, notices=notices, yields=True))
                follower.note_change(self._clock(), advice)
        except Superseded:  # somebody asks, or has changed the server
            return
        except LauncherError as error:
            _log.warning("The drafts could not be changed: %s", error)
            follower.note_failure(self._clock(), advice)

    def _read_measured(self, launch: Launch) -> "Measured":
        """Return what was measured here with the settings of a server and any drafts. Blocks."""
        from launcher.tuning.advice import Measured

        used = settings_for_history(launch)
        key = repr((launch.build.version, {**used, **dict.fromkeys(DRAFTING)}))
        if self._measured is None or self._measured[0] != key or self._clock() - self._measured[1] > _RUNS_VALID_S:
            runs: list[Run] = []
            with suppress(LauncherError, OSError), History() as history:
                runs = _load_runs(history, Environment.for_launch(launch))
            self._measured = key, self._clock(), Measured.from_runs(used, runs)
        return self._measured[2]

    async def _wait_for_quiet(self, launch: Launch) -> bool:
        """Return whether the server is the same, and nobody has asked for a moment, within a minute."""
        begun_s = quiet_s = time.monotonic()
        seen: object = None
        while (now_s := time.monotonic()) - begun_s < _LONGEST_WAIT_S:
            server = None if self._session.is_idle else self._session.supervisor
            progress = server.reply_progress if server is not None else None
            if server is None or progress is None or server.launch is not launch:  # without a gateway replies would end
                return False
            if progress.running or server.held_requests or progress.counts != seen:
                seen, quiet_s = progress.counts, now_s
            elif now_s - quiet_s >= _QUIET_S:
                return True
            await asyncio.sleep(_LOOK_S)
        return False


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
        if settings.stored_value(ADVICE) == VALUE_OFF:
            return None
        environment = Environment.for_launch(launch)
        settings_in_use = settings_for_history(launch)
        with History() as history:
            all_counts = history.load_use(use_counts_key(environment))
            counts = [each for each in all_counts if each.settings == settings_in_use]
            return advise_draft_length(counts[0], _load_runs(history, environment)) if counts else None
    return None


def _load_runs(history: History, environment: Environment) -> list[Run]:
    """Return all replies that were measured with a model in an environment."""
    summaries = history.find_sessions(model=environment.model.name)
    sessions = history.load_all([each.id for each in summaries if each.counted])
    return [run for session in sessions if not session.environment.differences(environment) for run in session.runs]


def _save_counts(counts: list[tuple[Launch, UseCounts]]) -> None:
    try:
        if settings.stored_value(ADVICE) == VALUE_OFF:
            return
        with History() as history:
            for launch, each in counts:
                history.add_use(use_counts_key(Environment.for_launch(launch)), [each])
    except (LauncherError, OSError) as error:
        _log.warning("The counts of use cannot be saved: %s", error)
