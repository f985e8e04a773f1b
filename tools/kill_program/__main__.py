"""Command line: `python -m tools.kill_program [--kills 200] [--seed N]`. Exit code 1 when a promise is broken.

`mtp-launcher serve --model demo` is killed (SIGKILL) at a random moment while it starts, loads, is ready, streams a
reply or is being restarted with other settings; in one of eight kills the keeper is killed with it. 2 s after each kill
none of its processes may be left. The saved settings must be the last ones that it acknowledged, or those that it was
just applying, and no file may be damaged. Every later start that becomes ready must have the same address and key.
"""

import argparse
import json
import os
import random
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

_PHASES = ("starting", "loading", "ready", "streaming", "restarting")
_ORPHAN_S = 2.0
_READY_S = 60.0
_COMMAND = [sys.executable, "-m", "launcher"]


@dataclass(slots=True)
class Count:
    """The counts of all rounds."""

    kills: Counter[str] = field(default_factory=Counter)
    with_keeper: int = 0
    orphans: int = 0
    lost: int = 0
    damaged: int = 0
    unclean: int = 0
    slowest_s: float = 0.0
    complaints: list[str] = field(default_factory=list)


class Run:
    """Kills in one home."""

    def __init__(self, home: Path, chance: random.Random) -> None:
        self.home = home
        self.chance = chance
        self.count = Count()
        self.environment = dict(os.environ, MTP_LAUNCHER_HOME=str(home), PYTHONUNBUFFERED="1")
        self.address: tuple[str, str] | None = None
        self.before: set[int | None] = {None}
        """The draft length that was saved before this kill, which stays if the program does not become ready."""
        self.allowed: set[int | None] = {None}
        """The draft lengths that may be saved: the acknowledged one, and the one that was just being applied."""

    def kill_once(self, phase: str) -> None:
        """Start the program, kill it in a phase, and check what is left."""
        draft = self.chance.randint(1, 4)
        self.allowed.add(draft)
        command = [*_COMMAND, "serve", "--model", "demo", "--draft", str(draft), "--json"]
        with subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
            work = self._wait_for_phase(phase, program, draft)
            victims = [psutil.Process(program.pid)]
            if self.chance.random() < 1 / 8:
                keepers = [child for child in victims[0].children() if "keeper.py" in " ".join(_join_words(child))]
                self.count.with_keeper += bool(keepers)
                victims += keepers
            for victim in victims:
                with suppress(psutil.Error):
                    victim.kill()
            killed_s = time.monotonic()
            program.wait()
            self._look_for_orphans(phase, killed_s, work)
            if work is not None:
                work.wait()
            result = program.stderr.read().decode("utf-8", "replace") if program.stderr else ""
        self.count.kills[phase] += 1
        self._look_at_files(phase)
        if "Traceback" in result:
            self._complain("unclean", f"{phase}: {result}")

    def _wait_for_phase(
        self, phase: str, program: "subprocess.Popen[bytes]", draft: int
    ) -> "subprocess.Popen[bytes] | None":
        """Wait until the program is in a phase, and then for a random time."""
        if phase == "starting":
            time.sleep(self.chance.uniform(0.0, 0.7))
            return None
        if phase == "loading":
            self._wait_for_entry(program, ("loading", "warming up"))
            time.sleep(self.chance.uniform(0.0, 0.1))
            return None
        ready = self._wait_until_ready(program, draft)
        if phase == "streaming":
            time.sleep(self.chance.uniform(0.0, 0.5) if self._begin_stream(ready) else 0.0)
        elif phase == "restarting":
            other = self.chance.choice([each for each in range(1, 5) if each != draft])
            self.allowed.add(other)
            command = [*_COMMAND, "restart", "--set", f"draft={other}", "--json"]
            work = subprocess.Popen(command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(self.chance.uniform(0.25, 1.2))
            return work
        else:
            time.sleep(self.chance.uniform(0.0, 0.3))
        return None

    def _wait_for_entry(self, program: "subprocess.Popen[bytes]", states: tuple[str, ...]) -> None:
        deadline_s = time.monotonic() + _READY_S
        while time.monotonic() < deadline_s and program.poll() is None:
            for path in self.home.glob("state/run/*/server-*.json"):
                with suppress(OSError, ValueError):
                    if json.loads(path.read_bytes())["state"] in states:
                        return
            time.sleep(0.002)

    def _wait_until_ready(self, program: "subprocess.Popen[bytes]", draft: int) -> dict[str, Any]:
        assert program.stdout is not None
        line = program.stdout.readline()
        ready: dict[str, Any] = json.loads(line) if line else {}
        if ready.get("state") != "ready":
            result = program.stderr.read().decode("utf-8", "replace") if program.stderr else ""
            self._complain("unclean", f"it did not start: {line!r} {result}")
            return {}
        if self.address not in (None, (ready["url"], ready["api_key"])):
            self._complain("lost", f"the address was {self.address}, now {ready['url']}")
        self.address = ready["url"], ready["api_key"]
        self.allowed = {draft}
        return ready

    def _begin_stream(self, ready: dict[str, Any]) -> bool:
        """Begin a long reply and leave it open; the connection ends with the engine."""
        body = {
            "messages": [{"role": "user", "content": "Hi"}],
            "stream": True,
            "max_tokens": 8_000,
            "ignore_eos": True,
        }
        request = urllib.request.Request(
            f"{ready['url']}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Authorization": f"Bearer {ready['api_key']}", "Content-Type": "application/json"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._open_stream = opener.open(request, timeout=10)
        return bool(self._open_stream.readline())

    def _look_for_orphans(self, phase: str, killed_s: float, work: "subprocess.Popen[bytes] | None") -> None:
        """Wait until only the process that requested a restart is left, and record a problem if that takes too long."""
        own = work.pid if work else None
        while left := [each for each in self._list_left_processes() if each.pid != own]:
            if time.monotonic() - killed_s > _ORPHAN_S:
                self._complain("orphans", f"{phase}: {[(each.pid, ' '.join(_join_words(each))) for each in left]}")
                for each in left:
                    with suppress(psutil.Error):
                        each.kill()
                break
            time.sleep(0.01)
        self.count.slowest_s = max(self.count.slowest_s, time.monotonic() - killed_s)

    def _list_left_processes(self) -> list[psutil.Process]:
        """Return all processes that have this home in their environment, also orphaned ones."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and (
                    process.environ().get("MTP_LAUNCHER_HOME") == str(self.home)
                ):
                    found.append(process)
        return found

    def _look_at_files(self, phase: str) -> None:
        for path in self.home.rglob("*.bad*"):
            self._complain("damaged", f"{phase}: {path}")
            path.unlink()
        path = self.home / "state" / "model-settings.json"
        kept: int | None = None
        if path.exists():
            try:
                models: dict[str, dict[str, int]] = json.loads(path.read_bytes())["models"]
                kept = next((settings.get("draft") for settings in models.values()), None)
            except ValueError as error:
                self._complain("damaged", f"{phase}: {path}: {error}")
                return
        if kept not in self.before | self.allowed:
            self._complain("lost", f"{phase}: draft {kept} is kept, acknowledged were {self.allowed}")
        self.before = {kept}

    def end_cleanly(self) -> None:
        """Start, send a request and stop once more, which must work as usual."""
        command = [*_COMMAND, "serve", "--model", "demo", "--json"]
        with subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
            self._wait_until_ready(program, 2)
            for verb in (["chat", "Hello", "--max-tokens", "8"], ["stop"]):
                result = subprocess.run([*_COMMAND, *verb], env=self.environment, capture_output=True, check=False)
                if result.returncode:
                    self._complain("unclean", f"{verb}: {result.stderr.decode()}")
            if program.wait(30):
                self._complain("unclean", "the last serve did not end well")
        if (
            subprocess.run([*_COMMAND, "status"], env=self.environment, capture_output=True, check=False).returncode
            != 1
        ):
            self._complain("unclean", "something is still registered")

    def _complain(self, kind: str, what: str) -> None:
        setattr(self.count, kind, getattr(self.count, kind) + 1)
        self.count.complaints.append(f"{kind}: {what}")
        print(f"  {kind}: {what}", flush=True)


def _join_words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def main() -> int:
    """Kill, check, and print the counts."""
    parser = argparse.ArgumentParser(prog="python -m tools.kill_program", description="The program survives kill -9.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    chosen = parser.parse_args()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mtp-kills-") as folder:
        run = Run(Path(folder), random.Random(chosen.seed))
        for number in range(chosen.kills):
            run.kill_once(_PHASES[number % len(_PHASES)])
        run.end_cleanly()
    count = run.count
    phases = ", ".join(f"{number} while {phase}" for phase, number in count.kills.items())
    print(f"seed {chosen.seed}: {count.kills.total()} kills ({phases}), {count.with_keeper} of them with the keeper")
    print(f"{count.orphans} left a process after {_ORPHAN_S:.0f} s (the last was gone after {count.slowest_s:.2f} s)")
    print(
        f"{count.lost} lost settings or an address, {count.damaged} damaged a file, {count.unclean} starts were unclean"
    )
    print(f"{time.monotonic() - began_s:.0f} s")
    return 1 if count.complaints or count.kills.total() < chosen.kills else 0


if __name__ == "__main__":
    sys.exit(main())
