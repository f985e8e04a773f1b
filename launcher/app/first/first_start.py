"""Performs a first start, from a plan to the first token: engine, model, verify, load, warm up, self-test.

Cancelling pauses it: the next run skips what is already done.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from launcher.app.first.first_checks import (
    EngineToFetch,
    FirstStartRequest,
    LocalEngine,
    StartSurvey,
    check_disk_space,
    check_other_servers,
    query_engine_to_fetch,
    query_model_to_fetch,
    survey_start,
)
from launcher.app.first.first_steps import Step, StepDetail, StepProgress, StepStage
from launcher.app.models.downloads import ENGINE, PULL, download_queue
from launcher.app.planning.start_settings import ResolvedStart, resolve_start, start_planned
from launcher.app.serving.serving_session import ServingSession
from launcher.app.settings import transfer_settings
from launcher.base.errors import DownloadBusy, DraftsInert, EngineBusy, LauncherError, ModelWritesNoText
from launcher.base.messages import message
from launcher.base.progress import Phase, Progress
from launcher.engine.builds.install import install_build
from launcher.engine.demo import read_demo_preset
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.client import ChatRequest, Delta
from launcher.engine.server.state import SERVING, ServerState, ServerStatus
from launcher.fetch.jobs import JobState
from launcher.models.catalogue_load import load_catalogue
from launcher.models.download_target import parse_target
from launcher.models.library import find_companion
from launcher.models.locate import find_named
from launcher.models.pull import PullResult, pull_model
from launcher.monitor.reply import OnDelta, Reply

_POLL_S = 0.5
"""Seconds between two checks of another program's download."""
_SELF_TEST_TOKENS = 48
_SELF_TEST_PROMPT = message("Count from one to thirty in words.")
_DEMO_PROMPT = message("What is MTP, and what does this demo show?")


OnStep = Callable[[StepProgress], object]
OnStatus = Callable[[ServerStatus], None]
SendRequest = Callable[[ChatRequest, OnDelta], Awaitable[Reply]]
StartServer = Callable[[ResolvedStart, OnStatus], Awaitable[SendRequest]]
"""Starts a server, passes on each status until it is ready, and returns the function that sends requests to it."""


def initial_steps(survey: StartSurvey) -> tuple[StepProgress, ...]:
    """Return the steps as they are before the start; those that earlier starts finished are done."""
    engine, model = survey.engine, survey.model
    steps = {step: StepProgress(step) for step in Step}
    if engine is not None:
        steps[Step.ENGINE] = StepProgress(Step.ENGINE, StepStage.DONE, engine.name, _engine_detail(engine))
    if model.path is not None:
        steps[Step.MODEL] = StepProgress(
            Step.MODEL, StepStage.DONE, model.name, StepDetail.ALREADY_DOWNLOADED, progress=Progress(bytes=model.bytes)
        )
        if model.verified:
            detail = StepDetail.VERIFIED if model.has_sum else StepDetail.NO_CHECKSUM
            steps[Step.VERIFY] = StepProgress(Step.VERIFY, StepStage.DONE, detail=detail)
    else:
        stage = StepStage.PAUSED if model.done_bytes else StepStage.WAITING
        steps[Step.MODEL] = StepProgress(
            Step.MODEL, stage, model.name, progress=Progress(model.done_bytes, model.bytes)
        )
    return tuple(steps.values())


def make_server_starter(session: ServingSession) -> StartServer:
    """Return a function that starts servers on a session.

    The settings that the user chose are kept for the model's next start.
    """

    async def serve(start: ResolvedStart, on_status: OnStatus) -> SendRequest:
        with session.listening(lambda event: on_status(event) if isinstance(event, ServerStatus) else None):
            await session.start(start.request)
        return session.send_request

    return serve


async def perform_first_start(request: FirstStartRequest, serve: StartServer, on_step: OnStep) -> Reply | None:
    """Run the remaining steps of a first start, and return the self-test's reply. The server keeps running.

    The reply is None for an embedding model, whose first vector is part of the start. `on_step` is called with each
    change of a step. Cancelling pauses. Raises the LauncherError of the failed step: what `survey_start`,
    `query_model_to_fetch`, `query_engine_to_fetch`, `check_disk_space`, `install_build`, `pull` and
    `ServerSession.start` raise, and DraftsInert when no draft was accepted.
    """
    return await _FirstStart(request, serve, on_step).run()


class _FirstStart:
    def __init__(self, request: FirstStartRequest, serve: StartServer, on_step: OnStep) -> None:
        self._request, self._serve, self._on_step = request, serve, on_step
        self._steps = {step: StepProgress(step) for step in Step}
        self._current_step = Step.ENGINE

    async def run(self) -> Reply | None:
        try:
            survey = await survey_start(self._request)
            for progress in initial_steps(survey):
                self._report_progress(progress)
            engine = await self._check_downloads(survey)
            if engine is not None:
                await self._install_engine(engine)
            if survey.model.path is None or not survey.model.verified:
                await self._pull_model()
            await check_other_servers(self._request)
            send_request = await self._load_model(await resolve_requested_start(self._request))
            return await self._run_self_test(send_request)
        except asyncio.CancelledError:
            self._report_step(self._current_step, StepStage.PAUSED)
            raise
        except LauncherError as error:
            self._report_step(self._current_step, StepStage.FAILED, error=error)
            raise

    def _report_progress(self, progress: StepProgress) -> None:
        self._steps[progress.step] = progress
        self._on_step(progress)

    def _report_step(self, step: Step, stage: StepStage, *, note: str = "", **more: Any) -> None:  # noqa: ANN401 -- fields of StepProgress
        """Report a step's new stage. Bytes carry over from its last report; speed, notes, errors and details do not."""
        if stage is StepStage.RUNNING:
            self._current_step = step
        last = self._steps[step].progress
        fresh = {"progress": Progress(last.done_bytes, last.bytes, note=note), "error": None, "detail": None}
        self._report_progress(self._steps[step]._replace(stage=stage, **(fresh | more)))

    async def _check_downloads(self, survey: StartSurvey) -> EngineToFetch | None:
        """Check that everything can be downloaded and fits on the disks. Return the engine to install, if any."""
        model = engine = None
        if survey.model.path is None:
            self._report_step(Step.MODEL, StepStage.RUNNING, detail=StepDetail.CHECKING_ACCESS)
            model = await query_model_to_fetch(
                self._request,
                lambda note: self._report_step(
                    Step.MODEL, StepStage.RUNNING, detail=StepDetail.CHECKING_ACCESS, note=note
                ),
            )
            self._report_step(Step.MODEL, StepStage.WAITING, progress=Progress(bytes=model.bytes))
        if survey.engine is None:
            self._report_step(Step.ENGINE, StepStage.RUNNING, detail=StepDetail.CHECKING_ACCESS)
            engine = await query_engine_to_fetch()
            self._report_step(
                Step.ENGINE, StepStage.WAITING, subject=engine.name, progress=Progress(bytes=engine.bytes)
            )
        await asyncio.to_thread(check_disk_space, model, engine)
        return engine

    async def _install_engine(self, offered: EngineToFetch) -> None:
        self._report_step(Step.ENGINE, StepStage.RUNNING)

        def report(progress: Progress) -> None:
            if progress.phase is Phase.WORKING:
                self._report_step(Step.ENGINE, StepStage.RUNNING, note=progress.item)
            else:
                self._report_step(Step.ENGINE, StepStage.RUNNING, progress=progress)

        engine = await self._do_or_follow_job(
            lambda: install_build(target=offered.target, on_progress=report, settings=transfer_settings()),
            EngineBusy,
            Step.ENGINE,
            ENGINE,
            {},
        )
        tested = bool(engine.manifest and engine.manifest.accepted)
        self._report_step(
            Step.ENGINE,
            StepStage.DONE,
            subject=engine.name,
            detail=_engine_detail(LocalEngine(engine.name, tested=tested)),
        )

    async def _pull_model(self) -> None:
        self._report_step(Step.MODEL, StepStage.RUNNING)
        catalogue = await asyncio.to_thread(load_catalogue)
        target = await asyncio.to_thread(parse_target, self._request.model, catalogue, vision=self._request.vision)

        def report(progress: Progress) -> None:
            step = Step.VERIFY if progress.phase is Phase.VERIFYING else Step.MODEL
            self._report_step(step, StepStage.RUNNING, progress=progress)

        pulled = await self._do_or_follow_job(
            lambda: pull_model(target, on_progress=report, settings=transfer_settings()),
            DownloadBusy,
            Step.MODEL,
            PULL,
            {"what": self._request.model},
        )
        self._report_pulled(pulled)

    def _report_pulled(self, pulled: PullResult) -> None:
        fetched = any(file.origin == "downloaded" for file in pulled.files)
        whole = Progress(pulled.bytes, pulled.bytes)
        self._report_step(
            Step.MODEL,
            StepStage.DONE,
            detail=StepDetail.RECEIVED if fetched else StepDetail.ALREADY_DOWNLOADED,
            progress=whole,
        )
        self._current_step = Step.VERIFY
        if pulled.checked.problem is not None:
            raise pulled.checked.problem
        detail = StepDetail.VERIFIED if pulled.checksums_published else StepDetail.NO_CHECKSUM
        self._report_step(Step.VERIFY, StepStage.DONE, detail=detail, progress=whole)

    async def _do_or_follow_job(
        self,
        work: Callable[[], Awaitable[Any]],
        busy: type[LauncherError],
        step: Step,
        kind: str,
        arguments: dict[str, str],
    ) -> Any:  # noqa: ANN401 -- what the work returns
        """Do the work. If a job of the queue does the same, wait for that job first, and then use its files."""
        while True:
            try:
                return await work()
            except busy:
                if not await self._follow_job(step, kind, arguments):
                    raise

    async def _follow_job(self, step: Step, kind: str, arguments: dict[str, str]) -> bool:
        """Report the progress of a job in the queue until it has ended. Return whether there was one."""
        seen = False
        while True:
            snapshot = await asyncio.to_thread(download_queue().read_snapshot)
            jobs = (job for job in snapshot.jobs.jobs if job.kind == kind and job.state is JobState.RUNNING)
            job = next((job for job in jobs if arguments.items() <= job.arguments.items()), None)
            if job is None:
                return seen
            seen = True
            progress = snapshot.progress_by_id.get(job.id) or Progress(job.done_bytes or 0, job.bytes)
            self._report_step(step, StepStage.RUNNING, detail=StepDetail.DOWNLOADED_ELSEWHERE, progress=progress)
            await asyncio.sleep(_POLL_S)

    async def _load_model(self, start: ResolvedStart) -> SendRequest:
        self._report_step(Step.LOAD, StepStage.RUNNING)

        def report_status(status: ServerStatus) -> None:
            if status.state is ServerState.LOADING:
                self._report_step(Step.LOAD, StepStage.RUNNING, percent=status.percent)
            elif status.state is ServerState.WARMING_UP:
                self._report_step(Step.LOAD, StepStage.DONE, percent=100.0)
                self._report_step(Step.WARM_UP, StepStage.RUNNING)
            elif status.state in SERVING and self._steps[Step.WARM_UP].stage is StepStage.RUNNING:
                self._report_step(Step.WARM_UP, StepStage.DONE)

        send_request = await self._serve(start, report_status)
        for step in (Step.LOAD, Step.WARM_UP):
            if self._steps[step].stage is not StepStage.DONE:
                self._report_step(step, StepStage.DONE, detail=StepDetail.SERVED)
        return send_request

    async def _run_self_test(self, send_request: SendRequest) -> Reply | None:
        """Send one request, and return the reply, None for an embedding model.

        Raises DraftsInert if drafts were made and none was accepted.
        """
        self._report_step(Step.SELF_TEST, StepStage.RUNNING)
        demo = self._request.is_demo
        request = ChatRequest(
            [{"role": "user", "content": _DEMO_PROMPT if demo else _SELF_TEST_PROMPT}],
            max_tokens=_SELF_TEST_TOKENS,
            temperature=read_demo_preset().temperature if demo else 0.0,
            seed=1,
            thinking=False,
        )

        def report_tokens(delta: Delta) -> None:
            if delta.timings is not None:
                percent = min(100.0 * delta.timings.predicted_n / _SELF_TEST_TOKENS, 100.0)
                self._report_step(Step.SELF_TEST, StepStage.RUNNING, percent=percent)

        try:
            reply = await send_request(request, report_tokens)
        except ModelWritesNoText:
            self._report_step(Step.SELF_TEST, StepStage.DONE, detail=StepDetail.WRITES_NO_TEXT)
            return None
        drafts = reply.acceptance
        if drafts.drafted and not drafts.accepted:
            raise DraftsInert(
                message(
                    "The server works, but none of its {drafted} drafted tokens were accepted.",
                    drafted=drafts.drafted,
                ),
                message("Replies are correct but slower than without MTP. Turn MTP off, or choose another file."),
                drafted=drafts.drafted,
            )
        speed = reply.timings.tokens_per_second if reply.timings else None
        detail = None if drafts.drafted else StepDetail.ANSWERED
        self._report_step(
            Step.SELF_TEST,
            StepStage.DONE,
            detail=detail,
            percent=None,
            drafted=drafts.drafted,
            accepted=drafts.accepted,
            tokens_per_second=speed,
        )
        return reply


def _engine_detail(engine: LocalEngine) -> StepDetail:
    if engine.built_in:
        return StepDetail.BUILT_IN
    return StepDetail.INSTALLED_AND_TESTED if engine.tested else StepDetail.FOUND


async def resolve_requested_start(request: FirstStartRequest) -> ResolvedStart:
    """Return the requested start: with the server settings of its plan, or without a plan as `serve` resolves it.

    Raises what `resolve_start` raises.
    """
    plan_settings = request.plan_settings
    if plan_settings is None:
        return await resolve_start(request.model, intent=request.intent, use_tuned=request.use_tuned)

    def with_projector(path: Path) -> ServeOptions:
        return ServeOptions(model=path, mmproj=_find_projector(request))

    return await asyncio.to_thread(
        start_planned,
        request.model,
        plan_settings,
        kept=request.kept,
        replaced=request.replaced,
        same_as_tuned=request.same_as_tuned,
        make_options=with_projector,
    )


def _find_projector(request: FirstStartRequest) -> Path | None:
    named = find_named(request.model, load_catalogue()) if request.vision else None
    entry = named.entry if named else None
    return find_companion(entry, entry.projector) if entry and entry.projector else None
