"""Measures the server of a server session, with sensor values for each reply."""

import time
from dataclasses import replace
from functools import partial

from launcher.app.serving.serving_session import MeasuredSession
from launcher.base.errors import BadOption, ServerNotFound, Superseded
from launcher.base.messages import message
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.start_request import StartRequest
from launcher.engine.server.state import SERVING
from launcher.engine.settings import change_settings
from launcher.models.server_settings import ROWS
from launcher.monitor.reply import Reply
from launcher.monitor.traffic import Counters, parse_counters
from launcher.tuning.host_watch import HostWatch
from launcher.tuning.records import Prompt, Run, RunSettings
from launcher.tuning.timed_request import RequestTimer, build_request


class SessionBench:
    """Bench on a server session. Settings that a measurement does not name are those of `options`.

    The server is stopped before it starts with other settings: the memory of both is then never needed at once, and the
    previous settings are not restored if the new ones fail. Use it on the session's event loop only.
    """

    def __init__(self, session: MeasuredSession, options: ServeOptions, *, model_name: str | None = None) -> None:
        self.session = session
        self._base, self._model_name = options, model_name
        self._settings: RunSettings = {}
        self._served: ServeOptions | None = None
        self._expected_changes: int | None = None
        """`session.change_count` after this bench's last start or stop; a higher count means that others made one."""
        self.last_text = ""
        """The text of the last reply."""
        self._timer = RequestTimer(session.monitor, self._engine_pid, self._read_counters)

    @property
    def host_watch(self) -> HostWatch:
        """Judges the load of the processor by other programs."""
        return self._timer.host_watch

    def now_s(self) -> float:
        """Return the monitor's time in seconds, without the waiting for clients."""
        return time.monotonic() - self.session.waited_s

    async def become(self, settings: RunSettings, *, fresh: bool = False) -> float:
        """See Bench. Also raises Superseded when another operation stopped the server or gave it other settings."""
        options = options_with_settings(self._base, settings)
        self._check_not_superseded()
        if not fresh and self._served == options and self.session.supervisor.status.state in SERVING:
            return 0.0
        began_s = self.now_s()
        self._served, self._expected_changes = None, self.session.change_count + 1
        await self.session.stop()
        self._check_not_superseded()
        self._expected_changes += 1
        await self.session.start(StartRequest(options, model_name=self._model_name))
        self._check_not_superseded()
        self._settings, self._served = dict(settings), options
        return self.now_s() - began_s

    async def run(self, prompt: Prompt, *, seed: int) -> Run:
        """See Bench. No prompt cache is used unless the prompt's `sampling` enables it.

        Raises Superseded when another operation stopped the server or gave it other settings.
        """

        async def send() -> Reply:
            if self._served is None:
                raise ServerNotFound(
                    message("No server is running for this measurement."), message("Choose server settings first.")
                )
            reply = await self.session.send_request(build_request(prompt, seed=seed), measured=True)
            self.last_text = reply.text
            return reply

        run = await self.session.measure(partial(self._timer.time_request, prompt, self._settings, send))
        run = replace(run, began_s=run.began_s - self.session.waited_s)
        if run.error is not None:
            self._check_not_superseded()
        return run

    async def close(self) -> None:
        """Stop the server."""
        self._served = self._expected_changes = None
        await self.session.stop()

    def _check_not_superseded(self) -> None:
        """Raise Superseded when another operation has requested a start or a stop since the bench's last one."""
        if self._expected_changes is None:
            return
        if self.session.has_uncounted_changes or self._expected_changes != self.session.change_count:
            raise superseded_error()

    async def _read_counters(self) -> Counters:
        return parse_counters(await self.session.supervisor.client.read_metrics())

    def _engine_pid(self) -> int | None:
        return None if self.session.is_idle else self.session.supervisor.engine_pid


def superseded_error() -> Superseded:
    """Return the error for a measurement whose server was stopped or restarted meanwhile."""
    return Superseded(
        message("The server was stopped or restarted with other settings during the measurement."),
        message("Measure again."),
    )


def options_with_settings(options: ServeOptions, settings: RunSettings) -> ServeOptions:
    """Return the options with a measurement's settings. None leaves a setting to the engine.

    Raises BadOption for an unknown setting.
    """
    if unknown := settings.keys() - ROWS.keys():
        raise BadOption(
            message("{unknown} is not a server setting that can be measured.", unknown=", ".join(sorted(unknown)))
        )
    return change_settings(options, settings)
