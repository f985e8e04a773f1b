"""Jobs as values: their state changes, by examples and by hypothesis."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from launcher.base.errors import (
    DiskFull,
    DownloadBroken,
    JobUnknown,
    Offline,
    RateLimited,
    Refused,
    Unreachable,
    Untrusted,
)
from launcher.base.identity import ProcessId
from launcher.base.progress import Progress
from launcher.fetch.jobs import (
    QUEUED_STATES,
    Job,
    JobDone,
    JobFailure,
    JobList,
    JobState,
    JobStopped,
    Outcome,
    RequestedState,
)
from launcher.fetch.queue import QueueStore

US, OTHER = ProcessId(11, 1.0), ProcessId(22, 2.0)
AWAY = JobFailure.from_error(Unreachable("The server did not answer."))
BROKEN = JobFailure.from_error(DownloadBroken("The file is not what was promised."))
FULL = JobFailure.from_error(DiskFull("The disk is full."))


def jobs_named(*names: str) -> JobList:
    jobs = JobList()
    for name in names:
        jobs, _ = jobs.add_job("copy", {"name": name}, name, size_bytes=100, now_s=0.0)
    return jobs


def claim_jobs(jobs: JobList, owner: ProcessId = US, *, at_once: int = 1, now_s: float = 0.0) -> JobList:
    return jobs.claim_due(owner, {"copy"}, at_once=at_once, now_s=now_s)


def end_job(jobs: JobList, job_id: int, outcome: Outcome, *, moved: bool = False, now_s: float = 0.0) -> JobList:
    return jobs.record_outcome(job_id, outcome, Progress(40, 100), has_new_bytes=moved, now_s=now_s)


def states(jobs: JobList) -> dict[int, JobState]:
    return {job.id: job.state for job in jobs.jobs}


def job_order(jobs: JobList) -> list[int]:
    return [job.id for job in jobs.jobs]


def test_a_job_is_added_once() -> None:
    jobs = jobs_named("a", "b")
    same, result = jobs.add_job("copy", {"name": "a"}, "a", size_bytes=None, now_s=9.0)
    assert same == jobs
    assert not result.is_new
    assert result.job.id == 1


@pytest.mark.parametrize("requested", [RequestedState.CANCEL, RequestedState.DISCARD])
def test_a_job_that_is_added_again_while_being_cancelled_goes_on(requested: RequestedState) -> None:
    jobs = claim_jobs(jobs_named("a")).request_state(1, requested)
    jobs, result = jobs.add_job("copy", {"name": "a"}, "a", size_bytes=None, now_s=9.0)
    assert result.is_new
    assert states(end_job(jobs, 1, JobStopped())) == {1: JobState.WAITING}


def test_a_rate_limit_is_retried_at_its_time() -> None:
    limited = JobFailure.from_error(RateLimited("It answers no more until 10:00.", until_s=120.0))
    jobs = end_job(claim_jobs(jobs_named("a")), 1, limited, now_s=20.0)
    assert jobs.find_job(1).retry_at_s == 120.0
    assert end_job(claim_jobs(jobs, now_s=120.0), 1, limited, now_s=121.0).find_job(1).retry_at_s == 121.0 + 30
    hours = replace(limited, until_s=9_999.0)
    assert end_job(claim_jobs(jobs_named("a")), 1, hours, now_s=20.0).find_job(1).retry_at_s == 20.0 + 600


def test_a_certificate_error_is_not_retried() -> None:
    jobs = end_job(
        claim_jobs(jobs_named("a")), 1, JobFailure.from_error(Untrusted("Its certificate is another one's."))
    )
    assert states(jobs) == {1: JobState.FAILED}


@pytest.mark.parametrize("outcome", [JobDone({}), BROKEN])
def test_an_ended_job_is_added_again_under_its_number(outcome: Outcome) -> None:
    jobs = end_job(claim_jobs(jobs_named("a", "b")), 1, outcome)
    jobs, result = jobs.add_job("copy", {"name": "a"}, "a", size_bytes=100, now_s=9.0)
    assert result.is_new
    assert job_order(jobs) == [2, 1]
    assert jobs.find_job(1).state is JobState.WAITING
    assert jobs.find_job(1).failure is None


def test_numbers_are_never_used_again() -> None:
    jobs = end_job(claim_jobs(jobs_named("a")), 1, JobDone({})).clear_ended()
    jobs, result = jobs.add_job("copy", {"name": "b"}, "b", size_bytes=None, now_s=0.0)
    assert result.job.id == 2


def test_at_most_the_allowed_number_of_jobs_run_over_all_processes() -> None:
    jobs = claim_jobs(jobs_named("a", "b"))
    assert states(jobs) == {1: JobState.RUNNING, 2: JobState.WAITING}
    assert claim_jobs(jobs, OTHER) == jobs
    assert states(claim_jobs(jobs, OTHER, at_once=2))[2] is JobState.RUNNING


def test_a_job_of_an_unknown_kind_is_not_claimed() -> None:
    assert jobs_named("a").claim_due(US, {"other"}, at_once=1, now_s=0.0) == jobs_named("a")


def test_the_requested_and_the_actual_state_of_a_job_differ_until_it_stops() -> None:
    jobs = claim_jobs(jobs_named("a")).request_state(1, RequestedState.PAUSE)
    assert jobs.find_job(1).state is JobState.RUNNING
    assert jobs.find_job(1).is_changing
    jobs = end_job(jobs, 1, JobStopped())
    assert jobs.find_job(1).state is JobState.PAUSED
    assert jobs.find_job(1).done_bytes == 40
    assert not jobs.find_job(1).is_changing


def test_a_requested_state_overrides_a_failure_but_not_a_success() -> None:
    requested = claim_jobs(jobs_named("a")).request_state(1, RequestedState.CANCEL)
    assert end_job(requested, 1, BROKEN).find_job(1).state is JobState.CANCELLED
    assert end_job(requested, 1, FULL).hold is None
    assert end_job(requested, 1, JobDone({"path": "x"})).find_job(1).state is JobState.DONE


def test_a_pause_can_be_withdrawn_before_it_takes_effect() -> None:
    jobs = claim_jobs(jobs_named("a")).request_state(1, RequestedState.PAUSE).request_state(1, RequestedState.RUN)
    assert end_job(jobs, 1, JobStopped()).find_job(1).state is JobState.WAITING


def test_a_failed_job_does_not_stop_the_next_and_keeps_its_reason() -> None:
    jobs = claim_jobs(end_job(claim_jobs(jobs_named("a", "b")), 1, BROKEN))
    assert states(jobs) == {1: JobState.FAILED, 2: JobState.RUNNING}
    assert jobs.find_job(1).failure == BROKEN
    again = jobs.request_state(1, RequestedState.RUN).find_job(1)
    assert (again.state, again.failure) == (JobState.WAITING, None)


def test_a_full_disk_holds_the_queue_until_one_job_is_resumed() -> None:
    jobs = end_job(claim_jobs(jobs_named("a", "b")), 1, FULL)
    assert states(jobs) == {1: JobState.WAITING, 2: JobState.WAITING}
    assert jobs.hold == FULL
    assert claim_jobs(jobs, now_s=1e9) == jobs
    assert states(claim_jobs(jobs.release_hold()))[1] is JobState.RUNNING
    assert states(claim_jobs(jobs.request_state(2, RequestedState.RUN)))[1] is JobState.RUNNING


def test_an_unreachable_server_is_retried_with_growing_pauses_while_other_jobs_run() -> None:
    jobs = end_job(claim_jobs(jobs_named("a", "b")), 1, AWAY, now_s=100.0)
    assert states(claim_jobs(jobs, now_s=100.0)) == {1: JobState.WAITING, 2: JobState.RUNNING}
    jobs = jobs.request_state(2, RequestedState.PAUSE)
    waits = []
    now_s = 100.0
    for _ in range(9):
        at_s = jobs.find_job(1).retry_at_s
        assert at_s is not None
        waits.append(at_s - now_s)
        assert states(claim_jobs(jobs, now_s=at_s - 0.1))[1] is JobState.WAITING
        jobs, now_s = claim_jobs(jobs, now_s=at_s), at_s
        assert jobs.find_job(1).state is JobState.RUNNING
        jobs = end_job(jobs, 1, AWAY, now_s=now_s)
    assert waits == [15, 30, 60, 120, 240, 480, 600, 600, 600]
    at_s = jobs.find_job(1).retry_at_s
    assert at_s is not None
    jobs = end_job(claim_jobs(jobs, now_s=at_s), 1, AWAY, moved=True, now_s=0.0)
    assert jobs.find_job(1).retry_at_s == 15


def test_a_wrong_clock_delays_no_job_for_long() -> None:
    jobs = end_job(claim_jobs(jobs_named("a")), 1, AWAY, now_s=2e9)
    assert states(claim_jobs(jobs, now_s=1e9))[1] is JobState.RUNNING


@pytest.mark.parametrize(
    ("error", "temporary", "holds"),
    [
        (Unreachable("No answer."), True, False),
        (Refused("Too many.", status=429), True, False),
        (Refused("Down.", status=503), True, False),
        (Refused("Not there.", status=404), False, False),
        (DownloadBroken("Wrong."), False, False),
        (DiskFull("Full."), False, True),
        (Offline("Not allowed."), False, True),
    ],
)
def test_errors_are_temporary_or_hold_the_queue(error: DiskFull, temporary: bool, holds: bool) -> None:
    failure = JobFailure.from_error(error)
    assert (failure.temporary, failure.holds_queue) == (temporary, holds)


def test_jobs_of_an_ended_process_are_recovered_with_their_requested_state() -> None:
    jobs = (
        claim_jobs(jobs_named("a", "b", "c", "d"), at_once=3)
        .request_state(2, RequestedState.PAUSE)
        .request_state(3, RequestedState.DISCARD)
    )
    assert jobs.recover_abandoned(lambda _owner: True) == jobs
    back = jobs.recover_abandoned(lambda _owner: False, lambda job_id: Progress(job_id, 100))
    assert list(states(back).values()) == [JobState.WAITING, JobState.PAUSED, JobState.CANCELLED, JobState.WAITING]
    assert back.find_job(1).done_bytes == 1
    assert back.find_job(3).requested is RequestedState.DISCARD


def test_jobs_are_moved() -> None:
    jobs = jobs_named(*"abcd")
    assert job_order(jobs.move_job(3, "first")) == [3, 1, 2, 4]
    assert job_order(jobs.move_job(3, "up")) == [1, 3, 2, 4]
    assert job_order(jobs.move_job(1, "up")) == [1, 2, 3, 4]
    assert job_order(jobs.move_job(2, "down")) == [1, 3, 2, 4]
    assert job_order(jobs.move_job(4, "down")) == [1, 2, 3, 4]
    assert job_order(jobs.move_job(1, "last")) == [2, 3, 4, 1]
    assert job_order(jobs.move_job(1, 3)) == [2, 3, 1, 4]
    assert job_order(jobs.move_job(1, 99)) == [2, 3, 4, 1]


def test_ended_jobs_do_not_count_when_moving() -> None:
    jobs = end_job(claim_jobs(jobs_named(*"abc").request_state(2, RequestedState.CANCEL)), 1, JobDone({}))
    assert [job.id for job in jobs.move_job(3, "first").jobs if job.state in QUEUED_STATES] == [3]
    assert jobs.move_job(1, "last") == jobs


def test_ended_jobs_are_cleared() -> None:
    jobs = claim_jobs(end_job(claim_jobs(jobs_named(*"abcd")), 1, JobDone({})))
    jobs = claim_jobs(end_job(jobs, 2, BROKEN)).request_state(4, RequestedState.CANCEL)
    assert job_order(jobs.clear_ended()) == [2, 3]
    assert job_order(jobs.clear_ended(failed=True)) == [3]


def test_an_unknown_number_is_reported() -> None:
    with pytest.raises(JobUnknown, match="Download 7 not found"):
        jobs_named("a").request_state(7, RequestedState.RUN)


def kept_order(before: list[int], after: list[int]) -> bool:
    both = set(before) & set(after)
    return [each for each in before if each in both] == [each for each in after if each in both]


class AnyRequests(RuleBasedStateMachine):
    """Any requests in any order, with two processes that run the queue and may be killed."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs = JobList()
        self.now_s = 0.0
        self.at_work: dict[int, ProcessId] = {}
        self.known: set[int] = set()

    def id_of(self, pick: int) -> int:
        return self.jobs.jobs[pick % len(self.jobs.jobs)].id

    def changed(self, after: JobList, *, moved: int | None = None) -> None:
        before = [each for each in job_order(self.jobs) if each != moved]
        assert kept_order(before, [each for each in job_order(after) if each != moved])
        self.jobs = after

    @rule(name=st.sampled_from("abcdef"))
    def add(self, name: str) -> None:
        was = states(self.jobs)
        given_up = {job.id for job in self.jobs.jobs if job.is_changing and job.requested is not RequestedState.PAUSE}
        after, result = self.jobs.add_job("copy", {"name": name}, name, size_bytes=None, now_s=self.now_s)
        assert result.is_new == (was.get(result.job.id) not in QUEUED_STATES or result.job.id in given_up)
        if result.job.id in given_up:
            assert job_order(after) == job_order(self.jobs)
            assert result.job.requested is RequestedState.RUN
        elif result.is_new:
            assert job_order(after)[-1] == result.job.id
        else:
            assert after == self.jobs
        self.known.add(result.job.id)
        self.changed(after, moved=result.job.id)

    @precondition(lambda self: self.jobs.jobs)
    @rule(pick=st.integers(0, 9), requested=st.sampled_from(RequestedState))
    def request(self, pick: int, requested: RequestedState) -> None:
        job_id = self.id_of(pick)
        was = self.jobs.find_job(job_id)
        self.changed(self.jobs.request_state(job_id, requested))
        job = self.jobs.find_job(job_id)
        if was.state is JobState.RUNNING:
            assert job == replace(was, requested=requested)
        elif was.state is JobState.DONE:
            assert job == was

    @precondition(lambda self: self.jobs.jobs)
    @rule(pick=st.integers(0, 9), place=st.sampled_from(["first", "up", "down", "last"]) | st.integers(0, 9))
    def move(self, pick: int, place: int) -> None:
        job_id = self.id_of(pick)
        after = self.jobs.move_job(job_id, place)
        assert sorted(job_order(after)) == sorted(job_order(self.jobs))
        line = [job.id for job in after.jobs if job.state in QUEUED_STATES]
        before = [job.id for job in self.jobs.jobs if job.state in QUEUED_STATES]
        assert kept_order([each for each in before if each != job_id], [each for each in line if each != job_id])
        if job_id in line and isinstance(place, int):
            assert line.index(job_id) == min(max(place - 1, 0), len(line) - 1)
        self.jobs = after

    @rule(failed=st.booleans())
    def clear(self, failed: bool) -> None:
        after = self.jobs.clear_ended(failed=failed)
        gone = set(job_order(self.jobs)) - set(job_order(after))
        assert all(self.jobs.find_job(each).state not in QUEUED_STATES for each in gone)
        self.known -= gone
        self.changed(after)

    @rule(owner=st.sampled_from([US, OTHER]))
    def claim(self, owner: ProcessId) -> None:
        was = states(self.jobs)
        self.changed(claim_jobs(self.jobs, owner, now_s=self.now_s))
        for job in self.jobs.jobs:
            if job.state is JobState.RUNNING and was[job.id] is not JobState.RUNNING:
                assert job.id not in self.at_work
                self.at_work[job.id] = owner
                first = next(each for each in self.jobs.jobs if each.is_due(self.now_s) or each is job)
                assert first is job

    @precondition(lambda self: self.at_work)
    @rule(
        outcome=st.sampled_from([JobDone({}), AWAY, BROKEN, FULL]) | st.builds(JobStopped),
        moved=st.booleans(),
    )
    def end(self, outcome: Outcome, moved: bool) -> None:
        job_id = next(iter(self.at_work))
        del self.at_work[job_id]
        self.changed(end_job(self.jobs, job_id, outcome, moved=moved, now_s=self.now_s))

    @rule(owner=st.sampled_from([US, OTHER]))
    def kill_owner(self, owner: ProcessId) -> None:
        self.at_work = {job_id: by for job_id, by in self.at_work.items() if by != owner}
        self.changed(self.jobs.recover_abandoned(lambda who: who != owner))

    @rule(owner=st.sampled_from([US, OTHER]))
    def quit_owner(self, owner: ProcessId) -> None:
        self.at_work = {job_id: by for job_id, by in self.at_work.items() if by != owner}
        self.changed(self.jobs.release_owned_by(owner))

    @rule(seconds=st.floats(0, 1_000))
    def let_time_pass(self, seconds: float) -> None:
        self.now_s += seconds

    @rule()
    def release_hold(self) -> None:
        self.changed(self.jobs.release_hold())
        assert self.jobs.hold is None

    @invariant()
    def no_job_is_lost(self) -> None:
        assert len(self.jobs.jobs) == len(set(job_order(self.jobs)))
        assert set(job_order(self.jobs)) == self.known

    @invariant()
    def one_runs_and_has_one_owner(self) -> None:
        running = {job.id: job.owner for job in self.jobs.jobs if job.state is JobState.RUNNING}
        assert running == self.at_work
        assert len(running) <= 1
        assert all(job.owner is None for job in self.jobs.jobs if job.state is not JobState.RUNNING)

    def teardown(self) -> None:
        with TemporaryDirectory() as folder:
            store = QueueStore(Path(folder))
            store.change_jobs(lambda _none: (self.jobs, None))
            assert store.change_jobs(lambda jobs: (jobs, None)) == (self.jobs, None, ())


TestAnyRequests = AnyRequests.TestCase
TestAnyRequests.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)


def test_a_job_of_unknown_size_keeps_its_received_bytes() -> None:
    job = Job(1, "copy", {}, "a", 0.0).with_progress(Progress(7))
    assert (job.done_bytes, job.bytes) == (7, None)
