"""The queue's file: reading it back, damage, and concurrent writers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.base.errors import WrittenByNewer
from launcher.base.identity import ProcessId
from launcher.base.progress import Progress
from launcher.fetch.jobs import JobFailure, JobList, JobState, RequestedState
from launcher.fetch.queue import DownloadQueue, QueueStore

ADD = """
import sys
from launcher.fetch.queue import DownloadQueue
queue = DownloadQueue({})
for number in range(20):
    queue.add_job("copy", {"by": sys.argv[1], "number": number}, f"{number} by {sys.argv[1]}")
"""


def file_of(home: Path) -> Path:
    return home / "state" / "downloads" / "queue.json"


def fill_queue(*names: str) -> DownloadQueue:
    queue = DownloadQueue({})
    for name in names:
        queue.add_job("copy", {"name": name}, name)
    return queue


def test_all_fields_of_a_job_are_read_back(tmp_path: Path) -> None:
    store = QueueStore(tmp_path)
    jobs, _ = JobList().add_job("copy", {"path": "C:\\ü\udc80", "list": [1, None, {}]}, "ü", size_bytes=5, now_s=1.25)
    jobs = jobs.claim_due(ProcessId(7, 3.5), ["copy"], at_once=1, now_s=2.0).request_state(1, RequestedState.DISCARD)
    assert store.change_jobs(lambda _none: (jobs, "result")) == (jobs, "result", ())
    assert QueueStore(tmp_path).change_jobs(lambda read: (read, None)) == (jobs, None, ())


def test_reading_writes_nothing(home: Path) -> None:
    assert DownloadQueue({}).read_snapshot().jobs == JobList()
    assert not file_of(home).exists()
    queue = fill_queue("a")
    stamp = queue.store.read_stamp()
    queue.read_snapshot()
    assert queue.store.read_stamp() == stamp
    queue.request_state(RequestedState.PAUSE, 1)
    assert queue.store.read_stamp() != stamp


def test_processes_that_write_at_once_do_not_lose_changes() -> None:
    writers = [subprocess.Popen([sys.executable, "-c", ADD, name]) for name in "xyz"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    jobs = DownloadQueue({}).read_snapshot().jobs.jobs
    assert sorted(job.id for job in jobs) == list(range(1, 61))
    for name in "xyz":
        assert [job.arguments["number"] for job in jobs if job.arguments["by"] == name] == list(range(20))


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"null", b'{"version": 1}', b'{"version": "?", "jobs": []}', b"\xff\xfe", b"[" * 100_000]
)
def test_an_invalid_file_is_renamed(data: bytes, home: Path) -> None:
    queue = fill_queue("a")
    file_of(home).write_bytes(data)
    snapshot = queue.read_snapshot()
    assert snapshot.jobs == JobList()
    (damage,) = snapshot.damage
    assert damage.kept_as is not None
    assert damage.kept_as.read_bytes() == data
    assert str(damage) == f"The download list was unreadable and was renamed to {damage.kept_as}."
    assert not queue.read_snapshot().damage
    file_of(home).write_bytes(b"other")
    assert queue.read_snapshot().damage[0].kept_as == file_of(home).with_name("queue.json.bad2")


@pytest.mark.parametrize(
    "broken",
    [
        {"state": "flying"},
        {"id": 0},
        {"id": 1},  # a second job 1
        {"bytes": -5},
        {"arguments": None},
        {"owner": "me"},
    ],
)
def test_an_invalid_job_is_removed_and_the_others_are_kept(broken: dict[str, object], home: Path) -> None:
    queue = fill_queue("a", "b", "c")
    whole = json.loads(file_of(home).read_bytes())
    whole["jobs"][1] |= broken
    file_of(home).write_text(json.dumps(whole))
    snapshot = queue.read_snapshot()
    assert [job.title for job in snapshot.jobs.jobs] == ["a", "c"]
    assert snapshot.jobs.next_id == 4
    assert str(snapshot.damage[0]).startswith("1 of the listed downloads could not be read. The list was renamed to ")
    assert snapshot.damage[0].kept_as is not None
    assert json.loads(snapshot.damage[0].kept_as.read_bytes()) == whole
    assert not queue.read_snapshot().damage


def test_a_file_of_a_newer_version_is_not_changed(home: Path) -> None:
    queue = fill_queue("a")
    file_of(home).write_text('{"version": 2, "jobs": []}')
    with pytest.raises(WrittenByNewer, match="newer version"):
        queue.add_job("copy", {}, "b")
    assert file_of(home).read_text() == '{"version": 2, "jobs": []}'


def test_a_running_job_without_a_process_waits(home: Path) -> None:
    queue = fill_queue("a")
    whole = json.loads(file_of(home).read_bytes())
    whole["jobs"][0]["state"] = "running"
    file_of(home).write_text(json.dumps(whole))
    assert queue.read_snapshot().jobs.find_job(1).state is JobState.WAITING


def test_progress_of_running_jobs_is_published_and_deleted(tmp_path: Path) -> None:
    store = QueueStore(tmp_path)
    store.change_jobs(lambda jobs: (jobs, None))
    figures = Progress(5, 10, 2.5, 2.0, "from a mirror")
    store.publish_progress(1, figures)
    store.publish_progress(2, figures)
    assert QueueStore(tmp_path).read_progress(1) == figures
    store.delete_stale_progress([2])
    assert store.read_progress(1) is None
    assert store.read_progress(2) == figures
    (tmp_path / "running-2.json").write_text('{"done_by')
    assert store.read_progress(2) is None


def test_a_hold_is_stored(tmp_path: Path) -> None:
    full = JobFailure("disk_full", "The disk is full.", "Free space.")
    store = QueueStore(tmp_path)
    store.change_jobs(lambda _none: (JobList(hold=full), None))
    assert store.change_jobs(lambda jobs: (jobs, None))[0].hold == full
