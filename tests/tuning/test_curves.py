"""Curves on a bench in virtual time: the order of the measurements, and the results."""

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from launcher.base.codec import to_json
from launcher.base.errors import BadOption, Superseded
from launcher.tuning.curves import (
    NO_MTP,
    Curve,
    CurveAxis,
    CurveProgress,
    CurveStart,
    RoundPoint,
    build_curve,
    context_for_fill,
    context_starts,
    default_fills,
    fill_starts,
    list_runs,
    measure_curve,
    prompts_for_streams,
    rate_of_point,
    stream_starts,
    summarize_curve,
)
from launcher.tuning.records import Prompt, Run, RunSettings
from launcher.tuning.space import draft_length
from launcher.tuning.statistics import Interval
from tests.tuning.clocked import START_S, YIELD, Moment, Speed, VirtualBench

PROMPT = Prompt("code", (("user", "Write a parser."),), 160)
WARM_UP = Prompt("warm", (("user", "Hello."),), 16)
SETTINGS: RunSettings = {"ctx": 65_536, "draft": 2, "kv": "q8_0"}


async def make_fill_prompts(fill: int) -> Sequence[Prompt]:
    return [replace(PROMPT, name=f"fill {fill}", size=fill or None)]


def by_depth(moment: Moment) -> Speed:
    """Without MTP 100 tokens/s, half of it at 40,000; with MTP a step takes 1.25 times as long, and more with depth."""
    depth = (moment.prompt.size or 0) / 40_000
    step_s = 0.01 * (1 + depth) if not draft_length(moment.settings) else 0.0125 * (1 + 2.2 * depth)
    return Speed(1 / step_s, power_w=250.0)


async def run_curve(
    bench: VirtualBench, starts: Sequence[CurveStart], rounds: int = 3, seed: int = 0
) -> tuple[list[RoundPoint], list[CurveProgress]]:
    found: list[RoundPoint] = []
    steps: list[CurveProgress] = []
    await measure_curve(
        bench, starts, make_fill_prompts, WARM_UP, rounds=rounds, on_point=found.append, on_step=steps.append, seed=seed
    )
    return found, steps


async def fill_curve(bench: VirtualBench, rounds: int = 3) -> tuple[Curve, list[RoundPoint], list[CurveProgress]]:
    starts, gaps = fill_starts(SETTINGS, (0, 2), (0, 10_000, 40_000, 80_000), PROMPT.tokens)
    found, steps = await run_curve(bench, starts, rounds)
    return build_curve(CurveAxis.FILL, [*found, *gaps]), found, steps


def test_a_series_names_what_drafts() -> None:
    starts = context_starts({**SETTINGS, "drafter": "draft-dflash"}, (0, 2), (32_768,))
    assert [start.series for start in starts] == [NO_MTP, "draft 2 by DFlash"]


async def test_a_fill_curve_has_both_series_at_every_fill_that_fits() -> None:
    bench = VirtualBench(by_depth, noise=0.004)
    curve, found, _ = await fill_curve(bench)
    assert curve.series == (NO_MTP, "draft 2")
    assert curve.places == (0, 10_000, 40_000, 80_000)
    point = curve.point_at(NO_MTP, 40_000)
    assert point
    assert point.rate
    assert point.rate.low < 50 < point.rate.high
    assert point.rate.estimate == pytest.approx(50, rel=0.02)
    assert (point.replies, point.tokens, point.why) == (3, 40_000, None)
    mtp = curve.point_at("draft 2", 10_000)
    assert mtp
    assert mtp.acceptance
    assert mtp.acceptance.rate == pytest.approx(YIELD - 1, abs=0.01)
    for fill in (0, 10_000, 40_000):
        step_ratio = (1 + fill / 40_000) / (1.25 * (1 + 2.2 * fill / 40_000))
        ratio = curve.ratio_at("draft 2", fill)
        assert ratio
        assert ratio.interval.low < YIELD * step_ratio < ratio.interval.high
        assert ratio.interval.n == 3
    gap = curve.point_at("draft 2", 80_000)
    assert gap
    assert gap.rate is None
    assert gap.why == "It does not fit into a context of 65,536 tokens."
    assert {run.power_w for run in list_runs(found)} == {250.0}


async def test_series_are_measured_in_turns_in_both_directions() -> None:
    bench = VirtualBench(by_depth)
    _, found, _ = await fill_curve(bench)
    forth, back = ["no MTP"] * 3 + ["draft 2"] * 3, ["draft 2"] * 3 + ["no MTP"] * 3
    assert [each.series for each in found] == forth + back + forth
    assert [each.place for each in found][:9] == [0, 10_000, 40_000, 0, 10_000, 40_000, 40_000, 10_000, 0]
    # A round begins with the settings that serve already.
    assert [draft_length(settings) for settings in bench.starts] == [0, 2, 0, 2]
    assert [prompt.name for prompt in bench.prompts].count("warm") == 4
    assert [each.number for each in found] == list(range(18))
    seeds = [seed for seed, prompt in zip(bench.seeds, bench.prompts, strict=True) if prompt.name != "warm"]
    assert seeds == [0] * 6 + [1] * 6 + [2] * 6


async def test_a_steady_drift_cancels() -> None:
    """The machine becomes 1 % slower a minute: there and back, both series have the same share of it."""

    def drifting_speed(moment: Moment) -> Speed:
        speed = 100.0 if not draft_length(moment.settings) else 75.0
        return Speed(speed * math.exp(-0.01 * (moment.now_s - 100) / 60))

    starts = tuple(CurveStart(name, {"draft": draft}, (0,)) for name, draft in ((NO_MTP, 0), ("draft 2", 2)))
    ratio = build_curve(CurveAxis.FILL, (await run_curve(VirtualBench(drifting_speed), starts, 4))[0]).ratio_at(
        "draft 2", 0
    )
    assert ratio
    assert ratio.interval.estimate == pytest.approx(0.75 * YIELD, rel=2e-4)


async def test_remaining_points_are_forecast_after_all_was_measured() -> None:
    bench = VirtualBench(by_depth)
    began_s = bench.now_s()
    at: list[tuple[CurveProgress, float]] = []
    starts, _ = fill_starts(SETTINGS, (0, 2), (0, 10_000), PROMPT.tokens)
    await measure_curve(
        bench,
        starts,
        make_fill_prompts,
        WARM_UP,
        rounds=3,
        on_point=lambda _: None,
        on_step=lambda step: at.append((step, bench.now_s() - began_s)),
    )
    whole_s = bench.now_s() - began_s
    assert all(step.left_s is None for step, _ in at[:5])
    known = [(step.left_s, whole_s - now_s) for step, now_s in at if step.left_s is not None]
    assert len(known) >= 8
    assert all(abs(each - true) <= 3 * START_S for each, true in known)
    assert {step.total for step, _ in at} == {12}
    assert [step.done for step, _ in at][-1] == 11


async def test_a_place_that_cannot_be_served_is_a_result_and_not_repeated() -> None:
    bench = VirtualBench(by_depth, fails_to_start=lambda settings: settings["ctx"] == 262_144)
    starts = context_starts(SETTINGS, (0, 2), (32_768, 262_144))
    found, steps = await run_curve(bench, starts)
    curve = build_curve(CurveAxis.CONTEXT, found)
    assert bench.starts.count({"ctx": 262_144, "draft": 0, "kv": "q8_0"}) == 1
    gone = curve.point_at(NO_MTP, 262_144)
    assert gone
    assert (gone.rate, gone.why) == (None, "The engine ended while it loaded: out of memory.")
    here = curve.point_at("draft 2", 32_768)
    assert here
    assert here.rate
    assert here.rate.n == 3
    assert curve.trends == ()
    assert steps[-1].left_s is not None


async def test_a_fill_that_is_refused_is_a_result() -> None:
    def refuse_long_prompt(moment: Moment) -> Speed:
        return Speed(100, error="The prompt is too long." if moment.prompt.size == 10_000 else None)

    curve, _, _ = await fill_curve(VirtualBench(refuse_long_prompt))
    point = curve.point_at(NO_MTP, 10_000)
    assert point
    assert (point.rate, point.replies, point.why) == (None, 0, "The prompt is too long.")
    assert curve.ratio_at("draft 2", 10_000) is None
    assert curve.ratio_at("draft 2", 0) is not None

    async def none_like_that(fill: int) -> Sequence[Prompt]:
        raise BadOption(f"No prompt has {fill} tokens.")

    found: list[RoundPoint] = []
    starts = (CurveStart(NO_MTP, {"draft": 0}, (3,)),)
    await measure_curve(VirtualBench(by_depth), starts, none_like_that, WARM_UP, rounds=1, on_point=found.append)
    assert found[0].error == "No prompt has 3 tokens."


async def test_a_server_that_crashes_at_a_place_is_restarted_for_the_next() -> None:
    class CrashingBench(VirtualBench):
        """An engine that runs out of memory and ends at the long prompt, if MTP is off."""

        async def run(self, prompt: Prompt, *, seed: int) -> Run:
            if prompt.size == 10_000 and not draft_length(self.starts[-1]):
                self._settings = None
                return Run(prompt.name, {}, self.now_s(), 0.1, error="The engine ended: out of memory.")
            return await super().run(prompt, seed=seed)

    bench = CrashingBench(by_depth)
    curve, found, _ = await fill_curve(bench, rounds=2)
    assert [(each.place, each.is_counted) for each in found[:3]] == [(0, True), (10_000, False), (40_000, True)]
    gone = curve.point_at(NO_MTP, 10_000)
    assert gone
    assert gone.why == "The engine ended: out of memory."
    assert curve.ratio_at("draft 2", 40_000)
    assert [draft_length(settings) for settings in bench.starts] == [0, 0, 2, 0, 0]

    bench = CrashingBench(by_depth, fails_to_start=lambda _: len(bench.starts) == 2)
    curve, found, _ = await fill_curve(bench, rounds=2)
    assert [each.error for each in found[:3]] == [
        None,
        "The engine ended: out of memory.",
        "The engine ended while it loaded: out of memory.",
    ]
    assert [each.series for each in found] == [NO_MTP] * 3 + ["draft 2"] * 6


async def test_spoilt_replies_are_repeated_and_not_counted() -> None:
    def bench_with(*spoilt: int) -> VirtualBench:
        """Return a bench whose replies with these numbers are spoilt. Number 0 is the warm-up."""

        def speed_of_round(_: Moment) -> Speed:
            is_spoilt = len(bench.prompts) - 1 in spoilt
            return Speed(10.0 if is_spoilt else 100.0, spoilt="The GPU throttled." if is_spoilt else None)

        bench = VirtualBench(speed_of_round)
        return bench

    starts = (CurveStart(NO_MTP, {"draft": 0}, (0,)),)
    found, _ = await run_curve(bench_with(2, 3, 5), starts, rounds=4)
    point = build_curve(CurveAxis.FILL, found).point_at(NO_MTP, 0)
    assert point
    assert point.rate
    assert point.rate.estimate == pytest.approx(100)
    assert (point.replies, point.spoilt, point.why) == (4, 3, None)
    assert len(list_runs(found)) == 7
    found, _ = await run_curve(bench_with(*range(10)), starts, rounds=1)
    lost = build_curve(CurveAxis.FILL, found).point_at(NO_MTP, 0)
    assert lost
    assert (lost.rate, lost.replies, lost.spoilt, lost.why) == (None, 0, 3, "The GPU throttled.")


async def test_a_cancelled_curve_has_reported_its_points() -> None:
    bench = VirtualBench(by_depth)
    found: list[RoundPoint] = []

    def keep(each: RoundPoint) -> None:
        found.append(each)
        if len(found) == 4:
            task.cancel()

    starts, _ = fill_starts(SETTINGS, (0, 2), (0, 10_000, 40_000), PROMPT.tokens)
    task = asyncio.ensure_future(measure_curve(bench, starts, make_fill_prompts, WARM_UP, rounds=3, on_point=keep))
    with pytest.raises(asyncio.CancelledError):
        await task
    curve = build_curve(CurveAxis.FILL, found)
    assert len(found) == 4
    assert curve.ratio_at("draft 2", 0)
    assert curve.ratio_at("draft 2", 10_000) is None
    assert "(1.28 times)" in summarize_curve(curve)[0]
    assert build_curve(CurveAxis.FILL, []).points == ()
    assert summarize_curve(build_curve(CurveAxis.FILL, [])) == []


async def test_another_user_of_the_server_ends_the_curve() -> None:
    class StoppedBench(VirtualBench):
        async def run(self, prompt: Prompt, *, seed: int) -> Run:
            if len(self.prompts) > 3:
                raise Superseded("The server was stopped.")
            return await super().run(prompt, seed=seed)

    with pytest.raises(Superseded):
        await fill_curve(StoppedBench(by_depth))


async def test_streams_share_one_server_and_are_sent_at_once() -> None:
    def shared_speed(moment: Moment) -> Speed:
        alone = 100.0 if not draft_length(moment.settings) else 80.0
        return Speed(alone / (1 + 0.4 * (moment.streams - 1)), power_w=200.0)

    bench = VirtualBench(shared_speed)
    starts = stream_starts(SETTINGS, (0, 2), (1, 2, 4))
    found: list[RoundPoint] = []
    prompts = (PROMPT, replace(PROMPT, name="prose"))
    await measure_curve(bench, starts, prompts_for_streams(prompts), WARM_UP, rounds=2, on_point=found.append)
    assert {settings["slots"] for settings in bench.starts} == {4}
    assert [len(each.runs) for each in found[:3]] == [1, 2, 4]
    assert [run.prompt for run in found[2].runs] == ["code 1", "prose 2", "code 3", "prose 4"]
    assert all(prompt.sampling["ignore_eos"] for prompt in bench.prompts if prompt.name != "warm")
    curve = build_curve(CurveAxis.STREAMS, found)
    one, four = (curve.point_at(NO_MTP, place) for place in (1, 4))
    assert one
    assert four
    assert one.rate
    assert four.rate
    assert four.rate_per_stream == pytest.approx(100 / 2.2)
    assert four.rate.estimate == pytest.approx(640 / (0.02 + 160 * 2.2 / 100), rel=1e-3)
    assert rate_of_point(CurveAxis.STREAMS, found[2]) == pytest.approx(four.rate.estimate)
    sentences = summarize_curve(curve)
    assert sentences[-2].startswith("No MTP: 4 streams together are 1.8")
    assert sentences[0].startswith("Draft 2 is faster than no MTP at any number of streams: 1.2")


async def test_the_result_of_a_curve_in_sentences() -> None:
    sentences = summarize_curve((await fill_curve(VirtualBench(by_depth)))[0])
    against = (
        "Draft 2 is faster than no MTP with 0 and 10,000 tokens in the context (1.28 times, 1.03 times); slower than no"
        " MTP with 40,000 tokens in the context (0.80 times)."
    )
    assert sentences == [
        against,
        "No MTP keeps 50 % of its speed from 0 to 40,000 tokens.",
        "Draft 2 keeps 31 % of its speed from 0 to 40,000 tokens.",
    ]
    once = summarize_curve((await fill_curve(VirtualBench(by_depth), rounds=1))[0])
    uncertain = "No MTP: its speed from 0 to 40,000 tokens is too uncertain. Use more --rounds."
    assert once[1] == uncertain
    assert once[0].startswith(
        "Draft 2 is not distinguishable from no MTP at every fill: 1.28 times at 0, 1.03 times at"
    )
    starts = context_starts(SETTINGS, (2,), (32_768, 262_144))
    slower = VirtualBench(lambda moment: Speed(100 if moment.settings["ctx"] == 32_768 else 98.6))
    curve = build_curve(CurveAxis.CONTEXT, (await run_curve(slower, starts))[0])
    assert summarize_curve(curve) == ["Draft 2: a context of 262,144 is 1.4 % slower than one of 32,768."]
    doubtful = replace(curve.trends[0], interval=Interval(0.95, 0.6965, 1.0446, 3))
    assert summarize_curve(replace(curve, trends=(doubtful,))) == [
        "Draft 2: a context of 262,144 is 5.0 % slower than one of 32,768 (no difference is shown: -30 to +4 %)."
    ]


def test_default_places_of_a_fill_curve() -> None:
    assert default_fills(262_144, 200) == (0, 10_000, 40_000, 55_000, 80_000, 120_000, 200_000)
    assert default_fills(65_536, 200) == (0, 10_000, 40_000, 55_000)
    assert default_fills(8_192, 200) == (0, 1_982, 3_964, 5_946, 7_928)
    assert context_for_fill(80_000, 200) == 80_384
    for context in (1_024, 8_192, 65_536):
        assert context_for_fill(default_fills(context, 200)[-1], 200) <= context


async def test_the_json_of_a_curve_has_its_points_and_ratios() -> None:
    result = json.loads(json.dumps(to_json((await fill_curve(VirtualBench(by_depth), rounds=1))[0])))
    assert result["axis"] == "fill"
    assert result["series"] == [NO_MTP, "draft 2"]
    assert result["points"][0]["tokens_per_second"] == {
        "estimate": pytest.approx(100),
        "n": 1,
        "low": None,
        "high": None,
    }
    assert result["ratios"][0] == {
        "series": "draft 2",
        "at": 0,
        "estimate": pytest.approx(1.28),
        "n": 1,
    } | dict.fromkeys(("low", "high"))
