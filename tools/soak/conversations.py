"""Agents' conversations on a small disk, in fast motion: `python -m tools.soak.conversations FOLDER [MINUTES]`.

Four clients work as coding agents do: each session begins with the instructions and tools of one of two agents, and
grows with every turn. In the first half of the time the server is stopped and started, it and its engine are killed,
and the disk of FOLDER, which must be a small one of its own, is filled for a while. In the second half one server runs
all the while. Then a sample of the turns is asked anew, without any cache: the replies must be the same.

Exit code 1 if a request failed that no kill explains, a reply was another one, the kept states took more of the disk
than they may, files were left, or the program's memory grew.
"""

import argparse
import json
import os
import random
import secrets
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.engine.demo import unpack_demo_model
from tools.prove_states import Server
from tools.soak.__main__ import format_growths
from tools.soak.watch import ResourceUse, read_resources

_CHAT = "/v1/chat/completions"
_CLIENTS, _MOST_TURNS = 4, 8
_CONTEXT, _SLOTS = 65_536, 2
_QUIET_S = 14.0
"""Seconds without a request: a conversation is kept after ten."""
_PERIOD_S, _MOST_BETWEEN_S = 1.0, 90.0
"""Seconds between two looks at the files, and the most between two disturbances in the first half."""
_MIB = 1 << 20
_FREE_SHARE = 0.1
"""Share of the disk that the vault may take, as in launcher/gateway/vault.py."""
_COMPARED = 20
_FEWEST_SAMPLES = 10
"""Looks at the resources, from which a growth is told."""
_FILLER = "filler"


@dataclass
class Turn:
    """One request and its reply. `is_cold`: it is its session's first since the server was started or disturbed."""

    messages: list[dict[str, str]]
    reply: Mapping[str, Any]
    is_cold: bool


@dataclass
class Board:
    """What the clients and the one who disturbs them know of each other."""

    server: Server
    may_ask: threading.Event = field(default_factory=threading.Event)
    has_ended: threading.Event = field(default_factory=threading.Event)
    disturbances: list[list[float]] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @contextmanager
    def disturb(self, what: str) -> Iterator[None]:
        """Excuse the requests that fail meanwhile."""
        self.counts[what] += 1
        self.disturbances.append([time.monotonic(), float("inf")])
        yield
        self.disturbances[-1][1] = time.monotonic()

    def count_restored(self) -> None:
        """Add what came from disk since the server's start: it forgets that when it ends."""
        for record in self.server.read_requests():
            self.counts["prompt tokens from disk"] += record["restored_tokens"] or 0
            self.counts["turns from disk"] += bool(record["restored_tokens"])
            if record["reread"]:
                self.counts[f"read again ({record['reread']['cause']})"] += 1

    def is_excused(self, began_s: float) -> bool:
        """Return whether a request that began then, and has failed now, was disturbed."""
        return any(end_s >= began_s for _, end_s in self.disturbances)


def _write_text(chance: random.Random, lines: int) -> str:
    words = ("draft", "head", "token", "cache", "layer", "batch", "prompt", "slot", "weight", "bread")
    return "".join(f"{number}: {' '.join(chance.choices(words, k=8))}.\n" for number in range(lines))


def _work_as_agent(board: Board, number: int, seed: int) -> None:
    """Ask turn after turn until the end."""
    chance = random.Random(seed + number)
    system = {"role": "system", "content": _write_text(random.Random(number % 2), 600)}
    messages: list[dict[str, str]] = []
    seen = 0
    while not board.has_ended.is_set():
        board.may_ask.wait()
        if not messages or len(messages) > 2 * chance.randrange(2, _MOST_TURNS):
            messages = [system]
        messages.append({"role": "user", "content": _write_text(chance, chance.choice((2, 10, 40)))})
        reply = _ask_until_answered(board, messages)
        if reply is None:
            return
        is_cold, seen = seen != len(board.disturbances), len(board.disturbances)
        board.turns.append(Turn(list(messages), reply, is_cold))
        messages.append({"role": "assistant", "content": reply.get("content") or "-"})


def _ask_until_answered(board: Board, messages: list[dict[str, str]]) -> Mapping[str, Any] | None:
    while not board.has_ended.is_set():
        began_s = time.monotonic()
        try:
            answer = board.server.ask(_CHAT, {"messages": messages, "temperature": 0, "max_tokens": 16})
        except OSError as error:  # HTTPError, URLError and broken connections
            excused = board.is_excused(began_s)
            board.counts["failed while it was disturbed" if excused else "FAILED"] += 1
            if not excused:
                text = error.read().decode() if hasattr(error, "read") else ""
                board.wrong.append(f"a request failed: {error} {text[:200]}")
            board.has_ended.wait(0.2)
            continue
        timings = answer["timings"]
        board.counts["turns"] += 1
        board.counts["prompt tokens read"] += timings["prompt_n"]
        board.counts["prompt tokens reused"] += timings["cache_n"]
        return dict(answer["choices"][0]["message"])
    return None


def _restart(board: Board) -> None:
    board.count_restored()
    with board.disturb("stopped and started"):
        board.server.stop()
        board.server.start()


def _kill_program(board: Board) -> None:
    board.count_restored()
    with board.disturb("program killed"):
        board.server.stop(signal.SIGKILL)
        board.server.start()


def _kill_engine(board: Board) -> None:
    with board.disturb("engine killed"):
        board.server.kill_engine()
        while not _is_ready(board.server):
            time.sleep(0.2)


def _is_ready(server: Server) -> bool:
    with suppress(OSError):
        return bool(server.ask("/health"))
    return False


def _fill_disk(board: Board) -> None:
    """Fill the disk, have the clients go on and pause, so that states are to be kept, and free it again."""
    board.counts["disk full"] += 1
    filler = board.server.home / _FILLER
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(_MIB))
    board.may_ask.set()
    time.sleep(_QUIET_S / 2)
    board.may_ask.clear()
    time.sleep(_QUIET_S)
    filler.unlink()


_EVENTS: tuple[Callable[[Board], None], ...] = (_restart, _kill_program, _fill_disk, _kill_engine)


def _measure_kept(home: Path) -> int:
    """Return the bytes of all states and slots in files."""
    size = 0
    for path in (home / "cache").glob("s[lt]*/**/*"):
        with suppress(OSError):  # deleted meanwhile
            size += path.stat().st_size if path.is_file() else 0
    return size


def _watch(board: Board, minutes: float, chance: random.Random) -> tuple[list[ResourceUse], int, int]:
    """Disturb the clients, and watch; return the program's resources in the second half, and the most bytes kept."""
    home, began_s = board.server.home, time.monotonic()
    half_s = 30 * minutes
    every_s = min(half_s / len(_EVENTS), _MOST_BETWEEN_S)
    largest = most = events = 0
    samples: list[ResourceUse] = []
    lone_s = quiet_s = 0.0
    while (now_s := time.monotonic() - began_s) < 2 * half_s:
        board.may_ask.set()
        time.sleep(_PERIOD_S)
        most = max(most, _measure_kept(home))
        for path in board.server.list_kept():
            with suppress(OSError):
                largest = max(largest, path.stat().st_size)
        if now_s < half_s and now_s > (events + 0.5) * every_s:
            board.may_ask.clear()
            if events % 2 or chance.random() < 0.5:
                time.sleep(_QUIET_S)  # all is kept before
            else:
                board.may_ask.set()  # in the middle of replies
            _EVENTS[events % len(_EVENTS)](board)
            events += 1
        elif now_s >= half_s:
            lone_s = lone_s or time.monotonic()
            if (use := read_resources(board.server.program, home / "state" / "logs", lone_s)) is not None:
                samples.append(use)
            if now_s > quiet_s + every_s:
                board.may_ask.clear()
                time.sleep(_QUIET_S)
                quiet_s = time.monotonic() - began_s
    return samples, most, largest


def _find_left(home: Path) -> list[str]:
    """Return what is wrong with the files after the end."""
    left = [str(path.relative_to(home)) for path in (home / "cache" / "slots").glob("**/*") if path.is_file()]
    left += [path.name for path in (home / "cache" / "states").glob("*.unread")]
    with closing(sqlite3.connect(home / "cache" / "states" / "index.sqlite")) as db:
        listed = {row[0] for row in db.execute("SELECT name FROM states")}
    files = {path.stem for path in (home / "cache" / "states").glob("*.state")}
    left += [f"listed, but not there: {name}" for name in listed - files]
    left += [f"not listed: {name}" for name in files - listed]
    return left


def _compare_turns(board: Board, model: Path, chance: random.Random) -> int:
    """Ask a sample of the turns anew, at a server that has kept nothing; return how many were compared."""
    cold = [turn for turn in board.turns if turn.is_cold]
    warm = [turn for turn in board.turns if not turn.is_cold]
    sample = [turn for turns in (cold, warm) for turn in chance.sample(turns, min(len(turns), _COMPARED // 2))]
    home = Path(tempfile.mkdtemp(prefix="soak-fresh-"))
    server = Server(model, home, None, _CONTEXT)
    try:
        for turn in sample:
            body = {"messages": turn.messages, "temperature": 0, "max_tokens": 16, "cache_prompt": False}
            fresh = server.ask(_CHAT, body)["choices"][0]["message"]
            if fresh != turn.reply:
                kind = "cold" if turn.is_cold else "warm"
                board.wrong.append(f"a {kind} reply was {turn.reply.get('content')!r}, afresh {fresh.get('content')!r}")
    finally:
        server.stop()
        shutil.rmtree(home, ignore_errors=True)
    return len(sample)


def run_soak(folder: Path, minutes: float, seed: int) -> list[str]:
    """Run the load, print the report, and return what went wrong."""
    chance = random.Random(seed)
    model = unpack_demo_model()
    disk = shutil.disk_usage(folder).total
    extra = ["--slots", str(_SLOTS), "--", "--cache-ram", "32"]  # else the engine's own cache grows all the while
    board = Board(Server(model, folder, None, _CONTEXT, extra))
    agents = [threading.Thread(target=_work_as_agent, args=(board, i, seed), daemon=True) for i in range(_CLIENTS)]
    try:
        for agent in agents:
            agent.start()
        samples, most, largest = _watch(board, minutes, chance)
        board.has_ended.set()
        board.may_ask.set()
        for agent in agents:
            agent.join(120)
        board.count_restored()
    finally:
        board.server.stop()
    board.wrong += [f"left: {each}" for each in _find_left(folder)]
    bound = int(_FREE_SHARE * disk) + (1 + _SLOTS) * largest  # one being kept, and those that a handover saves
    if most > bound:
        board.wrong.append(f"{most / _MIB:.0f} MiB were kept, {bound / _MIB:.0f} MiB may be")
    compared = _compare_turns(board, model, chance)
    if len(samples) < _FEWEST_SAMPLES:
        lines, is_flat = ["Too short to say what grew."], True
    else:
        lines, is_flat = format_growths(samples)
    print("\n".join(lines))
    if not is_flat:
        board.wrong.append("something grew")
    print(", ".join(f"{what} {count:,}" for what, count in sorted(board.counts.items())))
    print(
        f"{minutes:g} minutes, seed {seed}. At most {most / _MIB:.1f} MiB were kept ({bound / _MIB:.1f} MiB may be); "
        f"the largest state has {largest / _MIB:.1f} MiB. {compared} replies were compared."
    )
    return board.wrong


def main() -> int:
    """Run the load, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="on a small disk of its own, such as a tmpfs of 1 GiB"
    )
    parser.add_argument("minutes", nargs="?", type=float, default=30.0, metavar="MINUTES", help="how long (30)")
    parser.add_argument("--seed", type=int, default=secrets.randbits(16), metavar="N")
    options = parser.parse_args()
    os.environ["MTP_LAUNCHER_HOME"] = str(options.folder)
    wrong = run_soak(options.folder, options.minutes, options.seed)
    for each in wrong:
        print(f"WRONG: {each}")
    print(json.dumps({"wrong": len(wrong)}))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
