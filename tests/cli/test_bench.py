"""`mtp-launcher bench` as a user types it, on the real built-in engine with the demo model."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from launcher.engine.serve_options import DEFAULT_DRAFT
from launcher.tuning.history import History
from launcher.tuning.workloads import load_workload, shipped_workloads
from tests import forked
from tests.app.planning.test_tuned_match import SETTINGS as PRESET
from tests.app.planning.test_tuned_match import local_environment, save_tuned
from tests.cli.test_commands import find_port

SHORT = 'name = "short"\ntitle = "Short"\nversion = 3\nsource = "this test"\ntokens = 60\nsampling = {{ {} }}\n'
PROMPTS = '[[prompts]]\nname = "{}"\ntext = "{}"\n'


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run(*arguments, timeout=120)


def answer(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.returncode == 0, result.stderr
    return dict(json.loads(result.stdout))


@pytest.fixture
def short_workload(tmp_path: Path) -> Path:
    """A workload of two prompts that takes a second."""
    path = tmp_path / "short.toml"
    both = PROMPTS.format("one", "What is MTP?") + PROMPTS.format("two", "When should MTP be switched off?")
    path.write_text(SHORT.format("temperature = 0.8") + both)
    return path


@contextmanager
def serve_model(*arguments: str) -> Iterator[dict[str, Any]]:
    with forked.start("serve", *arguments, "--json", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            yield dict(json.loads(process.stdout.readline()))
        finally:
            process.terminate()
            process.wait(120)


def test_bench_serves_the_model_and_stores_its_runs(short_workload: Path) -> None:
    result = answer(
        "bench", "demo", "--workload", str(short_workload), "--runs", "2", "--set", "draft=3", "--set", "ctx=2K"
    )
    assert result["workload"] == {"name": "short", "version": 3}
    assert result["settings"]["draft"] == 3
    assert result["settings"]["ctx"] == 2_048
    assert [each["prompt"] for each in result["runs"]] == ["one", "two"] * 2
    rates = [each["tokens_per_second"] for each in result["runs"]]
    assert result["mean"] == pytest.approx(fmean(rates), abs=0.01)
    assert result["stdev"] == pytest.approx(stdev(rates), abs=0.01)
    assert result["ci_low"] < result["mean"] < result["ci_high"]
    assert result["rounds"] == 2
    assert result["draft_n"] == sum(each["draft_n"] for each in result["runs"])
    assert result["acceptance"] == pytest.approx(result["draft_n_accepted"] / result["draft_n"], abs=1e-4)
    assert len(result["acceptance_by_position"]) == 3
    assert all(each["cache_n"] == 0 and each["prefill_per_second"] > 0 for each in result["runs"])
    assert json.loads(run("status", "--json").stdout) == [], "nothing is left running"
    with History() as history:
        (kept,) = history.find_sessions(kind="bench")
        session = history.load(kept.id)
    assert (session.workload, len(session.runs)) == ("short", 4)
    assert session.environment.model.name == "MTP demo"
    assert session.settings["draft"] == session.runs[0].settings["draft"]
    assert kept.sentence
    assert kept.sentence.startswith(f"{kept.decode_rate:.1f} tokens/s for short with draft")


@pytest.mark.thorough
def test_a_running_server_is_measured_with_its_settings(short_workload: Path) -> None:
    with serve_model("demo", "--draft", "4", "--ctx", "2048") as server:
        result = answer("bench", "--workload", str(short_workload), "--runs", "2")
        same = run("bench", "demo", "--workload", str(short_workload), "--runs", "1")
        other = run("bench", "--set", "draft=1")
        nowhere = run("bench", "--url", "http://127.0.0.1:9")
    assert result["url"] == server["url"]
    assert (result["settings"]["draft"], result["settings"]["ctx"]) == (4, 2_048)
    assert result["model"] == "MTP demo", "as its file says, which the server names"
    assert len(result["acceptance_by_position"]) == 4
    assert same.returncode == 0
    assert f"Asking {server['url']}" in same.stderr
    assert "Short (version 3) on MTP demo" in same.stdout
    assert "accepted (" in same.stdout
    assert "over 2 replies" in same.stdout
    assert other.returncode == 1
    assert "restart --set" in other.stderr
    assert "No server of this program runs" in nowhere.stderr


@pytest.mark.thorough
def test_two_servers_are_measured_in_turns_and_shown_in_one_table(short_workload: Path) -> None:
    with serve_model("demo", "--draft", "0") as off, serve_model("demo", "--draft", "4", "--port", find_port()) as on:
        against = ["--url", off["url"], "--against", f"{on['url']}/v1", "--workload", str(short_workload)]
        result = answer("bench", *against, "--runs", "3")
        table = run("bench", *against, "--runs", "1")
        alone = run("bench", "--against", off["url"], "--against", on["url"], "--runs", "1", "--within", "2")
    first, second = result["servers"]
    assert (first["url"], second["url"]) == (off["url"], on["url"])
    assert first["clock"] == second["clock"] == "engine"
    assert first["acceptance"] is None
    assert second["acceptance"] > 0
    assert first["ratio"] is None
    assert second["ratio"]["n"] == 3
    assert second["ratio"]["low"] < second["ratio"]["estimate"] < second["ratio"]["high"]
    assert [each["prompt"] for each in second["runs"]].count("one") == 3
    assert table.returncode == 0
    assert f"{on['url']} (llama-server)" in table.stdout
    assert "no drafts" in table.stdout
    assert "unknown: at least 3 rounds are needed (--runs)" in table.stdout
    assert alone.returncode == 2


def test_another_model_is_not_measured_while_a_server_runs(demo_model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.symlink_to(demo_model)
    with serve_model("demo"):
        result = run("bench", str(other))
    assert result.returncode == 1
    assert "has demo, and no other model can be measured beside it" in result.stderr


@pytest.mark.thorough
def test_the_time_limit_ends_a_benchmark(short_workload: Path) -> None:
    result = answer("bench", "demo", "--workload", str(short_workload), "--within", "0.000001", "--budget", "0.000001")
    assert result["ended"] == "budget"
    assert len(result["runs"]) == 2
    assert result["ci_low"] is None


def test_a_model_that_cannot_be_served_is_reported_with_a_hint(demo_model: Path, short_workload: Path) -> None:
    result = run(
        "bench", str(demo_model), "--workload", str(short_workload), "--engine", "built-in", "--set", "n-cpu-moe=2"
    )
    assert result.returncode == 1
    assert "all experts are already there" in result.stderr
    wrong = json.loads(run("bench", "demo", "--workload", "sonnets", "--json").stdout)
    assert wrong["error"]["code"] == "bad_option"


def test_an_interrupted_benchmark_leaves_no_server_and_keeps_its_runs(tmp_path: Path) -> None:
    endless = tmp_path / "endless.txt"
    endless.write_text("\n".join(f"What is the number {number}?" for number in range(500)))
    command = ["bench", "demo", "--workload", str(endless), "--runs", "100"]
    with forked.start(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        deadline_s = time.monotonic() + 240
        while not runs_kept() and time.monotonic() < deadline_s:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert runs_kept() >= 1
    with History() as history:
        assert [each.sentence for each in history.find_sessions()] == ["Cancelled before it finished."]
    assert json.loads(run("status", "--json").stdout) == []


def runs_kept() -> int:
    with History() as history:
        return sum(each.runs for each in history.find_sessions())


def test_the_workloads_are_listed() -> None:
    result = json.loads(run("bench", "--list", "--json").stdout)
    assert [each["name"] for each in result] == [each.name for each in shipped_workloads()]
    assert "published" in run("bench", "--list").stdout
    assert {each["name"]: each["runs"] for each in result}["published"] == load_workload("published").rounds == 10


@pytest.mark.parametrize(
    "arguments",
    [["--runs", "0"], ["--runs", "3", "--within", "2"], ["--within", "80"], ["--budget", "0"], ["--set", "draft"]],
)
def test_contradictory_options_are_refused(arguments: list[str]) -> None:
    assert run("bench", *arguments).returncode == 2


def test_the_other_server_is_checked_before_the_model_is_loaded(short_workload: Path) -> None:
    done = run("bench", "demo", "--workload", str(short_workload), "--against", "nowhere.invalid")
    assert done.returncode == 1
    assert "nowhere.invalid" in done.stderr
    assert "Loading" not in done.stderr
    with History() as history:
        assert history.find_sessions() == ()


@pytest.mark.parametrize(
    ("setting", "hint"), [("foo=1", "There are ctx, "), ("p-mim=0.5", "Did you mean p-min"), ("ngam=1", "mean ngram")]
)
def test_an_unknown_setting_is_refused_with_all_known_names(setting: str, hint: str) -> None:
    output = run("bench", "demo", "--set", setting).stderr
    assert hint in output
    assert "There are" not in output or output.rstrip().endswith("p-min, draft-sampling, drafter, ngram, extra.")


async def test_the_model_is_served_with_its_tuned_settings(demo_model: Path, short_workload: Path) -> None:
    save_tuned(await local_environment(demo_model), demo_model)
    command = ["bench", str(demo_model), "--workload", str(short_workload), "--runs", "1"]
    result = answer(*command)
    assert {name: result["settings"][name] for name in PRESET} == PRESET
    assert answer(*command, "--no-preset")["settings"]["draft"] == DEFAULT_DRAFT
    over = answer(*command, "--set", "draft=3", "--set", "p-min=0.75", "--set", "extra=--no-warmup")
    assert over["settings"]["draft"] == 3
    assert over["settings"]["p_min"] == 0.75
    assert over["settings"]["ubatch"] == PRESET["ubatch"]
    assert over["settings"]["extra"] == "--no-warmup"
    with History() as history:
        newest = history.load(history.find_sessions(kind="bench")[0].id)
    assert newest.runs[0].settings["p_min"] == 0.75


@pytest.mark.thorough
def test_the_cost_of_a_million_tokens_is_computed(short_workload: Path) -> None:
    command = [
        "bench",
        "demo",
        "--workload",
        str(short_workload),
        "--runs",
        "1",
        "--price-kwh",
        "0.30",
        "--cloud-price",
        "0.60",
    ]
    result = answer(*command, "--watts", "200")
    assert result["cost"]["power"] == "given"
    assert result["cost"]["joules_per_token"] > 200 / max(each["tokens_per_second"] for each in result["runs"])
    assert result["cost"]["per_million_tokens"] == pytest.approx(0.30 * result["cost"]["kwh_per_million_tokens"])
    words = " ".join(run(*command, "--watts", "200").stdout.split())
    with History() as history:
        assert f"history show {history.find_sessions(kind='bench')[0].id}" in words
    assert "cost A million tokens take" in words
    assert "In the cloud they cost 0.6" in words
    alone = run("bench", "demo", "--watts", "200")
    assert alone.returncode == 1
    assert "Add --price-kwh" in alone.stderr
