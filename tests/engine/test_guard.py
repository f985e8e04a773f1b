"""The guard, with a real process and clocks that the test moves."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from launcher.base.errors import EngineBroken, EngineHung, ModelBroken, Unreachable
from launcher.engine.server import guard as guard_module
from launcher.engine.server.guard import Guard, GuardLimits
from launcher.engine.server.in_use import FilesInUse
from launcher.engine.server.state import FailedReplies, Notice, OpenReply

LIMITS = GuardLimits(period_s=1.0, dead_s=20.0, stalled_s=40.0, endless_s=120.0)


class Clocks:
    """The monotonic and the wall clock. `sleep` suspends the computer: only the wall clock advances, as on Linux."""

    def __init__(self) -> None:
        self.mono, self.wall_s = 5_000.0, 1_700_000_000.0

    def monotonic(self) -> float:
        return self.mono

    def wall(self) -> float:
        return self.wall_s

    def go(self, seconds: float) -> None:
        self.mono += seconds
        self.wall_s += seconds

    def sleep(self, seconds: float) -> None:
        self.wall_s += seconds


class Engine:
    """A process that computes when notices, and its answers to /health."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self.answers = True
        self.replies: list[OpenReply] = []
        self.loop_turns = True
        self.log_problem: str | None = None
        self.failed_replies: FailedReplies | None = None
        self.clocks = Clocks()
        self.notices: list[Notice] = []
        self.computed_s = 0.0

    async def is_healthy(self) -> bool:
        return self.answers

    async def count_working_slots(self) -> int:
        if not self.loop_turns:
            raise Unreachable("No answer.")
        return 1

    def count_work(self) -> None:
        """Count as processor time what `compute` takes: for tests that need minutes of it."""
        self.computed_s += 0.02

    def compute(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        self.process.stdout.readline()

    def guard(self, *files: Path, limits: GuardLimits = LIMITS) -> Guard:
        return Guard(
            self.process.pid,
            self,
            FilesInUse.from_paths([(file, "model") for file in files]),
            notify=self.notices.append,
            open_replies=lambda: self.replies,
            log_problem=lambda: self.log_problem,
            failed_replies=lambda: self.failed_replies,
            clock=self.clocks,
            limits=limits,
        )

    @property
    def codes(self) -> list[str]:
        return [notice.code for notice in self.notices]


@contextmanager
def start_engine(*wrapper: str) -> Iterator[Engine]:
    work = (
        "import sys, time\nfor line in sys.stdin:\n  end = time.process_time() + 0.02\n"
        "  while time.process_time() < end: pass\n  print(flush=True)"
    )
    command = [*wrapper, sys.executable, "-c", work]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        made = Engine(process)
        made.compute()  # returns once the process has started and computed
        yield made
        process.kill()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """A process whose processor time the test advances, too, beside what it really takes."""
    with start_engine() as made:
        read = guard_module._read_cpu_time

        def read_both(pid: int) -> float | None:
            return None if (taken_s := read(pid)) is None else taken_s + made.computed_s

        monkeypatch.setattr(guard_module, "_read_cpu_time", read_both)
        yield made


@pytest.fixture
def wrapped_engine() -> Iterator[Engine]:
    """An engine started by a script that only waits for it."""
    with start_engine("sh", "-c", '"$0" "$@"; true') as made:
        yield made


async def check_for(engine: Engine, guard: Guard, seconds: float, each: Callable[[], None] = lambda: None) -> object:
    """Check as often as the guard does in that many seconds; return the first error."""
    for _ in range(round(seconds / LIMITS.period_s)):
        each()
        engine.clocks.go(LIMITS.period_s)
        if (error := await guard.check_engine()) is not None:
            return error
    return None


async def test_an_idle_server_is_not_disturbed(engine: Engine) -> None:
    assert await check_for(engine, engine.guard(), 240) is None
    assert engine.notices == []


async def test_an_engine_that_neither_answers_nor_computes_is_ended(engine: Engine) -> None:
    guard = engine.guard()
    engine.answers = False
    verdict = await check_for(engine, guard, 120)
    assert isinstance(verdict, EngineHung)
    assert "no response and no CPU activity" in verdict.title
    assert engine.codes == ["silent"]


@pytest.mark.parametrize(
    "message",
    [
        "decode() failed: vk::Queue::submit: ErrorDeviceLost",
        "decode() failed: CUDA error: an illegal memory access was encountered",
        "Compute error.",
        "GGML_ASSERT(n_tokens > 0) failed",
    ],
)
async def test_an_engine_that_goes_on_after_its_end_is_ended(engine: Engine, message: str) -> None:
    guard = engine.guard()
    engine.failed_replies = FailedReplies(2, 0, 2, 500, message)
    assert await guard.check_engine() is None
    engine.failed_replies = FailedReplies(3, 0, 3, 500, message)
    verdict = await guard.check_engine()
    assert isinstance(verdict, EngineBroken)
    assert verdict.title.startswith(f"The last 3 requests all failed: {message.rstrip('.')}.")
    assert verdict.hint


async def test_failed_requests_of_other_kinds_end_no_engine(engine: Engine) -> None:
    guard = engine.guard()
    for failed in (None, FailedReplies(9, 9, 0, 400, "'messages' is required"), FailedReplies(9, 0, 0, 500, "odd")):
        engine.failed_replies = failed
        assert await guard.check_engine() is None


async def test_processor_time_of_child_processes_counts(wrapped_engine: Engine) -> None:
    guard = wrapped_engine.guard()
    wrapped_engine.answers = False
    assert await check_for(wrapped_engine, guard, 60, wrapped_engine.compute) is None
    assert isinstance(await check_for(wrapped_engine, guard, 60), EngineHung)


async def test_a_failed_check_is_reported_once_and_repeated(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    outcomes = [OSError("no more files"), OSError("no more files"), None, ValueError(), EngineHung("It hung.")]
    guard = engine.guard(limits=replace(LIMITS, period_s=0.0))

    async def check() -> EngineHung | None:
        outcome = outcomes.pop(0)
        if isinstance(outcome, EngineHung | None):
            return outcome
        raise outcome

    guard.check_engine = check  # type: ignore[method-assign]
    assert isinstance(await guard.watch(), EngineHung)
    assert engine.codes == ["unwatched"] * 2
    assert engine.notices[0].text.endswith("OSError: no more files.")
    assert engine.notices[1].text.endswith("ValueError.")
    assert caplog.text.count("A check of the server failed") == 2


async def test_a_busy_engine_that_does_not_answer_is_not_ended(engine: Engine) -> None:
    guard = engine.guard()
    engine.answers = False
    assert await check_for(engine, guard, 60, engine.compute) is None
    assert engine.codes == ["silent"]
    engine.answers = True
    assert await check_for(engine, guard, 5) is None
    assert engine.codes == ["silent", "answers_again"]


async def test_a_stalled_stream_is_ended_though_health_is_ok(engine: Engine) -> None:
    guard = engine.guard()
    engine.replies = [OpenReply(engine.clocks.mono)]
    assert await check_for(engine, guard, LIMITS.stalled_s - 10) is None
    verdict = await check_for(engine, guard, 20)
    assert isinstance(verdict, EngineHung)
    assert "a running reply got no token for 40 s" in verdict.title


@pytest.mark.thorough
async def test_a_slow_prefill_is_not_a_stall(engine: Engine) -> None:
    guard = engine.guard()
    engine.replies = [OpenReply(engine.clocks.mono)]
    assert await check_for(engine, guard, LIMITS.endless_s - 10, engine.count_work) is None
    assert engine.notices == []
    assert isinstance(await check_for(engine, guard, 20, engine.count_work), EngineHung)


async def test_an_engine_that_spins_in_the_middle_of_a_reply_is_ended(engine: Engine) -> None:
    """llama.cpp #27388: /health is answered, the process is busy, and nothing comes any more."""
    guard = engine.guard()
    engine.replies, engine.loop_turns = [OpenReply(engine.clocks.mono, writes=True)], False
    assert await check_for(engine, guard, LIMITS.stalled_s, engine.count_work) is None
    verdict = await check_for(engine, guard, 20, engine.count_work)
    assert isinstance(verdict, EngineHung)
    assert "in the middle of a reply it stopped" in verdict.title


async def test_a_client_that_leaves_a_hung_engine_hides_it_from_nobody(engine: Engine) -> None:
    guard = engine.guard()
    engine.replies, engine.loop_turns = [OpenReply(engine.clocks.mono, writes=True)], False
    assert await check_for(engine, guard, 20, engine.count_work) is None
    engine.replies = []
    assert await check_for(engine, guard, 10, engine.count_work) is None
    engine.replies = [OpenReply(engine.clocks.mono, writes=False)]
    assert isinstance(await check_for(engine, guard, 30, engine.count_work), EngineHung)


@pytest.mark.parametrize(
    ("replies", "turns"),
    [
        ([(True, True)], True),
        ([(False, True)], False),
        ([(True, True), (False, True)], False),
        ([(False, False)], False),
    ],
    ids=["its text is held back", "it reads a prompt", "it reads another prompt", "the reply comes whole"],
)
async def test_an_engine_that_computes_for_a_reply_is_not_ended(
    engine: Engine, replies: list[tuple[bool, bool]], turns: bool
) -> None:
    guard = engine.guard()
    engine.replies = [OpenReply(engine.clocks.mono, writes, streams) for writes, streams in replies]
    engine.loop_turns = turns
    assert await check_for(engine, guard, LIMITS.endless_s - 10, engine.count_work) is None
    if not replies[0][1]:
        assert await check_for(engine, guard, LIMITS.endless_s, engine.count_work) is None


async def test_a_suspended_engine_is_reported_and_not_ended(engine: Engine) -> None:
    guard = engine.guard()
    os.kill(engine.process.pid, signal.SIGSTOP)
    while psutil.Process(engine.process.pid).status() != psutil.STATUS_STOPPED:
        os.sched_yield()
    engine.answers = engine.loop_turns = False
    engine.replies = [OpenReply(engine.clocks.mono, writes=True)]
    assert await check_for(engine, guard, 240) is None
    assert engine.codes == ["paused"]
    assert f"kill -CONT {engine.process.pid}" in engine.notices[0].text
    os.kill(engine.process.pid, signal.SIGCONT)
    while psutil.Process(engine.process.pid).status() == psutil.STATUS_STOPPED:
        os.sched_yield()
    engine.answers, engine.replies = True, []
    assert await check_for(engine, guard, 5) is None
    assert engine.codes == ["paused", "answers_again"]


@pytest.mark.parametrize("way", ["sleep", "go"], ids=["Linux: one clock stands still", "Windows: both go on"])
async def test_time_asleep_does_not_count_as_silence(engine: Engine, way: str) -> None:
    guard = engine.guard()
    engine.replies = [OpenReply(engine.clocks.mono)]
    getattr(engine.clocks, way)(3 * 3_600.0)
    engine.answers = False
    assert await check_for(engine, guard, 5) is None
    assert engine.codes == ["slept"]
    assert "slept for 3.0 h" in engine.notices[0].text
    assert "does not respond yet" in engine.notices[0].text
    engine.answers, engine.replies = True, []
    assert await check_for(engine, guard, 240) is None
    assert engine.codes == ["slept"]


@pytest.mark.parametrize("set_by_s", [-86_400.0, -5.0, 8.0])
async def test_a_clock_set_back_or_slightly_is_not_taken_as_sleep(engine: Engine, set_by_s: float) -> None:
    guard = engine.guard()
    engine.clocks.wall_s += set_by_s
    assert await check_for(engine, guard, 60) is None
    assert engine.notices == []


async def test_changes_of_the_model_files_are_reported_once(engine: Engine, tmp_path: Path) -> None:
    names = ("removed", "replaced", "shrunk", "same")
    paths = {name: tmp_path / name for name in names}
    for path in paths.values():
        path.write_bytes(b"x" * 10_000)
    guard = engine.guard(*paths.values())
    assert await check_for(engine, guard, 10) is None
    paths["removed"].unlink()
    (tmp_path / "new").write_bytes(b"y" * 10_000)
    (tmp_path / "new").replace(paths["replaced"])
    os.truncate(paths["shrunk"], 100)
    assert await check_for(engine, guard, 60) is None
    assert sorted(engine.codes) == ["model_cut_short", "model_removed", "model_replaced"]


async def test_only_a_truncated_file_explains_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"x" * 10_000)
    files = FilesInUse.from_paths([(path, "model"), (tmp_path / "none", "engine")])
    assert files.find_exit_cause() is None
    os.truncate(path, 9_999)
    assert isinstance(files.find_exit_cause(), ModelBroken)
    path.unlink()
    assert files.find_exit_cause() is None


async def test_an_unwritable_log_is_reported_once(engine: Engine) -> None:
    guard = engine.guard()
    engine.log_problem = "No space left on device"
    assert await check_for(engine, guard, 60) is None
    engine.log_problem = None
    assert await check_for(engine, guard, 60) is None
    assert engine.codes == ["log_unwritable", "log_writable"]
