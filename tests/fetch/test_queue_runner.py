"""The download queue's runner, with real bytes over loopback in this process."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from launcher.base.progress import Progress
from launcher.fetch.jobs import JobState, RequestedState
from launcher.fetch.queue import DownloadQueue, JobKind, QueueClock, ReportProgress
from launcher.fetch.queue_runner import (
    JobAdded,
    JobChanged,
    JobFailed,
    JobFinished,
    JobProgressed,
    JobRemoved,
    QueueEvent,
    QueueHeld,
    QueueNotice,
    QueueReordered,
    QueueRunner,
    QueueTotals,
)
from tests.fakes.copying import WORKS, Server, part_of

DATA = bytes(range(256)) * 256
TICK_S = 0.01
_E = TypeVar("_E")


class EventRecorder:
    """A listener that records the events, and waits for them."""

    def __init__(self) -> None:
        self.events: list[QueueEvent] = []
        self._news = asyncio.Event()

    def __call__(self, event: QueueEvent) -> None:
        self.events.append(event)
        self._news.set()

    def list_events(self, kind: type[_E]) -> list[_E]:
        return [event for event in self.events if isinstance(event, kind)]

    async def wait_for_event(self, matches: Callable[[QueueEvent], bool]) -> QueueEvent:
        async with asyncio.timeout(60):
            while True:
                for event in self.events:
                    if matches(event):
                        return event
                self._news.clear()
                await self._news.wait()

    async def wait_for_progress(self, done_bytes: int) -> None:
        await self.wait_for_event(
            lambda event: isinstance(event, JobProgressed) and event.progress.done_bytes == done_bytes
        )

    async def wait_for_state(self, job_id: int, state: JobState, *, times: int = 1) -> None:
        async with asyncio.timeout(60):
            while (
                len([each for each in self.list_events(JobChanged) if (each.job.id, each.job.state) == (job_id, state)])
                < times
            ):
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def run_queue(
    queue: DownloadQueue,
    recorder: EventRecorder,
    **options: Any,  # noqa: ANN401 -- those of QueueRunner
) -> AsyncIterator["asyncio.Task[None]"]:
    task = asyncio.create_task(QueueRunner(queue, recorder, round_s=TICK_S, **options).run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def run_to_the_end(queue: DownloadQueue, recorder: EventRecorder, **options: Any) -> None:  # noqa: ANN401
    async with asyncio.timeout(60):
        await QueueRunner(queue, recorder, round_s=TICK_S, **options).run(until_idle=True)


def add(queue: DownloadQueue, server: Server, folder: Path, *names: str) -> None:
    for name in names:
        queue.add_job("copy", server.job(name, folder), name, size_bytes=len(server.files[name]))


async def test_jobs_run_one_after_another_in_order(tmp_path: Path) -> None:
    queue, recorder = DownloadQueue(WORKS), EventRecorder()
    async with Server(a=DATA, b=DATA[1:], c=DATA[2:]) as server:
        add(queue, server, tmp_path, "a", "b", "c")
        queue.move_job(3, "first")
        await run_to_the_end(queue, recorder)
        assert server.requests == [("c", 0), ("a", 0), ("b", 0)]
        assert server.most_open == 1
    assert [each.job.id for each in recorder.list_events(JobAdded)] == [3, 1, 2]
    assert [each.job.id for each in recorder.list_events(JobFinished)] == [3, 1, 2]
    for index, name in enumerate("abc"):
        assert (tmp_path / name).read_bytes() == DATA[index:]
    job = queue.read_snapshot().jobs.find_job(1)
    assert (job.state, job.done_bytes, job.owner) == (JobState.DONE, len(DATA), None)
    assert job.result == {"path": str(tmp_path / "a"), "bytes": len(DATA), "resumed_bytes": 0}


async def test_several_jobs_run_at_once_if_allowed(tmp_path: Path) -> None:
    queue, recorder = DownloadQueue(WORKS), EventRecorder()
    async with Server(a=DATA, b=DATA, c=DATA) as server:
        await asyncio.gather(*(server.allow(name, 100) for name in "abc"))
        add(queue, server, tmp_path, "a", "b", "c")
        async with run_queue(queue, recorder, at_once=2):
            await asyncio.gather(server.wait_until_reached("a", 100), server.wait_until_reached("b", 100))
            assert server.most_open == 2
            await server.allow_all()
            await recorder.wait_for_state(3, JobState.DONE)
        assert server.most_open == 2


async def test_progress_is_reported_four_times_a_second_at_most_with_totals() -> None:
    steady_s = 0.0
    received: asyncio.Queue[Progress | None] = asyncio.Queue()

    async def report_received(_arguments: dict[str, Any], report: ReportProgress) -> dict[str, Any]:
        while (figures := await received.get()) is not None:
            report(figures)
        return {}

    works = {"steered": JobKind(report_received, lambda _arguments: None)}
    queue, recorder = DownloadQueue(works, clock=QueueClock(steady_s=lambda: steady_s)), EventRecorder()
    queue.add_job("steered", {"n": 1}, "a", size_bytes=10_000)
    queue.add_job("steered", {"n": 2}, "b", size_bytes=5_000)
    async with run_queue(queue, recorder):
        for done in (4_000, 6_000, 8_000):
            steady_s += 0.25
            received.put_nowait(Progress(done, 10_000, 1_000.0, 2.0, "from a mirror"))
            await recorder.wait_for_progress(done)
        received.put_nowait(Progress(8_001, 10_000))  # not reported, because it is too soon after the last report
        queue.add_job("steered", {"n": 3}, "c")
        await recorder.wait_for_event(lambda event: isinstance(event, JobAdded) and event.job.id == 3)
        received.put_nowait(None)
        await recorder.wait_for_state(1, JobState.DONE)
        received.put_nowait(None)
        await recorder.wait_for_state(2, JobState.DONE)
    assert [each.progress.done_bytes for each in recorder.list_events(JobProgressed)] == [4_000, 6_000, 8_000]
    last = recorder.list_events(JobProgressed)[-1]
    assert last.job.id == 1
    assert last.progress == Progress(8_000, 10_000, 1_000.0, 2.0, "from a mirror")
    assert last.totals == QueueTotals(jobs=2, left_bytes=7_000, bytes_per_second=1_000.0, seconds_left=7.0)


async def test_a_paused_job_keeps_its_data_and_resumes_there(tmp_path: Path) -> None:
    queue, recorder = DownloadQueue(WORKS), EventRecorder()
    async with Server(a=DATA, b=DATA) as server:
        await server.allow("a", 10_000)
        add(queue, server, tmp_path, "a", "b")
        async with run_queue(queue, recorder):
            await server.wait_until_reached("a", 10_000)
            (changing,) = queue.request_state(RequestedState.PAUSE, 1)
            assert changing.is_changing
            await recorder.wait_for_state(1, JobState.PAUSED)
            await recorder.wait_for_state(2, JobState.DONE)
            assert part_of(server.job("a", tmp_path)).stat().st_size == 10_000
            await server.allow_all()
            queue.request_state(RequestedState.RUN, 1)
            await recorder.wait_for_state(1, JobState.DONE)
        assert server.requests == [("a", 0), ("b", 0), ("a", 10_000)]
    assert (tmp_path / "a").read_bytes() == DATA


REQUEST = """
import sys
from launcher.fetch.jobs import RequestedState
from launcher.fetch.queue import DownloadQueue
DownloadQueue({}).request_state(RequestedState(sys.argv[1]), int(sys.argv[2]))
"""


async def test_another_process_pauses_a_running_job(tmp_path: Path) -> None:
    queue, recorder = DownloadQueue(WORKS), EventRecorder()
    async with Server(a=DATA) as server:
        await server.allow("a", 10_000)
        add(queue, server, tmp_path, "a")
        async with run_queue(queue, recorder):
            await server.wait_until_reached("a", 10_000)
            requester = await asyncio.create_subprocess_exec(sys.executable, "-c", REQUEST, "pause", "1")
            assert await requester.wait() == 0
            await recorder.wait_for_state(1, JobState.PAUSED)
            states = [(each.job.state, each.job.is_changing) for each in recorder.list_events(JobChanged)]
            assert (JobState.RUNNING, True) in states or states[-1] == (JobState.PAUSED, False)
            await server.wait_until_unread("a")


async def test_cancelling_deletes_the_partial_file_only_on_request(tmp_path: Path) -> None:
    queue, recorder = DownloadQueue(WORKS), EventRecorder()
    async with Server(a=DATA, b=DATA) as server:
        await server.allow("a", 10_000)
        await server.allow("b", 10_000)
        add(queue, server, tmp_path, "a", "b")
        async with run_queue(queue, recorder):
            await server.wait_until_reached("a", 10_000)
            queue.request_state(RequestedState.CANCEL, 1)
            await server.wait_until_reached("b", 10_000)
            queue.request_state(RequestedState.DISCARD, 2)
            await recorder.wait_for_state(2, JobState.CANCELLED)
        assert part_of(server.job("a", tmp_path)).exists()
        assert not part_of(server.job("b", tmp_path)).exists()
        queue.request_state(RequestedState.DISCARD, 1)
        assert not part_of(server.job("a", tmp_path)).exists()
        job = queue.read_snapshot().jobs.find_job(1)
        assert (job.state, job.done_bytes) == (JobState.CANCELLED, None)


async def test_the_end_of_the_program_leaves_waiting_jobs_that_the_next_one_resumes(tmp_path: Path) -> None:
    queue, recorder = DownloadQueue(WORKS), EventRecorder()
    async with Server(a=DATA) as server:
        await server.allow("a", 10_000)
        add(queue, server, tmp_path, "a")
        async with run_queue(queue, recorder) as task:
            await server.wait_until_reached("a", 10_000)
        assert task.cancelled()
        await server.wait_until_unread("a")
        job = queue.read_snapshot().jobs.find_job(1)
        assert (job.state, job.requested, job.owner) == (JobState.WAITING, RequestedState.RUN, None)
        await server.allow_all()
        await run_to_the_end(DownloadQueue(WORKS), recorder)
        assert server.requests == [("a", 0), ("a", 10_000)]
    assert (tmp_path / "a").read_bytes() == DATA


@pytest.mark.parametrize("turns", range(8))
async def test_ending_at_any_moment_leaves_waiting_jobs(turns: int, tmp_path: Path) -> None:
    queue = DownloadQueue(WORKS)
    async with Server(a=DATA) as server:
        await server.allow("a", 10_000)
        add(queue, server, tmp_path, "a")
        task = asyncio.create_task(QueueRunner(queue, EventRecorder(), round_s=TICK_S).run())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        job = queue.read_snapshot().jobs.find_job(1)
        assert (job.state, job.owner) == (JobState.WAITING, None)


async def test_an_unreachable_server_is_retried(tmp_path: Path) -> None:
    now_s = 1_000.0
    queue, recorder = DownloadQueue(WORKS, clock=QueueClock(calendar_s=lambda: now_s)), EventRecorder()
    async with Server(a=DATA) as server:
        add(queue, server, tmp_path, "a")
    await server.wait_until_closed()
    async with run_queue(queue, recorder):
        await recorder.wait_for_event(lambda event: isinstance(event, JobChanged) and event.job.retry_at_s is not None)
        waits = queue.read_snapshot().jobs.find_job(1)
        assert (waits.state, waits.retry_at_s) == (JobState.WAITING, 1_015.0)
        assert waits.failure is not None
        assert waits.failure.title == "The server did not answer."
        async with server:
            now_s = 1_015.0
            await recorder.wait_for_state(1, JobState.DONE)
    assert (tmp_path / "a").read_bytes() == DATA


async def write_to_a_full_disk(arguments: dict[str, Any], report: ReportProgress) -> dict[str, Any]:
    if not Path(arguments["space"]).exists():
        Path("/dev/full").write_bytes(b"data")
    report(Progress(4, 4))
    return {}


async def test_a_full_disk_holds_the_queue_until_it_is_resumed(tmp_path: Path) -> None:
    queue, recorder = (
        DownloadQueue({**WORKS, "write": JobKind(write_to_a_full_disk, lambda _arguments: None)}),
        EventRecorder(),
    )
    async with Server(a=DATA) as server:
        queue.add_job("write", {"space": str(tmp_path / "space")}, "write")
        add(queue, server, tmp_path, "a")
        await run_to_the_end(queue, recorder)
        (held,) = recorder.list_events(QueueHeld)
        assert held.reason is not None
        assert held.reason.code == "disk_full"
        assert not server.requests
        (tmp_path / "space").touch()
        queue.request_state_of_all(RequestedState.RUN, [JobState.WAITING, JobState.PAUSED])
        await run_to_the_end(queue, recorder)
    assert {job.state for job in queue.read_snapshot().jobs.jobs} == {JobState.DONE}


async def fail_somehow(arguments: dict[str, Any], _report: ReportProgress) -> dict[str, Any]:
    if arguments["how"] == "cancelled":
        raise asyncio.CancelledError
    if arguments["how"] == "system":
        Path(arguments["missing"]).read_bytes()
    return {"never": arguments["not there"]}


@pytest.mark.parametrize(
    ("how", "expected"), [("cancelled", "CancelledError"), ("system", "No such file"), ("fault", "KeyError")]
)
async def test_the_next_job_runs_after_any_end_of_a_job(how: str, expected: str, tmp_path: Path) -> None:
    queue, recorder = DownloadQueue({**WORKS, "fail": JobKind(fail_somehow, lambda _arguments: None)}), EventRecorder()
    async with Server(a=DATA) as server:
        queue.add_job("fail", {"how": how, "missing": str(tmp_path / "missing")}, "fails")
        add(queue, server, tmp_path, "a")
        await run_to_the_end(queue, recorder)
    (failed,) = recorder.list_events(JobFailed)
    assert expected in failed.failure.title
    assert [job.state for job in queue.read_snapshot().jobs.jobs] == [JobState.FAILED, JobState.DONE]


def fail_to_discard(arguments: dict[str, Any]) -> None:
    raise arguments["not there"]


@pytest.mark.parametrize(
    ("discard", "expected"),
    [(fail_to_discard, "KeyError"), (lambda arguments: Path(arguments["missing"]).unlink(), "No such file")],
)
def test_a_failed_discard_is_reported_and_stops_nothing(
    discard: Callable[[dict[str, Any]], None], expected: str, tmp_path: Path
) -> None:
    queue = DownloadQueue({"fail": JobKind(fail_somehow, discard)})
    queue.add_job("fail", {"missing": str(tmp_path / "missing")}, "fails")
    (job,) = queue.request_state(RequestedState.DISCARD, 1)
    assert (job.state, job.requested) == (JobState.CANCELLED, RequestedState.CANCEL)
    assert job.failure is not None
    assert expected in job.failure.title
    assert queue.clear_ended() == 1


async def test_a_listener_gets_changes_of_the_list(tmp_path: Path) -> None:
    queue, recorder = DownloadQueue(WORKS), EventRecorder()
    async with Server(a=DATA, b=DATA, c=DATA) as server:
        await server.allow("a", 10_000)
        add(queue, server, tmp_path, "a", "b", "c")
        async with run_queue(queue, recorder):
            await server.wait_until_reached("a", 10_000)
            queue.move_job(3, 2)
            reordered = await recorder.wait_for_event(lambda event: isinstance(event, QueueReordered))
            assert reordered == QueueReordered((1, 3, 2))
            queue.request_state(RequestedState.CANCEL, 2)
            await recorder.wait_for_state(2, JobState.CANCELLED)
            assert queue.clear_ended() == 1
            gone = await recorder.wait_for_event(lambda event: isinstance(event, JobRemoved))
            assert isinstance(gone, JobRemoved)
            assert gone.job.id == 2


async def test_an_unwritable_list_loses_no_outcome(tmp_path: Path, home: Path) -> None:
    queue, recorder = DownloadQueue(WORKS), EventRecorder()
    async with Server(a=DATA) as server:
        await server.allow("a", 10_000)
        add(queue, server, tmp_path, "a")
        file = home / "state" / "downloads" / "queue.json"
        async with run_queue(queue, recorder):
            await server.wait_until_reached("a", 10_000)
            kept = file.parent.rename(tmp_path / "kept")
            file.parent.write_text("in its place")
            await recorder.wait_for_event(lambda event: isinstance(event, QueueNotice))
            await server.allow_all()
            await server.wait_until_unread("a")
            assert not recorder.list_events(JobFinished)
            file.parent.unlink()
            kept.rename(file.parent)
            await recorder.wait_for_state(1, JobState.DONE)
        (notice,) = recorder.list_events(QueueNotice)
        assert "Cannot write the download list" in notice.text


async def test_a_list_damaged_while_running_is_renamed_and_reported(tmp_path: Path, home: Path) -> None:
    queue, recorder = DownloadQueue(WORKS), EventRecorder()
    async with Server(a=DATA, b=DATA) as server:
        await server.allow("a", 10_000)
        add(queue, server, tmp_path, "a")
        async with run_queue(queue, recorder):
            await server.wait_until_reached("a", 10_000)
            (home / "state" / "downloads" / "queue.json").write_text("{")
            notice = await recorder.wait_for_event(lambda event: isinstance(event, QueueNotice))
            assert isinstance(notice, QueueNotice)
            assert "queue.json.bad" in notice.text
            await server.wait_until_unread("a")
            add(queue, server, tmp_path, "b")
            await recorder.wait_for_event(lambda event: isinstance(event, JobFinished))
        assert (tmp_path / "b").read_bytes() == DATA


async def test_a_list_that_cannot_be_written_is_an_error(home: Path) -> None:
    (home / "state").mkdir(parents=True)
    (home / "state" / "downloads").write_text("in the way")
    with pytest.raises(OSError, match="Not a directory"):
        await QueueRunner(DownloadQueue(WORKS), EventRecorder(), round_s=TICK_S).run(until_idle=True)


def test_modules_for_downloads_are_not_imported_by_the_runner() -> None:
    code = "import launcher.fetch.queue_runner, sys; print('httpx' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"
