"""Curves and endurance tests on the real engine: exact fills, parallel streams, and their storage in the history."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from launcher.app.measuring.sweeps import (
    SweepModel,
    plan_sweep,
    prepare_model,
    run_agent_tasks,
    run_endurance,
    run_sweep,
)
from launcher.app.serving.session import ServerSession
from launcher.base.errors import BadOption, ModelHasNoHead
from launcher.engine.serve_options import ServeOptions
from launcher.tuning.agent_tasks import AgentShape, AgentTask, judge_tasks
from launcher.tuning.curves import NO_MTP, CurveAxis, RoundPoint, build_curve
from launcher.tuning.endurance import judge_endurance
from launcher.tuning.history import History
from launcher.tuning.records import Prompt, Run
from launcher.tuning.workloads import Workload

WORK = Workload("mine", "Mine", 1, (Prompt("ask", (("user", "What is MTP?"),), 24, {"temperature": 0.0}),), "a test")


@pytest.fixture
async def session() -> AsyncIterator[ServerSession]:
    opened = ServerSession()
    yield opened
    await opened.stop()


@pytest.fixture
async def sweep_model(demo_model: Path) -> SweepModel:
    return await prepare_model(ServeOptions(model=demo_model, built_in=True, threads=1, context=1_024), "demo")


async def test_fills_are_exact_and_both_series_are_kept_in_the_history(
    session: ServerSession, sweep_model: SweepModel
) -> None:
    sweep = plan_sweep(CurveAxis.FILL, sweep_model, WORK, (0, 300, 700), rounds=2)
    found: list[RoundPoint] = []
    ids: list[str] = []
    await run_sweep(session, sweep, found.append, on_begun=ids.append)
    curve = build_curve(sweep.axis, [*sweep.gaps, *found])
    assert curve.series == (NO_MTP, "draft 2")
    for name in curve.series:
        assert [point.tokens for place in (300, 700) if (point := curve.point_at(name, place))] == [300, 700]
        for place in (0, 300, 700):
            point = curve.point_at(name, place)
            assert point
            assert point.rate
            assert (point.rate.n, point.replies, point.why) == (2, 2, None)
            assert point.prefill
            assert (point.acceptance is None) == (name == NO_MTP)
    assert all(run.cached_tokens == 0 for each in found for run in each.runs)
    assert {each.place for each in curve.ratios} == {0, 300, 700}
    with History() as history:
        kept = history.load(ids[0])
    assert (kept.kind, kept.workload) == ("curve", "mine, fill")
    assert {run.prompt for run in kept.runs} == {"ask", "ask at 300", "ask at 700"}
    assert len(kept.runs) == 12
    assert {run.settings["draft"] for run in kept.runs} == {0, 2}
    assert kept.settings["ctx"] == 1_024
    assert kept.result["complete"] is True
    assert kept.result["sentence"].startswith("Draft 2 is ")
    assert len(kept.result["points"]) == 6


async def test_a_fill_gets_the_context_that_it_needs_unless_one_was_chosen(sweep_model: SweepModel) -> None:
    grown = plan_sweep(CurveAxis.FILL, sweep_model, WORK, (0, 3_000), rounds=1)
    assert {start.settings["ctx"] for start in grown.starts} == {3_328}
    assert grown.gaps == ()
    chosen = plan_sweep(CurveAxis.FILL, sweep_model, WORK, (0, 3_000), rounds=1, grow=False)
    assert {start.settings["ctx"] for start in chosen.starts} == {1_024}
    assert {start.places for start in chosen.starts} == {(0,)}
    assert [gap.error for gap in chosen.gaps] == ["It does not fit into a context of 1,024 tokens."] * 2
    assert sweep_model.trained_context
    beyond = plan_sweep(CurveAxis.FILL, sweep_model, WORK, (0, 2 * sweep_model.trained_context), rounds=1)
    assert {start.settings["ctx"] for start in beyond.starts} == {sweep_model.trained_context}
    assert [gap.place for gap in beyond.gaps] == [2 * sweep_model.trained_context] * 2
    usual = plan_sweep(CurveAxis.FILL, sweep_model, WORK, (), rounds=1)
    assert usual.starts[0].places == (0, 234, 468, 702, 936)


async def test_streams_run_at_the_same_time(session: ServerSession, sweep_model: SweepModel) -> None:
    sweep = plan_sweep(CurveAxis.STREAMS, sweep_model, WORK, (1, 3), rounds=1)
    found: list[RoundPoint] = []
    await run_sweep(session, sweep, found.append)
    assert {start.settings["slots"] for start in sweep.starts} == {3}
    three = [each for each in found if each.place == 3]
    assert len(three) == 2
    for each in three:
        assert [run.reply_tokens for run in each.runs] == [24, 24, 24]
        first_end = min(run.began_s + run.wall_s for run in each.runs)
        assert all(run.began_s < first_end for run in each.runs)
        assert each.span_s <= sum(run.wall_s for run in each.runs)
    curve = build_curve(sweep.axis, found)
    assert curve.ratio_at("draft 2", 3)


@pytest.mark.thorough
async def test_the_context_axis_varies_the_context_size(session: ServerSession, sweep_model: SweepModel) -> None:
    sweep = plan_sweep(CurveAxis.CONTEXT, sweep_model, WORK, (1_024, 4_096), rounds=1)
    found: list[RoundPoint] = []
    await run_sweep(session, sweep, found.append)
    assert [(each.series, each.place) for each in found] == [
        (NO_MTP, 1_024),
        ("draft 2", 1_024),
        (NO_MTP, 4_096),
        ("draft 2", 4_096),
    ]
    assert {(each.place, run.settings["ctx"]) for each in found for run in each.runs} == {
        (1_024, 1_024),
        (4_096, 4_096),
    }
    usual = plan_sweep(CurveAxis.CONTEXT, sweep_model, WORK, (), rounds=1)
    assert sweep_model.trained_context
    assert [start.places[0] for start in usual.starts][::2] == [
        sweep_model.trained_context >> shift for shift in (3, 2, 1, 0)
    ]


@pytest.mark.thorough
async def test_a_cancelled_sweep_reports_and_stores_what_was_measured(
    session: ServerSession, sweep_model: SweepModel
) -> None:
    found: list[RoundPoint] = []
    ids: list[str] = []

    def note_point(taken: RoundPoint) -> None:
        found.append(taken)
        if len(found) == 3:
            measuring.cancel()

    sweep = plan_sweep(CurveAxis.FILL, sweep_model, WORK, (0, 300), rounds=2)
    measuring = asyncio.ensure_future(run_sweep(session, sweep, note_point, on_begun=ids.append))
    with pytest.raises(asyncio.CancelledError):
        await measuring
    with History() as history:
        kept = history.load(ids[0])
    assert len(kept.runs) == len(found) == 3
    assert kept.result["complete"] is False
    assert [point["replies"] for point in kept.result["points"]] == [1, 1, 1]


def end_engine(session: ServerSession) -> None:
    pid = session.supervisor.engine_pid
    assert pid is not None
    psutil.Process(pid).kill()


@pytest.mark.thorough
async def test_a_crash_of_the_engine_is_a_result_and_the_engine_is_restarted(
    session: ServerSession, sweep_model: SweepModel
) -> None:
    found: list[RoundPoint] = []

    def note_point(taken: RoundPoint) -> None:
        found.append(taken)
        if len(found) == 1:
            end_engine(session)

    await run_sweep(session, plan_sweep(CurveAxis.FILL, sweep_model, WORK, (0, 300, 500), rounds=1), note_point)
    assert [each.place for each in found] == [0, 300, 500, 0, 300, 500]
    # The second point may find the engine gone before its request is sent.
    assert [each.is_counted for each in found][2:] == [True] * 4

    runs: list[Run] = []

    def keep(run: Run) -> None:
        runs.append(run)
        if len(runs) == 2:
            end_engine(session)

    await run_endurance(session, sweep_model, 0, WORK, 3.0, keep)
    assert sum(run.error is not None for run in runs) in (1, 2)
    assert runs[-1].is_counted
    assert judge_endurance(runs).answer != "ended"


async def test_an_endurance_test_sends_requests_without_pause_until_its_time(
    session: ServerSession, sweep_model: SweepModel
) -> None:
    runs: list[Run] = []
    ids: list[str] = []
    began_s = time.monotonic()
    await run_endurance(session, sweep_model, 2, WORK, 2.0, runs.append, on_begun=ids.append)
    assert time.monotonic() - began_s >= 2.0
    result = judge_endurance(runs)
    assert result.replies == len(runs) >= 1
    assert all(run.is_counted and run.acceptance for run in runs)
    # The same text each time, so the same verification steps.
    assert len({(run.acceptance, run.reply_tokens) for run in runs}) == 1
    with History() as history:
        kept = history.load(ids[0])
    assert (kept.kind, kept.workload, len(kept.runs)) == ("endure", "mine, load", len(runs))
    assert kept.settings["draft"] == 2
    assert kept.result["answer"] == result.answer
    assert kept.result["sentence"] == result.sentence


@pytest.mark.thorough
async def test_the_tasks_of_an_agent_reuse_their_prompts_and_are_stored(
    session: ServerSession, sweep_model: SweepModel
) -> None:
    shape = AgentShape("tiny", "made for this test", 300, 200, 4, 60, 24)
    tasks: list[AgentTask] = []
    ids: list[str] = []
    await run_agent_tasks(session, sweep_model, 2, shape, 1.0, tasks.append, on_begun=ids.append)
    result = judge_tasks(shape, tasks)
    first = tasks[0]
    assert (first.turns, first.error) == (4, None)
    assert 0.7 * 500 < first.read_tokens < 2 * (500 + 3 * 84)
    assert first.reused_tokens > first.read_tokens
    with History() as history:
        kept = history.load(ids[0])
    assert (kept.kind, kept.workload, len(kept.runs)) == ("endure", "tiny, tasks", 4 * len(tasks))
    assert kept.result["seconds_per_task"] == result.seconds_per_task
    assert kept.result["sentence"] == result.sentence


async def test_a_model_without_a_head_has_one_series(headless_model: Path, demo_model: Path) -> None:
    options = ServeOptions(model=headless_model, built_in=True)
    assert (await prepare_model(options, "headless")).drafts == (0,)
    with pytest.raises(ModelHasNoHead):
        await prepare_model(options, "headless", (0, 2))
    demo = ServeOptions(model=demo_model, built_in=True, draft=0)
    # The sweep measures MTP even if the server runs with MTP off.
    assert (await prepare_model(demo, "demo")).drafts == (0, 2)
    assert (await prepare_model(demo, "demo", (0, 1, 3))).drafts == (0, 1, 3)


async def test_invalid_places_are_refused(sweep_model: SweepModel) -> None:
    for axis, place in ((CurveAxis.FILL, -1), (CurveAxis.CONTEXT, 0), (CurveAxis.STREAMS, 0)):
        with pytest.raises(BadOption):
            plan_sweep(axis, sweep_model, WORK, (place,), rounds=1)
