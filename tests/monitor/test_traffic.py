"""Requests of other clients, measured from /metrics as llama-server wrote it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.monitor.meter import Acceptance
from launcher.monitor.traffic import Counters, measure_traffic, parse_counters

REAL = (Path(__file__).parent / "data" / "metrics.txt").read_text()
PER_POSITION = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
SOME = Counters(
    predicted_n=100.0,
    predicted_s=2.0,
    drafted=60,
    accepted=40,
    drafts=30,
    accepted_by_position=(25, 15),
    processing=0,
)
NOTHING = Counters(0.0, 0.0, 0, 0, 0, (), 0)
DRAFTS = st.lists(st.integers(1, 5).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), max_size=30)
DAMAGED = st.builds(
    lambda where, what, length: REAL[:where] + what + REAL[where + length :],
    st.integers(0, len(REAL)),
    st.text('{}="\\,#\n 019eE+-.NaInf', max_size=5),
    st.integers(0, 5),
)


def count_drafts(drafts: list[tuple[int, int]]) -> Counters:
    """The counters of a server that made these drafts: how long, and how much of it was accepted."""
    longest = max((accepted for _, accepted in drafts), default=0)
    return Counters(
        predicted_n=float(sum(accepted + 1 for _, accepted in drafts)),
        predicted_s=0.02 * len(drafts),
        drafted=sum(drafted for drafted, _ in drafts),
        accepted=sum(accepted for _, accepted in drafts),
        drafts=len(drafts),
        accepted_by_position=tuple(sum(a > position for _, a in drafts) for position in range(longest)),
        processing=0,
    )


class TestReading:
    def test_counters_of_a_real_server_are_read(self) -> None:
        assert parse_counters(REAL) == Counters(
            predicted_n=283.0,
            predicted_s=0.129618,
            drafted=234,
            accepted=161,
            drafts=117,
            accepted_by_position=(104, 57),
            processing=0,
            prompt_n=37.0 + 57.0,
            waiting=0,
            counts_drafts=True,
        )

    def test_a_server_that_never_drafted_has_no_positions(self) -> None:
        without = "".join(line for line in REAL.splitlines(keepends=True) if "spec_decode" not in line)
        counters = parse_counters(without)
        assert counters == Counters(283.0, 0.129618, 0, 0, 0, (), 0, 37.0 + 57.0, 0)

    def test_requests_in_progress_are_counted(self) -> None:
        text = REAL.replace("requests_processing 0", "requests_processing 3")
        assert parse_counters(text).processing == 3

    def test_an_unlisted_position_counts_as_0(self) -> None:
        text = f'{PER_POSITION}{{position="2"}} 4\n{PER_POSITION}{{position="0"}} 9\n'
        assert parse_counters(text).accepted_by_position == (9, 0, 4)

    @pytest.mark.parametrize("text", ["", "\n", "# HELP llamacpp:anything Words\n", "other_total 5\n"])
    def test_missing_metrics_count_as_0(self, text: str) -> None:
        assert parse_counters(text) == NOTHING

    @pytest.mark.parametrize(
        "text",
        [
            "<html><body>404</body></html>",
            '{"error":{"code":501,"message":"This server does not support metrics endpoint."}}',
            "File Not Found",
            "llamacpp:requests_processing many\n",
            "llamacpp:requests_processing NaN\n",
            "llamacpp:requests_processing +Inf\n",
            f"{PER_POSITION} 3\n",
            f'{PER_POSITION}{{position="first"}} 3\n',
            REAL[: REAL.index("llamacpp:requests_processing 0") + len("llamacpp:requests_proc")],
        ],
        ids=["a page", "JSON", "words", "no number", "NaN", "infinite", "no position", "odd position", "cut short"],
    )
    def test_other_text_is_an_error(self, text: str) -> None:
        with pytest.raises(ValueError):
            parse_counters(text)

    @settings(deadline=None)
    @given(st.one_of(st.text(), DAMAGED))
    def test_any_text_is_read_or_raises_a_value_error(self, text: str) -> None:
        try:
            counters = parse_counters(text)
        except ValueError:
            return
        assert isinstance(counters, Counters)


class TestBetween:
    def test_traffic_is_the_difference_of_counters(self) -> None:
        after = Counters(160.0, 3.0, 100, 70, 50, (40, 30), processing=1)
        traffic = measure_traffic(SOME, after)
        assert traffic is not None
        assert (traffic.predicted_n, traffic.tokens_per_second) == (60, 60.0)
        assert traffic.acceptance == Acceptance(40, 30, (20, 20), (15, 15))
        assert traffic.acceptance.mean_length == 2.5

    def test_without_ended_requests_there_is_no_traffic(self) -> None:
        assert measure_traffic(SOME, SOME) is None
        assert measure_traffic(SOME, replace(SOME, processing=1)) is None

    def test_the_first_drafts_may_come_later(self) -> None:
        before = replace(SOME, drafted=0, accepted=0, drafts=0, accepted_by_position=())
        traffic = measure_traffic(before, replace(SOME, predicted_n=150.0))
        assert traffic is not None
        assert traffic.acceptance == Acceptance(60, 40, (30, 30), (25, 15))

    def test_requests_without_drafts_have_a_rate_and_no_acceptance(self) -> None:
        traffic = measure_traffic(SOME, replace(SOME, predicted_n=130.0, predicted_s=2.5))
        assert traffic is not None
        assert traffic.tokens_per_second == 60
        assert traffic.acceptance == Acceptance(0, 0, (), ())
        assert traffic.acceptance.rate is None

    def test_tokens_without_a_time_have_no_rate(self) -> None:
        traffic = measure_traffic(SOME, replace(SOME, predicted_n=101.0))
        assert traffic is not None
        assert traffic.tokens_per_second is None

    @pytest.mark.parametrize("name", ["predicted_n", "predicted_s", "drafted", "accepted", "drafts"])
    def test_a_decreased_counter_is_a_restarted_server(self, name: str) -> None:
        less: dict[str, Any] = {name: 1}
        after = Counters(160.0, 3.0, 100, 70, 50, (40, 30), processing=0)
        assert measure_traffic(SOME, after) is not None
        assert measure_traffic(SOME, replace(after, **less)) is None

    def test_a_decreased_position_is_a_restarted_server(self) -> None:
        assert measure_traffic(SOME, Counters(160.0, 3.0, 100, 70, 50, (60, 10), processing=0)) is None

    def test_a_restarted_server_has_no_traffic(self) -> None:
        assert measure_traffic(SOME, NOTHING) is None

    @settings(deadline=None)
    @given(DRAFTS, DRAFTS)
    def test_drafts_add_up_and_rates_lie_between_0_and_1(
        self, earlier: list[tuple[int, int]], later: list[tuple[int, int]]
    ) -> None:
        traffic = measure_traffic(count_drafts(earlier), count_drafts(earlier + later))
        assert (traffic is None) == (not later)
        if traffic is not None:
            assert traffic.tokens_per_second == pytest.approx(traffic.predicted_n / (0.02 * len(later)))
            assert traffic.acceptance.accepted == sum(traffic.acceptance.accepted_by_position)
            assert traffic.acceptance.drafted == sum(drafted for drafted, _ in later)
            assert all(0 <= rate <= 1 for rate in traffic.acceptance.rates_by_position)
            assert 0 <= (traffic.acceptance.rate or 0) <= 1
