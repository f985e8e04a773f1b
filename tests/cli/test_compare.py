"""`mtp-launcher compare` as a user types it."""

import json
from typing import Any

import pytest

from launcher.tuning.history import History
from tests.cli.in_process import run
from tests.tuning.measured import OFF, ON
from tests.tuning.measured import run as make_run


def answer(*arguments: str) -> Any:  # noqa: ANN401 -- any JSON value
    return json.loads(run(*arguments, "--json").stdout)


def test_two_measurements_are_compared_and_their_differences_listed(two_sessions: tuple[str, str]) -> None:
    result = run("compare", "aaa", "bbb")
    assert result.returncode == 0
    assert "A  aaa0000001  bench of Qwen3.6-35B-A3B UD-Q3_K_XL, code" in result.stdout
    assert "different: the GPU was NVIDIA GeForce RTX 4090 and is Tesla T4" in result.stdout
    assert "different: the model was Qwen3.6-35B-A3B UD-Q3_K_XL and is demo" in result.stdout
    assert "MTP off" in result.stdout
    found = answer("compare", "aaa", "bbb")
    (row,) = found["rows"]  # a row for settings that both sessions have measured
    assert row["ratio"]["estimate"] == pytest.approx(0.4007, abs=0.001)
    assert row["second"]["settings"]["draft"] == 0


def test_single_starts_give_no_interval(two_sessions: tuple[str, str]) -> None:
    for named in (("aaa", "bbb"), ("last:draft=0", "last:draft=2")):
        result = " ".join(run("compare", *named).stdout.split())
        assert "times as fast (too few starts for limits)" in result
        assert "Limits need 3 starts of each" in result
        assert "Compared " not in result
        (row,) = answer("compare", *named)["rows"]
        assert (row["ratio"]["low"], row["ratio"]["high"], row["told_apart"]) == (0.0, None, False)


def test_settings_of_one_measurement_are_compared_in_pairs(two_sessions: tuple[str, str]) -> None:
    with History() as history:  # two more starts with each of the settings, in turns
        history.add_runs(
            two_sessions[1], [make_run(rate, ON if rate > 25 else OFF) for rate in (20.1, 28.9, 20.0, 29.1)]
        )
    output = run("compare", "last:draft=0", "last:draft=2").stdout
    assert "MTP off -> draft 2" in output
    assert "% faster (" in output
    assert "Compared in pairs" in output
    assert "Limits need" not in output
    assert "The verdict of the tune uses only its final comparison" in " ".join(output.split())
    assert "It says: Draft 2 is 45 % faster" in " ".join(output.split())
    assert "different times" not in output
    (row,) = answer("compare", "bbb:draft=2", "bbb:draft=0")["rows"]
    assert row["paired"]
    assert row["ratio"]["high"] < 1


def test_measurements_that_cannot_be_compared_are_reported(two_sessions: tuple[str, str]) -> None:
    for words, what in (
        (("aaa", "bbb:draft=2,kv=q8_0"), ""),
        (("aaa:draft=5", "bbb"), "has not measured draft 5. "),
        (("aaa", "bbb:draft="), "matches no measurement"),
        (("aaa", "zzz"), "There is no measurement zzz."),
        (("aaa", "published:none"), "There is no published table none."),
        (("published:olares-one/context-sizes", "bbb"), "no settings in common"),
    ):
        result = run("compare", *words)
        assert (result.returncode == 0) == (not what)
        assert what.strip() in result.stderr


def test_a_measurement_is_compared_with_a_published_table(two_sessions: tuple[str, str]) -> None:
    output = run("compare", "published:olares-one/ten-runs", "aaa").stdout
    assert "249.3 ± 2.2" in output
    assert "different: the prompts were those of published and are those of code" in " ".join(output.split())
    assert "draft 3, ctx 32768" in output
    listed = run("history", "published").stdout
    assert "published:rtx-5060-ti/moe-fill" in listed
    assert len(answer("history", "published")["published"]) == 6
    assert "Source" in run("history", "show", "published:olares-one/ten-runs").stdout
