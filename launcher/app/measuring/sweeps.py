"""Measures curves and sustained load on a session's server, and records them in the history."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from launcher.app.measuring.session_bench import SessionBench
from launcher.app.serving.serving_session import ServingSession
from launcher.base.codec import to_json
from launcher.base.errors import BadOption, ServerNotFound, Unreachable
from launcher.base.messages import join_messages, message
from launcher.engine.serve_options import (
    FALLBACK_CONTEXT,
    ServeOptions,
    check_options,
    fallback_context,
)
from launcher.engine.server.endpoint import Endpoint
from launcher.engine.server.launch import check_model, prepare_launch
from launcher.engine.server.state import SERVING, ServerState
from launcher.models.limits import check_writes_text
from launcher.models.server_settings import Value
from launcher.tuning.agent_tasks import AgentShape, AgentTask, OnTask, SizedText, judge_tasks, sustain_tasks
from launcher.tuning.curves import (
    Curve,
    CurveAxis,
    CurveStart,
    OnCurveProgress,
    OnRoundPoint,
    PromptsAt,
    RoundPoint,
    build_curve,
    context_for_fill,
    context_starts,
    default_fills,
    fill_starts,
    list_runs,
    measure_curve,
    prompts_for_streams,
    stream_starts,
    summarize_curve,
)
from launcher.tuning.endurance import OnRun, judge_endurance, sustain_load
from launcher.tuning.history import record_session
from launcher.tuning.history_environment import Environment
from launcher.tuning.records import Prompt, Run
from launcher.tuning.sized_prompts import fill_prompts
from launcher.tuning.space import DRAFT, DRAFTER
from launcher.tuning.workloads import Workload

CURVE, ENDURE = "curve", "endure"
"""Kinds of the recorded sessions in the history."""
STREAMS = (1, 2, 4)
"""Numbers of parallel streams that are measured by default."""
_DEFAULT_CONTEXTS = 4
"""Points of a curve over the context by default: the training context, and its half, quarter and eighth."""
_SMALLEST_CONTEXT = 2_048
_NOTICE_END_S = 5.0
"""Seconds for a session to notice that its engine has ended."""

OnBegun = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class SweepModel:
    """A model to measure: its options, its name as the user wrote it, and the draft length of each series (0: no MTP).

    `trained_context` is in tokens.
    """

    options: ServeOptions
    model_name: str
    drafts: tuple[int, ...]
    trained_context: int | None

    @property
    def settings(self) -> dict[str, Value]:
        """The settings that are not left to the engine, with what drafts if that is no head, as readers assume."""
        drafter = self.options.drafter_if_on
        return self.options.chosen() | ({} if drafter.uses_head else {DRAFTER: drafter.spec_type})


async def prepare_model(options: ServeOptions, model_name: str, drafts: Sequence[int] = ()) -> SweepModel:
    """Return the model to measure with some draft lengths: by default without MTP, and with it if the model can draft.

    Raises BadOption for invalid options, errors of the model's file, ModelWritesNoText for an embedding model, and
    ModelHasNoHead for drafts without a head.
    """
    # check_model refuses a draft length above 0 for a model without a head.
    with_longest_draft = replace(options, draft=max(drafts, default=0))
    check_options(with_longest_draft)
    header = await asyncio.to_thread(check_model, with_longest_draft)
    check_writes_text(header)
    can_draft = options.can_draft(head=header.has_mtp_head)
    longest = options.draft if options.drafter.drafts else options.drafter_if_on.usual_length
    series = tuple(drafts) or ((0, longest) if can_draft else (0,))
    context = options.context or fallback_context(header.trained_context)
    return SweepModel(
        replace(options, context=context), model_name, tuple(dict.fromkeys(series)), header.trained_context
    )


@dataclass(frozen=True, slots=True)
class Sweep:
    """A curve to measure: its starts of the server, and the points that are known not to fit."""

    axis: CurveAxis
    model: SweepModel
    workload: Workload
    rounds: int
    starts: tuple[CurveStart, ...]
    gaps: tuple[RoundPoint, ...] = ()

    @property
    def prompt(self) -> Prompt:
        """The prompt that is measured at every place of the curve."""
        return self.workload.prompts[0]


def plan_sweep(
    axis: CurveAxis, model: SweepModel, workload: Workload, places: Sequence[int], rounds: int, *, grow: bool = True
) -> Sweep:
    """Return the curve to measure at `places`, or at this model's default places if empty.

    With `grow` the context of a fill curve is enlarged for its places, up to the training context. Raises BadOption for
    an invalid place.
    """
    tokens, context = workload.prompts[0].tokens, model.options.context or FALLBACK_CONTEXT
    least = 0 if axis is CurveAxis.FILL else 1
    if any(place < least for place in places):
        raise BadOption(message("A curve needs points of {least} or more.", least=least))
    match axis:
        case CurveAxis.FILL:
            fills = tuple(places) or default_fills(context, tokens)
            if grow:
                limit = max(context, model.trained_context or context)
                context = min(max(context, context_for_fill(max(fills), tokens)), limit)
            settings = {**model.settings, "ctx": context}
            starts, gaps = fill_starts(settings, model.drafts, fills, tokens)
        case CurveAxis.CONTEXT:
            largest = model.trained_context or context
            halvings = (largest >> shift for shift in reversed(range(_DEFAULT_CONTEXTS)))
            defaults = tuple(size for size in halvings if size >= _SMALLEST_CONTEXT) or (largest,)
            starts, gaps = context_starts(model.settings, model.drafts, places or defaults), ()
        case CurveAxis.STREAMS:
            starts, gaps = stream_starts(model.settings, model.drafts, places or STREAMS), ()
    return Sweep(axis, model, workload, rounds, starts, gaps)


async def run_sweep(
    session: ServingSession,
    sweep: Sweep,
    on_point: OnRoundPoint,
    on_step: OnCurveProgress = lambda _: None,
    *,
    on_begun: OnBegun = lambda _: None,
    add_costs: Callable[[Curve], list[dict[str, Any]]] | None = None,
) -> None:
    """Measure a curve on a session's server, and leave it running. `on_begun` gets the session id in the history.

    `add_costs` returns the points of a curve as JSON data with their costs, for the history.

    If cancelled, `on_point` has received everything measured so far, and it is kept. Raises what
    `curves.measure_curve` raises, and errors of the engine.
    """
    bench = _SweepBench(session, sweep.model.options, model_name=sweep.model.model_name)
    points: list[RoundPoint] = list(sweep.gaps)

    def build_result() -> dict[str, Any]:
        curve = build_curve(sweep.axis, points)
        priced = {"points": add_costs(curve)} if add_costs else {}
        return {**to_json(curve), **priced, "sentence": join_messages(*summarize_curve(curve)[:1])}

    settings, workload_label = sweep.starts[0].settings, f"{sweep.workload.name}, {sweep.axis}"
    async with _record_runs(CURVE, sweep.model, settings, workload_label, on_begun, build_result) as add_run:

        def record_point(point: RoundPoint) -> None:
            points.append(point)
            for run in list_runs([point]):
                add_run(run)
            on_point(point)

        await measure_curve(
            bench,
            sweep.starts,
            _make_prompts(sweep, session),
            sweep.prompt,
            rounds=sweep.rounds,
            on_point=record_point,
            on_step=on_step,
        )


class _SweepBench(SessionBench):
    """A SessionBench that waits after a failed request until the session knows whether the engine ended.

    The next start then starts a new engine instead of using the dead one.
    """

    def __init__(self, session: ServingSession, options: ServeOptions, *, model_name: str | None = None) -> None:
        super().__init__(session, options, model_name=model_name)
        self._serving_session = session

    async def run(self, prompt: Prompt, *, seed: int) -> Run:
        """See SessionBench."""
        run = await super().run(prompt, seed=seed)
        if run.error is not None:
            await _wait_until_ended(self._serving_session)
        return run


async def _wait_until_ended(session: ServingSession) -> None:
    """Wait until the session notices that its engine has ended, for a few seconds at most: it may still run."""
    with suppress(TimeoutError, ServerNotFound):
        async with asyncio.timeout(_NOTICE_END_S):
            await session.supervisor.wait_for_state(*(set(ServerState) - set(SERVING)))


def _make_prompts(sweep: Sweep, session: ServingSession) -> PromptsAt:
    if sweep.axis is CurveAxis.STREAMS:
        return prompts_for_streams(sweep.workload.prompts)
    known: dict[int, tuple[Prompt, ...]] = {}

    async def prompts_at(place: int) -> Sequence[Prompt]:
        fill = place if sweep.axis is CurveAxis.FILL else 0
        if fill not in known:
            name = f"{sweep.prompt.name} at {fill}" if fill else sweep.prompt.name
            prompt = replace(sweep.prompt, name=name, size=fill or sweep.prompt.size)
            try:
                known[fill] = await fill_prompts([prompt], session.supervisor.client)
            except Unreachable:
                await _wait_until_ended(session)
                raise
        return known[fill]

    return prompts_at


async def run_endurance(
    session: ServingSession,
    model: SweepModel,
    draft: int,
    workload: Workload,
    seconds: float,
    on_run: OnRun,
    *,
    on_begun: OnBegun = lambda _: None,
) -> None:
    """Keep a session's server busy for some seconds, and leave it running.

    `on_begun` gets the session id in the history. If cancelled, `on_run` has received everything measured so far, and
    it is kept. Raises what `endurance.sustain_load` raises.
    """
    bench = _SweepBench(session, model.options, model_name=model.model_name)
    settings = {**model.settings, DRAFT: draft}
    runs: list[Run] = []
    workload_label = f"{workload.name}, load"
    async with _record_runs(
        ENDURE, model, settings, workload_label, on_begun, lambda: to_json(judge_endurance(runs))
    ) as add_run:

        def record_run(run: Run) -> None:
            runs.append(run)
            add_run(run)
            on_run(run)

        await sustain_load(bench, settings, workload.prompts[0], seconds, on_run=record_run)


async def run_agent_tasks(
    session: ServingSession,
    model: SweepModel,
    draft: int,
    shape: AgentShape,
    seconds: float,
    on_task: OnTask,
    *,
    on_begun: OnBegun = lambda _: None,
) -> None:
    """Do an agent's tasks on a session's server for some seconds, and leave it running.

    The context is enlarged for a task, up to the training context. `on_begun` gets the session id in the history. If
    cancelled, `on_task` has received each task done so far, and they are kept. Raises errors of the engine.
    """
    bench = _SweepBench(session, model.options, model_name=model.model_name)
    context = model.options.context or FALLBACK_CONTEXT
    most = max(context, model.trained_context or context)
    settings = {**model.settings, DRAFT: draft, "ctx": min(max(context, shape.context_need), most)}
    tasks: list[AgentTask] = []

    def build_result() -> dict[str, Any]:
        data: dict[str, Any] = to_json(judge_tasks(shape, tasks))
        return data

    label = f"{shape.name}, tasks"
    async with _record_runs(ENDURE, model, settings, label, on_begun, build_result) as add_run:

        def record_task(task: AgentTask) -> None:
            tasks.append(task)
            on_task(task)

        await bench.become(settings)
        text = await SizedText.measure(session.supervisor.client)
        await sustain_tasks(
            bench, lambda: bench.last_text, settings, shape, text, seconds, on_run=add_run, on_task=record_task
        )


@asynccontextmanager
async def _record_runs(
    kind: str,
    model: SweepModel,
    settings: Mapping[str, Value],
    workload_label: str,
    on_begun: OnBegun,
    build_result: Callable[[], Mapping[str, Any]],
) -> AsyncIterator[Callable[[Run], None]]:
    """Yield a function that records a run in the history. The result is recorded also if the block is cancelled.

    `workload_label` differs from the workload's name, so that these runs do not count among its measurements.
    """
    launch = await prepare_launch(replace(model.options, draft=0), Endpoint(0, ""))
    environment = await asyncio.to_thread(Environment.for_launch, launch)
    async with record_session(kind, environment, settings, workload=workload_label) as record:
        on_begun(record.id)
        complete = False
        try:
            yield record.add_run
            complete = True
        finally:
            record.finish({**build_result(), "complete": complete})
