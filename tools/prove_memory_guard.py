"""Proves that the guard of host memory restarts an engine before it is killed for its memory.

    python -m tools.prove_memory_guard FOLDER [--runs 20] [--room 40] [--kernel] [--llama-server PATH]
                                       [--only guarded|unguarded]

The demo is served without limits on its prompt cache, and gets one long prompt after the other, each different from all
before. A watcher, a process of its own, takes the part of the kernel: it limits the memory of all engines to that of
one engine after its first prompt plus `--room` MiB, publishes the figures in files like those of a control group, and
kills an engine that exceeds the limit. With `--kernel` the kernel does that itself: everything runs in a control group,
in which engines are killed first. There are `--runs` runs without the guard, and then as many with it. Ends with exit
code 1 if an engine survives a run without the guard; or if in the runs with the guard an engine is killed, a reply is
broken or cut short, or there are fewer handovers than runs.
"""

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

from launcher.base.errors import LauncherError
from launcher.base.http import ServerClient
from launcher.engine.server.start_request import StartRequest

_MIB = 2**20
_WATCH_S = 0.01
_SYLLABLES = ("ba", "co", "di", "fu", "ga", "he", "ki", "lo", "me", "nu", "pa", "re", "si", "to", "vu", "za")
_PROMPT_WORDS = 1_500
_PACE_S = 2.5
"""Seconds from one prompt to the next, if the computer reads a prompt in less."""
_REPLY_TOKENS = 24
_PROMPTS = 18
"""Prompts of a guarded run: twice as many as are needed to fill 40 MiB."""
_WITHOUT_LIMITS = ("--cache-ram", "1000000", "--ignore-eos")
_GROUP = "sys/fs/cgroup/engines"
_KERNELS_GROUPS = Path("/sys/fs/cgroup")


@dataclass
class Outcome:
    """The result of one run."""

    kills: int = 0
    handovers: int = 0
    prompts: int = 0
    broken: list[str] = field(default_factory=list)
    seconds: float = 0.0
    peak: int = 0

    def describe(self, guarded: bool, number: int) -> str:
        """Return a line about the outcome."""
        kind = "with the guard" if guarded else "without"
        return (
            f"{kind} {number}: {'killed' if self.kills else 'not killed'}, {self.handovers} handovers, "
            f"{self.prompts} prompts, {len(self.broken)} broken replies, at most {self.peak / _MIB:.0f} MiB, "
            f"{self.seconds:.0f} s"
        )


# The watcher.


@dataclass(frozen=True)
class ControlGroup:
    """The files of a control group that limits memory: of version 2 or 1 of the kernel's control groups, or the
    watcher's.
    """

    folder: Path
    limit: str = "memory.max"
    peak: str = "memory.peak"
    events: str = "memory.events"

    def count_kills(self) -> int:
        """Return how many processes of the group were killed for their memory."""
        lines = (self.folder / self.events).read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))

    def read_peak(self) -> int:
        """Return the peak memory of the group in bytes."""
        return int((self.folder / self.peak).read_text())


def make_kernels_group() -> ControlGroup:
    """Make a control group of the kernel's. Raises OSError if this process is not allowed to."""
    name = f"mtp-launcher-{os.getpid()}-{time.monotonic_ns()}"
    if (_KERNELS_GROUPS / "memory").is_dir():
        folder = _KERNELS_GROUPS / "memory" / name
        group = ControlGroup(folder, "memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control")
    else:
        group = ControlGroup(_KERNELS_GROUPS / name)
    group.folder.mkdir()
    return group


@contextmanager
def run_inside(group: ControlGroup) -> Iterator[None]:
    """Run in a control group of the kernel's within the block, with all processes that are started there."""
    base = group.folder.parent
    controllers = "memory" if base.name == "memory" else ""
    paths = {line.split(":")[1]: line.split(":")[2] for line in Path("/proc/self/cgroup").read_text().splitlines()}
    before = base / paths[controllers].lstrip("/")
    (group.folder / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (before / "cgroup.procs").write_text(str(os.getpid()))


def expose_engines(launcher_pid: int) -> None:
    """Let the kernel kill the engines of a launcher before any other process, until the launcher ends."""
    launcher = psutil.Process(launcher_pid)
    while launcher.is_running() and launcher.status() != psutil.STATUS_ZOMBIE:
        for process in list_engines(launcher):
            with suppress(OSError):
                Path(f"/proc/{process.pid}/oom_score_adj").write_text("1000")
        time.sleep(_WATCH_S)


def watch_engines(root: Path, launcher_pid: int) -> None:
    """Publish the memory of the launcher's engines, and kill them above the limit, until the launcher ends.

    The limit is in memory.max, and the kernel's own count of kills in memory.events.
    """
    group, kills, most = root / _GROUP, 0, 0
    launcher = psutil.Process(launcher_pid)
    while launcher.is_running() and launcher.status() != psutil.STATUS_ZOMBIE:
        total = 0
        for process in list_engines(launcher):
            with suppress(psutil.Error):
                used = count_private_bytes(process)
                place = root / f"proc/{process.pid}"
                if not place.exists():
                    place.mkdir(parents=True)
                    (place / "cgroup").write_text(f"0::/{Path(_GROUP).name}\n")
                total += used
                limit = (group / "memory.max").read_text().strip()
                if limit.isdecimal() and total > int(limit):
                    process.send_signal(signal.SIGKILL)
                    kills += 1
                    (group / "memory.events").write_text(f"oom_kill {kills}\n")
        most = max(most, total)
        write_whole(group / "memory.current", str(total))
        write_whole(group / "memory.peak", str(most))
        time.sleep(_WATCH_S)


def list_engines(launcher: psutil.Process) -> list[psutil.Process]:
    """Return the processes below a launcher that have loaded a model."""
    found = []
    for process in launcher.children(recursive=True):
        with suppress(psutil.Error):
            words = process.cmdline()
            if "--model" in words and not any(word.endswith("keeper.py") for word in words):
                found.append(process)
    return found


def count_private_bytes(process: psutil.Process) -> int:
    """Return the private memory of a process: resident memory without that of files."""
    memory = process.memory_info()
    return int(memory.rss - memory.shared)


def write_whole(path: Path, text: str) -> None:
    """Replace a file atomically."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    new.replace(path)


# A run.


def make_watched_group(root: Path) -> ControlGroup:
    """Make the files of the watcher's group."""
    group = ControlGroup(root / _GROUP)
    group.folder.mkdir(parents=True)
    for name, text in (("max", "max"), ("current", "0"), ("peak", "0"), ("stat", ""), ("events", "oom_kill 0\n")):
        (group.folder / f"memory.{name}").write_text(text)
    return group


@asynccontextmanager
async def run_watcher(root: Path, limit: int | None, *, kernel: bool) -> AsyncIterator[ControlGroup]:
    """Run a watcher of this process's engines, which get `limit` bytes in the group that is returned."""
    group = make_kernels_group() if kernel else make_watched_group(root)
    if limit is not None:
        (group.folder / group.limit).write_text(str(limit))
    command = [sys.executable, "-m", "tools.prove_memory_guard", str(root), "--watch", str(os.getpid())]
    watcher = subprocess.Popen([*command, *(["--kernel"] if kernel else [])])  # noqa: ASYNC220 -- a start takes no time
    try:
        with run_inside(group) if kernel else nullcontext():
            yield group
    finally:
        watcher.kill()
        watcher.wait()
        if kernel:
            group.folder.rmdir()  # the group's processes have ended


@dataclass(frozen=True)
class Limit:
    """The limit on the engines' memory in bytes: what one engine needs, and the room above that."""

    base: int
    room: int

    @property
    def total(self) -> int:
        """The whole limit in bytes."""
        return self.base + self.room


async def run_once(
    folder: Path, chance: random.Random, limit: Limit | None, *, guarded: bool, engine: Path | None, kernel: bool
) -> Outcome:
    """Serve the demo and send prompts until an engine was killed or the room is used up; without a limit one prompt."""
    from launcher.app.serving.memory_guard import GUARD_RESTARTED_ENGINE
    from launcher.app.serving.session import ServerSession
    from launcher.engine.demo import unpack_demo_model
    from launcher.engine.serve_options import ServeOptions
    from launcher.engine.server.state import Notice, ServerEvent

    outcome = Outcome()

    def count_event(event: ServerEvent) -> None:
        outcome.handovers += isinstance(event, Notice) and event.code == GUARD_RESTARTED_ENGINE

    session = ServerSession(on_event=count_event, memory_guard=guarded)
    if not kernel:
        session.monitor.health_watch.root = folder
    began_s = time.monotonic()
    async with run_watcher(folder, limit.total if limit else None, kernel=kernel) as group:
        try:
            await session.start(
                StartRequest(
                    ServeOptions(
                        model=unpack_demo_model(),
                        built_in=engine is None,
                        engine=engine,
                        threads=1,
                        context=8_192,
                        extra=_WITHOUT_LIMITS,
                    )
                )
            )
            endpoint = session.supervisor.endpoint
            async with ServerClient(endpoint.url, api_key=endpoint.api_key) as client:
                await send_prompt(client, chance, outcome)  # the engine allocates its buffers for prompts
                while limit is not None and outcome.prompts < _PROMPTS:
                    await asyncio.gather(send_prompt(client, chance, outcome), asyncio.sleep(_PACE_S))
                    outcome.kills = group.count_kills()
                    if outcome.kills:
                        break
            outcome.peak = group.read_peak()
        finally:
            await session.stop()
    outcome.seconds = time.monotonic() - began_s
    return outcome


async def send_prompt(client: ServerClient, chance: random.Random, outcome: Outcome) -> None:
    """Stream the reply to a unique prompt, and record how it ended."""
    words = ["".join(chance.choices(_SYLLABLES, k=2)) for _ in range(_PROMPT_WORDS)]
    body = {"prompt": " ".join(words), "max_tokens": _REPLY_TOKENS, "stream": True}
    finish = None
    outcome.prompts += 1
    try:
        async with client.stream_events("/v1/completions", body) as events:
            async for event in events:
                for choice in event.get("choices", ()):
                    finish = choice.get("finish_reason") or finish
    except LauncherError as error:
        outcome.broken.append(str(error))
    else:
        if finish != "length":
            outcome.broken.append(f"ended by {finish}")


async def run_proof(options: argparse.Namespace) -> int:
    """Run all runs, print a line for each, and return the exit code."""
    os.environ["MTP_LAUNCHER_HOME"] = str(options.folder / "home")
    chance = random.Random(options.seed)
    run = partial(run_once, engine=options.llama_server, kernel=options.kernel)
    first = await run(options.folder / f"first-{time.time_ns()}", chance, None, guarded=False)
    limit = Limit(first.peak, options.room * _MIB)
    print(f"An engine needs {limit.base / _MIB:.0f} MiB; all get {limit.total / _MIB:.0f} MiB", flush=True)
    passed = True
    for guarded in (False, True):
        if options.only not in (None, "guarded" if guarded else "unguarded"):
            continue
        outcomes = []
        for number in range(1, options.runs + 1):
            place = options.folder / f"{'guarded' if guarded else 'unguarded'}-{time.time_ns()}"
            outcome = await run(place, chance, limit, guarded=guarded)
            outcomes.append(outcome)
            print(outcome.describe(guarded, number), *outcome.broken[:1] if guarded else (), flush=True)
        killed = sum(bool(each.kills) for each in outcomes)
        broken = sum(len(each.broken) for each in outcomes)
        handovers = sum(each.handovers for each in outcomes)
        print(
            f"{'With' if guarded else 'Without'} the guard: {killed} of {len(outcomes)} killed, {handovers} handovers,"
            f" {sum(each.prompts for each in outcomes)} prompts, {broken} broken replies",
            flush=True,
        )
        passed &= (not killed and not broken and handovers >= len(outcomes)) if guarded else killed == len(outcomes)
    return 0 if passed else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--room", type=int, default=40, metavar="MIB")
    parser.add_argument("--kernel", action="store_true", help="limit memory by a real control group; needs root")
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--only", choices=("guarded", "unguarded"))
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--watch", type=int, metavar="PID", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.folder = given.folder.absolute()
    if given.watch is not None and given.kernel:
        expose_engines(given.watch)
    elif given.watch is not None:
        watch_engines(given.folder, given.watch)
    else:
        sys.exit(asyncio.run(run_proof(given)))
