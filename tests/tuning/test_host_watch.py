"""Load of the processor: marked replies, waiting, and the sentences."""

import asyncio

import pytest

from launcher.machine.host_load import HostCounters, HostLoad
from launcher.machine.sensors import CpuTimes
from launcher.tuning.goal import Goal
from launcher.tuning.host_watch import HostWatch, judge_load
from launcher.tuning.records import Prompt, Run, RunSettings
from launcher.tuning.tune_state import Fault
from launcher.tuning.tuner import QuietAwaited, QuietEnded, tune
from tests.tuning.simulated import MTP_WINS, EventRecorder
from tools.tuner_simulation.bench import SimulatedBench
from tools.tuner_simulation.machine import draw_machine
from tools.tuner_simulation.run import WORK

QUIET = HostLoad(0.05, 0.0, 0.02, 0.0, 4_700.0, 0.5)


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (QUIET, None),
        (HostLoad(0.6, 0.0, 0.5), "Other programs used 60 % of the processor."),
        (HostLoad(0.6, 0.0, 0.01), None),  # no program had to wait, because cores were free
        (HostLoad(0.6, 0.0, None, queue=1.5), "Other programs used 60 % of the processor."),
        (HostLoad(0.6, 0.0, None, queue=0.8), None),
        (HostLoad(0.6, 0.0), "Other programs used 60 % of the processor."),
        (HostLoad(0.1, 0.0, 0.9), None),  # the engine's own threads waited for each other
        (HostLoad(0.0, 0.2), "Other virtual machines took 20 % of the processor."),
        (HostLoad(0.0, 0.0, throttled=0.5), "The processor was throttled."),
        (HostLoad(0.0, 0.0, cap_mhz=3_400.0), "The processor was throttled."),
    ],
)
def test_disturbances_of_a_reply_are_found(load: HostLoad, expected: str | None) -> None:
    assert judge_load(load, QUIET) == expected


def test_permanent_conditions_are_not_disturbances() -> None:
    for usual in (HostLoad(0.6, 0.0, 0.9), HostLoad(0.0, 0.2), HostLoad(0.0, 0.0, throttled=0.5)):
        assert judge_load(usual, usual) is None


class Host:
    """A processor of one core whose counters a test advances by `seconds`, a share of them used by other programs."""

    def __init__(self) -> None:
        self.at_s = self.idle_s = 0.0
        self.others = 0.0
        self.slept: list[float] = []

    def read(self) -> HostCounters:
        return HostCounters(CpuTimes(self.at_s, self.idle_s, self.at_s, 0.0), 0.0, None)

    def pass_time(self, seconds: float) -> None:
        self.at_s += seconds
        self.idle_s += seconds * (1 - self.others)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.pass_time(seconds)
        if len(self.slept) == self.quiet_after:
            self.others = 0.0

    quiet_after = -1

    def reply(self, watch: HostWatch) -> str | None:
        before = self.read()
        self.pass_time(3.0)
        return watch.find_disturbance(before, self.read())


async def test_a_quiet_processor_is_awaited_before_the_first_trial_and_after_a_disturbed_reply() -> None:
    host, result = Host(), []
    watch = HostWatch(host.read, host.sleep)
    assert await watch.wait_for_quiet(30.0, result.append) == 1.0
    assert await watch.wait_for_quiet(30.0, result.append) == 0.0
    assert not result
    host.others, host.quiet_after = 0.9, 5
    assert host.reply(watch) == "Other programs used 90 % of the processor."
    assert await watch.wait_for_quiet(30.0, result.append) == 5.0
    assert result == ["Other programs used 90 % of the processor."]
    assert host.reply(watch) is None


async def test_waiting_is_limited_and_the_remaining_load_becomes_usual() -> None:
    host = Host()
    host.others = 0.9
    watch = HostWatch(host.read, host.sleep)
    assert await watch.wait_for_quiet(8.5, lambda _: None) == 8.0
    assert host.reply(watch) is None
    assert watch.take_share() == pytest.approx(0.9)


async def test_a_lasting_load_becomes_usual() -> None:
    host = Host()
    watch = HostWatch(host.read, host.sleep)
    await watch.wait_for_quiet(30.0, lambda _: None)
    host.others = 0.9
    marked = [host.reply(watch) is not None for _ in range(8)]
    assert marked == [True] * 5 + [False] * 3


def test_without_an_earlier_reading_nothing_is_marked() -> None:
    host = Host()
    host.others = 0.6
    watch = HostWatch(host.read, host.sleep)
    assert [host.reply(watch) for _ in range(6)] == [None] * 6
    host.others = 0.9
    assert host.reply(watch) == "Other programs used 90 % of the processor."


def test_short_replies_and_unknown_processors_are_not_judged() -> None:
    host = Host()
    host.others = 0.9
    watch = HostWatch(host.read, host.sleep)
    before = host.read()
    host.pass_time(0.05)
    assert watch.find_disturbance(before, host.read()) is None
    assert watch.find_disturbance(None, None) is None
    assert watch.take_share() is None


class LoadedBench(SimulatedBench):
    """A simulated machine on whose processor others work, and whose engine the load slows down."""

    def __init__(self, host: Host, watch: HostWatch) -> None:
        super().__init__(draw_machine(MTP_WINS), seed=1)
        self._host, self._watch = host, watch

    async def run(self, prompt: Prompt, *, seed: int) -> Run:
        run = await super().run(prompt, seed=seed)
        return Run(**{name: getattr(run, name) for name in run.__slots__} | {"spoilt": self._host.reply(self._watch)})

    async def become(self, settings: RunSettings, *, fresh: bool = False, reliable: bool = True) -> float:
        return await super().become(settings, fresh=fresh, reliable=reliable)


async def test_a_tune_on_a_busy_processor_waits_a_bounded_time_and_says_what_the_cause_is() -> None:
    host, recorder = Host(), EventRecorder()
    host.others = 0.9
    watch = HostWatch(host.read, host.sleep)
    bench = LoadedBench(host, watch)
    verdict = await tune(bench, bench.machine.space(), WORK, Goal(), 600, on_event=recorder, seed=1, host_watch=watch)
    (waiting,), (ended,) = recorder.of(QuietAwaited), recorder.of(QuietEnded)
    assert len(host.slept) == waiting.most_s == ended.waited_s == 30
    assert waiting.reason == "Other programs used 90 % of the processor."
    assert verdict.trials[0].seconds > 30  # the wait is part of the budget
    assert all(trial.fault is Fault.NONE for trial in verdict.trials)
    assert verdict.mtp == "on"
    trials = len(verdict.trials)
    assert verdict.because.endswith(
        f"Other programs used 90 % of the processor in {trials} of {trials} trials, so the figures are less certain."
    )


@pytest.mark.thorough
async def test_a_tune_without_a_finished_trial_reports_a_busy_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.tuning.plan_of_trials._LEAST_GRACE_S", -19.98)  # 20 ms of real time for a trial

    class NeverStarts(LoadedBench):
        async def become(self, *_: object, **__: object) -> float:
            await asyncio.Event().wait()
            return 0.0

    host = Host()
    host.others = 0.9
    watch = HostWatch(host.read, host.sleep)
    bench = NeverStarts(host, watch)
    verdict = await tune(bench, bench.machine.space(), WORK, Goal(), 20.0, seed=1, host_watch=watch)
    assert verdict.mtp == "undecided"
    assert verdict.because == (
        "The first trial, with MTP off, was not finished after 1 min."
        " Other programs used 90 % of the processor in 1 of 1 trials, so the figures are less certain."
    )
