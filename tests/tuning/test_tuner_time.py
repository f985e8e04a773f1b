"""The time that a tune takes: its budget, pauses, trials that do not end."""

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from launcher.base.codec import WrongShape, from_json, to_json
from launcher.base.errors import TuneMismatch
from launcher.tuning.goal import Aim, Goal
from launcher.tuning.other_requests import OTHER_REQUESTS_SEEN
from launcher.tuning.plan_of_trials import most_explored
from launcher.tuning.records import Prompt, Run, RunSettings
from launcher.tuning.search import Assessment, Search
from launcher.tuning.space import Space, draft_length
from launcher.tuning.tune_state import Fault, Stage, TuneState
from launcher.tuning.tuner import (
    Paused,
    Question,
    TrialFailed,
    TrialMeasured,
    TrialPlanned,
    TrialRunner,
    TuneEvent,
    VerdictReached,
    error_share,
    tune,
)
from tests.tuning.simulated import HOUR_S, MTP_WINS, NO_ROOM, EventRecorder, tune_machine, tuned_once
from tools.tuner_simulation.bench import SimulatedBench
from tools.tuner_simulation.machine import Machine, draw_machine
from tools.tuner_simulation.run import WORK


async def pause_tune(number: int, after: int, budget_s: float) -> tuple[SimulatedBench, TuneState]:
    """Cancel a tune after `trials` trials; return the bench, and the state after it was written to a file and read."""
    machine = draw_machine(number)
    bench = SimulatedBench(machine, seed=number)
    state: list[TuneState] = []

    def listen(event: TuneEvent) -> None:
        if isinstance(event, TrialMeasured | TrialFailed) and len(event.state.trials) == after:
            task.cancel()
        if isinstance(event, Paused):
            state.append(event.state)

    task = asyncio.ensure_future(tune(bench, machine.space(), WORK, Goal(), budget_s, on_event=listen, seed=3))
    with pytest.raises(asyncio.CancelledError):
        await task
    return bench, from_json(TuneState, json.loads(json.dumps(to_json(state[0]))))


@pytest.mark.cases(1)
@pytest.mark.parametrize("after", [1, 8, 19])
async def test_a_paused_tune_continues_unchanged(after: int) -> None:
    machine, whole, _ = await tuned_once(MTP_WINS)
    bench, state = await pause_tune(MTP_WINS, after, HOUR_S)
    assert len(state.trials) == after
    verdict = await tune(bench, machine.space(), WORK, Goal(), HOUR_S, resume=state, seed=3)
    assert verdict == whole


async def test_trials_outside_the_plan_are_kept_and_not_repeated() -> None:
    """An update of the program or other free memory may change the plan."""
    bench, state = await pause_tune(MTP_WINS, 8, HOUR_S)
    earlier = replace(state, trials=(*state.trials[:3], *state.trials[4:]))  # the plan's trial 4 was not made
    recorder = EventRecorder()
    verdict = await tune(bench, bench.machine.space(), WORK, Goal(), 600.0, on_event=recorder, resume=earlier, seed=3)
    assert verdict.trials[:7] == earlier.trials
    assert recorder.of(VerdictReached)[0].state.known == 7
    later = [trial for trial in verdict.trials[7:] if trial.stage is Stage.PROBE]
    probed = [draft_length(trial.settings) for trial in earlier.trials]
    assert later
    assert not {draft_length(trial.settings) for trial in later} & set(probed)
    assert verdict.mtp == "on"
    again = from_json(TuneState, json.loads(json.dumps(to_json(recorder.of(VerdictReached)[0].state))))
    more = await tune(bench, bench.machine.space(), WORK, Goal(), 700.0, resume=again, seed=3)
    assert more.trials[: len(verdict.trials)] == verdict.trials


async def test_an_undecided_tune_goes_on_with_more_time() -> None:
    machine, recorder = draw_machine(MTP_WINS), EventRecorder()
    bench = SimulatedBench(machine, seed=2)
    first = await tune(bench, machine.space(), WORK, Goal(), 25, on_event=recorder, seed=3)
    assert first.mtp == "undecided"
    state = recorder.of(VerdictReached)[0].state
    second = await tune(bench, machine.space(), WORK, Goal(), HOUR_S, resume=state, seed=3)
    assert second.trials[: len(first.trials)] == first.trials
    assert second.mtp == "on"


@pytest.mark.thorough
async def test_an_undecided_tune_measures_more_when_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Question, "update_answer", lambda *_: None)
    machine, verdict, recorder = await tune_machine(MTP_WINS)
    state = recorder.of(VerdictReached)[-1].state
    assert verdict.likely is not None
    assert state.used_s < HOUR_S
    again = EventRecorder()
    bench = SimulatedBench(machine, seed=MTP_WINS)
    await tune(bench, machine.space(), WORK, Goal(), 2 * HOUR_S, on_event=again, resume=state, seed=3)
    assert len(again.of(VerdictReached)[-1].state.trials) > len(state.trials) + 20


def test_all_interim_looks_together_keep_the_error_probability() -> None:
    shares = [error_share(number) for number in range(40)]
    assert shares[:4] == pytest.approx([0.5, 0.3, 0.1, 0.05])
    assert sum(shares) <= 1


@pytest.mark.cases(1)
@pytest.mark.parametrize(("number", "questions"), [(MTP_WINS, 1), (NO_ROOM, 3)])
async def test_each_question_has_its_share_of_the_error_probability(
    number: int, questions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[tuple[Question, float]] = []

    def note_question(question: Question, _measured: object, confidence: float) -> None:
        looks.append((question, confidence))
        if question is not looks[0][0]:
            question.answer = False  # only the first question stays open

    monkeypatch.setattr(Question, "update_answer", note_question)
    await tune_machine(number)
    assert len({question for question, _ in looks}) == questions
    received = list(dict.fromkeys(confidence for _, confidence in looks))
    assert received == pytest.approx([1 - 0.05 * share / questions for share in (0.5, 0.3, 0.1)])
    assert len(looks) == questions + 2


@pytest.mark.cases(2)
@pytest.mark.parametrize("budget_s", [20, 60, 130, 200, 260, 300])
async def test_no_trial_starts_after_the_budget(budget_s: float) -> None:
    for number in (MTP_WINS, MTP_WINS + 1, MTP_WINS + 2):
        machine, recorder = draw_machine(number), EventRecorder()
        verdict = await tune(
            SimulatedBench(machine, seed=2), machine.space(), WORK, Goal(), budget_s, on_event=recorder, seed=3
        )
        assert all(event.left_s > 0 for event in recorder.of(TrialPlanned))
        if verdict.speedup is None and verdict.mtp == "undecided":
            assert "a comparison needs" in verdict.because


async def test_a_budget_that_the_first_trial_exceeds_ends_undecided() -> None:
    machine = draw_machine(MTP_WINS)
    verdict = await tune(SimulatedBench(machine, seed=2), machine.space(), WORK, Goal(), 25, seed=3)
    assert len(verdict.trials) == 1
    assert verdict.mtp == "undecided"
    assert draft_length(verdict.settings) == 0
    assert "a comparison needs at least 10 trials (" in verdict.because


async def test_exploring_ends_with_noisy_trials_and_long_budgets() -> None:
    machine = replace(draw_machine(3), run_noise=0.3, start_noise=0.05)
    space = replace(machine.space(), axes=())
    verdict = await tune(SimulatedBench(machine, seed=3), space, WORK, Goal(), 6 * HOUR_S, seed=3)
    explored = [trial for trial in verdict.trials if trial.stage is Stage.EXPLORE and not trial.error]
    assert len(explored) == most_explored(space) == 4 * 8


async def test_long_computations_do_not_block_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    where: list[str] = []
    assess = Search.assess_settings

    def note_thread(search: Search) -> Assessment:
        where.append(threading.current_thread().name)
        return assess(search)

    monkeypatch.setattr(Search, "assess_settings", note_thread)
    await tune_machine(MTP_WINS, 600.0)
    assert where
    assert threading.main_thread().name not in where


class Hangs(SimulatedBench):
    """A bench on which a start of some settings, or a reply with them, has no end."""

    def __init__(self, machine: Machine, where: str, hangs: Callable[[RunSettings], bool]) -> None:
        super().__init__(machine, seed=2)
        self._where, self.hangs = where, hangs
        self._at: RunSettings = {}

    async def become(self, settings: RunSettings, *, fresh: bool = False, reliable: bool = False) -> float:
        self._at = settings
        await self._hang("start")
        return await super().become(settings, fresh=fresh, reliable=reliable)

    async def run(self, prompt: Prompt, *, seed: int) -> Run:
        await self._hang("reply")
        return await super().run(prompt, seed=seed)

    async def _hang(self, where: str) -> None:
        if where == self._where and self.hangs(self._at):
            await asyncio.Event().wait()


class Disturbed(SimulatedBench):
    """A bench on which, from a certain moment, another program asks all the time."""

    others = False

    async def run(self, prompt: Prompt, *, seed: int) -> Run:
        return replace(await super().run(prompt, seed=seed), spoilt=OTHER_REQUESTS_SEEN if self.others else None)


async def test_too_few_comparable_starts_are_reported_as_such() -> None:
    machine = draw_machine(MTP_WINS)
    bench = Disturbed(machine, seed=2)

    def listen(event: TuneEvent) -> None:
        bench.others |= isinstance(event, TrialPlanned) and event.stage is Stage.VERIFY

    verdict = await tune(bench, machine.space(), WORK, Goal(), HOUR_S, on_event=listen, seed=3)
    assert verdict.mtp == "on"
    assert verdict.likely is not None
    assert verdict.sentence.startswith("Likely (over 99 %): draft ")
    compared = sum(trial.stage in (Stage.VERIFY, Stage.CONFIRM) for trial in verdict.trials)
    assert verdict.because.endswith(
        f"{compared} of {compared} comparison starts gave no result."
        f" Too many of its runs were disturbed. {OTHER_REQUESTS_SEEN}"
    )


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.tuning.plan_of_trials._LEAST_GRACE_S", 0.02)


@pytest.mark.cases(1)
@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize("where", ["start", "reply"])
async def test_a_hanging_first_trial_is_ended_with_the_budget_and_can_be_continued(where: str) -> None:
    machine, recorder = draw_machine(MTP_WINS), EventRecorder()
    bench = Hangs(machine, where, lambda _: True)
    verdict = await tune(bench, machine.space(), WORK, Goal(), 0.01, on_event=recorder, seed=3)
    assert verdict.sentence == "Undecided: the time was too short."
    assert verdict.because == "The first trial, with MTP off, was not finished after 1 min."
    assert (verdict.mtp, verdict.settings, verdict.forecasts) == ("undecided", machine.space().baseline_settings(), ())
    assert [trial.fault for trial in verdict.trials] == [Fault.TIME]
    assert json.dumps(to_json(verdict))
    state = from_json(TuneState, json.loads(json.dumps(to_json(recorder.of(VerdictReached)[0].state))))
    bench.hangs = lambda _: False
    verdict = await tune(bench, machine.space(), WORK, Goal(), HOUR_S, resume=state, seed=3)
    assert verdict.mtp == "on"
    assert [trial.fault for trial in verdict.trials].count(Fault.TIME) == 1


@pytest.mark.usefixtures("short_grace")
async def test_a_hanging_later_trial_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = draw_machine(MTP_WINS)
    left_s = (60.0, 0.01, 0.0)  # the first has all the time that a busy computer takes
    monkeypatch.setattr(TrialRunner, "left_s", property(lambda course: left_s[min(len(course.trials), 2)]))
    monkeypatch.setattr(TrialRunner, "can_afford", lambda course, _trials=1: len(course.trials) < 2)
    bench = Hangs(machine, "start", lambda at: draft_length(at) > 0)
    verdict = await tune(bench, machine.space(), WORK, Goal(), 0.1, seed=3)
    assert [trial.fault for trial in verdict.trials] == [Fault.NONE, Fault.TIME]
    assert (verdict.mtp, verdict.speedup) == ("undecided", None)


async def test_a_trial_that_hangs_takes_only_a_part_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others go on, and the settings that hang are not tried again."""
    monkeypatch.setattr("launcher.tuning.tuner._LEAST_LIMIT_S", 2.0)  # of real time; the others take none
    monkeypatch.setattr("launcher.tuning.tuner._MOST_EXPECTED", 0.0)
    machine = draw_machine(MTP_WINS)
    bench = Hangs(machine, "reply", lambda at: draft_length(at) == 4)
    space = replace(machine.space(), axes=())
    verdict = await tune(bench, space, WORK, Goal(), HOUR_S, seed=3)
    (hung,) = [trial for trial in verdict.trials if trial.fault is Fault.FAILED]
    assert draft_length(hung.settings) == 4
    assert hung.error == "It was ended after 2 s: it took far longer than expected."
    assert verdict.mtp == "on"


async def test_the_time_between_trials_belongs_to_the_budget() -> None:
    """The clock goes on while results are saved, and before the first trial."""
    machine, budget_s, pause_s = draw_machine(MTP_WINS), 600.0, 30.0
    bench = SimulatedBench(machine, seed=2)

    def listen(event: TuneEvent) -> None:
        if isinstance(event, TrialMeasured | TrialFailed):
            bench.advance_time(bench.now_s() + pause_s)

    began_s = bench.now_s()
    bench.advance_time(bench.now_s() + pause_s)
    verdict = await tune(bench, machine.space(), WORK, Goal(), budget_s, on_event=listen, seed=3, began_s=began_s)
    longest = max(trial.seconds for trial in verdict.trials)
    assert bench.now_s() - began_s < budget_s + 3 * longest
    assert sum(trial.seconds for trial in verdict.trials) == pytest.approx(bench.now_s() - began_s - pause_s)


async def test_the_state_of_another_tune_is_refused() -> None:
    bench, state = await pause_tune(MTP_WINS, 3, HOUR_S)
    for space, goal in (
        (Space({"kv": "q8_0"}, (1, 2)), Goal()),
        (draw_machine(MTP_WINS).space(), Goal(Aim.ENERGY)),
    ):
        with pytest.raises(TuneMismatch, match="started with other settings"):
            await tune(bench, space, WORK, goal, HOUR_S, resume=state)


@pytest.mark.parametrize("damage", [{"version": 99}, {"trials": [{"stage": "probe"}]}, {"budgets": [["x"]]}])
async def test_an_unreadable_state_is_refused(damage: dict[str, object]) -> None:
    _, state = await pause_tune(MTP_WINS, 2, HOUR_S)
    with pytest.raises(WrongShape):
        from_json(TuneState, {**to_json(state), **damage})
    with pytest.raises(WrongShape):
        from_json(TuneState, {})
