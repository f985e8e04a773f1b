"""`curve` and `endure` on the demo: tables, JSON, costs, and interrupts."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from launcher.app.measuring.saved_tunes import hold_tune_lock
from launcher.engine.server import registry
from tests import forked

_PRICED = ["COST", "PER", "MILLION", "REPLIES"]
SHORT = ["--set", "threads=1", "--set", "ctx=1024"]


@pytest.fixture
def short_workload(tmp_path: Path) -> str:
    """A workload of short replies."""
    path = tmp_path / "short.toml"
    sampling = "[sampling]\ntemperature = 0.0\n"
    prompt = "[[prompts]]\nname = 'ask'\ntext = 'What is MTP?'\n"
    path.write_text(f"name = 'short'\ntitle = 'Short'\nversion = 1\nsource = 'a test'\ntokens = 24\n{sampling}{prompt}")
    return str(path)


def run_command(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return forked.run(*arguments)


def interrupt_command(*arguments: str, at: str) -> tuple[int, str, str]:
    """Interrupt a command once it has printed a line with `at` on standard error."""
    with forked.start(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr
        seen = []
        for line in process.stderr:
            seen.append(line)
            if at in line:
                break
        process.send_signal(signal.SIGINT)
        out, rest = process.communicate()
        return process.returncode, out, "".join(seen) + rest


def test_a_fill_curve_as_a_table_and_a_chart(
    short_workload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    chart, priced = tmp_path / "speed.svg", ["--price-kwh", "0.30", "--watts", "100"]
    done = run_command(
        *("curve", "demo", "--fill", "0,300", "--rounds", "2", "--workload", short_workload, *SHORT, *priced),
        *("--chart", str(chart)),
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == [
        "fill",
        "no",
        "MTP",
        "t/s",
        "draft",
        "2",
        "t/s",
        "times",
        "accepted",
        "read",
        "t/s",
        "first",
        "token",
        "s",
        *("a", "million", "no", "MTP", "a", "million", "draft", "2"),
    ]
    assert [line.split()[0] for line in lines[1:3]] == ["0", "300"]
    assert all(line.count(" ± ") + line.count(" (too few runs for limits)") == 2 for line in lines[1:3])
    assert "Draft 2 is " in done.stdout
    assert "Kept as " in done.stdout
    assert "tokens in the context" in chart.read_text(encoding="utf-8")
    kept = run_command("history", "show", "last").stdout.splitlines()
    head = next(line.split() for line in kept if line.split()[:1] == ["FILL"])
    assert head == ["FILL", "SERIES", "TOKENS/S", "TIMES", "ACCEPTED", "READING", "FIRST", "TOKEN", *_PRICED]
    assert "demo, no MTP and draft 2: fill 0, 300; 8 points in 2 rounds, replies of 24 tokens." in (
        done.stderr.replace("\n", " ")
    )
    assert done.stderr.count("tokens/s") == 8
    assert registry.list_entries() == ()


@pytest.mark.thorough
def test_streams_are_json_with_their_cost(short_workload: str) -> None:
    prices = ["--price-kwh", "0.30", "--cloud-price", "0.60", "--watts", "100"]
    done = run_command(
        "curve", "demo", "--streams", "1,2", "--rounds", "1", "--json", "--workload", short_workload, *SHORT, *prices
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert (found["axis"], found["complete"]) == ("streams", True)
    assert [(point["series"], point["at"], point["replies"]) for point in found["points"]] == [
        ("no MTP", 1, 1),
        ("no MTP", 2, 2),
        ("draft 2", 1, 1),
        ("draft 2", 2, 2),
    ]
    for point in found["points"]:
        joules = 100 / point["tokens_per_second"]["estimate"]  # of all streams together
        assert point["cost"]["joules_per_token"] == pytest.approx(joules, rel=1e-3)
        assert point["cost"]["per_million_tokens"] == pytest.approx(joules / 3.6 * 0.30, rel=1e-3)
        assert point["tokens_per_second"]["low"] is None
    assert len(found["rounds"]) == 4
    assert [each["at"] for each in found["ratios"]] == [1, 2]
    kept = json.loads(run_command("history", "show", found["kept"], "--json").stdout)
    assert kept["kind"] == "curve"


def test_an_interrupted_curve_shows_its_finished_points(short_workload: str) -> None:
    arguments = ["curve", "demo", "--fill", "0,300", "--workload", short_workload, *SHORT]
    code, out, err = interrupt_command(*arguments, at="no MTP at 0:")
    assert code == 130, err
    assert "Interrupted: this is what was measured until then. Kept as " in out.replace("\n", " ")
    assert out.lstrip().startswith("fill ")
    assert "Traceback" not in err
    assert registry.list_entries() == ()


@pytest.mark.thorough
def test_a_speed_that_holds_or_falls_is_reported_with_its_rows(short_workload: str) -> None:
    done = run_command(
        "endure", "demo", "--minutes", "0.05", "--draft", "1", "--json", "--workload", short_workload, *SHORT
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["answer"] in ("holds", "falls", "undecided")
    assert found["sentence"]
    assert found["seconds"] > 2.9
    assert found["replies"] >= 1
    assert found["rows"]
    assert found["rows"][0]["steps_per_second"] > 0
    assert (found["draft"], found["complete"]) == (1, True)


def test_an_interrupted_endurance_test_is_judged_by_its_finished_part(short_workload: str) -> None:
    arguments = ["endure", "demo", "--minutes", "60", "--workload", short_workload, "--price-kwh", "0.3", *SHORT]
    with forked.start(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr
        assert "60 min of load" in process.stderr.readline()
        wait_for_runs()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 130, err
    assert "steps/s" in out
    assert "Interrupted: this is what was measured until then." in out.replace("\n", " ")
    assert "no power sensor" in out.replace("\n", " ") or "kWh" in out
    assert "Traceback" not in err


def wait_for_runs() -> None:
    """Wait until the history has a reply: it is written while the load goes on."""
    import time

    from launcher.tuning.history import History

    until = time.monotonic() + 240
    while time.monotonic() < until:
        with History() as history:
            if any(summary.runs for summary in history.find_sessions(kind="endure")):
                return
        time.sleep(0.05)
    raise AssertionError("no reply within four minutes")


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["curve", "demo", "--fill", "0", "--streams", "1"], 2, "not allowed with"),
        (["curve", "demo", "--fill", "many"], 2, "not a number of tokens"),
        (["curve", "demo", "--draft", "-1"], 2, ""),
        (["curve", "demo", "--rounds", "0"], 2, "from 1 to 100"),
        (["curve", "demo", "--set", "draft=3"], 1, "Use --draft."),
        (["curve", "demo", "--cloud-price", "1"], 1, "Add --price-kwh."),
        (["curve", "demo", "--price-kwh", "-1"], 1, "The price must be 0 or more."),
        (["curve", "demo", "--streams", "0"], 1, "1 or more"),
        (["curve", "demo", "--workload", "nothing-like-it"], 1, "is not a workload"),
        (["endure", "demo", "--minutes", "0"], 2, "number of minutes"),
        (["endure", "demo", "--draft", "99"], 1, "--draft"),
        (["endure", "demo", "--agent", "nobody"], 1, "nobody is not a coding agent"),
        (["curve", "demo", "--draft", "99"], 1, "--draft"),
        (["endure", "nothing.gguf"], 1, "nothing.gguf"),
    ],
)
def test_subjects_that_cannot_be_measured_are_reported(arguments: list[str], code: int, expected: str) -> None:
    done = run_command(*arguments)
    assert done.returncode == code, done.stderr
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("verb", ["curve", "endure"])
def test_nothing_is_measured_beside_a_tune(verb: str) -> None:
    with hold_tune_lock():
        done = run_command(verb, "demo")
    assert done.returncode == 1
    assert "tune is already running" in done.stderr
