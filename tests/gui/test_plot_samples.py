"""Samples for the plots: which are kept, which are visible, and the time that is shown."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.gui.plots.axes import (
    format_clock_time,
    format_time_before_now,
    round_up_nicely,
    tick_step,
    ticks_before,
    ticks_by_clock,
)
from launcher.gui.plots.samples import Columns, Samples
from launcher.gui.plots.span import LONGEST_S, SHORTEST_S, TimeSpan


def numbered_samples(count: int, capacity: int = 36_600, period_s: float = 0.1) -> Samples:
    """Return samples whose value `x` is their number."""
    samples = Samples(capacity)
    for i in range(count):
        samples.add(100 + i * period_s, 5_000 + i * period_s, {"x": float(i)})
    return samples


class TestSamples:
    def test_one_hour_at_10_hz_is_kept(self) -> None:
        samples = numbered_samples(80_000)
        assert samples.newest_s == pytest.approx(100 + 7_999.9)
        assert samples.oldest_s == pytest.approx(samples.newest_s - 3_600)
        part = samples.slice_between(samples.oldest_s, samples.newest_s)
        values = samples.values("x", part)
        assert values[-1] == 79_999
        assert np.all(np.diff(values) == 1)
        assert 36_000 <= len(values) <= 36_002

    @pytest.mark.parametrize("count", [1, 7, 50, 51, 99, 100, 101, 149, 150, 151, 1_000])
    def test_any_range_is_correct_after_the_ring_has_wrapped(self, count: int) -> None:
        samples = numbered_samples(count, capacity=50)
        first = max(0, count - 50)
        part = samples.slice_between(0, 10_000)
        assert list(samples.values("x", part)) == list(range(first, count))
        assert samples.times(part) == pytest.approx([100 + i * 0.1 for i in range(first, count)])
        assert samples.wall_times(part) == pytest.approx([5_000 + i * 0.1 for i in range(first, count)])

    def test_a_range_includes_one_more_sample_on_each_side(self) -> None:
        samples = numbered_samples(100)
        assert list(samples.values("x", samples.slice_between(102.05, 102.25))) == [20, 21, 22, 23]

    def test_unknown_values_are_gaps(self) -> None:
        samples = Samples()
        samples.add(1.0, 1.0, {"a": 1.0})
        samples.add(1.1, 1.1, {"a": None, "b": 2.0})
        samples.add(1.2, 1.2, {"b": 3.0})
        part = samples.slice_between(0, 2)
        assert [*map(str, samples.values("a", part))] == ["1.0", "nan", "nan"]
        assert [*map(str, samples.values("b", part))] == ["nan", "2.0", "3.0"]
        assert np.isnan(samples.values("never", part)).all()
        assert samples.last_known("a") == (1.0, pytest.approx(0.2))
        assert samples.last_known("never") is None
        assert samples.value_at("a", 1) is None
        assert samples.value_at("never", 1) is None

    def test_samples_that_are_far_apart_are_not_joined(self) -> None:
        samples = Samples()
        for time_s in (1.0, 2.0, 9.0):
            samples.add(time_s, time_s, {"a": time_s})
        assert [*map(str, samples.values("a", samples.slice_between(0, 10)))] == ["1.0", "2.0", "nan", "9.0"]

    def test_a_clock_that_stops_or_goes_back_adds_nothing(self) -> None:
        samples = numbered_samples(3)
        samples.add(100.0, 1.0, {"x": 9.0})
        samples.add(samples.newest_s, 1.0, {"x": 9.0})
        assert len(samples) == 3

    def test_means_and_nearest_samples_are_found(self) -> None:
        samples = numbered_samples(100)
        assert samples.mean("x", 101.0, 102.0) == pytest.approx(15.0, abs=0.51)
        assert samples.mean("x", 0, 50) is None
        assert samples.mean("never", 0, 1_000) is None
        assert samples.highest("x") == 99
        for time_s, expected in ((0.0, 0), (100.04, 0), (100.06, 1), (104.0, 40), (999.0, 99)):
            index = samples.nearest_index(time_s)
            assert index is not None
            assert samples.value_at("x", index) == expected
        assert Samples().nearest_index(1.0) is None


class TestDecimation:
    @pytest.mark.parametrize("at", [0, 1, 4_999, 17_777, 35_998, 35_999])
    @pytest.mark.parametrize("peak", [1e4, -1e4])
    def test_one_peak_in_an_hour_is_visible_in_500_pixels(self, at: int, peak: float) -> None:
        times = 1_000 + np.arange(36_000) * 0.1
        values = np.random.default_rng(at).normal(100, 5, 36_000)
        values[at] = peak
        columns = Columns.group(times, 3_600 / 500)
        drawn = columns.decimate(values)
        assert len(drawn) == len(columns.times) <= 2 * 502
        where = int(np.flatnonzero(drawn == peak)[0])
        assert abs(columns.times[where] - times[at]) <= 3_600 / 500

    @settings(deadline=None)  # the machine may be busy
    @given(
        st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(math.nan)), min_size=2, max_size=400),
        st.floats(0.05, 60.0),
        st.floats(0.0, 1e6),
    )
    def test_decimation_keeps_highest_and_lowest_values(
        self, values: list[float], width_s: float, start_s: float
    ) -> None:
        data = np.array(values)
        columns = Columns.group(start_s + np.arange(len(values)) * 0.1, width_s)
        drawn = columns.decimate(data)
        assert len(drawn) == len(columns.times)
        known, shown = data[~np.isnan(data)], drawn[~np.isnan(drawn)]
        assert set(shown) <= set(known)
        assert len(known) == 0 or (shown.max() == known.max() and shown.min() == known.min())
        assert np.all(np.diff(columns.times) >= 0)

    def test_a_column_without_a_value_is_a_gap(self) -> None:
        values = np.ones(1_000)
        values[300:600] = np.nan
        columns = Columns.group(np.arange(1_000) * 0.1, 1.0)
        empty = np.isnan(columns.decimate(values))
        assert columns.times[empty].min() == pytest.approx(30.0)
        assert columns.times[empty].max() == pytest.approx(60.0)

    def test_columns_keep_their_samples_as_time_advances(self) -> None:
        """Otherwise the curve would flicker while it moves."""
        samples = numbered_samples(3_100)
        shown = []
        for end_s in (400.0, 400.1, 403.7):
            part = samples.slice_between(end_s - 300, end_s)
            columns = Columns.group(samples.times(part), 0.6)
            drawn = columns.decimate(samples.values("x", part))
            pairs = zip(columns.times[4:-4:2], drawn[4:-4].reshape(-1, 2), strict=True)
            shown.append({round(float(time_s), 6): tuple(pair) for time_s, pair in pairs})
        common = shown[0].keys() & shown[1].keys() & shown[2].keys()
        assert len(common) > 450
        assert all(shown[0][time_s] == shown[1][time_s] == shown[2][time_s] for time_s in common)

    def test_few_samples_are_not_decimated(self) -> None:
        times, values = np.arange(50) * 0.1, np.arange(50.0)
        columns = Columns.group(times, 0.01)
        assert columns.times is times
        assert columns.decimate(values) is values


class TestSpan:
    def live(self, recorded_s: float = 4_000.0) -> TimeSpan:
        span = TimeSpan()
        span.set_recorded(1_000.0, 1_000.0 + recorded_s)
        return span

    def test_the_range_grows_to_the_last_five_minutes(self) -> None:
        for recorded_s, length_s in ((0, 30), (31, 60), (59, 60), (61, 120), (130, 300), (4_000, 300)):
            assert self.live(recorded_s).length_s == length_s

    def test_a_live_range_moves_and_a_held_one_does_not(self) -> None:
        span = self.live()
        span.hold()
        span.set_recorded(1_000.0, 6_000.0)
        assert (span.end_s, span.live) == (5_000.0, False)
        span.go_live()
        assert (span.end_s, span.live) == (6_000.0, True)

    def test_zooming_at_a_moment_keeps_its_place(self) -> None:
        span = self.live()
        span.pan(1_000)
        at_s = span.start_s + 100
        share = span.share_at(at_s)
        span.zoom(2, at_s)
        assert span.length_s == pytest.approx(300 / 1.25**2)
        assert span.share_at(at_s) == pytest.approx(share)

    def test_zooming_a_live_range_keeps_now_at_the_edge_within_limits(self) -> None:
        span = self.live()
        span.zoom(3, 4_800.0)
        assert span.live
        assert span.end_s == 5_000.0
        span.zoom(100, 5_000.0)
        assert span.length_s == SHORTEST_S
        span.zoom(-100, 5_000.0)
        assert span.length_s == LONGEST_S

    def test_panning_stops_at_both_ends_and_becomes_live_at_the_newest(self) -> None:
        span = self.live()
        span.pan(-50)
        assert span.live
        span.pan(1e6)
        assert span.end_s == pytest.approx(1_150)  # the oldest sample stays in sight
        assert not span.live
        span.pan(-1e6)
        assert span.live
        assert span.end_s == 5_000.0

    def test_home_returns_to_live_and_the_default_length(self) -> None:
        span = self.live()
        span.zoom(5, 5_000.0)
        span.pan(500)
        span.reset()
        assert (span.live, span.length_s, span.end_s) == (True, 300.0, 5_000.0)

    def test_a_moment_outside_is_scrolled_into_view(self) -> None:
        span = self.live()
        span.scroll_to(4_900.0)
        assert span.live
        span.scroll_to(2_000.0)
        assert span.start_s <= 2_000.0 <= span.end_s


class TestTicks:
    @settings(deadline=None)  # the machine may be busy
    @given(st.floats(0.001, 1e7), st.integers(1, 5))
    def test_values_have_round_ticks_up_to_a_number(self, top: float, most: int) -> None:
        step = tick_step(top, most)
        assert top / step <= most + 0.02
        digits = step / 10 ** math.floor(math.log10(step) + 1e-9)
        assert any(digits == pytest.approx(each) for each in (1, 2, 2.5, 5, 10))

    @settings(deadline=None)  # the machine may be busy
    @given(st.floats(0.0, 1e7))
    def test_the_axis_ends_at_a_round_value_above(self, value: float) -> None:
        top = round_up_nicely(value, 10.0)
        assert max(value, 10.0) <= top <= max(1.8 * value, 10.0)

    def test_relative_times_are_formatted(self) -> None:
        step_s, places = ticks_before(300, 6)
        assert [format_time_before_now(-place, step_s) for place in places] == [
            "now",
            "-1 min",
            "-2 min",
            "-3 min",
            "-4 min",
            "-5 min",
        ]
        step_s, places = ticks_before(60, 6)
        assert [format_time_before_now(-place, step_s) for place in places][1] == "-10 s"

    def test_clock_times_are_round(self) -> None:
        end_s = 1_700_000_012.3
        step_s, places = ticks_by_clock(end_s, 300, 6)
        assert step_s == 60
        assert len(places) == 5
        for place in places:
            assert (end_s + place) % 60 == pytest.approx(0, abs=1e-3) or (end_s + place) % 60 == pytest.approx(60)
            assert format_clock_time(end_s + place, step_s).count(":") == 1
        assert format_clock_time(end_s, 10).count(":") == 2
