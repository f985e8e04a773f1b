"""The file of measurements: reading back, searching, and damage."""

import errno
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from launcher.base.codec import compact_json
from launcher.base.errors import HistoryUnusable, LauncherError, ResultMissing, WrittenByNewer
from launcher.tuning.history import _TABLES, CUT_OFF, History, HistoryWriter, history_file
from launcher.tuning.history_environment import Environment, ModelFacts
from tests.tuning.measured import DRAFTS, ENVIRONMENT, OFF, ON, run


class Clock:
    """Seconds since the epoch, as the test has them."""

    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def history(home: Path, clock: Clock) -> Iterator[History]:
    with History(clock=clock) as opened:
        yield opened


RUNS = (
    run(50.0, OFF),
    run(70.5, ON, prompt="prose", power_w=210.5, energy_j=52.6, temperature_c=61.0, clock_mhz=2_520.0),
    run(20.0, ON, spoilt="The GPU was held back by its temperature.", clock="wall"),
    run(None, {"draft": 3, "p_min": 0.75, "kv": None}, error="It ended: out of memory."),
)


def test_a_stored_measurement_is_read_back(history: History, clock: Clock) -> None:
    id_ = history.begin_session("bench", ENVIRONMENT, OFF, workload="code")
    for each in RUNS[:2]:
        history.add_run(id_, each)
    history.add_runs(id_, RUNS[2:])
    clock.now_s = 1_060.0
    history.finish(id_, {"sentence": "It is fast.", "mean": 60.25})
    found = history.load(id_)
    assert found.runs == RUNS
    assert found.runs[1].acceptance == DRAFTS
    assert found.environment == ENVIRONMENT
    assert (found.kind, found.workload, dict(found.settings)) == ("bench", "code", dict(OFF))
    assert (found.began_s, found.ended_s) == (1_000.0, 1_060.0)
    assert found.result == {"sentence": "It is fast.", "mean": 60.25}


def test_only_counted_runs_are_in_the_listed_figure(history: History) -> None:
    id_ = history.begin_session("bench", ENVIRONMENT, OFF)
    history.add_runs(id_, RUNS)
    (result,) = history.find_sessions()
    assert (result.runs, result.counted) == (4, 2)
    assert result.decode_rate == pytest.approx(60.25)
    assert (result.ended_s, result.sentence) == (None, None)
    assert (result.model, result.quant) == ("Qwen3.6-35B-A3B", "UD-Q3_K_XL")


def test_a_measurement_without_runs_has_no_figure(history: History) -> None:
    history.begin_session("bench", ENVIRONMENT, OFF)
    (result,) = history.find_sessions()
    assert (result.runs, result.counted, result.decode_rate) == (0, 0, None)


def test_measurements_are_found_by_kind_model_workload_and_time(history: History, clock: Clock) -> None:
    small = Environment(ModelFacts("demo"), "built-in", "1")
    first = history.begin_session("bench", ENVIRONMENT, OFF, workload="code")
    clock.now_s = 2_000.0
    second = history.begin_session("tune", small, OFF, workload="prose")
    third = history.begin_session("tune", ENVIRONMENT, OFF)

    def ids(**filters: object) -> list[str]:
        return [each.id for each in history.find_sessions(**filters)]  # type: ignore[arg-type]

    assert ids() == [third, second, first]
    assert ids(kind="tune") == [third, second]
    assert ids(model="QWEN3.6") == [third, first]
    assert ids(model="q3_k") == [third, first]
    assert ids(model="%") == []
    assert ids(workload="prose") == [second]
    assert ids(since_s=1_500.0) == [third, second]
    assert ids(kind="tune", model="demo", most=5) == [second]
    assert ids(most=1) == [third]


def test_an_unfinished_measurement_of_an_ended_process_counts_as_interrupted(history: History, home: Path) -> None:
    mine = history.begin_session("endure", ENVIRONMENT, OFF)
    child = (
        "import os, signal; from launcher.tuning.history import History; from tests.tuning.measured import *; "
        "History().begin_session('curve', ENVIRONMENT, OFF, id='0123456789'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", child], check=False)
    done = history.begin_session("bench", ENVIRONMENT, OFF)
    history.finish(done, {})
    with closing(sqlite3.connect(history.path)) as db, db:
        db.execute("UPDATE sessions SET owner = NULL WHERE id = ?", (done,))  # earlier versions stored no owner
    assert {each.id: each.sentence for each in history.find_sessions()} == {
        mine: None,
        "0123456789": CUT_OFF,
        done: None,
    }
    assert [history.is_cut_off(id_) for id_ in (mine, "0123456789", done, "nothing")] == [False, True, False, False]
    history.reopen("0123456789")
    assert not history.is_cut_off("0123456789")
    history.finish("0123456789", {"sentence": "It holds."})
    history.reopen("0123456789")
    (found,) = history.find_sessions(kind="curve")
    assert (found.sentence, found.ended_s, history.load(found.id).result) == (None, None, {})


def test_an_id_may_be_abbreviated(history: History) -> None:
    first = history.begin_session("bench", ENVIRONMENT, OFF, id="aa00000001")
    second = history.begin_session("bench", ENVIRONMENT, OFF, id="aa00000002")
    assert history.resolve_id(first) == first
    assert history.resolve_id("LAST") == second
    for text, what in (("aa", "2 measurements begin with aa."), ("b", "no measurement b."), ("", "no measurement")):
        with pytest.raises(ResultMissing, match=what):
            history.resolve_id(text)


def test_an_unknown_id_is_reported(history: History) -> None:
    with pytest.raises(ResultMissing):
        history.load("nothing")
    with pytest.raises(ResultMissing):
        history.add_run("nothing", RUNS[0])
    with pytest.raises(ResultMissing):
        history.finish("nothing", {})
    with pytest.raises(ResultMissing):
        history.resolve_id("last")


def test_a_deleted_measurement_is_gone_with_its_runs(history: History) -> None:
    id_ = history.begin_session("bench", ENVIRONMENT, OFF)
    history.add_runs(id_, RUNS)
    kept = history.begin_session("bench", ENVIRONMENT, OFF)
    history.add_runs(kept, RUNS[:1])
    assert history.delete([id_, "nothing"]) == 1
    assert [each.id for each in history.find_sessions()] == [kept]
    assert history.load(kept).runs == RUNS[:1]
    with sqlite3.connect(history.path) as db:
        assert db.execute("SELECT count(*) FROM runs").fetchone() == (1,)
    db.close()


def test_a_run_that_cannot_be_stored_leaves_no_partial_list(history: History) -> None:
    id_ = history.begin_session("bench", ENVIRONMENT, OFF)
    with pytest.raises(HistoryUnusable):
        history.add_runs(id_, [RUNS[0], run(1.0, prompt=None)])  # type: ignore[arg-type]
    assert history.load(id_).runs == ()
    history.add_run(id_, RUNS[0])
    assert history.load(id_).runs == RUNS[:1]


def test_file_names_with_half_surrogates_can_be_stored(history: History) -> None:
    odd = Environment(ModelFacts("\udcff model"), "built-in", "1")
    id_ = history.begin_session("bench", odd, OFF, workload="mine\udcff")
    history.add_run(id_, run(1.0, prompt="\udcff"))
    assert history.load(id_).runs[0].prompt == "?"
    assert history.find_sessions()[0].model == "? model"


def test_a_killed_writer_loses_no_stored_run(home: Path) -> None:
    program = (
        "import os, signal\n"
        "from launcher.tuning.history import History\n"
        "from tests.tuning.measured import ENVIRONMENT, OFF, run\n"
        "history = History()\n"
        "id_ = history.begin_session('bench', ENVIRONMENT, OFF, id='killed0001')\n"
        "history.add_run(id_, run(12.5))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], check=False, cwd=Path(__file__).parents[2])
    assert ended.returncode == -9
    with History() as history:
        assert history.load("killed0001").runs[0].decode_rate == 12.5
        assert history.find_sessions()[0].ended_s is None


def test_two_programs_may_write(home: Path, history: History) -> None:
    with History() as other:
        mine, theirs = history.begin_session("bench", ENVIRONMENT, OFF), other.begin_session("tune", ENVIRONMENT, OFF)
        history.add_run(mine, RUNS[0])
        other.add_run(theirs, RUNS[1])
        assert (
            {each.id for each in history.find_sessions()}
            == {mine, theirs}
            == {each.id for each in other.find_sessions()}
        )


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
def test_the_file_is_readable_by_its_owner_only(history: History) -> None:
    assert stat.S_IMODE(history_file().stat().st_mode) == 0o600
    assert stat.S_IMODE(history_file().parent.stat().st_mode) == 0o700


def test_a_damaged_file_is_renamed(home: Path) -> None:
    with History() as history:
        history.begin_session("bench", ENVIRONMENT, OFF)
    history_file().write_bytes(b"This is no database. " * 1_000)
    with History() as history:
        assert history.find_sessions() == ()
        assert "history.db.bad" in history.notice
        history.begin_session("bench", ENVIRONMENT, OFF)
    assert history_file().with_name("history.db.bad").exists()
    with History() as history:
        assert history.notice == ""
        assert len(history.find_sessions()) == 1


def test_a_file_of_a_newer_version_is_not_changed(home: Path) -> None:
    History().close()
    with sqlite3.connect(history_file()) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(WrittenByNewer, match="newer version"):
        History()
    assert not list(history_file().parent.glob("*.bad"))


def test_an_invalid_row_is_reported_and_affects_no_other(history: History) -> None:
    id_ = history.begin_session("bench", ENVIRONMENT, OFF)
    good = history.begin_session("bench", ENVIRONMENT, OFF)
    with sqlite3.connect(history.path) as db:
        db.execute("UPDATE sessions SET environment = '{\"model\": 5}' WHERE id = ?", (id_,))
    db.close()
    with pytest.raises(HistoryUnusable):
        history.load(id_)
    assert history.load(good).environment == ENVIRONMENT


def test_the_writer_keeps_the_order_and_closes(home: Path) -> None:
    received: list[LauncherError] = []
    writer = HistoryWriter(received.append)
    id_ = writer.begin_session("tune", ENVIRONMENT, OFF, workload="code")
    for each in RUNS:
        writer.add_run(id_, each)
    writer.finish(id_, {"sentence": "Done."})
    assert writer.close(timeout_s=30)
    assert received == []
    with History() as history:
        found = history.load(id_)
    assert found.runs == RUNS
    assert found.result["sentence"] == "Done."
    assert found.ended_s is not None


def test_a_writer_without_work_makes_no_file(home: Path) -> None:
    assert HistoryWriter(lambda _: None).close()
    assert not history_file().exists()


def test_the_writer_reports_a_write_error_once(home: Path) -> None:
    history_file().parent.mkdir(parents=True)
    history_file().mkdir()
    received: list[LauncherError] = []
    writer = HistoryWriter(received.append)
    id_ = writer.begin_session("bench", ENVIRONMENT, OFF)
    writer.add_run(id_, RUNS[0])
    assert writer.close(timeout_s=30)
    (error,) = received
    assert isinstance(error, HistoryUnusable)
    assert error.title == f"Cannot read or save measurements in {history_file()}: {os.strerror(errno.EISDIR)}."


def test_a_file_of_the_first_version_is_migrated(home: Path) -> None:
    history_file().parent.mkdir(parents=True)
    with sqlite3.connect(history_file()) as db:
        db.executescript(_TABLES)
        db.execute("PRAGMA user_version = 1")
        row = ("old0000001", "bench", "", 1.0, "m", compact_json(ENVIRONMENT), "{}")
        db.execute(
            "INSERT INTO sessions (id, kind, workload, began_s, model, environment, settings) VALUES (?,?,?,?,?,?,?)",
            row,
        )
    db.close()
    with History() as history:
        history.add_run("old0000001", RUNS[0])
        history.add_use("place", [])
        assert history.load("old0000001").environment == ENVIRONMENT
        assert history.load_use("place") == ()
        assert history.load_requests(1) == []
