"""`mtp-launcher downloads` in separate processes, with a fake file server."""

import asyncio
import hashlib
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from launcher.app.models.downloads import add_pull, download_queue
from tests import forked
from tools.fault_matrix.server import FileServer, run_file_server

HALF = 4_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Iterator[FileServer]:
    """The fake file server with the demo model under three names."""
    with run_file_server(tmp_path_factory.mktemp("served")) as server:
        for name in "abc":
            shutil.copy(demo_model, server.folder / f"{name}.gguf")
        yield server


@pytest.fixture
def checksum(demo_model: Path) -> str:
    return hashlib.sha256(demo_model.read_bytes()).hexdigest()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    result = forked.run("downloads", *arguments)
    assert "Traceback" not in result.stderr
    return result


def read_json(*arguments: str) -> Any:  # noqa: ANN401 -- any JSON value
    result = run(*arguments, "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    return json.loads(result.stdout)


def add(url: str, checksum: str) -> int:
    return asyncio.run(add_pull(url, sha256=checksum)).job.id


def states() -> list[tuple[int, str]]:
    return [(job.id, job.state.value) for job in download_queue().read_snapshot().jobs.jobs]


@contextmanager
def running_queue(*options: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that downloads the queue and prints its events as JSON."""
    with forked.start("downloads", "run", "--json", *options, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: subprocess.Popen[str], event: str, **what: object) -> dict[str, Any]:
    """Read the events of a process up to one of this kind with these values, and return it."""
    assert process.stdout is not None
    for line in process.stdout:
        result: dict[str, Any] = json.loads(line)
        if result["event"] == event and all(result[name] == value for name, value in what.items()):
            return result
    raise AssertionError(f"it ended without {event}")


def test_an_empty_list_is_reported() -> None:
    assert "no downloads" in run().stdout
    assert read_json() == read_json("list") == {"jobs": [], "held": None, "notices": []}
    nothing = run("run")
    assert (nothing.returncode, nothing.stderr) == (0, "The queue is empty.\n")


def test_downloads_are_added_listed_moved_and_run_in_order(server: FileServer, checksum: str, home: Path) -> None:
    (added,) = read_json("add", server.url("order", "none", "a.gguf"), "--sha256", checksum)["added"]
    assert (added["id"], added["fresh"], added["state"]) == (1, True, "waiting")
    add(server.url("order", "none", "b.gguf"), checksum)
    result = run("add", server.url("order", "none", "c.gguf"), "--sha256", checksum)
    assert "c.gguf: added as number 3." in result.stdout
    again = run("add", server.url("order", "none", "a.gguf"), "--sha256", checksum)
    assert "a.gguf: already in the list: waiting." in again.stdout
    assert [job["id"] for job in read_json("move", "3", "first")["jobs"]] == [3, 1, 2]
    assert "No download is running. Start with `mtp-launcher downloads run`." in run().stdout
    worked = run("run")
    assert worked.returncode == 0, worked.stderr
    files = [Path(line) for line in worked.stdout.splitlines()]
    assert [path.name for path in files] == ["c.gguf", "a.gguf", "b.gguf"]
    assert all(hashlib.sha256(path.read_bytes()).hexdigest() == checksum for path in files)
    assert worked.stderr.count("done, and verified.") == 3
    listed = run().stdout
    assert listed.count("done") == 3
    assert run("clear").stdout == "Removed 3 from the list.\n"
    assert states() == []


def test_one_invalid_target_does_not_block_the_others() -> None:
    wrong = "https://a.invalid/a.gguf"
    result = run("add", wrong, "no-such-id", "--engine", "--json")
    answered = json.loads(result.stdout)
    assert (result.returncode, [each["kind"] for each in answered["added"]]) == (1, ["engine"])
    failed = {each["what"]: each["error"]["code"] for each in answered["failed"]}
    assert failed == {wrong: "bad_option", "no-such-id": "model_unknown"}
    result = run("add", wrong, "--engine")
    assert result.returncode == 1
    assert "already in the list: waiting." in result.stdout
    assert f"{wrong}: Not added: There is no checksum for the file from a.invalid." in " ".join(result.stderr.split())


def test_another_command_pauses_a_running_download_which_resumes_later(server: FileServer, checksum: str) -> None:
    number = add(server.url("pause", f"stalls={HALF}*1", "a.gguf"), checksum)
    with running_queue() as process:
        read_until(process, "progress", done_bytes=HALF)
        (seen,) = read_json("list")["jobs"]
        assert (seen["state"], seen["asked"]) == ("running", "run")
        completed = run("pause", str(number))
        assert "pausing" in completed.stdout or "paused" in completed.stdout
        read_until(process, "changed", state="paused")
        assert read_until(process, "end")["failed"] == 0
        assert process.wait(120) == 0
    assert "paused, 4.0 MB are kept" in run("pause", "all").stdout
    assert states() == [(number, "paused")]
    assert run("run").stderr == "The queue is empty.\n"
    resumed = run("resume", "all").stdout
    assert "waiting" in resumed
    assert resumed.endswith("No download is running. Start with `mtp-launcher downloads run`.\n")
    with running_queue() as process:
        done = read_until(process, "done")
        assert process.wait(120) == 0
    assert done["result"]["resumed_bytes"] == HALF
    assert server.read_record("pause").sent_bytes == done["bytes"]


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_the_next_process_resumes_however_the_last_one_ended(
    end: signal.Signals, server: FileServer, checksum: str
) -> None:
    number = add(server.url(f"end{end}", f"stalls={HALF}*1", "a.gguf"), checksum)
    with running_queue() as process:
        read_until(process, "progress", done_bytes=HALF)
        process.send_signal(end)
        code = process.wait(120)
    assert code == {signal.SIGKILL: -signal.SIGKILL, signal.SIGINT: 130, signal.SIGTERM: 143}[end]
    (job,) = read_json("list")["jobs"]
    assert (job["id"], job["state"], job["error"]) == (number, "waiting", None)
    with running_queue() as process:
        assert read_until(process, "done")["result"]["resumed_bytes"] == HALF
        assert process.wait(120) == 0
    assert server.read_record(f"end{end}").sent_bytes == server.folder.joinpath("a.gguf").stat().st_size


def test_two_commands_work_one_queue(server: FileServer, checksum: str) -> None:
    for name in "abc":
        add(server.url("two", "none", f"{name}.gguf"), checksum)
    with running_queue() as one, running_queue() as other:
        ends = [read_until(process, "end") for process in (one, other)]
        assert [process.wait(120) for process in (one, other)] == [0, 0]
    assert [state for _, state in states()] == ["done"] * 3
    assert all(end["failed"] == 0 for end in ends)
    assert server.read_record("two").sent_bytes == 3 * server.folder.joinpath("a.gguf").stat().st_size


def test_a_failed_download_is_reported_and_retried_and_the_next_completes(server: FileServer, checksum: str) -> None:
    add(server.url("fails", "404*1", "a.gguf"), checksum)
    add(server.url("fails", "none", "b.gguf"), checksum)
    worked = run("run")
    assert worked.returncode == 1
    assert "a.gguf: failed. " in worked.stderr
    assert "1 done, 1 failed" in worked.stderr
    failed, done = read_json("list")["jobs"]
    assert (failed["state"], done["state"]) == ("failed", "done")
    assert failed["error"]["message"] in " ".join(run().stdout.split())
    assert run("clear").stdout == "Removed 1 from the list.\n"
    assert "waiting" in run("retry", "all").stdout
    assert run("run").returncode == 0


def test_cancelling_keeps_the_data_and_discarding_deletes_it(server: FileServer, checksum: str, home: Path) -> None:
    number = add(server.url("cancel", f"stalls={HALF}", "a.gguf"), checksum)
    with running_queue() as process:
        read_until(process, "progress", done_bytes=HALF)
        assert read_json("cancel", str(number))["jobs"][0]["asked"] == "cancel"
        read_until(process, "changed", state="cancelled")
    parts = list(home.rglob("a.gguf.part"))
    assert [part.stat().st_size >= HALF for part in parts] == [True]
    assert run("cancel", "--discard", str(number)).stdout.endswith("cancelled.\n")
    assert not list(home.rglob("a.gguf.part*"))


def test_a_full_disk_holds_the_queue_until_it_is_run_again(server: FileServer, checksum: str, home: Path) -> None:
    add(server.url("full", "none", "a.gguf"), checksum)
    file = home / "state" / "downloads" / "queue.json"
    whole = json.loads(file.read_bytes())
    whole["hold"] = {"code": "disk_full", "title": "The disk is full.", "hint": "Make room.", "temporary": False}
    file.write_text(json.dumps(whole))
    assert "Downloads are on hold: The disk is full." in run().stdout
    assert read_json("list")["held"]["code"] == "disk_full"
    assert run("run").returncode == 0
    assert read_json("list")["held"] is None


def test_a_write_beyond_the_limit_is_an_error(server: FileServer, checksum: str) -> None:
    add(server.url("limit", "none", "a.gguf"), checksum)
    limited = f"ulimit -f {HALF // 1024}; exec {sys.executable} -m launcher downloads run"
    result = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "Error: " in result.stderr


def test_a_damaged_list_is_set_aside_and_reported(home: Path, server: FileServer, checksum: str) -> None:
    add(server.url("damaged", "none", "a.gguf"), checksum)
    file = home / "state" / "downloads" / "queue.json"
    file.write_text("{")
    result = run()
    assert result.returncode == 0
    assert "was unreadable and was renamed to" in result.stderr
    assert "no downloads" in result.stdout
    assert (file.parent / "queue.json.bad").read_text() == "{"


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["pause", "7"], 1, "Download 7 not found."),
        (["pause", "x"], 1, "x is not the number of a download."),
        (["add"], 1, "No download was given."),
        (["add", "https://a.invalid/a.gguf"], 1, "There is no checksum for the file from a.invalid."),
        (["add", "demo", "--backend", "cuda"], 1, "--backend goes with --engine."),
        (["move", "1", "sideways"], 2, "sideways is not a position"),
        (["move", "0", "first"], 2, "0 is not a number of 1 or more"),
        (["run", "--at-once", "none"], 2, "none is not a number of 1 or more"),
        (["fly"], 2, "invalid choice"),
    ],
)
def test_invalid_arguments_are_reported(arguments: list[str], code: int, why: str) -> None:
    result = run(*arguments)
    assert result.returncode == code
    assert why in result.stderr


def test_nothing_to_do_is_no_error() -> None:
    for verb in ("pause", "resume", "cancel", "retry"):
        assert run(verb, "all").stdout == f"There is nothing to {verb}.\n"
    assert run("clear").stdout == "There was nothing to remove.\n"
