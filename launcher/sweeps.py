"""Curves and sustained load on a server of their own, with everything kept in the history."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from launcher.base.errors import BadOption, ServerNotFound, Unreachable
from launcher.bench import SessionBench
from launcher.engine.endpoint import Endpoint
from launcher.engine.launch import DEFAULT_CONTEXT, DEFAULT_DRAFT, Launch, ServeOptions, check_model, check_options
from launcher.engine.launch import plan as launch_plan
from launcher.engine.settings import OPTIONS
from launcher.engine.state import SERVING, State
from launcher.session import Session
from launcher.tuning.concurrency import prompts_for, stream_starts
from launcher.tuning.curves import Axis, context_for, context_starts, curve_of, fill_starts, fills_for, runs_of
from launcher.tuning.curves_rounds import OnStep, OnTaken, PromptsAt, Start, Taken, take
from launcher.tuning.curves_words import sentences
from launcher.tuning.endurance import OnRun, endure, judge
from launcher.tuning.fill import sized
from launcher.tuning.history_environment import Environment
from launcher.tuning.history_writer import HistoryWriter
from launcher.tuning.plan_of_trials import WARM_UP_TOKENS
from launcher.tuning.records import Prompt, Run, Value
from launcher.tuning.space import DRAFT
from launcher.tuning.workloads import Workload

CURVE, ENDURE = "curve", "endure"
"""What they are called in the history."""
STREAMS = (1, 2, 4)
_CONTEXTS = 4
_LEAST_CONTEXT = 2_048
_NOTICED_S = 5.0

OnBegun = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to measure: how it is served, as its user names it, and the draft lengths of the series, 0 for no MTP.

    `further` are settings that are no options of `serve`: see bench.options_with. `trained` is the context that the
    model was trained for.
    """

    options: ServeOptions
    named: str
    drafts: tuple[int, ...]
    trained: int | None
    further: Mapping[str, Value] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Value]:
        """The settings that are not left to the engine."""
        found: dict[str, Value] = {name: getattr(self.options, attribute) for name, attribute in OPTIONS.items()}
        return {name: value for name, value in {**found, **self.further}.items() if value is not None}


async def subject_of(
    options: ServeOptions, named: str, drafts: Sequence[int] = (), further: Mapping[str, Value] | None = None
) -> Subject:
    """Return what to measure: with the draft lengths given, else with none and, where there can be, the usual one.

    Raises BadOption for what no engine could use, what is wrong with the model's file, and ModelHasNoHead where drafts
    are asked for in vain.
    """
    longest = replace(options, draft=max(drafts, default=0))
    check_options(longest)
    header = await asyncio.to_thread(check_model, longest)
    can_draft = header.has_mtp_head or options.draft_file is not None
    series = tuple(drafts) or ((0, options.draft or DEFAULT_DRAFT) if can_draft else (0,))
    context = options.context or min(DEFAULT_CONTEXT, header.trained_context or DEFAULT_CONTEXT)
    return Subject(
        replace(options, context=context), named, tuple(dict.fromkeys(series)), header.trained_context, further or {}
    )


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a curve measures: its starts, and what is known before to have no room."""

    axis: Axis
    subject: Subject
    workload: Workload
    rounds: int
    starts: tuple[Start, ...]
    gaps: tuple[Taken, ...] = ()

    @property
    def prompt(self) -> Prompt:
        """What is asked at every place."""
        return self.workload.prompts[0]


def sweep_of(
    axis: Axis, subject: Subject, workload: Workload, places: Sequence[int], rounds: int, *, grow: bool = True
) -> Sweep:
    """Return the curve to measure at `places`, or at the usual ones of this model where there are none.

    With `grow` a fill curve gets the context that its places need, as far as the model was trained. Raises BadOption
    for a place that makes no sense.
    """
    tokens, context = workload.prompts[0].tokens, subject.options.context or DEFAULT_CONTEXT
    least = 0 if axis is Axis.FILL else 1
    if any(place < least for place in places):
        raise BadOption(f"The places of a curve are {least} or more.")
    match axis:
        case Axis.FILL:
            fills = tuple(places) or fills_for(context, tokens)
            if grow:
                context = min(max(context, context_for(max(fills), tokens)), max(context, subject.trained or context))
            settings = {**subject.settings, "ctx": context}
            starts, gaps = fill_starts(settings, subject.drafts, fills, tokens)
        case Axis.CONTEXT:
            most = subject.trained or context
            usual = tuple(at for at in (most >> shift for shift in reversed(range(_CONTEXTS))) if at >= _LEAST_CONTEXT)
            starts, gaps = context_starts(subject.settings, subject.drafts, places or usual or (most,)), ()
        case Axis.STREAMS:
            starts, gaps = stream_starts(subject.settings, subject.drafts, places or STREAMS), ()
    return Sweep(axis, subject, workload, rounds, starts, gaps)


async def sweep_on(
    session: Session,
    sweep: Sweep,
    on_taken: OnTaken,
    on_step: OnStep = lambda _: None,
    *,
    on_begun: OnBegun = lambda _: None,
) -> None:
    """Measure a curve on a session's server, and leave it running. `on_begun` gets the measurement's id in the history.

    What was taken until it is cancelled has been told, and is kept. Raises what `curves_rounds.take` raises, and what
    is wrong with the engine.
    """
    bench = _Bench(session, sweep.subject.options, named=sweep.subject.named)
    record = await _Record.begin(CURVE, sweep.subject, sweep.starts[0].settings, f"{sweep.workload.name}, {sweep.axis}")
    on_begun(record.id)
    found: list[Taken] = list(sweep.gaps)

    def keep(taken: Taken) -> None:
        found.append(taken)
        record.add(runs_of([taken]))
        on_taken(taken)

    warm_up = replace(sweep.prompt, name="warm-up", tokens=min(WARM_UP_TOKENS, sweep.prompt.tokens))
    complete = False
    try:
        await take(
            bench,
            sweep.starts,
            _prompts_at(sweep, session),
            warm_up,
            rounds=sweep.rounds,
            on_taken=keep,
            on_step=on_step,
        )
        complete = True
    finally:
        curve = curve_of(sweep.axis, found)
        await record.end({**curve.as_json(), "complete": complete, "sentence": " ".join(sentences(curve)[:1])})


class _Bench(SessionBench):
    """A SessionBench that, after a request that failed, knows whether the engine has ended: `become` then starts it."""

    async def run(self, prompt: Prompt, *, seed: int) -> Run:
        """See SessionBench."""
        run = await super().run(prompt, seed=seed)
        if run.error is not None:
            await _noticed(self.session)
        return run


async def _noticed(session: Session) -> None:
    """Wait until the session knows that its engine has ended, for 5 s at most: it need not have."""
    with suppress(TimeoutError, ServerNotFound):
        async with asyncio.timeout(_NOTICED_S):
            await session.supervisor.wait_for(*(set(State) - set(SERVING)))


def _prompts_at(sweep: Sweep, session: Session) -> PromptsAt:
    if sweep.axis is Axis.STREAMS:
        return prompts_for(sweep.workload.prompts)
    known: dict[int, tuple[Prompt, ...]] = {}

    async def prompts_at(place: int) -> Sequence[Prompt]:
        fill = place if sweep.axis is Axis.FILL else 0
        if fill not in known:
            name = f"{sweep.prompt.name} at {fill}" if fill else sweep.prompt.name
            prompt = replace(sweep.prompt, name=name, size=fill or sweep.prompt.size)
            try:
                known[fill] = await sized([prompt], session.supervisor.client)
            except Unreachable:
                await _noticed(session)
                raise
        return known[fill]

    return prompts_at


async def endure_on(
    session: Session,
    subject: Subject,
    draft: int,
    workload: Workload,
    seconds: float,
    on_run: OnRun,
    *,
    on_begun: OnBegun = lambda _: None,
) -> None:
    """Put a session's server under load, and leave it running. `on_begun` gets the measurement's id in the history.

    What was measured until it is cancelled has been told, and is kept. Raises what `endurance.endure` raises.
    """
    bench = _Bench(session, subject.options, named=subject.named)
    settings = {**subject.settings, DRAFT: draft}
    record = await _Record.begin(ENDURE, subject, settings, f"{workload.name}, load")
    on_begun(record.id)
    runs: list[Run] = []

    def keep(run: Run) -> None:
        runs.append(run)
        record.add([run])
        on_run(run)

    complete = False
    try:
        await endure(bench, settings, workload.prompts[0], seconds, on_run=keep)
        complete = True
    finally:
        await record.end({**judge(runs).as_json(), "complete": complete})


class _Record:
    """A measurement on its way into the history. Where that fails, it goes on."""

    def __init__(self, writer: HistoryWriter, id: str) -> None:  # noqa: A002
        self._writer, self.id = writer, id

    @classmethod
    async def begin(cls, kind: str, subject: Subject, settings: Mapping[str, Value], work: str) -> "_Record":
        """Begin it. `work` is no workload's name: what is measured here is not to be taken for its replies."""
        launch: Launch = await launch_plan(replace(subject.options, draft=0), Endpoint(0, ""))
        environment = await asyncio.to_thread(Environment.of_this_machine, launch)
        writer = HistoryWriter()
        return cls(writer, writer.begin(kind, environment, settings, workload=work))

    def add(self, runs: Sequence[Run]) -> None:
        for run in runs:
            self._writer.add(self.id, run)

    async def end(self, result: Mapping[str, Any]) -> None:
        self._writer.finish(self.id, result)
        await asyncio.shield(asyncio.to_thread(self._writer.close))
