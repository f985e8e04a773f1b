"""`mtp-launcher tune` as a user types it, on the real built-in engine."""

import json
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.cli.options.tune import AIMS
from launcher.cli.tune import describe_settings, format_minutes
from launcher.tuning.goal import Aim
from tests import forked

WORKLOAD = """
name = "boats"
title = "Boats"
version = 1
source = "these tests"
tokens = 24
[sampling]
temperature = 0.0
[[prompts]]
name = "river"
text = "Tell me of a boat on a river."
"""


@pytest.fixture
def quick_tune(tmp_path: Path) -> list[str]:
    """A workload of a short reply, and nothing but the draft length to vary."""
    path = tmp_path / "boats.toml"
    path.write_text(WORKLOAD)
    return ["demo", "--workload", str(path), "--vary", "none"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run("tune", *arguments, timeout=240)


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run("bench", *arguments, "--runs", "1", timeout=240)


def test_a_budget_that_is_too_short_is_refused_with_the_shortest_sufficient_one(quick_tune: list[str]) -> None:
    quick_tune[quick_tune.index("none")] = "n-cpu-moe"
    done = run(*quick_tune, "--budget", "0.001", "--yes")
    assert done.returncode == 1
    assert "  note      n-cpu-moe: not varied, because this model, engine and computer" in done.stdout
    assert "first look" not in done.stdout
    found = re.search(r"0 s are too short: the first trials alone take about (\d+) s \(a guess\)", done.stderr)
    assert found, done.stderr
    least = re.search(r"Add `--budget ([\d.]+)` or more", done.stderr)
    assert least, done.stderr
    assert int(found[1]) - 1 <= 60 * float(least[1]) <= int(found[1]) + 7


@pytest.mark.thorough
def test_the_plan_comes_first_then_each_trial_then_the_verdict(quick_tune: list[str]) -> None:
    done = run(*quick_tune, "--budget", "0.1", "--yes")
    assert done.returncode == 0, done.stderr
    plan, result = done.stdout.split("\n  setting", 1)
    assert plan.startswith("Tune demo for boats, by tokens/s\n")
    assert "draft 0 (MTP off), 1 to 8" in plan
    assert "6 s at most" in plan
    assert plan.count("  time      ") == 2  # the guess, and the plan as it was measured
    assert "(as measured here)" in " ".join(plan.split())
    assert "  1  first look  off " in plan
    assert "tokens/s" in result
    assert "MTP" in result or "Undecided" in result
    again = run("demo", "--continue")
    assert again.returncode == 0, again.stderr
    assert again.stdout.splitlines()[0] in done.stdout.replace("\n", " ") + done.stdout


def without_time(event: dict[str, Any]) -> dict[str, Any]:
    """Return a trial without what its event adds."""
    return {name: value for name, value in event.items() if name not in ("event", "at_s")}


def test_json_ends_with_the_verdict_and_all_trials(quick_tune: list[str]) -> None:
    began_s = time.time()
    done = run(*quick_tune, "--budget", "0.1", "--json")
    assert done.returncode == 0, done.stderr
    plan, *events, end = map(json.loads, done.stdout.splitlines())
    assert plan["event"] == "plan"
    trials = [each for each in events if each["event"] == "trial"]
    answer = next(each for each in events if each["event"] == "answer")
    assert sum(each["event"] == "trial" for each in events[: events.index(answer)]) <= 4
    assert {"mtp", "draft", "settings", "likely", "gain", "risk", "sentence"} <= answer.keys()
    assert plan["seconds"] <= plan["budget_s"] == 6
    assert plan["servers"] == []
    assert {"--model", "--ctx-size"} <= set(plan["command"])
    verdict = end["verdict"]
    assert {"likely", "mtp", "draft", "speedup", "ci_low", "ci_high", "sentence"} <= verdict.keys()
    assert verdict["mtp"] in ("on", "off", "undecided")
    assert end["applied"] is False
    assert (plan["when_idle"], end["waited_s"]) == (False, None)
    assert end["trials"] == [without_time(each) for each in trials]
    times = [each["at_s"] for each in (plan, *events)]
    assert times == sorted(times)
    assert began_s <= times[0] <= times[-1] <= time.time()
    begun = {each["number"]: each["at_s"] for each in events if each["event"] == "trial_begins"}
    assert all(begun[each["number"]] <= each["at_s"] for each in trials)
    first = trials[0]
    assert (first["settings"], first["stage"], first["error"]) == ({"draft": 0}, "probe", None)
    assert first["value"] > 0


def test_ctrl_c_pauses_and_says_how_to_continue(quick_tune: list[str]) -> None:
    with forked.start("tune", *quick_tune, "--json", stdout=subprocess.PIPE) as program:
        assert program.stdout
        trials, last = [], {}
        for line in program.stdout:
            last = json.loads(line)
            if last["event"] == "trial":  # other events may report a busy processor
                trials.append(last)
                if len(trials) == 2:
                    program.send_signal(signal.SIGINT)
    assert program.returncode == 130
    assert (last["event"], last["trials"]) == ("paused", len(trials))
    drafted = trials[1]
    assert 0 < drafted["draft_n_accepted"] <= drafted["draft_n"]
    assert len(drafted["acceptance_by_position"]) == drafted["settings"]["draft"]
    refused = run("demo", "--continue", "--vary", "none")
    assert refused.returncode == 1
    assert "vary cannot be changed" in refused.stderr
    with forked.start("tune", "demo", "--continue", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as again:
        assert again.stdout
        assert again.stderr
        lines = []
        for line in again.stdout:
            lines.append(line)
            # The trial after the next: two trials are measured in this run.
            if line.startswith(f"{len(trials) + 2:>3}  "):
                beside = bench("demo")
                second = run(*quick_tune, "--yes")
                again.send_signal(signal.SIGINT)
        output = again.stderr.read()
    assert any(line.startswith("  done      ") for line in lines)
    assert "Resume with `mtp-launcher tune --continue`." in output
    assert beside.returncode == 1
    assert "tune is already running" in beside.stderr
    assert second.returncode == 1
    assert "tune is already running" in second.stderr
    assert second.stdout == ""  # the second tune prints no plan, because it cannot begin
    new = run(*quick_tune, "--json", "--budget", "0.001")
    assert json.loads(new.stdout.splitlines()[0])["replaces"] >= len(trials)


def test_a_killed_tune_continues(quick_tune: list[str]) -> None:
    with forked.start("tune", *quick_tune, "--json", stdout=subprocess.PIPE) as program:
        assert program.stdout
        received = []
        for line in program.stdout:
            received.append(json.loads(line))
            if sum(each["event"] == "trial" for each in received) == 2:
                program.kill()
    kept = [without_time(each) for each in received if each["event"] == "trial"]
    done = run("--continue", "--budget", "0.01", "--json")
    assert done.returncode == 0, done.stderr
    plan, *events, end = map(json.loads, done.stdout.splitlines())
    trials = [without_time(each) for each in events if each["event"] == "trial"]
    assert plan["done"] >= len(kept)
    assert trials[: len(kept)] == kept
    assert end["verdict"]["mtp"] == "undecided" or end["verdict"]["likely"] is not None
    used_s = sum(each["seconds"] for each in trials)
    more = run("--continue", "--budget", str(used_s / 60 + 0.08), "--json")
    plan, *events, end = map(json.loads, more.stdout.splitlines())
    again = [without_time(each) for each in events if each["event"] == "trial"]
    assert again[: len(trials)] == trials
    assert len(again) > len(trials)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--continue"], "no tune to resume"),
        (["demo", "--continue", "--apply"], "no tune to resume"),
        (["demo", "--goal", "energy"], "no power sensor here"),
        (["--yes"], "`mtp-launcher tune MODEL`"),
        (["demo", "--workload", "poetry"], "poetry is not a workload"),
        (["demo", "--vary", "colour"], "colour is not a setting that a tune can vary"),
        (["demo", "--vary", "kv, n-cpu-moes"], "n-cpu-moes is not a setting that a tune can vary"),
        (["demo", "--mix", "4K:300"], "Add --goal answer"),
        ([], "No model was loaded before"),
    ],
)
def test_impossible_tunes_are_refused(arguments: list[str], expected: str) -> None:
    done = run(*arguments)
    assert done.returncode == 1
    assert expected in done.stderr


@pytest.mark.parametrize("wrong", [["--budget", "0"], ["--goal", "fame"], ["--mix", "4K"], ["--budget", "nan"]])
def test_wrong_usage_is_refused(wrong: list[str]) -> None:
    assert run("demo", *wrong).returncode == 2


def test_settings_and_times_are_formatted_as_text() -> None:
    home = {"n_cpu_moe": 22, "p_min": 0.0}
    assert describe_settings({"draft": 0, "n_cpu_moe": 22, "p_min": 0.0}, home) == "off"
    assert describe_settings({"draft": 2, "n_cpu_moe": 20, "p_min": 0.5}, home) == "draft 2, n-cpu-moe 20, p-min 0.5"
    assert [format_minutes(s) for s in (9, 60, 200, 7_500)] == ["9 s", "1 min", "3 min 20 s", "2 h 5 min"]
    assert set(AIMS) == set(Aim)
