"""Two measurements compared: the matched rows, the differences, and the sentences."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from launcher.base.codec import to_json
from launcher.base.errors import BadOption
from launcher.tuning.history_records import Session
from launcher.tuning.records import Run, RunSettings
from launcher.tuning.report import compare_sessions
from tests.tuning.measured import ENVIRONMENT, OFF, ON, run

THREE: RunSettings = {"draft": 3, "kv": "q8_0"}
NOISE = (1.0, 1.01, 0.99, 1.005)


def runs_of_starts(*settings: tuple[RunSettings, float], times: int) -> tuple[Run, ...]:
    """Runs of `times` starts of each of the settings, in turns; the runs of one round share the same noise."""
    rates = [(of, NOISE[turn] * rate * (1 + 0.3 * turn)) for turn in range(times) for of, rate in settings]
    return tuple(run(rate, of) for of, rate in rates)


def session(id: str, runs: Sequence[Run], kind: str = "bench", workload: str = "code", **result: object) -> Session:  # noqa: A002
    return Session(id, kind, workload, 0.0, 1.0, ENVIRONMENT, runs[0].settings, result, tuple(runs))


def test_settings_in_turns_are_paired_by_start() -> None:
    both = session("a", runs_of_starts((OFF, 50.0), (ON, 75.0), times=4))
    (row,) = compare_sessions(both, both, {"draft": "0"}, {"draft": "2"}).rows
    assert row.speedup is not None
    assert row.speedup.paired
    assert row.speedup.ratio.estimate == pytest.approx(1.5)
    assert row.speedup.distinguishable
    assert row.label == "MTP off -> draft 2"
    assert row.sentence is not None
    assert row.sentence.startswith("50.0 % faster (")


def test_two_measurements_did_not_take_turns_and_their_times_are_in_the_difference() -> None:
    runs, turned = runs_of_starts((OFF, 50.0), (ON, 75.0), times=4), runs_of_starts((ON, 75.0), (OFF, 50.0), times=4)
    before, after = (
        session("a", runs),
        session("b", [replace(each, decode_rate=2 * (each.decode_rate or 0)) for each in turned]),
    )
    found = compare_sessions(before, after)
    assert [(row.label, row.speedup.paired if row.speedup else None) for row in found.rows] == [
        ("MTP off, kv q8_0", False),
        ("draft 2, kv q8_0", False),
    ]
    assert [row.speedup.ratio.estimate for row in found.rows if row.speedup] == pytest.approx([2.0, 2.0])
    assert found.notes == (
        "Compared as two groups (Welch's t test on the logarithms of the speeds).",
        "They were measured at different times, so changes in between affect the difference.",
    )


@pytest.mark.parametrize(("times", "limits"), [(1, False), (2, False), (3, True)])
def test_limits_take_three_starts_of_each(times: int, limits: bool) -> None:
    often = session("a", runs_of_starts((OFF, 50.0), (THREE, 80.0), times=4))
    few = session("b", runs_of_starts((OFF, 60.0), (THREE, 80.0), times=times))
    for found in (
        compare_sessions(often, few),
        compare_sessions(few, often),
        compare_sessions(few, few, {"draft": "0"}, {"draft": "3"}),
    ):
        for row in found.rows:
            assert row.speedup is not None
            assert row.has_limits is limits
            assert math.isfinite(row.speedup.ratio.high) is limits
            assert row.speedup.ratio.low > 0 or not limits
            assert ("too few starts for limits" in (row.sentence or "")) is not limits
        assert any(note.startswith("Limits need 3 starts of each") for note in found.notes) is not limits
        assert any(note.startswith("Compared") for note in found.notes) is limits
    assert any("different times" in note for note in compare_sessions(often, few).notes)


def test_the_tunes_own_verdict_is_reported_beside_its_own_settings_only() -> None:
    runs = runs_of_starts((OFF, 50.0), (ON, 75.0), times=3)
    tune, other = session("a", runs, "tune", sentence="Draft 2 it is."), session("b", runs, "tune", sentence="Or not.")
    assert compare_sessions(tune, tune, {"draft": "0"}, {"draft": "2"}).notes[0].endswith("It says: Draft 2 it is.")
    for first, second in (
        (tune, other),
        (session("a", runs, "tune"),) * 2,
        (session("a", runs, sentence="A mean."),) * 2,
    ):
        assert not any("It says" in note for note in compare_sessions(first, second).notes)


def test_differences_are_listed_with_prompts_first() -> None:
    runs = runs_of_starts((OFF, 50.0), times=3)
    other = replace(session("b", runs, workload="prose"), environment=replace(ENVIRONMENT, cpu=None))
    assert compare_sessions(session("a", runs), other).differences == (
        "The prompts were those of code and are those of prose.",
        "The processor was AMD Ryzen 9 7950X and is unknown.",
    )
    assert compare_sessions(session("a", runs), replace(other, workload="", environment=ENVIRONMENT)).differences == (
        "The prompts were those of code and are those of no workload.",
    )
    elsewhere = session("b", [replace(each, prompt="another") for each in runs])
    assert compare_sessions(session("a", runs), elsewhere).differences == (
        "The prompts of code have changed since then.",
    )
    more = session("b", [*runs, run(9.0, prompt="another")])
    assert compare_sessions(session("a", runs), more).differences == ()


def test_sessions_are_compared_by_their_common_settings_or_by_the_only_ones_of_each() -> None:
    mixed = session("a", [*runs_of_starts((OFF, 50.0), times=1), *runs_of_starts((ON, 75.0), times=1)])
    other = session("b", [*runs_of_starts((THREE, 80.0), times=1), *runs_of_starts((ON, 60.0), times=1)])
    assert [row.label for row in compare_sessions(mixed, other).rows] == ["draft 2, kv q8_0"]
    turned = session("d", [*runs_of_starts((ON, 60.0), times=1), *runs_of_starts((THREE, 80.0), times=1)])
    assert [row.label for row in compare_sessions(mixed, turned, {"draft": "2"}).rows] == ["draft 2, kv q8_0"]
    lone = session("c", runs_of_starts((THREE, 80.0), times=1))
    assert [row.label for row in compare_sessions(session("b", runs_of_starts((OFF, 50.0), times=1)), lone).rows] == [
        "MTP off -> draft 3"
    ]
    assert [row.label for row in compare_sessions(mixed, lone, {"draft": "2"}).rows] == ["draft 2 -> draft 3"]
    with pytest.raises(BadOption, match="no settings in common") as caught:
        compare_sessions(mixed, lone)
    assert "MTP off, kv q8_0; draft 2, kv q8_0; draft 3, kv q8_0" in caught.value.hint


def test_a_setting_chosen_on_both_sides_is_compared_for_all_others() -> None:
    kinds = [{"draft": draft, "kv": kv} for draft in (0, 2) for kv in ("f16", "q8_0")]
    both = session("a", [run(50.0 + at, of) for at, of in enumerate(kinds)])
    assert [row.label for row in compare_sessions(both, both, {"kv": "F16 "}, {"KV": "q8_0"}).rows] == [
        "MTP off, kv f16 -> MTP off, kv q8_0",
        "draft 2, kv f16 -> draft 2, kv q8_0",
    ]


def test_unmeasured_settings_are_refused_with_the_measured_ones() -> None:
    unset = session("a", [run(50.0, {"draft": 0, "n_cpu_moe": None}), run(60.0, {"draft": 2, "n_cpu_moe": 4})])
    assert [row.label for row in compare_sessions(unset, unset, {"n-cpu-moe": "default"}, {"n_cpu_moe": "4"}).rows] == [
        "MTP off -> draft 2, n-cpu-moe 4"
    ]
    with pytest.raises(BadOption, match="a has not measured draft 5") as caught:
        compare_sessions(unset, unset, {"draft": "5"})
    assert caught.value.hint == "Available: MTP off; draft 2, n-cpu-moe 4."
    plain = session("b", [run(50.0, {}), run(60.0, {"draft": 2})])
    assert [row.label for row in compare_sessions(plain, plain, {"draft": "0"}, {"draft": "2"}).rows] == [
        "as served -> draft 2"
    ]


def test_without_counted_runs_there_is_no_comparison() -> None:
    lost = session("a", [run(None, error="It ended.")])
    found = compare_sessions(lost, session("b", runs_of_starts((OFF, 50.0), times=3)))
    (row,) = found.rows
    assert (row.speedup, row.sentence, row.has_limits) == (None, None, False)
    assert found.notes == ()
    (result,) = to_json(found)["rows"]
    assert [result[name] for name in ("ratio", "paired", "told_apart", "sentence")] == [None] * 4


def test_the_json_has_all_figures() -> None:
    first, second = (
        session(id_, runs_of_starts((OFF, rate), (ON, rate), times=3)) for id_, rate in (("a", 50.0), ("b", 500.0))
    )
    result = to_json(compare_sessions(first, second))
    assert (result["first"]["id"], result["second"]["id"]) == ("a", "b")
    assert result["first"] | {"id": "b"} == result["second"]
    assert (result["first"]["kind"], result["first"]["workload"]) == ("bench", "code")
    assert result["first"]["environment"] == to_json(ENVIRONMENT)
    row = result["rows"][0]
    assert row["ratio"]["estimate"] == pytest.approx(10.0)
    rates = [row[which]["tokens_per_second"]["mean"] for which in ("first", "second")]
    assert rates[1] == pytest.approx(10 * rates[0])
    assert (row["paired"], row["told_apart"]) == (False, True)
    assert row["sentence"].startswith("900.0 % faster (")
    assert (row["first"]["runs"], row["second"]["runs"]) == (3, 3)
    assert result["notes"] == list(compare_sessions(first, second).notes)
    assert result["differences"] == []
