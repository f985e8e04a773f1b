"""A home folder for one fault: its servers, their messages, and checks of what is left afterwards."""

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil

from launcher.app.serving.serving import serve
from launcher.base.errors import LauncherError
from launcher.base.paths import HOME_VARIABLE
from launcher.engine.demo import unpack_demo_model
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.client import ChatRequest
from launcher.engine.server.endpoint import Endpoint, claim_endpoint
from launcher.engine.server.guard import Clock, GuardLimits
from launcher.engine.server.logs import LogBook
from launcher.engine.server.state import SERVING, Notice, ServerEvent, ServerState, ServerStatus
from launcher.engine.server.supervisor import RestartPolicy, Supervisor
from launcher.engine.settings import load_model_settings, save_model_settings

DRAFT = 3
"""The draft length that the user chose; no fault may lose it."""
SHORT_LIMITS = GuardLimits(
    period_s=0.5, silent_s=1.0, dead_s=2.0, stalled_s=2.0, endless_s=30.0, loading_s=2.0, first_reply_s=2.0
)
"""The guard's limits, shortened. Its sentences are the usual ones, with these figures."""
QUICK_RESTARTS = RestartPolicy((0.05, 0.05, 0.05))
_WAIT_S = 30.0
_ORPHAN_S = 2.0
_FAKES = Path(__file__).parents[2] / "tests" / "fakes"
_BUILT_IN = Path(__file__).parents[2] / "launcher" / "engine" / "builtin.py"


@dataclass(frozen=True, slots=True)
class Observation:
    """An observation of a fault: what happened, what the user read, and losses that `find_damage` does not find."""

    happened: str
    read: str
    lost: str = ""


class StartCommand(Protocol):
    """Starts `mtp-launcher` with arguments as a process of its own, with text pipes."""

    def __call__(self, *words: str, stdout: int, stderr: int) -> Any:  # noqa: ANN401 -- subprocess.Popen, or as good
        ...


def start_command(*words: str, stdout: int, stderr: int) -> "subprocess.Popen[str]":
    """Start `mtp-launcher` as a user does."""
    return subprocess.Popen([sys.executable, "-m", "launcher", *words], stdout=stdout, stderr=stderr, text=True)


class World:
    """A home folder for one fault, with the servers that run in it and the events that they send."""

    def __init__(self, home: Path, start: StartCommand = start_command) -> None:
        self.home = home
        self.start = start
        self.events: list[ServerEvent] = []
        self.model = unpack_demo_model()
        self.expects_bad = False
        self.endpoint: Endpoint = claim_endpoint(None)
        save_model_settings(self.model, {"draft": DRAFT})

    @property
    def built_in_options(self) -> ServeOptions:
        """Options for the demo with the built-in engine."""
        return ServeOptions(model=self.model, built_in=True, threads=1, draft=DRAFT, context=4_096)

    def fake_options(self, *faults: str, **variables: str) -> ServeOptions:
        """Return options for the fake llama-server with faults."""
        os.environ["FAKE_FAULTS"] = ",".join(faults)
        os.environ.update(variables)
        folder = self.home / "fake"
        folder.mkdir(exist_ok=True)
        engine = self.write_program(folder / "llama-server", sys.executable, "-S", str(_FAKES / "llama_server.py"))
        return ServeOptions(model=self.model, engine=engine, draft=DRAFT)

    def write_built_in_engine(self) -> Path:
        """Write a program that runs the built-in engine."""
        return self.write_program(self.home / "llama-server", sys.executable, "-P", str(_BUILT_IN))

    @staticmethod
    def write_program(path: Path, *command: str) -> Path:
        """Write a program that runs another one."""
        path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        path.chmod(0o755)
        return path

    @asynccontextmanager
    async def run_supervisor(
        self,
        *,
        limits: GuardLimits = SHORT_LIMITS,
        restarts: RestartPolicy = QUICK_RESTARTS,
        clock: Clock | None = None,
        on_event: Callable[[ServerEvent], None] | None = None,
    ) -> AsyncIterator[Supervisor]:
        """Yield a supervisor at this home's endpoint; it is stopped at the end of the block."""

        def listen(event: ServerEvent) -> None:
            self.events.append(event)
            if on_event is not None:
                on_event(event)

        log = LogBook.for_port(self.endpoint.port)
        supervisor = Supervisor(self.endpoint, log, listen, restarts=restarts, limits=limits, clock=clock)
        try:
            yield supervisor
        finally:
            await supervisor.become(None)
            log.close()

    def find_notice(self, code: str) -> str | None:
        """Return the text of the last notice with `code`; None if there was none."""
        texts = [event.text for event in self.events if isinstance(event, Notice) and event.code == code]
        return texts[-1] if texts else None

    async def wait_for_notice(self, code: str) -> str:
        """Wait for a notice, and return its text."""
        await wait_until(lambda: self.find_notice(code) is not None, f"the notice {code}")
        return self.find_notice(code) or ""

    def list_states(self, since: int = 0) -> list[ServerState]:
        """Return the states that were shown, without repetitions."""
        states = [event.state for event in self.events[since:] if isinstance(event, ServerStatus)]
        return [state for i, state in enumerate(states) if i == 0 or states[i - 1] != state]

    def hide_changing_parts(self, text: str) -> str:
        """Return a text with paths, pids, ports and times replaced by words."""
        text = text.replace(str(self.home), "FOLDER").replace(str(self.endpoint.port), "PORT")
        text = re.sub(r"run/[^/]+/server-\w+\.json", "run/COMPUTER/server-PORT.json", text)
        text = re.sub(r"(?<=process )\d+|(?<=-CONT )\d+", "PID", text)
        text = re.sub(r"\b\d+(\.\d+)?(?= (s|min|h)\b)", "N", text)
        return re.sub(r"\s+", " ", text).strip().replace("|", "\\|")

    async def find_damage(self) -> list[str]:
        """Return the damage: processes left, settings or address lost, files damaged, a failing next start."""
        broken = [f"LEFT RUNNING: {words}" for words in await self.end_left_processes()]
        for name in list(os.environ):
            if name.startswith("FAKE_"):
                del os.environ[name]
        if load_model_settings(self.model) != {"draft": DRAFT}:
            broken.append("THE SETTINGS")
        if (endpoint := claim_endpoint(None)) != self.endpoint:
            broken.append(f"THE ADDRESS OR KEY: {endpoint.port}")
        broken += [f"A FILE: {path.name}" for path in self.home.rglob("*.bad*") if not self.expects_bad]
        try:
            async with serve(self.built_in_options) as session:
                await session.send_request(make_request(4))
        except LauncherError as error:
            broken.append(f"THE NEXT START: {error}")
        return broken

    async def end_left_processes(self) -> list[str]:
        """Return the command lines of processes that still run after 2 s, and end them."""
        deadline_s = time.monotonic() + _ORPHAN_S
        while (left := list(self.list_processes())) and time.monotonic() < deadline_s:  # noqa: ASYNC110 -- the end of a process is no event
            await asyncio.sleep(0.02)
        words = []
        for process in left:
            with suppress(psutil.Error):
                words.append(shlex.join(process.cmdline()))
                process.kill()
        return words

    def list_processes(self) -> Iterator[psutil.Process]:
        """Yield all processes that have this home in their environment, except this one."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                ended = process.status() == psutil.STATUS_ZOMBIE
                if process.pid != os.getpid() and not ended and process.environ().get(HOME_VARIABLE) == str(self.home):
                    yield process


@contextmanager
def make_world(home: Path, start: StartCommand = start_command) -> Iterator[World]:
    """Use a folder as the program's home until the block ends."""
    home.mkdir(parents=True)
    before = dict(os.environ)
    os.environ[HOME_VARIABLE] = str(home)
    for name in before:
        if name.startswith(("FAKE_", "LLAMA_")):
            del os.environ[name]
    try:
        yield World(home, start)
    finally:
        os.environ.clear()
        os.environ.update(before)


async def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds. Raises RuntimeError after 30 s."""
    deadline_s = time.monotonic() + _WAIT_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"Timed out while waiting for {what}.")
        await asyncio.sleep(0.02)


def make_request(tokens: int) -> ChatRequest:
    """Return a request for exactly this number of tokens."""
    return ChatRequest(
        [{"role": "user", "content": "What is MTP?"}], max_tokens=tokens, temperature=0.0, extra={"ignore_eos": True}
    )


async def is_answering(supervisor: Supervisor) -> bool:
    """Request four tokens, and return whether they arrived."""
    text = ""
    try:
        async with asyncio.timeout(_WAIT_S), supervisor.chat(make_request(4)) as deltas:
            async for delta in deltas:
                text += delta.content + delta.reasoning
    except (LauncherError, TimeoutError):
        return False
    return bool(text)


async def describe_restart(supervisor: Supervisor, old_pid: int | None) -> str:
    """Wait until another engine serves; return a sentence about that, or about the failure."""

    def is_settled() -> bool:
        other = supervisor.status.state in SERVING and supervisor.engine_pid not in (None, old_pid)
        return other or supervisor.status.state is ServerState.FAILED

    await wait_until(is_settled, "another engine or a failure")
    if supervisor.status.state is ServerState.FAILED:
        return "failed; it is not started again"
    return (
        "started again, ready at the same address" if await is_answering(supervisor) else "READY, BUT ANSWERS NOTHING"
    )


async def describe_survival(supervisor: Supervisor, pid: int | None) -> str:
    """Return a sentence on whether the same engine still answers."""
    same = supervisor.engine_pid == pid and await is_answering(supervisor)
    return "the server goes on" if same else "THE SERVER DOES NOT GO ON"


def read_last_json(text: str) -> dict[str, object]:
    """Return the last line that is a JSON object."""
    found: list[dict[str, object]] = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return found[-1] if found else {}
