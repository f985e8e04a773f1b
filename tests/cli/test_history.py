"""`mtp-launcher history` and `compare` as a user types them."""

import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from launcher.cli.main import main
from launcher.tuning.history import History
from launcher.tuning.history_environment import GpuFacts, ModelFacts
from launcher.tuning.use_counts import UseCounts
from tests.tuning.measured import ENVIRONMENT, OFF, ON
from tests.tuning.measured import run as measured

DAY_S = 86_400.0


@dataclass(frozen=True)
class Told:
    """What a command printed, and its exit code."""

    returncode: int
    stdout: str
    stderr: str


def run(*arguments: str) -> Told:
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(list(arguments), lambda _: 1)
        except SystemExit as ended:
            code = int(ended.code or 0)
    return Told(code, out.getvalue(), err.getvalue())


def answer(*arguments: str) -> Any:  # noqa: ANN401 -- any JSON value
    return json.loads(run(*arguments, "--json").stdout)


@pytest.fixture
def two(home: Path) -> tuple[str, str]:
    """A bench in 2026-11-01, and a tune with other hardware and two settings on 2026-11-02."""
    now_s = 1_793_534_400.0
    other = replace(
        ENVIRONMENT, gpus=(GpuFacts("Tesla T4", "nvidia", 2**34, "1"),), model=ModelFacts("demo\x1b[31m", "F16")
    )
    with History(clock=lambda: now_s) as history:
        bench = history.add_session("bench", ENVIRONMENT, OFF, workload="code", id="aaa0000001")
        history.add_runs(bench, [measured(rate) for rate in (50.0, 51.0, 49.0)])
        history.finish(bench, {"mean": 50.0})
        now_s += DAY_S
        tune = history.add_session("tune", other, OFF, workload="prose", id="bbb0000002")
        history.add_runs(tune, [measured(rate) for rate in (20.0, 20.2, 19.9)])
        history.add_runs(tune, [measured(rate, ON) for rate in (29.0, 29.2, 28.7)])
        history.finish(tune, {"sentence": "Draft 2 is 45 % faster than no MTP for prose."})
    return bench, tune


def test_without_any_it_says_what_measures() -> None:
    assert "Nothing was measured yet." in run("history").stdout
    assert answer("history") == {"measurements": []}


def test_they_are_listed_newest_first(two: tuple[str, str]) -> None:
    told = run("history").stdout
    head, first, second = told.splitlines()
    assert head.split() == ["ID", "WHEN", "KIND", "MODEL", "WORKLOAD", "RUNS", "TOKENS/S", "RESULT"]
    assert first.startswith("bbb0000002  2026-11-02")
    assert first.endswith("Draft 2 is 45 % faster than no MTP for prose.")
    assert "50.0" in second
    assert "\x1b" not in told
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
def test_filters_before_and_after_the_action(two: tuple[str, str], filters: list[str], wanted: list[str]) -> None:
    for words in (["history", *filters], ["history", "list", *filters]):
        assert [each["id"][:3] for each in answer(*words)["measurements"]] == wanted


def test_a_filter_that_leaves_nothing_says_so(two: tuple[str, str]) -> None:
    assert run("history", "--kind", "endure").stdout == "Nothing of that kind was measured.\n"
    wrong = run("history", "--since", "yesterday")
    assert wrong.returncode == 2
    assert "is not a day such as 2026-11-21" in wrong.stderr


def test_one_is_shown(two: tuple[str, str]) -> None:
    told = run("history", "show", "bbb").stdout
    assert "\x1b" not in told
    assert "Draft 2 is 45 % faster than no MTP for prose." in told
    assert "45.0 to" not in told
    assert "MTP off   20.0 ± 0.4" in told
    assert "Tesla T4, 16 GiB, driver 1" in told
    rows = answer("history", "show", "last")["rows"]
    assert [row["settings"]["draft"] for row in rows] == [0, 2]
    assert rows[0]["baseline"]
    assert rows[1]["speedup"]["estimate"] == pytest.approx(1.446, abs=0.001)
    assert rows[1]["acceptance_by_position"] == [0.9, 0.6]


@pytest.mark.parametrize("ending", ["md", "csv", "json"])
def test_one_is_exported(two: tuple[str, str], tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"result.{ending}"
    assert run("history", "export", "aaa", "--to", str(file)).returncode == 0
    assert "code" in file.read_text("utf-8")
    again = run("history", "export", "aaa", "--to", str(file))
    assert again.returncode == 1
    assert "is there already" in again.stderr
    assert "End its name in" in run("history", "export", "aaa", "--to", str(tmp_path / "x.pdf")).stderr


def test_one_is_shared_and_can_be_compared_with(two: tuple[str, str], tmp_path: Path) -> None:
    file = tmp_path / "shared.json"
    assert answer("history", "share", "aaa", "--to", str(file)) == {"id": two[0], "path": str(file), "runs": 3}
    run("history", "delete", "aaa")
    assert "50.0 ± 2.5" in run("history", "show", str(file)).stdout
    assert answer("compare", str(file), "bbb:draft=0")["rows"][0]["ratio"]["estimate"] == pytest.approx(0.4, abs=0.01)
    assert run("history", "share", "bbb", "--to", str(tmp_path / "x.md")).returncode == 1


def test_they_are_deleted(two: tuple[str, str]) -> None:
    with History() as history:
        history.add_use("place", [UseCounts({"draft": 2}, 100, 2.0, 40, (35, 25))])
    assert answer("history", "delete", "aaa")["deleted"] == 1
    assert run("history", "delete", "zzz").returncode == 1
    with History() as history:
        assert history.use("place")
    assert run("history", "delete", "all").stdout == "Deleted 1 measurement.\n"
    assert answer("history")["measurements"] == []
    with History() as history:
        assert history.use("place") == ()


def test_two_are_compared_with_what_differs(two: tuple[str, str]) -> None:
    told = run("compare", "aaa", "bbb")
    assert told.returncode == 0
    assert "A  aaa0000001  bench of Qwen3.6-35B-A3B UD-Q3_K_XL, code" in told.stdout
    assert "different: the GPU was NVIDIA GeForce RTX 4090 and is Tesla T4" in told.stdout
    assert "different: the model was Qwen3.6-35B-A3B UD-Q3_K_XL and is demo" in told.stdout
    assert "MTP off" in told.stdout
    assert "% slower (" in told.stdout
    assert "Compared as two groups (Welch's t test" in told.stdout
    found = answer("compare", "aaa", "bbb")
    (row,) = found["rows"]  # the settings that both have measured
    assert row["ratio"]["estimate"] == pytest.approx(0.4007, abs=0.001)
    assert (row["paired"], row["told_apart"]) == (False, True)
    assert row["second"]["settings"]["draft"] == 0


def test_settings_of_one_are_compared_in_pairs(two: tuple[str, str]) -> None:
    told = run("compare", "last:draft=0", "last:draft=2").stdout
    assert "MTP off -> draft 2" in told
    assert "% faster (" in told
    assert "Compared in pairs" in told
    assert "different times" not in told
    (row,) = answer("compare", "bbb:draft=2", "bbb:draft=0")["rows"]
    assert row["paired"]
    assert row["ratio"]["high"] < 1


def test_what_cannot_be_compared_is_told(two: tuple[str, str]) -> None:
    for words, what in (
        (("aaa", "bbb:draft=2,kv=q8_0"), ""),
        (("aaa:draft=5", "bbb"), "has not measured draft 5. "),
        (("aaa", "bbb:draft="), "chooses nothing"),
        (("aaa", "zzz"), "There is no measurement zzz."),
        (("aaa", "published:none"), "There is no published table none."),
        (("published:olares-one/context-sizes", "bbb"), "no settings in common"),
    ):
        told = run("compare", *words)
        assert (told.returncode == 0) == (not what)
        assert what.strip() in told.stderr


def test_ours_beside_a_published_table(two: tuple[str, str]) -> None:
    told = run("compare", "published:olares-one/ten-runs", "aaa").stdout
    assert "249.3 ± 2.1" in told
    assert "draft 3, ctx 32768" in told
    listed = run("history", "published").stdout
    assert "published:rtx-5060-ti/moe-fill" in listed
    assert len(answer("history", "published")["published"]) == 6
    assert "Source" in run("history", "show", "published:olares-one/ten-runs").stdout


def test_a_damaged_file_is_told(home: Path, two: tuple[str, str]) -> None:
    file = home / "data" / "history" / "history.db"
    file.write_bytes(b"damaged " * 1_000)
    told = run("history")
    assert told.returncode == 0
    assert "Note: The history of measurements was damaged" in told.stderr
