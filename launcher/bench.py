"""The real bench: a session's server, given settings and asked, with the machine's own figures beside each reply."""

import time
from collections.abc import Mapping
from dataclasses import replace

from launcher.base.errors import BadOption, LauncherError, ServerNotFound, Superseded
from launcher.engine.launch import ServeOptions
from launcher.engine.settings import OPTIONS, with_settings
from launcher.engine.state import SERVING
from launcher.monitor.traffic import Counters, read_counters
from launcher.session import Session
from launcher.tuning.asking import request_of, run_of
from launcher.tuning.beside import Beside
from launcher.tuning.other_requests import ASKED, OtherRequests
from launcher.tuning.records import Prompt, Run, Settings, Value

NGRAM = "ngram"
NO_NGRAM = "none"
ARGUMENTS: Mapping[str, str] = {"p_min": "--spec-draft-p-min", "draft_sampling": "--spec-draft-sampling"}
"""Settings that are no options of `serve`, and the engine's arguments that they are. They mean something with drafts
only, as does NGRAM, the kind of n-gram drafting beside the model's own."""
DRAFTING = (*ARGUMENTS, NGRAM)
"""Settings without a meaning while MTP is off."""


class SessionBench:
    """A Bench on a session. What `options` says and a measurement's settings do not name stays as it is.

    The server is stopped before it gets other settings, so that the memory of both is never needed at once, and so
    that nothing is started again when they fail. Belongs to the session's loop.
    """

    def __init__(self, session: Session, options: ServeOptions, *, named: str | None = None) -> None:
        self.session = session
        self._base, self._named = options, named
        self._settings: Settings = {}
        self._served: ServeOptions | None = None
        self._asked: int | None = None
        self._beside = Beside(session.monitor, self._engine_pid)
        self._others = OtherRequests(self._counters)

    def now_s(self) -> float:
        """Return the monitor's time."""
        return time.monotonic()

    async def become(self, settings: Settings) -> float:
        """See Bench. Raises Superseded, too: when somebody else has stopped the server, or given it other settings."""
        options = options_with(self._base, settings)
        self._check_ours()
        if self._served == options and self.session.supervisor.status.state in SERVING:
            return 0.0
        began_s = self.now_s()
        self._served, self._asked = None, self.session.requests + 1
        await self.session.stop()
        self._check_ours()
        self._asked += 1
        await self.session.start(options, named=self._named)
        self._check_ours()
        self._settings, self._served = dict(settings), options
        return self.now_s() - began_s

    async def run(self, prompt: Prompt, *, seed: int) -> Run:
        """See Bench. Nothing of the prompt is taken from a cache unless its `sampling` says so.

        Raises Superseded when somebody else has stopped the server, or given it other settings.
        """
        before, began_s = self._beside.look(), self.now_s()
        try:
            if self._served is None:
                raise ServerNotFound("The bench serves nothing.", "Give it settings first.")
            async with self._others.asking() as asking:
                began_s = self.now_s()
                asking.reply = reply = await self.session.ask(request_of(prompt, seed=seed))
                wall_s = self.now_s() - began_s
        except LauncherError as error:
            self._check_ours()
            return Run(prompt.name, self._settings, began_s, self.now_s() - began_s, error=error.title)
        run = self._beside.told(run_of(prompt, self._settings, reply, began_s=began_s, wall_s=wall_s), before)
        return replace(run, spoilt=ASKED) if asking.disturbed and run.spoilt is None else run

    async def close(self) -> None:
        """Stop the server."""
        self._served = self._asked = None
        await self.session.stop()

    def _check_ours(self) -> None:
        """Raise Superseded when somebody else has asked for a start or a stop since this did last."""
        if self._asked not in (None, self.session.requests):
            raise Superseded(
                "The server was stopped, or given other settings, while it was measured.", "Measure it again."
            )

    async def _counters(self) -> Counters:
        return read_counters(await self.session.supervisor.client.metrics())

    def _engine_pid(self) -> int | None:
        return None if self.session.rests else self.session.supervisor.engine_pid


def options_with(options: ServeOptions, settings: Settings) -> ServeOptions:
    """Return the options with a measurement's settings: those of `serve`, ARGUMENTS and NGRAM.

    What is None is left to the engine. Raises BadOption for a setting that there is not.
    """
    ours = {name: _option(name, value) for name, value in settings.items() if name in OPTIONS}
    unknown = settings.keys() - ours.keys() - ARGUMENTS.keys() - {NGRAM}
    if unknown:
        raise BadOption(f"{', '.join(sorted(unknown))} is not a setting that can be measured.")
    changed = with_settings(options, ours)
    if not changed.draft:
        return changed
    words = [
        word
        for name, argument in ARGUMENTS.items()
        if (value := settings.get(name)) is not None
        for word in (argument, str(value))
    ]
    kind = settings.get(NGRAM)
    if kind not in (None, NO_NGRAM):
        changed = replace(changed, spec_type=f"{changed.spec_type},{kind}")
    return replace(changed, extra=(*changed.extra, *words))


def _option(name: str, value: Value) -> int | str | None:
    if isinstance(value, float):
        raise BadOption(f"{value} is not a value for {name}.", "It is a whole number.")
    return value
