"""Bounded series of samples."""

import pickle
import tracemalloc

import pytest

from launcher.machine.gpu import Reading
from launcher.monitor.series import _SLACK, SPAN_S, Sample, Series


def filled_series(times: range, span_s: float = SPAN_S) -> Series:
    series = Series("gpu_power_w", span_s)
    for time_s in times:
        series.add(time_s, Reading(10.0 * time_s))
    return series


def test_a_new_series_is_empty_with_a_reason() -> None:
    series = Series("gpu_power_w")
    assert (len(series), list(series), series.last, series.absent) == (0, [], None, "Not measured yet.")
    assert series.since(0) == []


def test_samples_keep_their_order() -> None:
    assert list(filled_series(range(3))) == [Sample(0, 0.0), Sample(1, 10.0), Sample(2, 20.0)]


def test_a_full_series_drops_the_oldest() -> None:
    series = filled_series(range(10), span_s=4)
    assert [sample.time_s for sample in series] == [6, 7, 8, 9]
    assert len(series) == 4
    assert [sample.time_s for sample in series.since(0)] == [6, 7, 8, 9]


@pytest.mark.parametrize("per_second", [1, 10])
def test_a_series_holds_ten_minutes_at_any_rate(per_second: int) -> None:
    series = Series("gpu_power_w")
    for index in range(1_000 * per_second):
        series.add(index / per_second, Reading(1.0))
    assert len(series) == 600 * per_second
    assert len(pickle.dumps(series)) <= 16 * (600 * per_second + _SLACK) + 1_000  # two numbers of 8 bytes a sample
    oldest, *_, newest = series
    assert newest.time_s - oldest.time_s < 600


def test_ten_minutes_take_little_memory() -> None:
    tracemalloc.start()
    try:
        filled_series(range(6_000), span_s=6_000)
        series = filled_series(range(6_000), span_s=6_000)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(series) == 6_000
    assert taken < 32 * 6_000


@pytest.mark.parametrize(
    ("time_s", "expected"), [(-1, [0, 1, 2, 3]), (0, [0, 1, 2, 3]), (1.5, [2, 3]), (2, [2, 3]), (3.5, [])]
)
def test_since_includes_its_time_and_is_ordered(time_s: float, expected: list[int]) -> None:
    assert [sample.time_s for sample in filled_series(range(4)).since(time_s)] == expected


def test_an_unknown_value_is_a_gap_with_a_reason() -> None:
    series = filled_series(range(1))
    series.add(1, Reading.unknown("The GPU stopped answering."))
    assert (series.last, series.absent) == (None, "The GPU stopped answering.")
    assert list(series) == [Sample(0, 0.0), Sample(1, None)]


def test_a_value_clears_the_reason() -> None:
    series = Series("gpu_power_w")
    series.add(0, Reading.unknown("Too few tokens."))
    series.add(1, Reading(0.0, "ignored beside a value"))
    assert (series.last, series.absent) == (0.0, None)


@pytest.mark.parametrize("reason", [None, ""])
def test_a_gap_without_a_reason_has_a_general_one(reason: str | None) -> None:
    series = Series("gpu_power_w")
    series.add(0, Reading(None, reason))
    assert series.absent == "Unknown."
