"""Changes states of conversations at random: no reply may have other words, and nothing of the program may fail.

    python -m tools.fuzz_states [--states 10000] [--offered 700] [--seed N] [--llama-server PATH]

Most states are offered to the vault alone, with files and rows of its index changed, and by several processes at once
that are killed now and then. `--offered` of them lie in the vault of a server, which is asked the conversation's next
turn: with changed files, changed rows, and files whose digest was made anew after the change, as if the engine had
written them so. Each reply is compared with that of an engine which has read all itself. An engine that ends at a state
must not get it again.

Prints a table, and ends with exit code 1 if something went wrong. Of files "changed with their digest" nobody but the
engine can know: what comes of them is only counted.
"""

import argparse
import asyncio
import json
import os
import secrets
import shutil
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import gguf

from launcher.app.serving.session import ServerSession
from launcher.app.settings import open_vault
from launcher.base.paths import HOME_VARIABLE
from launcher.engine.demo import unpack_demo_model
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.start_request import StartRequest
from launcher.gateway import state_keeper
from launcher.gateway.engine_link import EngineLink
from launcher.gateway.slot_file import SlotFile, digest_file, read_slot_file
from launcher.gateway.vault import BLOCK_BYTES, SavedState, StateVault, hash_request
from tools.markdown import format_table
from tools.prove_states import SHAPES, write_random

_CHAT = "/v1/chat/completions"
_LINES = 100
"""Lines of the question: about 1,400 tokens."""
_UNLIMITED = 1 << 50, 30.0
_WRITERS, _KILLS = 3, 6
_SAME, _OTHER = "same words", "other words"
_BY_DIGEST = "changed with its digest"
_NEXT = {"role": "user", "content": "And then?"}
_SHORT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}


@dataclass(frozen=True)
class Kept:
    """A conversation in the vault: its row, its file, its next turn, and the reply to that."""

    state: SavedState
    data: bytes
    held: SlotFile
    turn: Mapping[str, Any]
    expected: Mapping[str, Any]


# Changes of a file. Each returns its bytes, None for no file.


def _flip(chance: Random, data: bytes, begin: int = 0, end: int | None = None) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 8))):
        changed[chance.randrange(begin, len(data) if end is None else end)] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _change_tokens(chance: Random, data: bytes, count: int) -> bytes:
    """Change some of the tokens, which are the last numbers before the state."""
    words = struct.unpack_from("<I", data, 8)[0]
    changed = bytearray(data)
    for _ in range(count):
        place = 12 + 4 * chance.randrange(words - 1_000, words)
        changed[place : place + 4] = struct.pack("<i", chance.randrange(300, 2_000))
    return bytes(changed)


def _move_block(chance: Random, data: bytes) -> bytes:
    size = chance.choice((4, 64, 4_096))
    one, other = (chance.randrange(12, len(data) - size) for _ in range(2))
    changed = bytearray(data)
    changed[one : one + size], changed[other : other + size] = data[other : other + size], data[one : one + size]
    return bytes(changed)


def _write_half(chance: Random, data: bytes) -> bytes:
    place = chance.randrange(len(data))
    return data[:place] + bytes(len(data) - place)


_FILES: Mapping[str, Callable[[Random, bytes, bytes], bytes | None]] = {
    "bits": lambda chance, data, _: _flip(chance, data),
    "cut": lambda chance, data, _: data[: chance.randrange(len(data))],
    "longer": lambda chance, data, _: data + chance.randbytes(chance.randrange(1, 5_000)),
    "tokens": lambda chance, data, _: _change_tokens(chance, data, 3),
    "blocks moved": lambda chance, data, _: _move_block(chance, data),
    "half written": lambda chance, data, _: _write_half(chance, data),
    "empty": lambda *_: b"",
    "another conversation's": lambda _, __, other: other,
    "deleted": lambda *_: None,
}


def _list_row_changes(chance: Random, one: SavedState, other: SavedState) -> Mapping[str, Mapping[str, Any]]:
    """Return changes of a row in the index. "rows swapped": this conversation's row has the other one's file."""
    column = chance.choice(("tokens", "size", "read_s", "used_s", "chain", "purpose", "uses"))
    return {
        "tokens": {"tokens": one.tokens + chance.choice((-300, -1, 1, 10**6))},
        "prompt_tokens": {"prompt_tokens": chance.choice((0, -5, 1, 10**9))},
        "characters": {"characters": chance.choice((0, -1, 1, 10**9))},
        "checkpoints": {"checkpoints": chance.choice(("[]", "5", "[1]", "[", '["a"]', "[99999999]"))},
        "kind": {"kind": one.kind[:-1]},
        "size": {"size": chance.choice((-1, 0, 1, 1 << 62))},
        "digest": {"digest": _flip(chance, one.digest)},
        "goes_back": {"goes_back": int(not one.goes_back)},
        "chain": {"chain": _flip(chance, one.chain)},
        "rows swapped": {"digest": other.digest},
        "another type": {column: chance.choice(("text", b"bytes", 7.5, 1e300))},
        "times": {"used_s": chance.choice((-1e18, 0.0, 1e18)), "read_s": chance.choice((-1.0, 1e9))},
    }


def _change_with_digest(chance: Random, kept: Kept, files: Mapping[str, bytes]) -> Mapping[str, Callable[[], bytes]]:
    data, held = kept.data, kept.held
    state_begin = 12 + 4 * struct.unpack_from("<I", data, 8)[0]
    changes: dict[str, Callable[[], bytes]] = {
        "header: bits": lambda: _flip(chance, data, 0, 24),
        "tokens: some": lambda: _change_tokens(chance, data, 3),
        "tokens: all": lambda: _change_tokens(chance, data, 2_000),
        "state: its first 256 bytes": lambda: _flip(chance, data, state_begin, state_begin + 256),
        "state: bits": lambda: _flip(chance, data, state_begin, held.state_end),
        "state: cut": lambda: data[: chance.randrange(state_begin, held.state_end)],
        "file: cut": lambda: data[: chance.randrange(len(data))],
        "file: half written": lambda: _write_half(chance, data),
        "blocks moved": lambda: _move_block(chance, data),
        **{f"file of {name}": partial(bytes, other) for name, other in files.items()},
    }
    if held.checkpoints:
        last = held.checkpoints[-1]
        changes["checkpoints: places and lengths"] = lambda: _flip(chance, data, held.state_end, held.state_end + 48)
        changes["checkpoints: bits"] = lambda: _flip(chance, data, last.begin + 24, last.end)
        changes["checkpoints: cut"] = lambda: data[: chance.randrange(held.state_end, held.checkpoints_end)]
    return changes


@asynccontextmanager
async def _serve(options: ServeOptions) -> AsyncIterator[ServerSession]:
    session = ServerSession()
    try:
        await session.start(StartRequest(options))
        yield session
    finally:
        await session.stop()


async def _ask(session: ServerSession, body: Mapping[str, Any]) -> tuple[int, Any, int]:
    """Send a request; return the status, the reply's message or the error, and the tokens that were not read again."""
    endpoint = session.supervisor.endpoint
    headers = {"Authorization": f"Bearer {endpoint.api_key}", "Content-Type": "application/json"}
    request = Request(endpoint.url + _CHAT, json.dumps(body).encode(), headers)

    def send() -> tuple[int, Any, int]:
        try:
            with urlopen(request, timeout=120) as reply:
                data = json.load(reply)
                return 200, data["choices"][0]["message"], data["timings"]["cache_n"]
        except HTTPError as error:
            return error.code, error.read().decode("utf-8", "replace"), 0

    return await asyncio.to_thread(send)


def _install(kept: Kept) -> None:
    """Make a conversation the only one in the vault."""
    with closing(StateVault(open_vault().folder, lambda: _UNLIMITED)) as vault:
        if vault.list_states() or vault.folder.exists():
            with closing(sqlite3.connect(vault.folder / "index.sqlite", timeout=30)) as db, db:
                db.execute("DELETE FROM states")  # those with damaged rows, too
        path = vault.folder / "installed"
        path.write_bytes(kept.data)
        if not vault.keep_file(path, replace(kept.state, read_s=60.0)):
            raise SystemExit(f"A state could not be kept: {vault.problem}")


def _change_row(changes: Mapping[str, Any]) -> None:
    with closing(sqlite3.connect(open_vault().folder / "index.sqlite", timeout=30)) as db, db:
        for column, value in changes.items():
            db.execute(f"UPDATE states SET {column} = ?", (value,))


async def _make_kept(options: ServeOptions, topic: str) -> Kept:
    """Have a server keep a conversation."""
    question = topic + "".join(f" Line {number} of a long prompt about draft heads." for number in range(_LINES))
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    body: dict[str, Any] = {"messages": messages, "temperature": 0, "max_tokens": 24}
    with closing(open_vault()) as vault:
        vault.forget(vault.list_states())
    async with _serve(options) as session:
        _, answer, _ = await _ask(session, body)
    with closing(open_vault()) as vault:
        state = vault.list_states()[0]
        data, held = vault.path_of(state).read_bytes(), read_slot_file(vault.path_of(state))
        vault.forget([state])
    turn = {**body, "messages": [*messages, {"role": "assistant", "content": answer["content"]}, _NEXT]}
    async with _serve(options) as session:  # nothing is kept: it reads all
        await _ask(session, body)
        _, expected, _ = await _ask(session, turn)
    with closing(open_vault()) as vault:
        vault.forget(vault.list_states())
    return Kept(state, data, held, turn, expected)


class Bench:
    """Asks a server for the next turn of a changed conversation, and counts what came of it."""

    def __init__(self, options: ServeOptions, kept: Kept, rows: Counter[tuple[str, str, str]]) -> None:
        self._options, self._kept, self._rows = options, kept, rows
        self.wrong: list[str] = []
        self._offered: list[str] = []

    async def run(self, cases: Sequence[tuple[str, str, Callable[[], None]]]) -> None:
        """Run cases: what is changed, how, and the function that changes it after the whole one was installed."""
        original = EngineLink.request_json

        async def request_json(link: EngineLink, path: str, *given: Any, **named: Any) -> Any:  # noqa: ANN401
            if "action=restore" not in path:
                return await original(link, path, *given, **named)
            self._offered.append("ended")
            status, data = await original(link, path, *given, **named)
            self._offered[-1] = "restored" if status == 200 else "refused"
            return status, data

        setattr(EngineLink, "request_json", request_json)  # noqa: B010 -- mypy: a method
        try:
            left = list(cases)
            while left:
                async with _serve(self._options) as session:
                    # Another server is asked after an engine's end (one gives up after a few) or a spoiled state.
                    while left and await self._run_case(session, *left.pop()):
                        pass
        finally:
            setattr(EngineLink, "request_json", original)  # noqa: B010

    async def _run_case(self, session: ServerSession, what: str, how: str, change: Callable[[], None]) -> bool:
        """Run a case; return whether the engine can be asked for the next one."""
        engine = session.supervisor.engine_pid
        await _ask(session, _SHORT)  # takes the slot
        while True:
            _install(self._kept)
            with suppress(FileNotFoundError):  # a server that is slow has looked at it meanwhile
                change()
                break
        self._offered.clear()
        status, reply, reused = await _ask(session, self._kept.turn)
        offered = self._offered[-1] if self._offered else "not offered"
        if offered == "restored":
            offered = "restored and used" if reused else "restored, but read again"
        has_ended = offered == "ended" or session.supervisor.engine_pid != engine
        words = f"HTTP {status}" if status != 200 else _SAME if reply == self._kept.expected else _OTHER
        place = "the restore" if offered == "ended" else "the reply"
        self._rows[what, how, f"{f'engine ended at {place}' if has_ended else offered}, {words}"] += 1
        by_digest = what == _BY_DIGEST
        if words not in (_SAME, _OTHER) and not has_ended:
            self.wrong.append(f"{what}, {how}: {words}: {str(reply)[:200]}")
        if words == _OTHER and not by_digest:
            self.wrong.append(f"{what}, {how}: other words")
        if not by_digest and has_ended:
            self.wrong.append(f"{what}, {how}: the engine ended")
        if has_ended:
            await self._ask_again(session, f"{what}, {how}")
        is_spoiled = by_digest and offered.startswith("restored")  # the next prompt would reuse its first tokens
        return not (has_ended or is_spoiled)

    async def _ask_again(self, session: ServerSession, case: str) -> None:
        """Check that a state at which an engine ended is asked for no more, and that the next reply is right."""
        self._offered.clear()
        for _ in range(60):
            status, reply, _ = await _ask(session, self._kept.turn)
            if status == 200:
                break
            await asyncio.sleep(0.5)
        if self._offered or status != 200 or reply != self._kept.expected:
            self.wrong.append(f"{case}: after the engine's end: {self._offered}, HTTP {status}, {str(reply)[:200]}")


def _list_cases(chance: Random, kept: Kept, other: Kept, files: Mapping[str, bytes], count: int) -> list[Any]:
    """Return `count` cases for a server: a seventh with changed files, two with changed rows, four with the digest."""
    cases: list[tuple[str, str, Callable[[], None]]] = []

    def write(data: bytes | None) -> None:
        path = open_vault().path_of(kept.state)
        path.unlink()
        if data is not None:
            path.write_bytes(data)

    def change_file(how: str) -> None:
        write(_FILES[how](chance, kept.data, other.data))

    def write_with_digest(make: Callable[[], bytes]) -> None:
        write(make())
        held = read_slot_file(open_vault().path_of(kept.state))
        # As the program would have written the row, had the engine written this file.
        places = json.dumps([each.tokens for each in held.checkpoints])
        row = {"digest": held.digest, "size": held.size or 1, "checkpoints": places}
        _change_row({**row, "goes_back": int(not held.checkpoints), "tokens": len(held.tokens or ())})

    def change_row(how: str) -> None:
        if how == "rows swapped":
            write(other.data)
        _change_row(_list_row_changes(chance, kept.state, other.state)[how])

    row_changes = list(_list_row_changes(chance, kept.state, other.state))
    by_digest = _change_with_digest(chance, kept, files)
    for number in range(count):
        match number % 7:
            case 0:
                how = chance.choice(list(_FILES))
                cases.append(("file", how, partial(change_file, how)))
            case 1 | 2:
                how = chance.choice(row_changes)
                cases.append(("row", how, partial(change_row, how)))
            case _:
                how = chance.choice(list(by_digest))
                cases.append((_BY_DIGEST, how, partial(write_with_digest, by_digest[how])))
    return cases


def fuzz_vault(chance: Random, kept: Kept, other: Kept, count: int, rows: Counter[tuple[str, str, str]]) -> list[str]:
    """Offer changed files and rows to a vault alone; return what went wrong: a file lent that has changed."""
    wrong: list[str] = []
    lent = open_vault().folder.parent / "lent"
    for number in range(count):
        _install(kept)
        row_changes = _list_row_changes(chance, kept.state, other.state)
        changes_file = number % 2 == 1
        how = chance.choice(list(_FILES if changes_file else row_changes))
        with closing(open_vault()) as vault:
            if changes_file:
                changed = _FILES[how](chance, kept.data, other.data)
                path = vault.path_of(kept.state)
                path.unlink() if changed is None else path.write_bytes(changed)
            else:
                _change_row(row_changes[how])
            found = vault.find_state(kept.state.kind, kept.state.chain)
            is_lent = found is not None and vault.lend_file(found[0], lent)
            outcome = "lent whole" if is_lent else "not found" if found is None else "refused"
            if is_lent and lent.read_bytes() != kept.data:
                wrong.append(f"{how}: a changed file was lent")
            vault.make_room()
            vault.verify()
            rows["vault alone: file" if changes_file else "vault alone: row", how, outcome] += 1
        lent.unlink(missing_ok=True)
    return wrong


def _write_at_once(folder: Path, seed: int, count: int) -> int:
    """Keep, find, lend, damage and delete states beside other processes that do so; return how many were wrong."""
    chance, wrong = Random(seed), 0
    with closing(StateVault(folder / "states", lambda: (1 << 24, 30.0))) as vault:
        for number in range(count):
            path = folder / f"{seed}-{number}.bin"
            size = chance.randrange(1_000, 200_000)
            path.write_bytes(struct.pack("<4sIIiii", b"qsgg", 3, 3, -1, 1, 0) + chance.randbytes(size))
            held = read_slot_file(path)
            chain, characters = hash_request([b"%d" % chance.randrange(50) * BLOCK_BYTES * 4])
            now_s = time.time()
            vault.keep_file(
                path,
                SavedState(
                    secrets.token_hex(16), "kind", "demo", "fuzz", "conversation", chain, b"", characters, 100, 100, (),
                    True, held.size, held.digest, 3.0, now_s, now_s, 0,
                ),
            )  # fmt: skip
            found = vault.find_state("kind", chain)
            lent = folder / f"{seed}.lent"
            if found is not None and vault.lend_file(found[0], lent):
                wrong += digest_file(lent) != found[0].digest
            states = vault.list_states()
            match chance.randrange(8):
                case 0 if states:
                    vault.drop_state(chance.choice(states))
                case 1 if states:  # a file is replaced by another one: the vault's files are lent as links
                    damaged = folder / f"{seed}.damaged"
                    damaged.write_bytes(chance.randbytes(500))
                    damaged.replace(vault.path_of(chance.choice(states)))
                case 2:
                    vault.verify()
            wrong += bool(vault.problem)
    return wrong


def fuzz_writers(folder: Path, chance: Random, count: int, rows: Counter[tuple[str, str, str]]) -> list[str]:
    """Have several processes use one vault, some of which are killed; return what went wrong."""
    wrong: list[str] = []

    def begin(part: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tools.fuzz_states", "--writer", str(folder)]
        return subprocess.Popen([*command, "--states", str(part), "--seed", str(chance.randrange(1 << 30))])

    part = count // (_WRITERS + _KILLS)
    writers = [begin(part) for _ in range(_WRITERS)]
    for _ in range(_KILLS):
        killed = chance.choice(writers)
        with suppress(subprocess.TimeoutExpired):
            killed.wait(chance.uniform(0.5, 2.5))
        if killed.poll() is None:
            killed.kill()
            rows["several processes", "killed", "others went on"] += 1
        writers.append(begin(part))
    for each in writers:
        code = each.wait(600)
        if code not in (0, -9):
            wrong.append(f"a writer ended with {code}")
        rows["several processes", f"{part} states", "killed" if code else "nothing wrong"] += 1
    with closing(StateVault(folder / "states", lambda: (1 << 24, 30.0))) as vault:
        vault.verify()
        vault.make_room()
        if vault.problem or vault.verify() or vault.read_use().size > 1 << 24:
            wrong.append(f"after the writers: {vault.problem} {vault.read_use()}")
    return wrong


def _spoil_model(demo: Path, path: Path) -> Path:
    """Write a copy of the demo with other weights and the same shape."""
    data = bytearray(demo.read_bytes())
    for place in range(gguf.GGUFReader(demo).data_offset, len(data), 97):
        data[place] ^= 8
    path.write_bytes(data)
    return path


async def _fuzz(options: argparse.Namespace, folder: Path) -> tuple[Counter[tuple[str, str, str]], list[str]]:
    chance = Random(options.seed)
    rows: Counter[tuple[str, str, str]] = Counter()
    extra = ("--cache-ram", "0")  # the engine's own cache would hide what it does with a state
    model = unpack_demo_model()
    state_keeper.LEAST_GAIN_S = 0.0  # a fast machine reads short conversations in less time than a file is worth
    draft = 2
    if options.shape != "hybrid":
        model, draft = folder / f"{options.shape}.gguf", 0
        write_random(unpack_demo_model(), model, sliding=options.shape == "sliding")
    base = ServeOptions(model=model, threads=1, context=8_192, slots=1, draft=draft, extra=extra)
    built_in = replace(base, built_in=True)
    engines = {"built-in": built_in}
    if options.llama_server:
        engines["llama-server"] = replace(base, engine=options.llama_server)
    kept = {name: await _make_kept(each, "Bread.") for name, each in engines.items()}
    other = await _make_kept(built_in, "Water.")
    spoiled = replace(built_in, model=_spoil_model(model, folder / "other.gguf"))
    wrong: list[str] = []
    for number, (name, serving) in enumerate(engines.items()):
        one = replace(serving, model=spoiled.model)
        files = {
            "q8_0 cache": (await _make_kept(replace(serving, kv="q8_0"), "Bread.")).data,
            "another model of this shape": (await _make_kept(one, "Bread.")).data,
            "another conversation": other.data,
            **{f"{each} engine": of.data for each, of in kept.items() if each != name},
        }
        bench = Bench(serving, kept[name], rows)
        count = options.offered if number == 0 else options.offered // 2
        cases = _list_cases(chance, kept[name], other, files, count)
        await bench.run([(what, f"{name}: {how}" if number else how, change) for what, how, change in cases])
        wrong += [f"{name}: {each}" for each in bench.wrong]
        print(f"{name}: {count} states offered, {len(bench.wrong)} wrong", flush=True)
    at_once = options.states // 10
    left = options.states - sum(rows.values()) - at_once
    wrong += fuzz_vault(chance, kept["built-in"], other, max(0, left), rows)
    wrong += fuzz_writers(folder, chance, at_once, rows)
    return rows, wrong


def main() -> int:
    """Run the changes, and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=10_000, metavar="N")
    parser.add_argument("--offered", type=int, default=700, metavar="N", help="how many of them a server is asked for")
    parser.add_argument("--seed", type=int, default=secrets.randbits(16), metavar="N")
    parser.add_argument("--llama-server", type=Path, metavar="PATH", help="also with this engine")
    parser.add_argument("--shape", choices=SHAPES, default="hybrid", help="the demo, or random weights")
    parser.add_argument("--writer", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.writer:
        return _write_at_once(options.writer, options.seed, options.states)
    folder = Path(tempfile.mkdtemp(prefix="fuzz-states-"))
    os.environ[HOME_VARIABLE] = str(folder / "home")
    began_s = time.monotonic()
    try:
        rows, wrong = asyncio.run(_fuzz(options, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    table = [(what, how, outcome, f"{count:,}") for (what, how, outcome), count in sorted(rows.items())]
    print(format_table(("changed", "how", "what came of it", "states"), table))
    print(f"Seed {options.seed}, {options.states:,} states, {time.monotonic() - began_s:.0f} s.")
    for each in wrong:
        print(f"WRONG: {each}")
    print("0 wrong replies, nothing of ours failed." if not wrong else f"{len(wrong)} WRONG.")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
