"""Whole tunes on machines whose answer is known."""

import math
from dataclasses import replace
from itertools import groupby

import pytest

from launcher.base.codec import to_json
from launcher.base.errors import EngineFailed, NothingMeasured
from launcher.tuning.goal import Aim, Goal
from launcher.tuning.records import Prompt, Run, RunSettings
from launcher.tuning.space import Space, SpaceAxis, draft_length, settings_key, way_of
from launcher.tuning.tune_state import Fault, Stage
from launcher.tuning.tuner import (
    Predicted,
    TrialFailed,
    TrialMeasured,
    TrialPlanned,
    TuneEvent,
    VerdictReached,
    tune,
)
from tests.tuning.simulated import HOUR_S, MTP_LOSES, MTP_WINS, NO_ROOM, EventRecorder, tune_machine, tuned_once
from tools.tuner_simulation.bench import PROMPT_TOKENS, SimulatedBench
from tools.tuner_simulation.machine import Machine, Surroundings, compute_true_scores, draw_machine
from tools.tuner_simulation.run import WORK


def score(machine: Machine, settings: RunSettings, goal: Goal | None = None) -> float:
    return compute_true_scores(machine, goal or Goal(), PROMPT_TOKENS)[settings_key(settings)]


@pytest.mark.cases(1)
@pytest.mark.parametrize("number", [8, 9, 11])  # 0 to 7: tests/tools/test_tuner_simulation.py
async def test_the_recommendation_is_near_the_best_and_never_slower_than_the_baseline(number: int) -> None:
    machine, verdict, _ = await tune_machine(number, HOUR_S * max(1.0, draw_machine(number).step_s / 0.01))
    best = max(compute_true_scores(machine, Goal(), PROMPT_TOKENS).values())
    assert math.exp(score(machine, verdict.settings) - best) > 0.97
    assert score(machine, verdict.settings) >= score(machine, machine.space().baseline_settings())


async def test_where_mtp_wins_the_gain_is_reported() -> None:
    machine, verdict, _ = await tuned_once(MTP_WINS)
    assert verdict.mtp == "on"
    assert verdict.draft in (2, 3, 4)
    assert verdict.gain
    true = math.exp(score(machine, verdict.settings) - score(machine, machine.space().baseline_settings()))
    assert verdict.gain.ratio.low <= true <= verdict.gain.ratio.high
    assert verdict.sentence.startswith(f"Draft {verdict.draft} is ")
    assert "faster than no MTP for code: " in verdict.sentence
    assert "Each step generates" in verdict.because


async def test_an_early_verdict_comes_after_four_starts_at_the_latest() -> None:
    machine, recorder = draw_machine(MTP_WINS), EventRecorder()
    await tune(SimulatedBench(machine, 1), machine.space(), WORK, Goal(), 600, on_event=recorder, seed=1)
    before = recorder.events[: recorder.events.index(recorder.of(Predicted)[0])]
    assert sum(isinstance(event, TrialMeasured) for event in before) <= 4
    first = recorder.of(Predicted)[0]
    assert first.sentence.startswith("Likely (over 99 %): draft ")
    answer = to_json(first.answer)
    assert (answer["mtp"], answer["draft"]) == ("on", first.answer.draft)
    true = math.exp(score(machine, first.answer.settings) - score(machine, machine.space().baseline_settings()))
    assert answer["gain"]["low"] <= true <= answer["gain"]["high"]
    assert 0 < answer["risk"] < 0.3


async def test_a_clear_forecast_answers_where_time_is_too_short_for_pairs() -> None:
    machine = draw_machine(MTP_WINS, Surroundings(load_s=20.0))
    verdict = await tune(SimulatedBench(machine, 1), machine.space(), WORK, Goal(), 240, seed=1)
    assert not [trial for trial in verdict.trials if trial.stage is Stage.VERIFY]
    assert verdict.mtp == "on"
    assert verdict.likely is not None
    assert verdict.likely > 0.9
    assert verdict.gain is not None
    true = math.exp(score(machine, verdict.settings) - score(machine, machine.space().baseline_settings()))
    assert verdict.gain.ratio.low <= true <= verdict.gain.ratio.high
    assert verdict.sentence.startswith("Likely (over 99 %): draft ")
    assert "pairs have not confirmed it" in verdict.because


async def test_only_settings_that_need_no_more_memory_than_started_ones_are_recommended() -> None:
    """The forecast may like settings that were never started; whether these fit is not known."""
    machine = draw_machine(NO_ROOM, Surroundings(load_s=20.0))
    for seed in range(3):
        verdict = await tune(SimulatedBench(machine, seed), machine.space(), WORK, Goal(), 300, seed=seed)
        assert not machine.runs_out_of_memory(verdict.settings)


class FailsAtFirst(SimulatedBench):
    """A bench whose engine fails at the first starts."""

    def __init__(self, machine: Machine, failures: int) -> None:
        super().__init__(machine, 1)
        self.failures_left = failures

    async def become(self, settings: RunSettings, *, fresh: bool = False, reliable: bool = True) -> float:
        if self.failures_left:
            self.failures_left -= 1
            raise EngineFailed("It ended while it loaded.")
        return await super().become(settings, fresh=fresh, reliable=reliable)


async def test_a_baseline_that_starts_at_the_second_try_is_used() -> None:
    machine = draw_machine(MTP_WINS, Surroundings(load_s=20.0))
    verdict = await tune(FailsAtFirst(machine, 1), machine.space(), WORK, Goal(), 300, seed=1)
    assert verdict.mtp == "on"


async def test_nothing_is_said_of_drafts_while_only_the_baseline_was_tried() -> None:
    machine, recorder = draw_machine(MTP_WINS), EventRecorder()
    bench = FailsAtFirst(machine, 2)
    await tune(bench, machine.space(), WORK, Goal(), HOUR_S, on_event=recorder, seed=1)
    assert bench.failures_left == 0
    assert not any("could not be loaded" in each.sentence for each in recorder.of(Predicted))


class DisturbsDrafts(SimulatedBench):
    """A bench whose replies with MTP are all disturbed."""

    async def run(self, prompt: Prompt, *, seed: int) -> Run:
        run = await super().run(prompt, seed=seed)
        return replace(run, spoilt="The GPU throttled." if draft_length(run.settings) else None)


async def test_disturbed_trials_decide_nothing_and_are_not_taken_for_failed_loads() -> None:
    machine, recorder = draw_machine(MTP_WINS), EventRecorder()
    workload = replace(WORK, parts={"code": tuple(prompt.name for prompt in WORK.prompts)})
    verdict = await tune(DisturbsDrafts(machine, 1), machine.space(), workload, Goal(), 300, on_event=recorder, seed=1)
    disturbed = sum(trial.fault is Fault.SPOILT for trial in verdict.trials)
    assert disturbed > 3
    assert verdict.mtp == "undecided"
    assert verdict.sentence == f"Nothing is decided: {disturbed} trials were disturbed."
    said = {each.sentence for each in recorder.of(Predicted)} | {each.sentence for each in verdict.parts}
    assert said == {"Nothing is decided yet: the trials with MTP were disturbed."}
    assert {each.answer.answer for each in recorder.of(Predicted)} == {"undecided"}


async def test_settings_that_cannot_win_are_dropped_after_a_reply() -> None:
    class Crawls(SimulatedBench):
        async def run(self, prompt: Prompt, *, seed: int) -> Run:
            run = await super().run(prompt, seed=seed)
            slow = draft_length(run.settings) > 5 and run.decode_rate
            return replace(run, decode_rate=run.decode_rate / 100) if slow and run.decode_rate else run

    machine = draw_machine(MTP_WINS)
    verdict = await tune(Crawls(machine, 1), machine.space(), WORK, Goal(), 600, seed=1)
    crawled = [trial for trial in verdict.trials if draft_length(trial.settings) > 5]
    assert crawled
    assert all(len(trial.runs) == 1 and trial.error is None for trial in crawled)
    assert verdict.mtp == "on"
    assert 0 < verdict.draft <= 5


async def test_several_workloads_on_the_same_starts_have_a_verdict_each() -> None:
    """Text of the first two prompts is easy to draft, that of the others hardly ever is."""
    machine = replace(
        draw_machine(MTP_WINS, Surroundings(load_s=20.0)),
        chain=(0.93, 0.93, 0.12, 0.12),
        head=0.12,
        draft_pass=0.1,
        verify=0.2,
    )
    names = [prompt.name for prompt in WORK.prompts]
    work = replace(WORK, name="easy, hard", parts={"easy": tuple(names[:2]), "hard": tuple(names[2:])})
    verdict = await tune(SimulatedBench(machine, 1), machine.space(), work, Goal(), 600, seed=1)
    easy, hard = verdict.parts
    assert (easy.answer.answer, hard.answer.answer) == ("on", "off")
    assert easy.sentence.startswith("Likely (over 99 %): draft ")
    assert "leave MTP off for hard." in hard.sentence
    result = to_json(verdict)
    assert result["sentence"] == f"{result['overall']} {easy.sentence} {hard.sentence}"
    assert [each["workload"] for each in result["workloads"]] == ["easy", "hard"]
    assert [each["ci_low"] > 1 for each in result["workloads"]] == [True, False]


async def test_workloads_have_equal_weight() -> None:
    """One prompt of four is hard to draft, and loses as much with MTP as the others win together."""
    machine = replace(
        draw_machine(MTP_WINS, Surroundings(load_s=20.0)),
        chain=(0.93, 0.93, 0.93, 0.05),
        head=0.4,
        draft_pass=0.1,
        verify=0.2,
    )
    names = [prompt.name for prompt in WORK.prompts]
    parts = {"easy": tuple(names[:3]), "hard": (names[3],)}
    all_the_same = await tune(SimulatedBench(machine, 1), machine.space(), WORK, Goal(), 1_200, seed=1)
    work = replace(WORK, name="easy, hard", parts=parts)
    by_workload = await tune(SimulatedBench(machine, 1), machine.space(), work, Goal(), 1_200, seed=1)
    assert (all_the_same.mtp, by_workload.mtp) == ("on", "off")


async def test_mtp_is_turned_off_where_it_is_slower() -> None:
    machine, verdict, _ = await tune_machine(MTP_LOSES, HOUR_S * draw_machine(MTP_LOSES).step_s / 0.01)
    assert verdict.mtp == "off"
    assert verdict.draft == 0
    assert verdict.ci_high is not None
    assert verdict.ci_high < 1.02
    assert verdict.sentence.startswith("Leave MTP off for code")
    assert score(machine, verdict.settings) >= score(machine, machine.space().baseline_settings())


async def test_without_mtp_its_memory_makes_other_settings_faster() -> None:
    """Without MTP two layers more have their experts on the GPU: that is the plan to compare with, and to recommend."""
    _, verdict, _ = await tune_machine(NO_ROOM)
    assert verdict.mtp == "off"
    assert verdict.settings["n_cpu_moe"] == 20
    assert verdict.gain
    assert verdict.gain.ratio.low > 1
    assert "MTP leaves no memory for n-cpu-moe 20" in verdict.because
    assert "With kv q4_0, n-cpu-moe 20 it is" in verdict.sentence


@pytest.mark.thorough
async def test_without_differences_almost_none_is_claimed() -> None:
    """The chance of a wrong claim is at most 5 % in each tune."""
    claims = 0
    for number in range(8):
        machine = draw_machine(number, Surroundings(tied=True))
        verdict = await tune(SimulatedBench(machine, seed=number), machine.space(), WORK, Goal(), 900, seed=1)
        claims += verdict.likely is None and (verdict.mtp == "on" or verdict.gain is not None)
        assert (verdict.settings == machine.space().baseline_settings()) is (verdict.gain is None)
    assert claims <= 1


@pytest.mark.parametrize("budget_s", [0.0, 15.0, 30.0])
async def test_a_budget_that_is_too_short_is_reported(budget_s: float) -> None:
    machine, verdict, _ = await tune_machine(MTP_WINS, budget_s)
    assert verdict.mtp == "undecided"
    assert verdict.settings == machine.space().baseline_settings()
    assert verdict.sentence == "Undecided: the time was too short."
    assert verdict.speedup is None


@pytest.mark.cases(1)
@pytest.mark.parametrize("budget_s", [300.0, 600.0, 1_500.0])
async def test_a_tune_keeps_to_its_time(budget_s: float) -> None:
    for number in range(4):
        _, verdict, recorder = await tune_machine(number, budget_s)
        longest = max(trial.seconds for trial in verdict.trials)
        used_s = sum(trial.seconds for trial in verdict.trials)
        assert used_s < budget_s + 5 * longest  # the first probes, and a round that has begun, may exceed the budget
        assert recorder.of(VerdictReached)[0].state.used_s == pytest.approx(used_s)


async def test_every_trial_is_reported_before_and_after() -> None:
    _, verdict, recorder = await tuned_once(MTP_WINS)
    done = [*recorder.of(TrialMeasured), *recorder.of(TrialFailed)]
    assert len(recorder.of(TrialPlanned)) == len(done) == len(verdict.trials)
    kinds = [type(event) for event in recorder.events if not isinstance(event, Predicted)]
    assert kinds[:2] == [TrialPlanned, TrialMeasured]
    assert kinds[-1] is VerdictReached
    stages = [trial.stage for trial in verdict.trials]
    assert stages == sorted(stages, key=list(Stage).index)
    first, *_, last = recorder.of(Predicted)  # forecasts are reported after the probes, and when exploring ends
    for predicted in (first, last):
        drafts = [forecast.draft for forecast in predicted.forecasts]
        assert drafts == list(range(max(drafts) + 1))  # the longest may not fit with these settings
        assert len(drafts) > 3
    assert first.forecasts[3].high - first.forecasts[3].low > last.forecasts[3].high - last.forecasts[3].low


async def test_finalists_get_the_same_prompts_in_turns() -> None:
    """The trials of a pair follow each other, in both orders, with the same seeds; each trial is a start of its own."""
    _, verdict, _ = await tuned_once(MTP_WINS)
    confirmed = [trial for trial in verdict.trials if trial.stage in {Stage.VERIFY, Stage.CONFIRM}]
    drafts = [draft_length(trial.settings) for trial in confirmed]
    assert len(confirmed) >= 8
    assert all(trial.start_s > 0 for trial in confirmed)
    assert {tuple(drafts[:2]), tuple(drafts[-2:])} == {(0, verdict.draft), (verdict.draft, 0)}


class Fails(SimulatedBench):
    """A bench on which the settings fail that a test chooses."""

    def __init__(self, machine: Machine, fails: object) -> None:
        super().__init__(machine, seed=1)
        self._fails = fails

    async def become(self, settings: RunSettings, *, fresh: bool = False, reliable: bool = True) -> float:
        if self._fails(settings):  # type: ignore[operator]
            raise EngineFailed("It ended while it loaded.")
        return await super().become(settings, fresh=fresh, reliable=reliable)


async def test_a_crash_is_a_result() -> None:
    """Draft lengths above 2 crash; the tune uses the others."""
    machine, recorder = draw_machine(MTP_WINS), EventRecorder()
    bench = Fails(machine, lambda settings: draft_length(settings) > 2)
    verdict = await tune(bench, machine.space(), WORK, Goal(), HOUR_S, on_event=recorder, seed=1)
    assert verdict.mtp == "on"
    assert verdict.draft == 2
    failed = [event for event in recorder.of(TrialFailed) if event.trial.fault is Fault.FAILED]
    assert failed
    assert all(draft_length(event.trial.settings) > 2 for event in failed)
    assert len({settings_key(event.trial.settings) for event in failed}) == len(failed)  # no setting is tried twice


async def test_without_a_working_draft_length_mtp_stays_off() -> None:
    machine = draw_machine(MTP_WINS)
    space = replace(machine.space(), axes=())
    verdict = await tune(Fails(machine, draft_length), space, WORK, Goal(), HOUR_S, seed=1)
    assert verdict.mtp == "off"
    assert verdict.sentence.startswith("Leave MTP off: the model could not be loaded with it.")
    assert verdict.because == "It ended while it loaded."


async def test_a_baseline_that_cannot_be_measured_ends_the_tune() -> None:
    machine = draw_machine(MTP_WINS)
    with pytest.raises(NothingMeasured, match="It ended while it loaded"):
        await tune(Fails(machine, lambda _: True), machine.space(), WORK, Goal(), HOUR_S)


class Blind(SimulatedBench):
    """A bench without a power sensor."""

    async def run(self, prompt: Prompt, *, seed: int) -> Run:
        return replace(await super().run(prompt, seed=seed), energy_j=None, power_w=None)


async def test_energy_needs_a_sensor() -> None:
    machine = draw_machine(MTP_WINS)
    with pytest.raises(NothingMeasured, match="do not report tokens/J"):
        await tune(Blind(machine, 1), machine.space(), WORK, Goal(Aim.ENERGY), HOUR_S)


@pytest.mark.cases(1)
@pytest.mark.parametrize("aim", [Aim.ANSWER, Aim.ENERGY])
async def test_other_goals_are_reached(aim: Aim) -> None:
    machine, goal = draw_machine(MTP_WINS), Goal(aim)
    verdict = await tune(SimulatedBench(machine, 1), machine.space(), WORK, goal, HOUR_S, seed=1)
    best = max(compute_true_scores(machine, goal, PROMPT_TOKENS).values())
    assert math.exp(score(machine, verdict.settings, goal) - best) > 0.97
    assert verdict.unit == {"answer": "s", "energy": "tokens/J"}[aim]
    assert {"answer": "quicker to the answer", "energy": "more frugal"}[aim] in verdict.sentence


class Spoils(SimulatedBench):
    """A bench on which the first run on each start is spoilt."""

    async def run(self, prompt: Prompt, *, seed: int) -> Run:
        run = await super().run(prompt, seed=seed)
        first, self._spoilt = not getattr(self, "_spoilt", False), True
        return replace(run, spoilt="The GPU throttled.") if first and prompt.tokens > 24 else replace(run, spoilt=None)

    async def become(self, settings: RunSettings, *, fresh: bool = False, reliable: bool = False) -> float:
        self._spoilt = False
        return await super().become(settings, fresh=fresh, reliable=reliable)


async def test_spoilt_trials_are_repeated() -> None:
    machine = draw_machine(MTP_WINS)

    class SpoilsOne(Spoils):
        async def run(self, prompt: Prompt, *, seed: int) -> Run:
            if prompt.tokens <= 24:
                return await SimulatedBench.run(self, prompt, seed=seed)
            return await super().run(prompt, seed=seed)

    verdict = await tune(SpoilsOne(machine, 1), machine.space(), WORK, Goal(), 600, seed=1)
    whole = [trial for trial in verdict.trials if trial.fault is Fault.NONE]
    assert whole
    for trial in whole:
        assert sum(run.spoilt is not None for run in trial.runs) == 1
        assert {run.prompt for run in trial.runs if run.is_counted} == {prompt.name for prompt in WORK.prompts}


class Throttles(SimulatedBench):
    """A bench whose runs are spoilt in the first minute and a half."""

    async def run(self, prompt: Prompt, *, seed: int) -> Run:
        run = await super().run(prompt, seed=seed)
        return replace(run, spoilt="The GPU throttled." if self.now_s() < 90 else None)


async def test_a_disturbance_at_the_start_is_awaited() -> None:
    machine = draw_machine(MTP_WINS)
    verdict = await tune(Throttles(machine, 1), machine.space(), WORK, Goal(), HOUR_S, seed=1)
    assert verdict.mtp == "on"
    spoilt = [trial for trial in verdict.trials if trial.fault is Fault.SPOILT]
    assert spoilt == list(verdict.trials[: len(spoilt)])
    assert len(spoilt) > 3
    assert all(len(trial.runs) <= 3 for trial in spoilt)  # a trial ends when it can no longer count


async def test_a_spoilt_start_of_a_pair_is_repeated() -> None:
    machine = draw_machine(MTP_WINS)

    class SpoilsAPair(SimulatedBench):
        async def run(self, prompt: Prompt, *, seed: int) -> Run:
            run = await super().run(prompt, seed=seed)
            return replace(run, spoilt="The GPU throttled." if comparing and len(comparing) == 2 else None)

    comparing: list[TrialPlanned] = []

    def listen(event: TuneEvent) -> None:
        if isinstance(event, TrialPlanned) and event.stage is Stage.VERIFY:
            comparing.append(event)

    verdict = await tune(SpoilsAPair(machine, 1), machine.space(), WORK, Goal(), HOUR_S, on_event=listen, seed=1)
    lost, again = [trial for trial in verdict.trials if trial.stage is Stage.VERIFY][1:3]
    assert lost.fault is Fault.SPOILT
    assert again.fault is Fault.NONE
    assert settings_key(lost.settings) == settings_key(again.settings)
    assert verdict.gain is not None
    assert verdict.gain.ratio.n == 4  # no pair is missing


async def test_replies_of_a_dropped_trial_do_not_count_in_the_history() -> None:
    class FailsLater(SimulatedBench):
        replies = 0

        async def run(self, prompt: Prompt, *, seed: int) -> Run:
            run = await super().run(prompt, seed=seed)
            self.replies += 1
            return replace(run, error="The connection broke off.") if self.replies % 7 == 0 else run

    machine = draw_machine(MTP_WINS)
    verdict = await tune(FailsLater(machine, 1), machine.space(), WORK, Goal(), HOUR_S, seed=1)
    given_up = [trial for trial in verdict.trials if trial.error is not None]
    assert any(len(trial.runs) > 1 for trial in given_up)
    assert not any(run.is_counted for trial in given_up for run in trial.runs)
    # The run has the reason of its trial.
    assert any(run.spoilt == trial.error for trial in given_up for run in trial.runs)


async def test_trials_of_different_rounds_share_no_text() -> None:
    seeds: dict[int, list[int]] = {}

    class Listens(SimulatedBench):
        async def run(self, prompt: Prompt, *, seed: int) -> Run:
            if prompt.tokens > 24:
                seeds.setdefault(self.starts, []).append(seed)
            return await super().run(prompt, seed=seed)

    machine = draw_machine(MTP_WINS)
    bench = Listens(machine, seed=1)
    verdict = await tune(bench, machine.space(), WORK, Goal(), HOUR_S, seed=1)
    texts = [frozenset(each) for each in seeds.values()]
    assert max(map(len, texts)) > 1  # prompts are asked twice on a start
    # A trial that was given up has sent fewer texts than the others of its round.
    assert all(min(one) == min(other) or not one & other for one in texts for other in texts)
    rounds = [[*starts] for _, starts in groupby(map(min, texts))]
    assert len({starts[0] for starts in rounds}) == len(rounds)
    assert sum(len(starts) > 1 for starts in rounds) > 1  # the starts of a round have the same texts
    assert verdict.mtp == "on"


async def test_one_draft_length_without_other_settings_gives_a_verdict() -> None:
    machine = draw_machine(MTP_WINS)
    space = Space(machine.space().baseline, (2,), (SpaceAxis("kv", ("q8_0",)),))
    verdict = await tune(SimulatedBench(machine, 1), space, WORK, Goal(), 900, seed=1)
    assert verdict.mtp == "on"
    assert verdict.draft == 2


async def test_the_best_of_several_drafters_is_named_by_its_label() -> None:
    """Four are tried with five starts before the first answer, or fewer if it is clear; each has its forecast."""
    machine, recorder = draw_machine(3000, Surroundings(load_s=20.0, small=True, several=True)), EventRecorder()
    assert machine.drafters
    verdict = await tune(SimulatedBench(machine, 1), machine.space(), WORK, Goal(), HOUR_S, on_event=recorder, seed=1)
    scores = compute_true_scores(machine, Goal(), PROMPT_TOKENS)
    best = dict(max(scores, key=lambda key: scores[key]))
    assert verdict.settings["drafter"] == best["drafter"] == "draft-eagle3"
    assert math.exp(score(machine, verdict.settings) - max(scores.values())) > 0.98
    assert verdict.sentence.startswith(f"Draft {verdict.draft} by EAGLE-3 is ")
    first = recorder.events[: recorder.events.index(recorder.of(Predicted)[0])]
    assert sum(isinstance(event, TrialMeasured) for event in first) <= 5
    forecasts = to_json(verdict)["drafters"]
    assert {each["drafter"] for each in forecasts} == set(machine.drafters)
    assert forecasts[0]["drafter"] == to_json(verdict)["drafter"] == "draft-eagle3"
    for each in forecasts:
        true = max(value for key, value in scores.items() if way_of(dict(key)) == (each["drafter"], each["draft"]))
        assert each["value"] == pytest.approx(math.exp(true), rel=0.15)
