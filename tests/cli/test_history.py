"""`mtp-launcher history` as a user types it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.tuning.history import History
from launcher.tuning.history_environment import ModelFacts
from launcher.tuning.use_counts import UseCounts
from tests.cli.in_process import run
from tests.tuning.measured import ENVIRONMENT, OFF, ON


def answer(*arguments: str) -> Any:  # noqa: ANN401 -- any JSON value
    return json.loads(run(*arguments, "--json").stdout)


def test_an_empty_history_names_the_commands_that_measure() -> None:
    assert "Nothing was measured yet." in run("history").stdout
    assert answer("history") == {"measurements": []}


def test_measurements_are_listed_newest_first(two_sessions: tuple[str, str]) -> None:
    output = run("history").stdout
    head, first, second = output.splitlines()
    assert head.split() == ["ID", "WHEN", "KIND", "MODEL", "WORKLOAD", "RUNS", "TOKENS/S", "RESULT"]
    assert first.startswith("bbb0000002  2026-11-02")
    assert first.endswith("Draft 2 is 45 % faster than no MTP for prose.")
    assert "50.0" in second
    assert "\x1b" not in output
    assert [each["id"] for each in answer("history", "list")["measurements"]] == ["bbb0000002", "aaa0000001"]


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        (["--kind", "tune"], ["bbb"]),
        (["--model", "q3_k"], ["aaa"]),
        (["--since", "2026-11-02"], ["bbb"]),
        (["--since", "2026-11-01"], ["bbb", "aaa"]),
        (["--since", "36500d"], ["bbb", "aaa"]),
        (["--most", "1"], ["bbb"]),
        (["--kind", "endure"], []),
    ],
)
def test_filters_work_before_and_after_the_action(
    two_sessions: tuple[str, str], filters: list[str], wanted: list[str]
) -> None:
    for words in (["history", *filters], ["history", "list", *filters]):
        assert [each["id"][:3] for each in answer(*words)["measurements"]] == wanted


def test_an_empty_result_of_a_filter_is_reported(two_sessions: tuple[str, str]) -> None:
    assert run("history", "--kind", "endure").stdout == "No measurement matches.\n"
    wrong = run("history", "--since", "yesterday")
    assert wrong.returncode == 2
    assert "is not a day such as 2026-11-21" in wrong.stderr
    none = run("history", "--most", "0")
    assert none.returncode == 2
    assert "must be 1 or more" in none.stderr


def test_one_measurement_is_shown(two_sessions: tuple[str, str]) -> None:
    output = run("history", "show", "bbb").stdout
    assert "\x1b" not in output
    assert "Draft 2 is 45 % faster than no MTP for prose." in output
    assert "1.45 times as fast (1 start)" in output
    assert "The verdict of the tune uses only its final comparison" in " ".join(output.split())
    assert "MTP off   20.0 ± 0.4" in output
    assert "Tesla T4, 16 GiB, driver 1" in output
    rows = answer("history", "show", "last")["rows"]
    assert [row["settings"]["draft"] for row in rows] == [0, 2]
    assert rows[0]["baseline"]
    assert rows[1]["speedup"]["estimate"] == pytest.approx(1.446, abs=0.001)
    assert rows[1]["speedup"]["high"] is None
    assert rows[1]["acceptance_by_position"] == [0.9, 0.6]


def test_a_tune_is_listed_with_the_speed_of_its_winner(two_sessions: tuple[str, str]) -> None:
    with History() as history:
        assert [each.decode_rate for each in history.find_sessions(kind="tune")] == [None]  # nothing is recommended
        history.finish(two_sessions[1], {"sentence": "Draft 2.", "settings": dict(ON)})
        assert [each.decode_rate for each in history.find_sessions(kind="tune")] == [
            pytest.approx((29.0 + 29.2 + 28.7) / 3)
        ]


def test_a_measurement_is_listed_with_its_file_name_beside_the_model_name(home: Path) -> None:
    with History() as history:
        facts = ModelFacts("MTP demo", file="slow4.gguf")
        history.begin_session("bench", replace(ENVIRONMENT, model=facts), OFF, workload="code", id="ccc0000003")
        assert history.load("ccc0000003").environment.model == facts
    assert "MTP demo (slow4.gguf)" in run("history").stdout
    assert ModelFacts("MTP demo", "F16", file="mtp-demo-F16.gguf").label_with_quant == "MTP demo F16"


def test_a_measurement_without_runs_is_not_shared(home: Path, tmp_path: Path) -> None:
    with History() as history:
        history.begin_session("bench", ENVIRONMENT, OFF, workload="code", id="ccc0000003")
    result = run("history", "share", "ccc", "--to", str(tmp_path / "nothing.json"))
    assert result.returncode != 0
    assert "has no runs, so there is nothing to share" in " ".join(result.stderr.split())
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.parametrize("ending", ["md", "csv", "json"])
def test_one_measurement_is_exported(two_sessions: tuple[str, str], tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"result.{ending}"
    assert run("history", "export", "aaa", "--to", str(file)).returncode == 0
    assert "code" in file.read_text("utf-8")
    again = run("history", "export", "aaa", "--to", str(file))
    assert again.returncode == 1
    assert "already exists" in again.stderr
    nowhere = run("history", "export", "aaa", "--to", str(tmp_path / "none" / "x.md"))
    assert nowhere.returncode == 1
    assert "There is no folder" in nowhere.stderr
    assert not (tmp_path / "none").exists()
    assert "End its name in" in run("history", "export", "aaa", "--to", str(tmp_path / "x.pdf")).stderr


def test_a_shared_measurement_can_be_compared(two_sessions: tuple[str, str], tmp_path: Path) -> None:
    file = tmp_path / "shared.json"
    assert answer("history", "share", "aaa", "--to", str(file)) == {"id": two_sessions[0], "path": str(file), "runs": 3}
    run("history", "delete", "aaa")
    assert "50.0 ± 2.5" in run("history", "show", str(file)).stdout
    assert answer("compare", str(file), "bbb:draft=0")["rows"][0]["ratio"]["estimate"] == pytest.approx(0.4, abs=0.01)
    assert run("history", "share", "bbb", "--to", str(tmp_path / "x.md")).returncode == 1


def test_measurements_are_deleted(two_sessions: tuple[str, str]) -> None:
    with History() as history:
        history.add_use("place", [UseCounts({"draft": 2}, 100, 2.0, 40, (35, 25))])
    assert answer("history", "delete", "aaa")["deleted"] == 1
    assert run("history", "delete", "zzz").returncode == 1
    with History() as history:
        assert history.load_use("place")
    unasked = run("history", "delete", "all")
    assert unasked.returncode == 1
    assert "Confirm with --yes." in unasked.stderr
    assert len(answer("history")["measurements"]) == 1
    assert run("history", "delete", "all", "--yes").stdout == "Deleted 1 measurement.\n"
    assert answer("history")["measurements"] == []
    with History() as history:
        assert history.load_use("place") == ()


def test_a_damaged_database_is_reported(home: Path, two_sessions: tuple[str, str]) -> None:
    file = home / "data" / "history" / "history.db"
    file.write_bytes(b"damaged " * 1_000)
    result = run("history")
    assert result.returncode == 0
    assert "Note: The history of measurements was damaged" in result.stderr
