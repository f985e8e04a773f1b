"""The vault: what it finds for a request, what it gives back, and what it deletes."""

import os
import random
import shutil
import sqlite3
import struct
import subprocess
import sys
from array import array
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.gateway import vault
from launcher.gateway.prompt_memory import encode_prompt
from launcher.gateway.slot_file import SlotFile, keep_checkpoints, read_slot_file
from launcher.gateway.vault import BLOCK_BYTES, SavedState, StateVault, hash_request

pytestmark = pytest.mark.usefixtures("home")
GIB = 1 << 30


def write_slot(
    path: Path, tokens: int = 100, content: bytes = b"state" * 40, places: tuple[int, ...] = (), rest: bytes = b""
) -> SlotFile:
    """Write a slot's file in the engine's format, and return what is read of it."""
    packed = array("i", [-1, 1, tokens, *range(tokens)])
    data = struct.pack("<4sII", b"qsgg", 3, len(packed)) + packed.tobytes() + content
    if places:
        data += b"SCKP" + struct.pack("<II", 1, len(places))
        for place in places:
            parts = (bytes([place % 256]) * 64, b"draft" * 3, b"")
            data += struct.pack("<qii", place, 0, place) + b"".join(
                struct.pack("<Q", len(each)) + each for each in parts
            )
    path.write_bytes(data + rest)
    return read_slot_file(path)


def make_state(name: str = "one", text: bytes = b"x" * 10 * BLOCK_BYTES, **changes: object) -> SavedState:
    chain, characters = hash_request([text])
    values: dict[str, object] = {
        "name": name, "kind": "kind", "model": "demo", "client": "agent", "purpose": "conversation", "chain": chain,
        "opening": text[:20], "characters": characters, "prompt_tokens": 2_500, "tokens": 0, "checkpoints": (),
        "goes_back": True, "size": 0, "digest": b"", "read_s": 3.0, "saved_s": vault.time.time(),
        "used_s": vault.time.time(), "uses": 0,
    }  # fmt: skip
    return SavedState(**(values | changes))  # type: ignore[arg-type]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[StateVault]:
    opened = StateVault(tmp_path / "states", lambda: (GIB, 30.0))
    yield opened
    opened.close()


def keep(into: StateVault, folder: Path, state: SavedState, **slot: object) -> SavedState:
    path = folder / f"{state.name}.bin"
    saved = fill_state(state, write_slot(path, **slot))  # type: ignore[arg-type]
    assert into.keep_file(path, saved)
    assert not path.exists()
    return saved


def fill_state(state: SavedState, held: SlotFile) -> SavedState:
    return replace(state, size=held.size, digest=held.digest, tokens=len(held.tokens or ()))


def test_all_parts_of_a_slot_file_are_read_and_checkpoints_that_no_turn_needs_are_removed(tmp_path: Path) -> None:
    drafter = b"SDFT" + struct.pack("<IQ", 1, 3) + b"own"
    held = write_slot(tmp_path / "slot", 70, places=(10, 40, 60), rest=drafter)
    assert held.tokens is not None
    assert held.tokens.tolist() == list(range(70))
    assert [each.tokens for each in held.checkpoints] == [10, 40, 60]
    shorter = keep_checkpoints(tmp_path / "slot", held, held.checkpoints[-2:])
    assert [each.tokens for each in shorter.checkpoints] == [40, 60]
    assert shorter.size < held.size
    assert (tmp_path / "slot").read_bytes().endswith(drafter)
    assert shorter.digest != held.digest
    assert [each.tokens for each in keep_checkpoints(tmp_path / "slot", shorter, ()).checkpoints] == []


def test_bytes_of_a_state_that_look_like_checkpoints_are_none(tmp_path: Path) -> None:
    held = write_slot(tmp_path / "slot", content=b"SCKP" + struct.pack("<II", 1, 2) + b"state" * 9, places=(50,))
    assert [each.tokens for each in held.checkpoints] == [50]


def test_no_damage_to_a_slot_file_breaks_its_reading(tmp_path: Path) -> None:
    path, rng = tmp_path / "slot", random.Random(4)
    whole = write_slot(path, places=(10, 60))
    data = path.read_bytes()
    for _ in range(500):
        changed = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        path.write_bytes(changed[: rng.choice([len(data), rng.randrange(len(data))])])
        assert read_slot_file(path).digest != whole.digest or path.read_bytes() == data


@pytest.mark.parametrize(
    ("text", "changes", "expected"),
    [
        (b"x" * 10 * BLOCK_BYTES + b"and more" * 400, {}, 2_500),
        (b"x" * 4 * BLOCK_BYTES + b"y" * 6 * BLOCK_BYTES, {}, 1_000),
        (b"y" + b"x" * 10 * BLOCK_BYTES, {}, 0),
        (b"x" * 12 * BLOCK_BYTES, {"goes_back": False, "checkpoints": (2_000, 2_490)}, 2_490),
        (b"x" * 9 * BLOCK_BYTES, {"goes_back": False, "checkpoints": (2_000, 2_490)}, 2_490),
        (b"x" * 8 * BLOCK_BYTES, {"goes_back": False, "checkpoints": (2_000, 2_490)}, 2_000),
        (b"x" * 4 * BLOCK_BYTES, {"goes_back": False, "checkpoints": (2_000, 2_490)}, 0),
    ],
)
def test_a_state_is_worth_what_the_engine_need_not_read(text: bytes, changes: dict[str, object], expected: int) -> None:
    assert make_state(**changes).count_reusable(hash_request([text])[0]) == expected


def test_the_state_that_saves_most_is_found_and_no_state_of_another_kind(kept: StateVault, tmp_path: Path) -> None:
    keep(kept, tmp_path, make_state("short", b"x" * 4 * BLOCK_BYTES, prompt_tokens=1_000))
    long = keep(kept, tmp_path, make_state("long", b"x" * 8 * BLOCK_BYTES + b"y" * 2 * BLOCK_BYTES))
    keep(kept, tmp_path, make_state("other", b"x" * 20 * BLOCK_BYTES, kind="other quant"))
    chain, _ = hash_request([b"x" * 8 * BLOCK_BYTES + b"z" * 4096])
    found = kept.find_state("kind", chain)
    assert found is not None
    assert (found[0].name, found[1]) == (long.name, 2_000)
    assert kept.find_state("third", chain) is None


def test_what_a_request_surely_begins_with_is_preferred_to_a_checkpoint_behind_which_it_may_part(
    kept: StateVault, tmp_path: Path
) -> None:
    shared, own = b"x" * 9 * BLOCK_BYTES, {"goes_back": False, "prompt_tokens": 2_500}
    keep(kept, tmp_path, make_state("turns", shared + b"y" * BLOCK_BYTES, **own, checkpoints=(2_300,)))
    keep(kept, tmp_path, make_state("begun", shared, **own | {"prompt_tokens": 2_200}, checkpoints=(2_200,)))
    chain, _ = hash_request([shared + b"z" * BLOCK_BYTES])
    found = kept.find_state("kind", chain)
    assert found is not None
    assert (found[0].name, found[1]) == ("begun", 2_200)
    found = kept.find_state("kind", chain, ("begun",))
    assert found is not None
    assert found[0].name == "turns"


def test_a_longer_state_of_a_conversation_takes_the_place_of_the_shorter(kept: StateVault, tmp_path: Path) -> None:
    first = keep(kept, tmp_path, make_state("first", b"x" * 10 * BLOCK_BYTES))
    keep(kept, tmp_path, make_state("branch", b"x" * 9 * BLOCK_BYTES + b"z" * 2048))
    keep(kept, tmp_path, make_state("second", b"x" * 14 * BLOCK_BYTES))
    assert {each.name for each in kept.list_states()} == {"branch", "second"}
    assert not kept.path_of(first).exists()


def test_a_file_is_lent_whole_or_not_at_all(kept: StateVault, tmp_path: Path) -> None:
    rng = random.Random(7)
    for number in range(60):
        state = keep(kept, tmp_path, make_state(f"state{number}", rng.randbytes(9 * BLOCK_BYTES)))
        path, lent = kept.path_of(state), tmp_path / "lent"
        data = path.read_bytes()
        assert kept.lend_file(state, lent)
        assert lent.read_bytes() == data
        changed = bytearray(data)
        match number % 4:
            case 0:
                changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
            case 1:
                del changed[rng.randrange(len(changed)) :]
            case 2:
                changed += b"\0"
            case 3:
                text = rng.randbytes(9 * BLOCK_BYTES)
                other = keep(kept, tmp_path, make_state(f"other{number}", text), content=b"other")
                changed = bytearray(kept.path_of(other).read_bytes())
        lent.unlink()  # a link: the vault's own file is to be changed alone
        path.write_bytes(changed)
        assert not kept.lend_file(state, lent)
        assert not lent.exists()
        assert state.name not in {each.name for each in kept.list_states()}


def test_what_saves_least_per_byte_goes_first(tmp_path: Path) -> None:
    limit = GIB
    small = StateVault(tmp_path / "states", lambda: (limit, 30.0))
    day_s = 86_400.0
    now_s = vault.time.time()
    for name, read_s, age in (("slow", 30.0, 0), ("quick", 1.0, 0), ("stale", 30.0, 29), ("usual", 8.0, 1)):
        used_s = now_s - age * day_s
        keep(
            small, tmp_path, make_state(name, name.encode() * 4096, read_s=read_s, used_s=used_s), content=b"s" * 5_000
        )
    limit = 12_000
    small.make_room()
    assert {each.name for each in small.list_states()} == {"slow", "usual"}
    assert {path.stem for path in small.folder.glob("*.state")} == {"slow", "usual"}
    small.close()


def test_a_state_that_was_not_used_for_long_and_a_file_that_no_row_lists_are_deleted(
    kept: StateVault, tmp_path: Path
) -> None:
    keep(kept, tmp_path, make_state("old", used_s=vault.time.time() - 31 * 86_400))
    fresh, stray = kept.folder / "fresh.state", kept.folder / "stray.state"
    fresh.write_bytes(b"another server is about to list it")
    stray.write_bytes(b"left by a crash")
    os.utime(stray, (0, 0))
    kept.make_room()
    assert kept.list_states() == []
    assert [path.name for path in kept.folder.glob("*.state")] == ["fresh.state"]


def test_no_more_is_written_in_a_day_than_the_disk_should_bear(tmp_path: Path) -> None:
    tight = StateVault(tmp_path / "states", lambda: (8_000, 30.0))
    for number in range(4):
        path = tmp_path / "slot"
        held = write_slot(path, content=b"s" * 6_000)
        state = make_state(f"state{number}", bytes([number]) * 9 * BLOCK_BYTES)
        assert tight.keep_file(path, fill_state(state, held)) is (number < 3)
    assert tight.read_use().written_today == 3 * held.size
    assert tight.read_use().states == 1
    tight.close()


def test_all_is_deleted_even_what_no_index_lists(kept: StateVault, tmp_path: Path) -> None:
    keep(kept, tmp_path, make_state())
    others = [kept.folder / name for name in ("lost.state", "half.unread", "index.sqlite.bad")]
    for path in others:
        path.write_text("a conversation")
    assert kept.forget_all() == 0
    assert not kept.list_states()
    assert [each.name for each in kept.folder.iterdir() if not each.name.startswith("index.sqlite")] == []
    assert not others[2].exists()


def test_a_state_that_replaces_others_has_their_uses(kept: StateVault, tmp_path: Path) -> None:
    kept.note_use(keep(kept, tmp_path, make_state()))
    keep(kept, tmp_path, make_state("two", b"x" * 12 * BLOCK_BYTES, opening=b"x" * 20))
    assert [each.uses for each in kept.list_states()] == [1]


def test_a_folder_that_can_be_used_again_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vault, "_RETRY_S", 0.0)
    folder = tmp_path / "states"
    folder.write_text("no folder")
    with closing(StateVault(folder, lambda: (GIB, 30.0))) as opened:
        assert not opened.may_take(1)
        assert opened.problem
        folder.unlink()
        keep(opened, tmp_path, make_state())
        assert not opened.problem
        assert len(opened.list_states()) == 1


def test_nothing_is_kept_with_a_limit_of_zero_and_what_was_kept_is_deleted(tmp_path: Path) -> None:
    limit = GIB
    off = StateVault(tmp_path / "states", lambda: (limit, 30.0))
    state = keep(off, tmp_path, make_state())
    limit = 0
    assert off.find_state("kind", state.chain) is None
    assert not off.may_take(0)
    assert list(off.folder.glob("*.state")) == []
    path = tmp_path / "slot"
    assert not off.keep_file(path, fill_state(make_state(), write_slot(path)))
    off.close()
    with closing(StateVault(tmp_path / "never used", lambda: (0, 30.0))) as never:
        assert not never.may_take(0)  # of an engine whose states have no known size yet


def test_two_conversations_that_begin_with_the_same_instructions_are_both_kept(
    kept: StateVault, tmp_path: Path
) -> None:
    for name in ("bread", "water"):
        messages = [{"role": "system", "content": "x" * 10 * BLOCK_BYTES}, {"role": "user", "content": name}]
        texts, opening, _ = encode_prompt({"messages": messages})
        keep(kept, tmp_path, make_state(name, chain=hash_request(texts)[0], opening=opening))
    assert kept.list_states()[0].chain == kept.list_states()[1].chain
    assert {each.name for each in kept.list_states()} == {"bread", "water"}


def test_an_earlier_state_whose_file_cannot_be_deleted_does_not_cost_the_later_one(
    kept: StateVault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *, missing_ok: bool = False) -> None:
        raise PermissionError(13, "another program has it open", str(path))

    keep(kept, tmp_path, make_state("first"))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        later = keep(kept, tmp_path, make_state("second", b"x" * 14 * BLOCK_BYTES))
    assert kept.list_states() == [later]
    assert kept.lend_file(later, tmp_path / "lent")


def test_a_state_that_cannot_be_listed_costs_no_earlier_one(kept: StateVault, tmp_path: Path) -> None:
    first = keep(kept, tmp_path, make_state("first"))
    assert kept._db is not None
    kept._db.execute("PRAGMA query_only = ON")  # as on a full disk
    path = tmp_path / "slot"
    second = make_state("second", b"x" * 14 * BLOCK_BYTES)
    assert not kept.keep_file(path, fill_state(second, write_slot(path)))
    assert "readonly" in kept.problem
    assert kept.list_states() == [first]
    assert [each.stem for each in kept.folder.glob("*.state")] == ["first"]
    assert not path.exists()


def test_a_folder_that_somebody_deletes_is_made_anew(kept: StateVault, tmp_path: Path) -> None:
    state = keep(kept, tmp_path, make_state())
    kept.problem = "an earlier one"
    shutil.rmtree(kept.folder)
    assert kept.find_state("kind", state.chain) is None
    assert not kept.lend_file(state, tmp_path / "lent")
    keep(kept, tmp_path, state)
    assert kept.lend_file(state, tmp_path / "lent")
    assert not kept.problem


def test_an_index_of_a_newer_version_is_left_alone(kept: StateVault, tmp_path: Path) -> None:
    state = keep(kept, tmp_path, make_state())
    assert kept._db is not None
    kept._db.execute("PRAGMA user_version = 99")
    kept.close()
    newer = StateVault(kept.folder, lambda: (GIB, 30.0))
    path = tmp_path / "slot"
    assert not newer.may_take(1)
    assert not newer.keep_file(path, fill_state(make_state("two"), write_slot(path)))
    assert newer.find_state("kind", state.chain) is None
    newer.note_use(state)
    newer.drop_state(state)
    newer.make_room()
    assert newer.verify() == newer.list_states() == []
    assert newer.problem
    assert newer.path_of(state).exists()


@pytest.mark.parametrize(
    "change",
    [
        "checkpoints = '5'", "checkpoints = '['", "checkpoints = '[\"a\"]'", "tokens = 'many'", "characters = 0",
        "prompt_tokens = 0", "size = -1", "chain = 'text'", "digest = 7", "name = '../two'", "used_s = 'now'",
    ],
)  # fmt: skip
def test_a_damaged_row_is_no_state_and_hides_no_other(kept: StateVault, tmp_path: Path, change: str) -> None:
    keep(kept, tmp_path, make_state("one"))
    two = keep(kept, tmp_path, make_state("two", b"y" * 10 * BLOCK_BYTES))
    with closing(sqlite3.connect(kept.folder / "index.sqlite")) as db, db:
        db.execute(f"UPDATE states SET {change} WHERE name = 'one'")
    assert kept.list_states() == [two]
    assert kept.find_state("kind", two.chain) == (two, 2_500)
    kept.make_room()
    assert kept.verify() == []


def test_a_clock_that_was_set_back_by_years_is_no_error(kept: StateVault, tmp_path: Path) -> None:
    keep(kept, tmp_path, make_state(used_s=vault.time.time() + 3e9))
    kept.make_room()
    assert len(kept.list_states()) == 1


def test_a_file_that_is_replaced_while_it_is_lent_is_not_lent(
    kept: StateVault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, link = keep(kept, tmp_path, make_state()), os.link

    def replace_and_link(source: Path, target: Path) -> None:
        (tmp_path / "other").write_bytes(b"another server's")
        (tmp_path / "other").replace(source)
        link(source, target)

    monkeypatch.setattr(os, "link", replace_and_link)
    assert not kept.lend_file(state, tmp_path / "lent")
    assert not (tmp_path / "lent").exists()


def test_a_state_whose_size_is_another_is_not_lent(kept: StateVault, tmp_path: Path) -> None:
    state = keep(kept, tmp_path, make_state())
    with closing(sqlite3.connect(kept.folder / "index.sqlite")) as db, db:
        db.execute("UPDATE states SET size = 1")  # by this the seconds of a restore would be judged
    assert not kept.lend_file(kept.list_states()[0], tmp_path / "lent")
    assert not kept.path_of(state).exists()


def test_a_state_that_cannot_be_lent_now_is_not_deleted(kept: StateVault, tmp_path: Path) -> None:
    state = keep(kept, tmp_path, make_state())
    assert not kept.lend_file(state, tmp_path / "no such folder" / "lent")
    assert kept.list_states() == [state]


def test_a_disk_that_has_become_fuller_makes_the_vault_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(StateVault(tmp_path / "states", lambda: (GIB, 30.0))) as shared:
        for name in ("one", "two"):
            keep(shared, tmp_path, make_state(name, name.encode() * 4096), content=b"s" * 50_000)
        used = shutil.disk_usage(tmp_path)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: used._replace(free=600_000))
        assert shared.may_take(10_000)
        assert len(shared.list_states()) == 1


def test_a_folder_that_cannot_be_used_keeps_nothing_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "states").write_text("a file in the way")
    blocked = StateVault(tmp_path / "states", lambda: (GIB, 30.0))
    path = tmp_path / "slot"
    assert not blocked.keep_file(path, fill_state(make_state(), write_slot(path)))
    assert blocked.find_state("kind", hash_request([b"x" * 9_000])[0]) is None
    assert blocked.problem


_WRITER = """
import sys
from pathlib import Path
from tests.gateway.test_vault import BLOCK_BYTES, StateVault, fill_state, make_state, write_slot
folder, who = Path(sys.argv[1]), sys.argv[2]
into = StateVault(folder / "states", lambda: (60_000, 30.0))
for number in range(8):
    path = folder / f"{who}-{number}.bin"
    held = write_slot(path, content=who.encode() * 2_000)
    state = fill_state(make_state(f"{who}{number}", f"{who}{number}".encode() * BLOCK_BYTES), held)
    assert into.keep_file(path, state), into.problem
    found = into.find_state("kind", state.chain)
    if found is not None and into.lend_file(found[0], folder / f"{who}.lent"):
        assert (folder / f"{who}.lent").read_bytes().endswith(found[0].name[:1].encode() * 2_000)
"""


def test_several_servers_share_a_vault(tmp_path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path), who]) for who in "abc"]
    assert [each.wait(120) for each in writers] == [0, 0, 0]
    shared = StateVault(tmp_path / "states", lambda: (60_000, 30.0))
    states = shared.list_states()
    assert 0 < sum(each.size for each in states) <= 60_000
    assert shared.verify() == []
    assert {path.stem for path in shared.folder.glob("*.state")} == {each.name for each in states}
    shared.close()


def test_a_forgotten_conversation_is_gone_with_what_it_shares_and_is_not_kept_again(
    kept: StateVault, tmp_path: Path
) -> None:
    beginning = b"x" * 4 * BLOCK_BYTES
    mine = keep(kept, tmp_path, make_state("mine", beginning + b"y" * 4096, conversation="a1"))
    other = keep(kept, tmp_path, make_state("other", beginning + b"z" * 4096, conversation="b2"))
    keep(kept, tmp_path, make_state("shared", beginning, purpose="prompt"))
    agent = keep(kept, tmp_path, make_state("agent", b"q" * 4096))
    kept.forget_conversations(["a1", "unknown"])
    assert kept.list_states() == [other, agent]
    assert {path.stem for path in kept.folder.glob("*.state")} == {"other", "agent"}
    again = replace(mine, name="again")
    path = tmp_path / "again.bin"
    again = fill_state(again, write_slot(path))
    assert not kept.keep_file(path, again)
    assert kept.list_states() == [other, agent]
    assert not kept.path_of(again).exists()
