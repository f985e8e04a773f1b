"""Passive advice compared with known answers: a model of drafting with chosen rates and step times."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from launcher.models.drafters import MTP
from launcher.monitor.meter import Acceptance
from launcher.monitor.traffic import Traffic
from launcher.tuning.advice import Advice, advise_draft_length
from launcher.tuning.history import History
from launcher.tuning.predict import tokens_per_step
from launcher.tuning.records import Run, RunSettings
from launcher.tuning.use_counts import FEWEST_STEPS, KEPT_DAYS, UseCounts, use_counts_key
from tests.tuning.measured import ENVIRONMENT

RATES = (0.8, 0.75, 0.7, 0.65)
TIMES = {0: 0.020, 1: 0.026, 2: 0.028, 3: 0.030, 4: 0.032}
NOISE = (1.0, 1.01, 0.99, 1.005, 0.995)


def accepted_by_position(steps: int, draft: int, rates: Sequence[float] = RATES) -> tuple[int, ...]:
    counts, left = [], float(steps)
    for rate in rates[:draft]:
        left *= rate
        counts.append(round(left))
    return tuple(counts)


def use_counts(draft: int, *, steps: int = 20_000, rates: Sequence[float] = RATES, **settings: object) -> UseCounts:
    by_position = accepted_by_position(steps, draft, rates)
    tokens = steps + sum(by_position)
    return UseCounts({"draft": draft, "kv": "q8_0", **settings}, tokens, steps * TIMES[draft], steps, by_position)  # type: ignore[dict-item]


def runs_at(drafts: Sequence[int], *, times: Mapping[int, float] = TIMES, **settings: object) -> list[Run]:
    """Runs at these draft lengths, whose step times have a spread of 1 %."""
    runs = []
    for draft in drafts:
        taken = accepted_by_position(1_000, draft)
        tokens = 1_000 + sum(taken)
        drafts_made = Acceptance(1_000 * draft, sum(taken), (1_000, *taken)[:draft], taken) if draft else None
        own: RunSettings = {"draft": draft, "kv": "q8_0", **settings}  # type: ignore[dict-item]
        for noise in NOISE:
            rate = tokens / (1_000 * times[draft] * noise)
            runs.append(Run("code", own, 0.0, 30.0, reply_tokens=tokens, decode_rate=rate, acceptance=drafts_made))
    return runs


def true_ratio(better: int, now: int, rates: Sequence[float] = RATES) -> float:
    return (tokens_per_step(rates, better) / TIMES[better]) / (tokens_per_step(rates, now) / TIMES[now])


def test_a_longer_draft_is_advised_by_its_true_gain() -> None:
    result = advise_draft_length(use_counts(1), runs_at((0, 1, 2, 3, 4)))
    assert result is not None
    assert result.better == max(TIMES, key=lambda draft: true_ratio(draft, 1))
    assert result.ratio.estimate == pytest.approx(true_ratio(result.better, 1), rel=0.005)
    assert result.ratio.low < true_ratio(result.better, 1) < result.ratio.high
    assert result.tokens == 36_000


def test_a_shorter_draft_and_none_are_advised_for_text_that_drafts_badly() -> None:
    bad = (0.5, 0.2, 0.1)
    result = advise_draft_length(use_counts(3, rates=bad), runs_at((1, 2, 3)))
    assert result is not None
    assert result.better == 1
    assert result.ratio.estimate == pytest.approx(true_ratio(1, 3, bad), rel=0.005)
    result = advise_draft_length(use_counts(3, rates=(0.2, 0.1, 0.1)), runs_at((0, 1, 2, 3)))
    assert result is not None
    assert result.better == 0
    assert result.sentence.startswith("No MTP would have been about ")
    assert result.sentence.endswith(" than draft 3 over your last 24,000 tokens.")


@pytest.mark.parametrize("share", [1.0, 0.75])
def test_another_drafter_is_advised_by_its_own_rates_lowered_as_real_use_accepts_less(share: float) -> None:
    measured = runs_at((0, 1, 2)) + runs_at((4,), times={4: 0.021}, drafter="draft-dflash")
    result = advise_draft_length(use_counts(2, rates=(RATES[0] * share, *RATES[1:])), measured)
    assert result is not None
    assert (result.used, result.drafter.name, result.better) == (MTP, "dflash", 4)
    lowered = [rate * share for rate in RATES]
    now = tokens_per_step((lowered[0], RATES[1]), 2) / TIMES[2]
    assert result.ratio.estimate == pytest.approx(tokens_per_step(lowered, 4) / 0.021 / now, rel=0.005)


def test_further_positions_are_lowered_where_real_use_accepts_less() -> None:
    result = advise_draft_length(use_counts(2, rates=(0.6, 0.45, 0.9, 0.9)), runs_at((2, 3, 4)))
    assert result is None  # at the workload's own rates draft 4 would be faster
    assert true_ratio(4, 2) > 1.05


def test_the_best_length_is_left_alone() -> None:
    best = max(TIMES, key=lambda draft: true_ratio(draft, 1))
    assert advise_draft_length(use_counts(best), runs_at(tuple(TIMES))) is None


@pytest.mark.parametrize(
    ("counts", "runs"),
    [
        (use_counts(0), runs_at((0, 1, 2))),  # no tokens were drafted
        (use_counts(1, steps=FEWEST_STEPS - 1), runs_at((1, 4))),
        (use_counts(1), []),
        (use_counts(1), runs_at((4,))),  # the present length was not measured
        (use_counts(1), runs_at((1,))),
        (use_counts(1), runs_at((1, 4), kv="f16")),
        (use_counts(1), runs_at((1, 4), p_min=0.5)),
        (use_counts(1), runs_at((1, 4), draft_sampling="probabilistic")),
        (use_counts(1, extra="--spec-draft-p-min 0.5"), runs_at((1, 4))),
        (use_counts(1), runs_at((1, 4))[::3]),  # too few runs
        # Steps of real use took another time than the measured ones.
        (use_counts(1), runs_at((1, 4), times={1: 0.060, 4: 0.070})),
        (replace(use_counts(1), accepted=()), runs_at((1, 4))),
        (use_counts(1), [replace(run, spoilt="Too hot.") for run in runs_at((1, 4))]),
    ],
)
def test_without_data_no_advice_is_given(counts: UseCounts, runs: Sequence[Run]) -> None:
    assert advise_draft_length(use_counts(1), runs_at((1, 4))) is not None
    assert advise_draft_length(counts, runs) is None


def test_a_gain_within_the_noise_is_not_reported() -> None:
    wild = [
        replace(run, decode_rate=(run.decode_rate or 0) * factor)
        for run, factor in zip(runs_at((1, 4)), (1.0, 1.6, 0.6, 1.3, 0.8) * 2, strict=True)
    ]
    assert advise_draft_length(use_counts(1), wild) is None


def test_traffic_is_counted_by_position() -> None:
    traffic = Traffic(100, 50.0, Acceptance(80, 60, (40, 40), (35, 25)))
    counts = UseCounts.from_traffic({"draft": 2}, traffic)
    assert counts == UseCounts({"draft": 2}, 100, 2.0, 40, (35, 25))
    assert counts.step_s == pytest.approx(0.05)
    more = counts.plus(UseCounts({"draft": 2}, 10, 0.5, 8, (1, 1, 0)))
    assert more == UseCounts({"draft": 2}, 110, 2.5, 48, (36, 26, 0))
    assert UseCounts.from_traffic({}, replace(traffic, tokens_per_second=None)) is None


def test_counts_of_a_day_are_added_and_old_ones_deleted() -> None:
    now_s = 1_793_534_400.0
    place = use_counts_key(ENVIRONMENT)
    with History(clock=lambda: now_s) as history:
        history.add_use(place, [use_counts(1), use_counts(1), use_counts(2)])
        now_s += 86_400
        history.add_use(place, [use_counts(1)])
        history.add_use("elsewhere", [use_counts(1)])
        one, two = history.load_use(place)
        assert (one.tokens, one.accepted) == (3 * use_counts(1).tokens, (48_000,))
        assert two == use_counts(2)
        now_s += 40 * 86_400
        assert history.load_use(place) == ()
        assert len(history.load_use(place, days=60)) == 2
        now_s += KEPT_DAYS * 86_400
        history.add_use(place, [use_counts(3)])
        assert [each.settings["draft"] for each in history.load_use(place, days=1_000)] == [3]
        history.forget_use()
        assert history.load_use(place) == ()


def test_another_build_is_counted_separately() -> None:
    assert use_counts_key(ENVIRONMENT) != use_counts_key(replace(ENVIRONMENT, engine_version="2"))
    assert use_counts_key(ENVIRONMENT) == use_counts_key(replace(ENVIRONMENT, memory_bytes=1))


def test_the_sentence_has_two_digits() -> None:
    result = advise_draft_length(use_counts(1, steps=6_789), runs_at((1, 4)))
    assert isinstance(result, Advice)
    assert result.sentence.startswith(
        f"Draft 4 would have been about {100 * (true_ratio(4, 1) - 1):.0f} % faster, at least "
    )
    assert result.sentence.endswith(" than draft 1 over your last 12,000 tokens.")
