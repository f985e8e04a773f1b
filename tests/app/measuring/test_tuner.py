"""A tune of a real model on a session: stored, continued, and ended with the earlier or the better settings."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from launcher.app.measuring.saved_tunes import (
    TuneUnderWay,
    check_no_tune,
    delete_tune,
    hold_tune_lock,
    load_tune,
    load_tunes,
    save_tune,
)
from launcher.app.measuring.session_bench import SessionBench
from launcher.app.measuring.tuner import (
    PAUSED,
    AnswersChanged,
    changes_answers,
    find_rate_without_mtp,
    judge_answers,
    recommends_settings,
    run_tune,
    save_winner,
    serve_early_answer,
    serve_winner,
)
from launcher.app.measuring.tuner_space import PreparedTune, prepare_tune
from launcher.app.planning.start_settings import make_unresolved_options
from launcher.app.serving.session import ServerSession
from launcher.base.codec import to_json
from launcher.base.errors import ModelHasNoHead, NothingMeasured, Superseded
from launcher.base.paths import state_dir
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.start_request import StartRequest
from launcher.engine.server.state import ServerState
from launcher.engine.settings import load_model_settings, save_model_settings
from launcher.tuning.goal import Aim, Goal
from launcher.tuning.history import History
from launcher.tuning.records import Prompt, Run
from launcher.tuning.report import settings_line
from launcher.tuning.space import SpaceAxis, way_of
from launcher.tuning.tune_state import Stage, Trial
from launcher.tuning.tuner import AnswersCompared, Paused, TrialMeasured, TuneEvent, VerdictReached
from launcher.tuning.verdict import Verdict
from launcher.tuning.workloads import Workload
from tools.demo_model.drafts import write_draft

WORK = Workload(
    "boats",
    "Boats",
    1,
    (
        Prompt("river", (("user", "Tell me of a boat on a river."),), 24, {"temperature": 0.0}),
        Prompt("sea", (("user", "Tell me of a boat at sea."),), 24, {"temperature": 0.0}),
    ),
    "these tests",
)
SHORT_S = 6.0


@pytest.fixture
def options(demo_model: Path) -> ServeOptions:
    return ServeOptions(model=demo_model, built_in=True, threads=1, context=1_024)


@pytest.fixture
async def session() -> AsyncIterator[ServerSession]:
    opened = ServerSession()
    yield opened
    await opened.stop()


async def prepare_demo_tune(
    options: ServeOptions, budget_s: float = SHORT_S, workload: Workload = WORK
) -> PreparedTune:
    return await prepare_tune("demo", options, workload, Goal(), budget_s, vary=[])


class EventRecorder:
    """Records events; `enough` is set after a number of trials."""

    def __init__(self, trials: int = 0) -> None:
        self.events: list[TuneEvent] = []
        self.enough = asyncio.Event()
        self._trials = trials

    async def wait_for_trials(self, tuning: "asyncio.Task[Verdict]") -> None:
        """Wait until that many trials have ended; a tune that ends earlier fails the test."""
        enough = asyncio.create_task(self.enough.wait())
        await asyncio.wait([enough, tuning], return_when=asyncio.FIRST_COMPLETED)
        enough.cancel()
        assert not tuning.done()

    def __call__(self, event: TuneEvent) -> None:
        self.events.append(event)
        if len(self.of(TrialMeasured)) >= self._trials:
            self.enough.set()

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


async def pause_tune(session: ServerSession, options: ServeOptions, *, trials: int) -> EventRecorder:
    """Begin a tune, and pause it after a number of trials."""
    result = EventRecorder(trials)
    tuning = asyncio.create_task(run_tune(session, await prepare_demo_tune(options, budget_s=3_600.0), result))
    await result.wait_for_trials(tuning)
    tuning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await tuning
    return result


async def test_the_axes_are_known_before_a_server_is_started(options: ServeOptions) -> None:
    found = await prepare_tune("demo", options, WORK, Goal(), 600.0)
    assert found.space.baseline_settings()["draft"] == 0
    assert found.options.draft == 0
    assert found.space.drafts == (1, 2, 3, 4, 5, 6, 7, 8)
    assert {axis.name for axis in found.space.axes} <= {"threads"}  # no GPU, and at temperature 0 drafts are greedy
    assert not found.measured
    assert 0 < found.plan.seconds <= 600
    assert found.plan.starts * 2 == found.plan.runs
    assert json.dumps(to_json(found))
    hot = replace(WORK, prompts=tuple(replace(each, sampling={"temperature": 0.7}) for each in WORK.prompts))
    found = await prepare_tune("demo", options, hot, Goal(Aim.ANSWER), 600.0)
    assert {"ubatch", "draft_sampling"} <= {axis.name for axis in found.space.axes}
    found = await prepare_tune("demo", options, WORK, Goal(), 600.0, vary=["kv", "p_min", "ngram"])
    assert [axis.name for axis in found.space.axes] == ["kv", "p_min", "ngram"]
    assert [axis.name for axis in found.space.axes if axis.drafting] == ["p_min", "ngram"]
    assert next(axis.values for axis in found.space.axes if axis.name == "kv") == ("q8_0", "f16")


async def test_the_drafters_beside_a_model_are_tuned_together(
    session: ServerSession, demo_model: Path, tmp_path: Path
) -> None:
    """On the real engine: a longer draft of each after the baseline, and all of it is kept."""
    model = tmp_path / "demo.gguf"
    shutil.copy(demo_model, model)
    write_draft(tmp_path / "dspark-demo.gguf", "dspark", demo_model)
    options = make_unresolved_options(str(model), lambda path: ServeOptions(path, built_in=True, threads=1))
    await pause_tune(session, replace(options, context=1_024), trials=3)
    saved = load_tune(model)
    assert saved is not None
    assert saved.space.drafters == ("draft-mtp", "draft-dspark")
    ways = [way_of(trial.settings) for trial in saved.state.trials]
    assert ways[:3] == [(None, 0), ("draft-mtp", 7), ("draft-dspark", 4)]
    assert all(run.acceptance for trial in saved.state.trials[1:3] for run in trial.runs)
    with History() as history:
        shown = [settings_line(run.settings) for run in history.load(saved.record_id).runs]
    assert list(dict.fromkeys(shown))[:3] == ["MTP off", "draft 7", "draft 4 by DSpark"]


async def test_a_model_without_a_head_is_refused(headless_model: Path) -> None:
    with pytest.raises(ModelHasNoHead, match="nothing to tune"):
        await prepare_demo_tune(ServeOptions(model=headless_model, built_in=True))


@pytest.mark.thorough
async def test_a_kv_cache_type_that_changes_the_answers_is_not_recommended_silently(
    options: ServeOptions, session: ServerSession
) -> None:
    found = await prepare_demo_tune(replace(options, kv="q4_0"), budget_s=2.0)
    space = replace(found.space, baseline={"kv": "q4_0"}, axes=(SpaceAxis("kv", ("q4_0",), memory=True),))
    verdict = await run_tune(session, replace(found, space=space), EventRecorder())
    assert verdict.quality is not None
    assert (verdict.quality.kv, verdict.quality.answer) == ("q4_0", "beyond")
    assert "KV q4_0: the answers change." in verdict.sentence
    saved = load_tune(options.model)
    assert saved is not None
    assert saved.verdict is not None
    assert changes_answers(saved.verdict)


async def test_the_effect_of_mtp_on_the_answers_is_shown_beside_the_verdict(
    options: ServeOptions, session: ServerSession
) -> None:
    prepared, recorder = await prepare_demo_tune(options), EventRecorder()
    reply = Run("p", {"draft": 2}, 0.0, 1.0, prefill_rate=20.0)
    trial = Trial(0, Stage.VERIFY, {"draft": 2}, 0.0, 1.0, 0.5, (reply,))
    verdict = Verdict("on", {"draft": 2}, 1.4, 1.3, 1.5, 0.95, "Draft 2.", "Why.", None, {}, (), (trial,), "tokens/s")
    judged = await judge_answers(SessionBench(session, options), prepared, verdict, recorder)
    assert session.is_idle
    assert judged.mtp_quality is not None
    assert (judged.mtp_quality.drafts.length, judged.mtp_quality.answer) == (2, "shown")
    assert judged.quality is None  # the cache is f16
    assert judged.sentence == verdict.sentence
    assert judged.because == (
        "Why. With MTP, 7 of 7 replies at temperature 0 are equal to those without (not judged). The fact in 200 tokens"
        " of context is not found without MTP either. No usable tool call is made without MTP either."
    )
    assert [event.settings for event in recorder.of(AnswersCompared)] == ["F16, KV f16", "F16, KV f16, draft 2"]
    assert await judge_answers(
        SessionBench(session, options), prepared, replace(verdict, settings={"draft": 0}), recorder
    )
    assert len(recorder.of(AnswersCompared)) == 2  # without drafts there is nothing more to compare


@pytest.mark.thorough
async def test_an_early_verdict_that_changes_the_answers_is_not_used(
    options: ServeOptions, session: ServerSession
) -> None:
    await session.start(StartRequest(options))
    with pytest.raises(AnswersChanged, match="KV q4_0: the answers change"):
        await serve_early_answer(session, "demo", options, {"draft": 2, "kv": "q4_0"})
    assert session.supervisor.options == options  # the earlier server runs again
    assert load_model_settings(options.model) == {}


async def test_a_tune_ends_with_a_verdict_in_the_history_and_no_server(
    options: ServeOptions, session: ServerSession
) -> None:
    recorder, prepared = EventRecorder(), await prepare_demo_tune(options)
    assert find_rate_without_mtp(prepared.launch) is None
    verdict = await run_tune(session, prepared, recorder)
    assert session.is_idle
    assert verdict.trials
    rates = [run.decode_rate for trial in verdict.trials if not trial.settings["draft"] for run in trial.runs]
    assert find_rate_without_mtp(prepared.launch) == pytest.approx(fmean(rate for rate in rates if rate))
    assert verdict.mtp in ("on", "off", "undecided")
    (reached,) = (event.verdict for event in recorder.of(VerdictReached))
    # What MTP changes in the answers is judged after that event.
    assert (reached.mtp, reached.settings, reached.trials) == (verdict.mtp, verdict.settings, verdict.trials)
    with History() as history:
        (listed,) = history.find_sessions(kind="tune")
        loaded = history.load(listed.id)
    assert listed.workload == "boats"
    assert listed.sentence == verdict.sentence
    assert len(loaded.runs) == sum(len(trial.runs) for trial in verdict.trials)
    assert loaded.result["mtp"] == verdict.mtp
    kept = load_tune()
    assert kept is not None
    assert kept.verdict is not None
    assert kept.verdict["sentence"] == verdict.sentence
    assert kept.state.trials == verdict.trials


@pytest.mark.thorough
async def test_the_earlier_server_is_restored(options: ServeOptions, session: ServerSession) -> None:
    before = replace(options, draft=3)
    await session.start(StartRequest(before))
    result = EventRecorder(trials=2)
    tuning = asyncio.create_task(run_tune(session, await prepare_demo_tune(options, budget_s=3_600.0), result))
    await result.wait_for_trials(tuning)
    assert session.supervisor.options != before
    tuning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await tuning
    assert session.supervisor.options == before
    assert session.supervisor.status.state is ServerState.READY
    assert len(result.of(Paused)) == 1


@pytest.mark.thorough
async def test_a_paused_tune_continues(options: ServeOptions, session: ServerSession) -> None:
    result = await pause_tune(session, options, trials=3)
    kept = load_tune()
    assert kept is not None
    assert kept.verdict is None
    with History() as history:
        assert history.find_sessions(kind="tune")[0].sentence == PAUSED
    done = kept.state.trials
    assert len(done) >= 3
    again = await prepare_tune(
        kept.model, kept.options, kept.workload, kept.goal, kept.state.used_s + 4, space=kept.space
    )
    verdict = await run_tune(session, again, result, resume=kept)
    assert verdict.trials[: len(done)] == done
    with History() as history:
        (listed,) = history.find_sessions(kind="tune")  # a continued tune stays one measurement, with each run once
    assert listed.runs == sum(len(trial.runs) for trial in verdict.trials)


async def test_the_winner_is_served_and_stored(options: ServeOptions, session: ServerSession) -> None:
    save_winner(options, {"draft": 0, "threads": 1, "p_min": 0.5})
    assert load_model_settings(options.model) == {"draft": 0, "threads": 1, "p_min": 0.5}
    save_model_settings(options.model, {"ctx": 4_096})
    await serve_early_answer(session, "demo", options, {"draft": 2, "p_min": 0.0, "kv": "f16"})
    assert load_model_settings(options.model) == {"ctx": 4_096, "draft": 2, "p_min": 0.0, "kv": "f16"}
    await serve_winner(session, "demo", options, {"draft": 2, "p_min": 0.0})
    assert load_model_settings(options.model)["draft"] == 2
    served = session.supervisor.options
    assert served is not None
    assert (served.draft, served.p_min, served.extra) == (2, 0.0, ())
    assert recommends_settings({"mtp": "off", "gain": None})
    assert not recommends_settings({"mtp": "undecided", "gain": None})


async def test_another_user_of_the_session_keeps_the_server(options: ServeOptions, session: ServerSession) -> None:
    result = EventRecorder(trials=1)
    tuning = asyncio.create_task(run_tune(session, await prepare_demo_tune(options, budget_s=3_600.0), result))
    await result.wait_for_trials(tuning)
    theirs = replace(options, draft=1, context=512)
    await session.start(StartRequest(theirs))
    with pytest.raises(Superseded):
        await tuning
    assert session.supervisor.options == theirs
    assert session.supervisor.status.state in (ServerState.READY, ServerState.BUSY)
    assert len(result.of(Paused)) == 1


@pytest.mark.thorough
async def test_prompts_get_their_size_from_the_tokenizer_of_the_model(
    options: ServeOptions, session: ServerSession
) -> None:
    long = replace(WORK, prompts=(replace(WORK.prompts[0], size=200),))
    verdict = await run_tune(session, await prepare_demo_tune(options, workload=long), EventRecorder())
    runs = [run for trial in verdict.trials for run in trial.runs if run.is_counted]
    assert {run.prompt_tokens for run in runs} == {200}
    kept = load_tune()
    assert kept is not None
    assert kept.workload.sized_tokens == 0  # the prompt is stored as it was sent, and must not be filled again


async def test_a_failed_baseline_leaves_no_tune_to_continue(options: ServeOptions, session: ServerSession) -> None:
    too_long = replace(WORK, prompts=(Prompt("long", (("user", "word " * 3_000),), 8),))
    with pytest.raises(NothingMeasured):
        await run_tune(session, await prepare_demo_tune(options, workload=too_long), EventRecorder())
    assert load_tune() is None
    with History() as history:
        assert "cannot be measured" in (history.find_sessions(kind="tune")[0].sentence or "")


async def test_each_model_has_its_own_saved_tune(options: ServeOptions, session: ServerSession, tmp_path: Path) -> None:
    await pause_tune(session, options, trials=1)
    first = load_tune()
    assert first is not None
    other = replace(options, model=tmp_path / "other.gguf")
    save_tune(replace(first, model="other", options=other))
    assert [each.model for each in load_tunes()] == ["other", "demo"]
    mine = load_tune(options.model)
    assert mine is not None
    assert mine.state == first.state
    delete_tune(other.model)
    assert [each.model for each in load_tunes()] == ["demo"]
    delete_tune(options.model)
    assert not load_tunes()


@pytest.mark.thorough
async def test_the_plan_is_updated_by_measurements(options: ServeOptions, session: ServerSession) -> None:
    guessed = await prepare_demo_tune(options)
    verdict = await run_tune(session, guessed, EventRecorder())
    first = verdict.trials[0]
    slow = replace(
        first,
        start_s=100.0,
        runs=tuple(replace(run, decode_rate=0.5, reply_tokens=24, wall_s=50.0) for run in first.runs),
    )
    again = replace(guessed, budget_s=600.0).with_measured_times([slow])
    assert again.measured
    assert (again.restart_s, again.rate) == (100.0, pytest.approx(0.5))
    assert again.plan.starts == int(600 / (100 + 24 / 0.5 + 2 + len(first.runs) * 50))
    assert guessed.with_measured_times([replace(first, error="It ended.")]) is guessed


def test_one_tune_at_a_time() -> None:
    with hold_tune_lock(), pytest.raises(TuneUnderWay), hold_tune_lock():
        pass
    with hold_tune_lock(), pytest.raises(TuneUnderWay):
        check_no_tune()
    check_no_tune()
    with hold_tune_lock():
        pass


@pytest.mark.parametrize("text", ["", "{}", '{"version": 1}', "no json"])
def test_a_damaged_tune_is_ignored(text: str) -> None:
    assert load_tune() is None
    state_dir().mkdir(parents=True, exist_ok=True)
    (state_dir() / "tune.json").write_text(text)
    assert load_tune() is None
    assert (state_dir() / "tune.json.bad").exists()
    delete_tune(Path("some.gguf"))
