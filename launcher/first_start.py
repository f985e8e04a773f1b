"""From a plan to the first token: engine, model, verify, load, warm up, self-test.

Cancelled at any point it pauses, and run again it goes on from there: what is done already is only looked at.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher import app
from launcher.base.errors import DownloadBusy, DraftsInert, EngineBusy, LauncherError
from launcher.downloads import ENGINE, PULL, queue
from launcher.engine.client import ChatRequest
from launcher.engine.demo import demo_preset
from launcher.engine.install import InstallProgress, install
from launcher.engine.launch import ServeOptions
from launcher.engine.settings import Value, remembered, with_settings
from launcher.engine.state import SERVING, State, Status
from launcher.fetch.jobs import Figures
from launcher.fetch.jobs import State as JobState
from launcher.fetch.transfer import Phase
from launcher.first_checks import (
    Aim,
    EngineHere,
    EngineToFetch,
    Survey,
    ask_github,
    ask_hub,
    check_room,
    survey,
)
from launcher.first_steps import How, Stage, Step, StepTold
from launcher.models.catalogue_load import load_catalogue
from launcher.models.library import find_companion
from launcher.models.locate import locate
from launcher.models.memory import Setting
from launcher.models.pull import Pulled, PullProgress, pull
from launcher.models.wanted import wanted
from launcher.monitor.reply import Reply
from launcher.session import Session
from launcher.settings import transfer

_LOOK_S = 0.5
"""How often a download of another program is looked at."""
_TOKENS = 48
_PROMPT = "Count from one to thirty in words."
_DEMO_PROMPT = "What is MTP, and what does this demo show?"


Tell = Callable[[StepTold], object]
Hear = Callable[[Status], None]
Ask = Callable[[ChatRequest], Awaitable[Reply]]
Serve = Callable[[ServeOptions, Hear], Awaitable[Ask]]
"""Serves options, passes on each status until it is ready, and returns how to ask the server."""


def steps_of(found: Survey) -> tuple[StepTold, ...]:
    """Return the steps as they are before anything is begun."""
    engine, model = found.engine, found.model
    steps = {step: StepTold(step) for step in Step}
    if engine is not None:
        steps[Step.ENGINE] = StepTold(Step.ENGINE, Stage.DONE, engine.name, _how(engine))
    if model.path is not None:
        steps[Step.MODEL] = StepTold(Step.MODEL, Stage.DONE, model.name, How.HERE, bytes=model.bytes)
        if model.verified:
            steps[Step.VERIFY] = StepTold(Step.VERIFY, Stage.DONE, how=How.VERIFIED)
    else:
        stage = Stage.PAUSED if model.done_bytes else Stage.WAITING
        steps[Step.MODEL] = StepTold(
            Step.MODEL, stage, model.name, done_bytes=model.done_bytes or None, bytes=model.bytes
        )
    return tuple(steps.values())


def serve_by(session: Session, aim: Aim) -> Serve:
    """Return how a session serves an aim; the settings that the user chose are kept for the model's next start."""

    async def serve(options: ServeOptions, hear: Hear) -> Ask:
        with session.listening(lambda event: hear(event) if isinstance(event, Status) else None):
            await session.start(options, chosen=chosen_by(aim, options.model), named=aim.model)
        return session.ask

    return serve


def chosen_by(aim: Aim, model: Path) -> dict[str, Value]:
    """Return what the user chose for a model, to be kept for its next start: its plan, or without one what is kept."""
    setting, kept = aim.setting, remembered(model)
    if setting is None or aim.is_demo:
        return kept
    planned: dict[str, Value] = {
        "ctx": setting.context,
        "kv": setting.kv,
        "draft": _drafts(setting),
        "ubatch": setting.ubatch,
        "slots": setting.slots,
    }
    if setting.n_cpu_moe:
        planned["n_cpu_moe"] = setting.n_cpu_moe
    return planned | kept if aim.kept else planned


async def first_start(aim: Aim, serve: Serve, tell: Tell) -> Reply:
    """Do what is left to do of an aim's steps, and return the self-test's reply; the server goes on serving.

    Each change of a step is told. Cancelling pauses. Raises the LauncherError that one of the steps failed with: what
    `survey`, `ask_hub`, `ask_github`, `check_room`, `install`, `pull` and Session.start raise, and DraftsInert when no
    draft was accepted.
    """
    return await _FirstStart(aim, serve, tell).run()


class _FirstStart:
    def __init__(self, aim: Aim, serve: Serve, tell: Tell) -> None:
        self._aim, self._serve, self._told = aim, serve, tell
        self._steps = {step: StepTold(step) for step in Step}
        self._now = Step.ENGINE

    async def run(self) -> Reply:
        try:
            found = await survey(self._aim)
            for told in steps_of(found):
                self._tell(told)
            engine = await self._check(found)
            if engine is not None:
                await self._install(engine)
            if found.model.path is None or not found.model.verified:
                await self._pull()
            ask = await self._load(await asyncio.to_thread(options_of, self._aim))
            return await self._test(ask)
        except asyncio.CancelledError:
            self._say(self._now, Stage.PAUSED)
            raise
        except LauncherError as error:
            self._say(self._now, Stage.FAILED, error=error)
            raise

    def _tell(self, told: StepTold) -> None:
        self._steps[told.step] = told
        self._told(told)

    def _say(self, step: Step, stage: Stage, **more: Any) -> None:  # noqa: ANN401 -- fields of StepTold
        """Tell how far a step is; speed and notes are of the moment and do not last."""
        if stage is Stage.RUNNING:
            self._now = step
        fresh = {"bytes_per_second": None, "seconds_left": None, "note": "", "error": None, "how": None}
        self._tell(replace(self._steps[step], stage=stage, **(fresh | more)))

    async def _check(self, found: Survey) -> EngineToFetch | None:
        """See that all can be had, and has room, before any of it is fetched; return the engine to install, if any."""
        model = engine = None
        if found.model.path is None:
            self._say(Step.MODEL, Stage.RUNNING, how=How.ASKING)
            model = await ask_hub(self._aim)
            self._say(Step.MODEL, Stage.WAITING, bytes=model.bytes)
        if found.engine is None:
            self._say(Step.ENGINE, Stage.RUNNING, how=How.ASKING)
            engine = await ask_github()
            self._say(Step.ENGINE, Stage.WAITING, subject=engine.name, bytes=engine.bytes)
        await asyncio.to_thread(check_room, model, engine)
        return engine

    async def _install(self, offered: EngineToFetch) -> None:
        self._say(Step.ENGINE, Stage.RUNNING)

        def told(progress: InstallProgress) -> None:
            if progress.note:
                return
            transfer = progress.transfer
            if transfer is None:
                self._say(Step.ENGINE, Stage.RUNNING, note=progress.text)
                return
            left_s = transfer.seconds_left if transfer.bytes == progress.bytes else None  # that of one of several files
            self._figures(
                Step.ENGINE,
                Figures(progress.done_bytes, progress.bytes, transfer.bytes_per_second, left_s, transfer.note),
            )

        engine = await self._or_look_on(
            lambda: install(target=offered.target, on_progress=told, settings=transfer()),
            EngineBusy,
            Step.ENGINE,
            ENGINE,
            {},
        )
        tested = bool(engine.manifest and engine.manifest.accepted)
        self._say(Step.ENGINE, Stage.DONE, subject=engine.name, how=_how(EngineHere(engine.name, tested=tested)))

    async def _pull(self) -> None:
        self._say(Step.MODEL, Stage.RUNNING)
        catalogue = await asyncio.to_thread(load_catalogue)
        meant = await asyncio.to_thread(wanted, self._aim.model, catalogue, vision=self._aim.vision)

        def told(progress: PullProgress) -> None:
            verifying = progress.phase is Phase.VERIFYING
            self._figures(
                Step.VERIFY if verifying else Step.MODEL,
                Figures(
                    progress.done_bytes,
                    progress.bytes,
                    progress.bytes_per_second,
                    progress.seconds_left,
                    progress.note,
                ),
            )

        pulled = await self._or_look_on(
            lambda: pull(meant, on_progress=told, settings=transfer()),
            DownloadBusy,
            Step.MODEL,
            PULL,
            {"what": self._aim.model},
        )
        self._say_pulled(pulled)

    def _say_pulled(self, pulled: Pulled) -> None:
        fetched = any(file.origin == "downloaded" for file in pulled.files)
        sizes = {"done_bytes": pulled.bytes, "bytes": pulled.bytes}
        self._say(Step.MODEL, Stage.DONE, how=How.RECEIVED if fetched else How.HERE, **sizes)
        self._now = Step.VERIFY
        if pulled.checked.problem is not None:
            raise pulled.checked.problem
        unnamed = any("Nobody names a checksum" in note for note in pulled.notes)
        self._say(Step.VERIFY, Stage.DONE, how=How.WITHOUT_SUM if unnamed else How.VERIFIED, **sizes)

    async def _or_look_on(
        self,
        work: Callable[[], Awaitable[Any]],
        busy: type[LauncherError],
        step: Step,
        kind: str,
        arguments: dict[str, str],
    ) -> Any:  # noqa: ANN401 -- what the work returns
        """Do the work; while the queue's own job of the same kind does it, look on, and then take what that left."""
        while True:
            try:
                return await work()
            except busy:
                if not await self._look_on(step, kind, arguments):
                    raise

    async def _look_on(self, step: Step, kind: str, arguments: dict[str, str]) -> bool:
        """Tell how far a job of the queue is until it has ended; return whether there was one."""
        seen = False
        while True:
            look = await asyncio.to_thread(queue().look)
            job = next(
                (
                    job
                    for job in look.jobs.jobs
                    if job.kind == kind and job.state is JobState.RUNNING and arguments.items() <= job.arguments.items()
                ),
                None,
            )
            if job is None:
                return seen
            seen = True
            self._figures(step, look.figures.get(job.id) or Figures(job.done_bytes or 0, job.bytes), How.ELSEWHERE)
            await asyncio.sleep(_LOOK_S)

    def _figures(self, step: Step, figures: Figures, how: How | None = None) -> None:
        self._say(
            step,
            Stage.RUNNING,
            how=how,
            note=figures.note,
            done_bytes=figures.done_bytes,
            bytes=figures.bytes,
            bytes_per_second=figures.bytes_per_second,
            seconds_left=figures.seconds_left,
        )

    async def _load(self, options: ServeOptions) -> Ask:
        self._say(Step.LOAD, Stage.RUNNING)

        def hear(status: Status) -> None:
            if status.state is State.LOADING:
                self._say(Step.LOAD, Stage.RUNNING, percent=status.percent)
            elif status.state is State.WARMING_UP:
                self._say(Step.LOAD, Stage.DONE, percent=100.0)
                self._say(Step.WARM_UP, Stage.RUNNING)
            elif status.state in SERVING and self._steps[Step.WARM_UP].stage is Stage.RUNNING:
                self._say(Step.WARM_UP, Stage.DONE)

        ask = await self._serve(options, hear)
        for step in (Step.LOAD, Step.WARM_UP):
            if self._steps[step].stage is not Stage.DONE:
                self._say(step, Stage.DONE, how=How.SERVED)
        return ask

    async def _test(self, ask: Ask) -> Reply:
        """Ask once: a token came, and where drafts are on, some were accepted."""
        self._say(Step.SELF_TEST, Stage.RUNNING)
        demo = self._aim.is_demo
        request = ChatRequest(
            [{"role": "user", "content": _DEMO_PROMPT if demo else _PROMPT}],
            max_tokens=_TOKENS,
            temperature=demo_preset().temperature if demo else 0.0,
            seed=1,
            thinking=False,
        )
        reply = await ask(request)
        taken = reply.acceptance
        if taken.drafted and not taken.accepted:
            raise DraftsInert(
                f"The server answers, but none of the {taken.drafted} tokens that it drafted was accepted.",
                "Its replies are right, but slower than they could be: start it without MTP, or take another file.",
                drafted=taken.drafted,
            )
        speed = reply.timings.tokens_per_second if reply.timings else None
        how = None if taken.drafted else How.ANSWERED
        more = {"drafted": taken.drafted, "accepted": taken.accepted, "tokens_per_second": speed}
        self._say(Step.SELF_TEST, Stage.DONE, how=how, **more)
        return reply


def _how(engine: EngineHere) -> How:
    return How.BUILT_IN if engine.built_in else How.TESTED if engine.tested else How.FOUND


def options_of(aim: Aim) -> ServeOptions:
    """Return how an aim is served: its plan's setting, its draft, its projector; without a plan as it was served the
    last time. Raises what `options_for` raises."""
    setting = aim.setting
    if aim.is_demo or setting is None:
        options = app.options_for(aim.model, lambda path: ServeOptions(model=path), draft=None)
        return with_settings(options, remembered(options.model))

    def planned(path: Path) -> ServeOptions:
        return ServeOptions(
            model=path,
            context=setting.context,
            slots=setting.slots,
            kv=setting.kv,
            ubatch=setting.ubatch,
            n_cpu_moe=setting.n_cpu_moe or None,
            extra=_projector(aim),
        )

    options = app.options_for(aim.model, planned, draft=_drafts(setting))
    return with_settings(options, remembered(options.model)) if aim.kept else options


def _drafts(setting: Setting) -> int:
    """Return the length of what the model itself drafts: repeats of earlier text are none of it."""
    return 0 if setting.ngrams else setting.draft


def _projector(aim: Aim) -> tuple[str, ...]:
    named = locate(aim.model, load_catalogue()) if aim.vision else None
    entry = named.entry if named else None
    path = find_companion(entry, entry.projector) if entry and entry.projector else None
    return ("--mmproj", str(path)) if path else ()
