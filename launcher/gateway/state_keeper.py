"""Keeps the conversations in an engine's slots on disk, and brings them back before their next request is sent."""

import asyncio
import logging
import math
import shutil
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from itertools import combinations, islice
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from launcher.engine.server.reread import Reread, RereadCause
from launcher.gateway.access import GENERATING_PATHS
from launcher.gateway.engine_connection import EngineLost, EngineUnreached
from launcher.gateway.engine_link import EngineLink
from launcher.gateway.exchange import STREAM_PATHS, Exchange, ReplyFigures
from launcher.gateway.prompt_memory import encode_prompt
from launcher.gateway.slot_file import Checkpoint, SlotFile, digest_file, keep_checkpoints, read_slot_file
from launcher.gateway.slot_folder import SLOT_FILES, clear_slot_folder
from launcher.gateway.vault import BLOCK_BYTES, HASH_BYTES, SavedState, StateVault, count_common, hash_request

_log = logging.getLogger(__name__)
_REMEMBERED = 64
_LEAST_TOKENS = 512
"""Fewest tokens of a conversation that is kept."""
_LEAST_BYTES = 8 * BLOCK_BYTES
"""Fewest bytes of a request that is looked up."""
_MOST_BYTES = 4 << 20
LEAST_GAIN_S = 0.5
_GAIN = 1.5
_FIRST_BYTES_S = 1e9
"""Bytes of a state that are read from disk and restored in a second, until that was measured."""
_USUAL_SPEED = 1_000.0
"""Tokens/s at which prompts are read, until that was measured."""
_KEPT_CHECKPOINTS = 2
"""Checkpoints that are kept, the last ones: where the last reply began, and where the last question did."""
_OPENING_ERROR = 0.05
"""Largest share of a prompt's tokens by which its first question may begin elsewhere than its share of text says."""
_EXTRA_TOKENS = 16
"""Most tokens that a slot may have more than its request and the reply that was counted: a client may have left."""
_LEAST_FREE = 2
"""Free disk space that is needed to save a further slot, as a multiple of the last slot's file."""
_CONVERSATION, _PROMPT = "conversation", "prompt"
"""What a state is for: the next turn of a conversation, or whatever begins with the same prompt."""
_MARGIN_TOKENS = 128
"""Tokens that a shared beginning is cut short by: a third conversation may part from the first two a little earlier,
as chains compare whole blocks."""
_COMPARED, _MOST_TRIES = 12, 3
"""Conversations, those that were used last, whose beginnings are compared, and how often one is read ahead."""
_LONGEST_READING_S, _POLL_S = 600.0, 0.1
_SIMILAR = 0.1
"""Share of a request from which an engine takes the slot that begins with it (--slot-prompt-similarity)."""
_SETTLED_S, _LOOK_S = 1.5, 0.02
"""Seconds in which an engine begins with what was sent to it, and leaves a client that has left (llama.cpp looks once a
second while it reads a prompt), and seconds between two looks at it."""
_MOST_LOOKS = 15
"""Most looks at an engine that did not answer, of up to four seconds each."""
_LEAST_LIMIT_S, _LIMIT = 2.0, 3.0
"""A restore may take this many times as long as expected, and this many seconds longer: a request waits for it."""
_LEFT_OUT = ("lora", "control_vector")
_REFUSED = range(400, 500)
"""HTTP statuses of requests that the engine does not understand."""


class _HashedPrompt(NamedTuple):
    """A request's text: see AskedPrompt, whose first fields these are."""

    chain: bytes
    opening: bytes
    opening_size: int
    characters: int


_UNHASHED = _HashedPrompt(b"", b"", 0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class AskedPrompt:
    """A request that an engine has answered, and what its slot has now. Without a chain it must not be kept.

    The slot has at most `tokens` tokens, at least `prompt_tokens`. Of the request's text, `opening_size` bytes come
    before the first question.
    """

    chain: bytes
    opening: bytes
    opening_size: int
    characters: int
    prompt_tokens: int
    tokens: float
    read_s: float
    client: str
    model: str
    conversation: str = ""

    def fits_slot(self, tokens: int) -> bool:
        """Return whether a slot with this many tokens may be this request's."""
        return self.prompt_tokens <= tokens <= self.tokens + _EXTRA_TOKENS


@dataclass(frozen=True, slots=True)
class SavedSlot:
    """A slot in a file, with the request that led to it where that is known."""

    number: int
    path: Path
    held: SlotFile
    state_key: str
    asked: AskedPrompt | None

    @property
    def tokens(self) -> list[int] | None:
        """The conversation's tokens, None if it has images."""
        return None if self.held.tokens is None else self.held.tokens.tolist()

    @property
    def size(self) -> int:
        """The bytes of the file."""
        return self.held.size


class StateKeeper:
    """Keeps the states of one model's slots in a vault. Belongs to one asyncio loop.

    Where a caller holds a lock, requests wait for it: under it the engine works, and the file of a state that is to be
    restored is compared with its digest. Files are read and kept in the background. `read_left_out` returns the names,
    in lower case, of keys and models of which it keeps nothing.
    """

    def __init__(
        self,
        vault: StateVault | None = None,
        read_left_out: Callable[[], Collection[str] | None] = tuple,
    ) -> None:
        self._vault, self._read_left_out = vault, read_left_out
        self._live: deque[AskedPrompt] = deque(maxlen=_REMEMBERED)
        self._placed: deque[AskedPrompt] = deque(maxlen=_REMEMBERED)
        self._hashed: dict[int, _HashedPrompt] = {}
        self._kept_tasks: dict[int, int] = {}
        self._restored: dict[int, SavedState] = {}
        self._missed: set[str] = set()
        """States of which the engine could use nothing: not offered again."""
        self._read_ahead: Counter[bytes] = Counter()
        self._ahead: tuple[SavedState, float] | None = None
        """What was restored before a request asked for it, and in how many seconds."""
        self._background: set[asyncio.Task[None]] = set()
        self._reading_speed: float | None = None
        """Tokens/s of the last prompt of which enough was read to tell."""
        self._bytes_s = _FIRST_BYTES_S
        self._bytes_per_token = 0.0

    async def close(self) -> None:
        """Wait until what was saved is kept, and close the vault."""
        await asyncio.gather(*self._background, return_exceptions=True)
        if self._vault is not None:
            await asyncio.to_thread(self._vault.close)

    @property
    def problem(self) -> str:
        """Why nothing can be kept; empty if it can."""
        return self._vault.problem if self._vault is not None else ""

    def begin_engine(self, restored: Collection[SavedSlot] = ()) -> None:
        """Record that another engine serves, which knows no conversation but those in `restored` slots."""
        self._live.clear()
        self._kept_tasks.clear()
        self._ahead = None
        self._live.extend(each.asked for each in restored if each.asked is not None)

    def note_end(self, exchange: Exchange) -> None:
        """Record a request that has ended, whose conversation is in a slot now."""
        hashed = self._hashed.pop(exchange.number, _UNHASHED)
        restored, figures = self._restored.pop(exchange.number, None), exchange.figures
        has_ended = exchange.end == "engine ended" and exchange.first_token is None
        if restored is not None and self._vault is not None and (figures.reused_tokens == 0 or has_ended):
            self._missed.add(restored.name)
            figures.unused_state = Reread(figures.restored_tokens or 0, None, RereadCause.KEPT_REFUSED)
            # The engine found other tokens in it, or ended, perhaps because of it.
            if has_ended or hashed.chain.startswith(restored.chain):
                self._run_in_background(self._vault.drop_state, restored)
        if exchange.path not in GENERATING_PATHS or not exchange.heard_s:
            return  # no slot was used
        refused = exchange.failure is not None and exchange.failure.status in _REFUSED
        if refused and figures.prompt_tokens is None:
            return  # before the engine chose a slot
        written: float = exchange.text.piece_count if figures.reply_tokens is None else figures.reply_tokens
        if figures.prompt_tokens is None or exchange.has_failed:
            hashed, written = _UNHASHED, math.inf  # whatever its slot has now must not be taken for another request's
        prompt_tokens = figures.prompt_tokens or 0
        if figures.reading_speed and prompt_tokens - (figures.reused_tokens or 0) >= _LEAST_TOKENS:
            self._reading_speed = figures.reading_speed
        elif restored is not None and self._reading_speed is None:
            self._reading_speed = restored.prompt_tokens / restored.read_s
        self._live.append(
            AskedPrompt(
                *hashed,
                prompt_tokens,
                prompt_tokens + written,
                prompt_tokens / (self._reading_speed or _USUAL_SPEED),
                exchange.user_agent,
                exchange.served_by or exchange.model or "",
                exchange.conversation,
            )
        )

    def note_loss(self, exchange: Exchange) -> None:
        """Record that the engine of a request has ended before it answered, perhaps because of what was restored."""
        restored = self._restored.pop(exchange.number, None)
        if restored is not None and self._vault is not None:
            self._missed.add(restored.name)
            self._run_in_background(self._vault.drop_state, restored)

    async def restore_for(
        self, link: EngineLink, exchange: Exchange, count_in_engine: Callable[[], int] = int
    ) -> int | None:
        """Restore the state that saves most for a request, and return its slot; None if none is worth it.

        The caller holds the lock. `count_in_engine` returns how many requests were sent to the engine and have not
        ended. Raises EngineUnreached if the engine ends at it.
        """
        body, figures, vault = exchange.body, exchange.figures, self._vault
        if (
            vault is None
            or body is None
            or exchange.path not in STREAM_PATHS
            or not (exchange.may_be_kept and link.keeps_states)
            or not _LEAST_BYTES <= len(exchange.raw) <= _MOST_BYTES
            or any(name in body for name in _LEFT_OUT)
            or self._is_left_out(exchange)
        ):
            return None
        self._restored.pop(exchange.number, None)  # into an engine that was replaced before it had the request
        texts, opening, opening_size = encode_prompt(body)
        chain, size = hash_request(texts)
        self._hashed[exchange.number] = _HashedPrompt(chain, opening, opening_size, size)
        if link.slot_folder is None or body.get("cache_prompt") is False or self._has_turn_before(link, chain):
            return None
        found = await asyncio.to_thread(vault.find_state, link.state_key, chain, self._missed)
        if found is None:
            model = exchange.served_by or exchange.model or ""
            self._run_in_background(_explain_miss, vault, link.state_key, chain, model, figures)
            return None
        state, tokens = found
        cost_s, spared_s = state.size / self._bytes_s, state.read_s * tokens / state.prompt_tokens
        if not is_worth_restoring(spared_s, cost_s):
            figures.unused_state = Reread(tokens, None, RereadCause.KEPT_SLOW)
            return None
        try:
            slots = await _read_settled(link, count_in_engine)
            known = max((count_common(each.chain, chain) for each in self._list_live(slots)), default=0)
            number = None
            if known < count_common(state.chain, chain):
                began_s = time.monotonic()
                figures.unused_state = Reread(tokens, None, RereadCause.KEPT_REFUSED)  # until it is restored
                restored = await self._restore_state(link, vault, state, slots)
                if isinstance(restored, RereadCause):
                    figures.unused_state = Reread(tokens, None, restored)
                    return None
                figures.unused_state, restored_s, number = None, time.monotonic() - began_s, restored
                if number is None:
                    return None
                self._restored[exchange.number] = state
            elif self._ahead is not None and count_common(self._ahead[0].chain, chain) == known:
                state, restored_s = self._ahead
                tokens = state.count_reusable(chain)
                spared_s, self._ahead = state.read_s * tokens / state.prompt_tokens, None
            else:
                return None
            figures.restored_tokens, figures.restored_s, figures.spared_s = tokens, restored_s, spared_s
        except OSError:
            return None
        except EngineLost:
            if await _outlives(link):
                return None
            raise EngineUnreached from None  # the request was not sent yet
        return number

    async def restore_ahead(
        self, link: EngineLink, lock: asyncio.Lock, client: str, may_go_on: Callable[[], bool]
    ) -> None:
        """Restore what the next session of a client probably begins with, while nobody asks: `client` is its name."""
        vault = self._vault
        if vault is None or link.slot_folder is None or not link.keeps_states:
            return

        def likelihood(state: SavedState) -> tuple[bool, bool, float]:
            return client.lower() in state.client.lower(), state.purpose == _PROMPT, state.used_s

        states = await asyncio.to_thread(vault.list_states, link.state_key)
        state = max(states, key=likelihood, default=None)
        if state is None:
            return
        with suppress(EngineLost, OSError):
            async with lock:
                slots = await link.read_slots() if may_go_on() else []
                if any(count_common(each.chain, state.chain) for each in self._list_live(slots)):
                    return
                began_s = time.monotonic()
                if isinstance(await self._restore_state(link, vault, state, slots), int):
                    self._ahead = state, time.monotonic() - began_s
                    facts: dict[str, Any] = {each.name: getattr(state, each.name, 0) for each in fields(AskedPrompt)}
                    asked = AskedPrompt(**facts)
                    self._live.append(asked)
                    self._placed.append(asked)  # it is kept already

    def _has_turn_before(self, link: EngineLink, chain: bytes) -> bool:
        """Return whether a slot has the turn before this request, so that no state can save more."""
        if self._ahead is not None:
            return False
        last = islice(reversed(self._live), link.slots)
        return any(each.chain and chain.startswith(each.chain) for each in last)

    def _is_left_out(self, exchange: Exchange) -> bool:
        """Return whether the user wants nothing kept that comes with a request's key, or for its model."""
        left_out = self._read_left_out()
        names = exchange.key_name, exchange.model, exchange.served_by
        return left_out is None or any(name.lower() in left_out for name in names if name)

    def _list_live(self, slots: Collection[dict[str, Any]]) -> list[AskedPrompt]:
        """Return the requests whose conversations are in these slots, as far as the numbers of tokens tell."""
        live: list[AskedPrompt] = []
        for slot in sorted(slots, key=_begun_last):
            tokens = slot.get("n_prompt_tokens") or 0
            fitting = (each for each in reversed(self._live) if each.fits_slot(tokens) and each not in live)
            live.extend(islice(fitting, 1))
        return live

    async def _restore_state(
        self, link: EngineLink, vault: StateVault, state: SavedState, slots: Sequence[dict[str, Any]]
    ) -> int | RereadCause | None:
        """Restore a state, and return its slot, None if all are in use, or why not, after which it is deleted.

        Raises EngineLost and OSError.
        """
        number = await self._empty_slot(link, slots)
        if number is None or link.slot_folder is None:
            return None
        began_s = time.monotonic()
        path = link.slot_folder / f"slot-lent-{number}.bin"
        lending = asyncio.ensure_future(asyncio.to_thread(vault.lend_file, state, path))
        try:
            if not await asyncio.shield(lending):
                return RereadCause.KEPT_CHANGED
            limit_s = _LEAST_LIMIT_S + _LIMIT * state.size / self._bytes_s
            body = {"filename": path.name}
            status, data = await link.request_json(f"/slots/{number}?action=restore", body, limit_s=limit_s)
        except EngineLost:
            if not await _outlives(link):  # perhaps because of this file: no other engine is asked
                await asyncio.to_thread(vault.drop_state, state)
            raise
        finally:
            await asyncio.wait([lending])  # if the client has left: the thread would make the file later
            _delete_file(path)
        if status != 200 or data.get("n_restored") != state.tokens:
            await asyncio.to_thread(vault.drop_state, state)
            return RereadCause.KEPT_REFUSED
        self._bytes_s = state.size / max(time.monotonic() - began_s, 1e-3)
        await asyncio.to_thread(vault.note_use, state)
        return number

    async def _empty_slot(self, link: EngineLink, slots: Sequence[dict[str, Any]]) -> int | None:
        """Return the free slot whose conversation is the least loss, once that is saved; None if all are in use."""
        free = [each for each in slots if not each.get("is_processing")]
        for slot in sorted(free, key=lambda each: (self._is_unkept(each), each.get("id_task") or -1)):
            await self._keep_slot(link, slot)
            return int(slot["id"])
        return None

    def _is_unkept(self, slot: dict[str, Any]) -> bool:
        tokens = slot.get("n_prompt_tokens")
        is_kept = self._kept_tasks.get(int(slot["id"])) == slot.get("id_task")
        return isinstance(tokens, int) and tokens >= _LEAST_TOKENS and not is_kept

    async def keep_before(self, link: EngineLink, exchange: Exchange) -> None:
        """Keep the conversation that a request may drive out of its slot. The caller holds the lock; no reply runs."""
        chain = self._hashed.get(exchange.number, _UNHASHED).chain
        if self._vault is None or not any(map(self._is_waiting, self._live)):
            return
        if _goes_on(self._live[-1], chain):
            return
        with suppress(EngineLost, OSError):
            slots = await link.read_slots()
            if any(each.get("is_processing") or not each.get("n_prompt_tokens") for each in slots):
                return  # the engine takes an empty one first
            similar = max(self._list_live(slots), key=lambda each: count_common(each.chain, chain), default=None)
            if similar is None or count_common(similar.chain, chain) < _SIMILAR * len(chain) / HASH_BYTES:
                slot = max(slots, key=_begun_last, default=None)  # the one that was used longest ago
            elif _goes_on(similar, chain):
                return
            else:
                slot = next((each for each in slots if similar.fits_slot(each["n_prompt_tokens"])), None)
            if slot is not None:
                await self._keep_slot(link, slot)

    def _is_waiting(self, asked: AskedPrompt) -> bool:
        """Return whether a conversation is worth keeping and was not kept yet."""
        return bool(asked.chain) and asked.read_s >= LEAST_GAIN_S and asked not in self._placed

    async def keep_slots(
        self, link: EngineLink, lock: asyncio.Lock, may_go_on: Callable[[], bool], *, last: bool = False
    ) -> None:
        """Keep what is in free slots and was not kept yet, as long as `may_go_on`, with the lock for each slot.

        `last`: the engine is to end.
        """
        if self._vault is None or link.slot_folder is None:
            return
        tried: set[int] = set()
        with suppress(EngineLost, OSError):
            while True:
                async with lock:
                    if not may_go_on():
                        return
                    free = [each for each in await link.read_slots() if not each.get("is_processing")]
                    unkept = (each for each in free if self._is_unkept(each) and each["id"] not in tried)
                    slot = min(unkept, key=_begun_last, default=None)
                    if slot is None:
                        return
                    tried.add(slot["id"])
                    await self._keep_slot(link, slot, last=last)

    async def prepare_prompt(self, link: EngineLink, lock: asyncio.Lock, may_go_on: Callable[[], bool]) -> None:
        """Have the engine read what two kept conversations begin with, and keep that, as long as `may_go_on`.

        A model that cannot go back within its state needs it for a third conversation that begins so, such as an
        agent's next session; for other models any of the conversations will do.
        """
        await asyncio.gather(*self._background, return_exceptions=True)
        if self._vault is None or link.slot_folder is None:
            return
        shared = await asyncio.to_thread(self._find_shared_beginning, self._vault, link.state_key)
        if shared is None:
            return
        asked, tokens = shared
        with suppress(EngineLost, OSError):
            async with lock:
                number = await self._empty_slot(link, await link.read_slots()) if may_go_on() else None
                if number is None:
                    return
                self._read_ahead[asked.chain] += 1
                body = {"prompt": tokens, "n_predict": 0, "id_slot": number, "cache_prompt": True}
                reading = asyncio.ensure_future(link.request_json("/completion", body, limit_s=_LONGEST_READING_S))
                try:
                    while not (await asyncio.wait([reading], timeout=_POLL_S))[0]:
                        if not may_go_on():
                            return
                finally:
                    reading.cancel()
                    await asyncio.wait([reading])
                if reading.result()[0] == 200:
                    self._read_ahead[asked.chain] = _MOST_TRIES
                    self._keep_in_background(await self._save_path(link, number), link.state_key, asked, _PROMPT)

    def _find_shared_beginning(self, vault: StateVault, kind: str) -> tuple[AskedPrompt, list[int]] | None:
        """Return a beginning of two conversations that is worth keeping and is not kept yet; None without."""
        states = vault.list_states(kind)
        begun = {state.chain for state in states if state.purpose == _PROMPT}
        latest = sorted((each for each in states if not each.goes_back), key=_by_use)[:_COMPARED]
        for one, other in combinations(latest, 2):
            blocks = count_common(one.chain, other.chain)
            chain = one.chain[: blocks * HASH_BYTES]
            if not blocks or chain in (one.chain, other.chain) or self._read_ahead[chain] >= _MOST_TRIES:
                continue
            if any(each.startswith(chain) for each in begun):
                continue
            tokens = vault.read_shared_tokens(one, other)[:-_MARGIN_TOKENS]
            read_s = one.read_s * len(tokens) / one.prompt_tokens
            if len(tokens) >= _LEAST_TOKENS and read_s >= LEAST_GAIN_S:
                size, count = blocks * BLOCK_BYTES, len(tokens)
                return AskedPrompt(chain, b"", 0, size, count, count, read_s, one.client, one.model), tokens
        return None

    async def _keep_slot(self, link: EngineLink, slot: dict[str, Any], *, last: bool = False) -> None:
        """Save a slot if it is worth it, and keep the file in the background. Raises EngineLost and OSError.

        What the vault does not have of it yet must take long enough to read: else each turn of a long conversation
        would write all of it. If it is the `last` chance, only the least gain counts.
        """
        if self._vault is None or not self._is_unkept(slot):
            return
        number, tokens = int(slot["id"]), int(slot["n_prompt_tokens"])
        self._kept_tasks[number] = int(slot["id_task"])
        asked, size = self._find_asked(tokens), int(tokens * self._bytes_per_token)
        if asked is None or not is_worth_restoring(asked.read_s, size / self._bytes_s):
            return
        found = await asyncio.to_thread(self._vault.find_state, link.state_key, asked.chain, self._missed)
        new_s = asked.read_s * (1 - found[1] / asked.prompt_tokens) if found else asked.read_s
        if not is_worth_restoring(new_s, 0.0 if last else size / self._bytes_s):
            self._placed.remove(asked)
            del self._kept_tasks[number]
            return
        if await asyncio.to_thread(self._vault.may_take, size):
            self._keep_in_background(await self._save_path(link, number), link.state_key, asked)

    def _find_asked(self, tokens: int) -> AskedPrompt | None:
        """Return the last request that may have filled a slot with this many tokens, and that filled no later one.

        None if that must not be kept, or if another one that must not may have filled it. Should it be another request
        that may be kept, its state is found for the wrong text, and dropped then.
        """
        fitting = [each for each in reversed(self._live) if each not in self._placed and each.fits_slot(tokens)]
        if not fitting:
            return None
        self._placed.append(fitting[0])
        doubtful = not fitting[0].chain or any(not each.chain and each.tokens < math.inf for each in fitting)
        return None if doubtful else fitting[0]

    async def save_slots(self, link: EngineLink) -> list[SavedSlot]:
        """Save every slot that has a conversation. Slots that cannot be saved are left out."""
        saved: list[SavedSlot] = []
        if link.slot_folder is None:
            return saved
        with suppress(OSError, EngineLost):
            await asyncio.to_thread(clear_slot_folder, link.slot_folder)
            slots = sorted(await link.read_slots(), key=_begun_last)
            for number in [int(each["id"]) for each in slots] or range(link.slots):
                slot = await self._save_slot(link, number)
                if slot is None:
                    continue
                saved.append(slot)
                if shutil.disk_usage(link.slot_folder).free < _LEAST_FREE * slot.size:
                    break
        await asyncio.to_thread(_delete_rest, link.slot_folder, saved)
        return saved

    async def restore_slots(self, link: EngineLink, saved: Collection[SavedSlot]) -> set[int]:
        """Restore slots into an engine, keep or delete their files, and return the numbers of those restored.

        A file that has changed, or was saved by an engine with another kind of state, is not offered: the engine would
        accept the slot of another quantisation of the model, or a damaged one, without an error.
        """
        restored: set[int] = set()
        refused: set[int] = set()
        try:
            for slot in saved:
                if link.slot_folder is None or slot.number >= link.slots or slot.state_key != link.state_key:
                    continue
                refused.add(slot.number)  # until it is known to be right
                with suppress(OSError, EngineLost):
                    if await asyncio.to_thread(digest_file, slot.path) != slot.held.digest:
                        continue
                    body = {"filename": slot.path.name}
                    status, _ = await link.request_json(f"/slots/{slot.number}?action=restore", body)
                    if status == 200:
                        restored.add(slot.number)
                        refused.discard(slot.number)
        finally:
            self.keep_saved([each for each in saved if each.number not in refused])
            delete_slots([each for each in saved if each.number in refused])
        self.begin_engine([each for each in saved if each.number in restored])
        return restored

    async def _save_slot(self, link: EngineLink, number: int) -> SavedSlot | None:
        """Save a slot, and read its file; None if it is empty or cannot be saved. Raises EngineLost and OSError."""
        path = await self._save_path(link, number)
        if path is None:
            return None
        held = await asyncio.to_thread(read_slot_file, path)
        count = len(held.tokens or ())
        return SavedSlot(number, path, held, link.state_key, self._find_asked(count) if count else None)

    async def _save_path(self, link: EngineLink, number: int) -> Path | None:
        """Save a slot; return its file, None if it is empty or cannot be saved. Raises EngineLost and OSError."""
        if link.slot_folder is None:
            return None
        path = link.slot_folder / f"slot-{uuid4().hex[:12]}.bin"
        try:
            status, data = await link.request_json(f"/slots/{number}?action=save", {"filename": path.name})
            if status == 200 and data.get("n_saved"):
                path.chmod(0o600)
                self._bytes_per_token = path.stat().st_size / data["n_saved"]
                return path
        except BaseException:
            _delete_file(path)
            raise
        _delete_file(path)
        return None

    def keep_saved(self, saved: Collection[SavedSlot]) -> None:
        """Move saved slots into the vault where that is worth it, in the background, and delete the others' files."""
        for each in saved:
            self._keep_in_background(each.path, each.state_key, each.asked)

    def _keep_in_background(
        self, path: Path | None, state_key: str, asked: AskedPrompt | None, purpose: str = _CONVERSATION
    ) -> None:
        if path is None:
            return
        if self._vault is None or asked is None:
            _delete_file(path)
            return
        inside = self._vault.take_in(path)
        self._run_in_background(self._keep_file, self._vault, inside, state_key, asked, purpose)

    def _run_in_background(self, function: Callable[..., None], *args: object) -> None:
        task = asyncio.ensure_future(asyncio.to_thread(function, *args))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _keep_file(self, vault: StateVault, path: Path, state_key: str, asked: AskedPrompt, purpose: str) -> None:
        """Move a slot's file into the vault where that is worth it, else delete it."""
        try:
            held = read_slot_file(path)
            tokens = len(held.tokens or ())
            is_worth = is_worth_restoring(asked.read_s, held.size / self._bytes_s)
            if tokens < _LEAST_TOKENS or not is_worth:
                return
            has_checkpoints = bool(held.checkpoints)
            held = keep_checkpoints(path, held, _choose_checkpoints(held.checkpoints, asked))
            places = [each.tokens for each in held.checkpoints]
            now_s = time.time()
            state = SavedState(
                name=uuid4().hex,
                kind=state_key,
                model=asked.model,
                client=asked.client,
                purpose=purpose,
                chain=asked.chain,
                opening=asked.opening,
                characters=asked.characters,
                prompt_tokens=asked.prompt_tokens,
                tokens=tokens,
                checkpoints=(*places, tokens) if purpose == _PROMPT else tuple(places),
                goes_back=not has_checkpoints and purpose != _PROMPT,
                size=held.size,
                digest=held.digest,
                read_s=asked.read_s,
                saved_s=now_s,
                used_s=now_s,
                uses=0,
                conversation=asked.conversation,
            )
            vault.keep_file(path, state)
        except OSError as error:
            _log.warning("A conversation could not be kept: %s", error)
        finally:
            _delete_file(path)


async def _read_settled(link: EngineLink, count_in_engine: Callable[[], int]) -> list[dict[str, Any]]:
    """Return the slots once the engine works for those that ask, and for no others; none if that takes too long.

    Until it has begun with all requests that were sent to it, it may give any slot that seems free to one of them. And
    it goes on for a moment with the reply of a client that has left, which may be in the only slot. Raises EngineLost.
    """
    end_s = time.monotonic() + _SETTLED_S
    while True:
        slots = await link.read_slots()
        busy, asked = sum(bool(each.get("is_processing")) for each in slots), count_in_engine()
        if busy == asked or asked < busy < len(slots):
            return slots
        if time.monotonic() >= end_s:
            return []
        await asyncio.sleep(_LOOK_S)


async def _outlives(link: EngineLink) -> bool:
    """Return whether an engine goes on: one that ends at an error says that it is well while it writes its trace."""
    for _ in range(_MOST_LOOKS):
        if not await link.answers():
            return False
        with suppress(EngineLost):
            await link.read_slots()
            return True
    return True


def _choose_checkpoints(checkpoints: Sequence[Checkpoint], asked: AskedPrompt) -> Sequence[Checkpoint]:
    """Return the checkpoints from which a later request may go on: the last ones, and the one at the first question.

    That one is for other conversations with the same instructions and tools.
    """
    begun = asked.prompt_tokens * asked.opening_size / max(1, asked.characters)
    earlier, last = checkpoints[:-_KEPT_CHECKPOINTS], checkpoints[-_KEPT_CHECKPOINTS:]
    near = [each for each in earlier if abs(each.tokens - begun) <= _OPENING_ERROR * asked.prompt_tokens]
    return [*(near and [min(near, key=lambda each: abs(each.tokens - begun))]), *last]


def is_worth_restoring(read_s: float, restore_s: float) -> bool:
    """Return whether reading takes enough longer than restoring: `_GAIN` times as long and `LEAST_GAIN_S` longer."""
    return read_s >= _GAIN * restore_s + LEAST_GAIN_S


def _explain_miss(vault: StateVault, kind: str, chain: bytes, model: str, figures: ReplyFigures) -> None:
    """Note why no state of a kind was found for a request, unless its conversation is new, as far as is known."""
    others = [each.count_reusable(chain) for each in vault.list_states() if each.kind != kind and each.model == model]
    if vault.problem:
        figures.unused_state = Reread(0, None, RereadCause.NOT_KEPT)
    elif tokens := max(others, default=0):
        figures.unused_state = Reread(tokens, None, RereadCause.KEPT_OTHERWISE)


def _delete_file(path: Path) -> None:
    with suppress(OSError):  # on Windows while an engine reads it: cleared before the next save
        path.unlink(missing_ok=True)


def _by_use(state: SavedState) -> float:
    return -state.used_s


def _goes_on(asked: AskedPrompt, chain: bytes) -> bool:
    """Return whether a request with this chain has most of an earlier one."""
    return bool(asked.chain) and 2 * HASH_BYTES * count_common(asked.chain, chain) >= len(asked.chain)


def _begun_last(slot: dict[str, Any]) -> int:
    """Return what sorts slots by their last task, the last one first."""
    return -int(slot.get("id_task") or -1)


def delete_slots(saved: Collection[SavedSlot]) -> None:
    """Delete the files of saved slots: they hold conversations."""
    for slot in saved:
        _delete_file(slot.path)


def _delete_rest(folder: Path, saved: Collection[SavedSlot]) -> None:
    """Delete what is left of slots that could not be saved, such as half a file on a full disk."""
    kept = {slot.path for slot in saved}
    for path in folder.glob(SLOT_FILES):
        if path not in kept:
            path.unlink(missing_ok=True)
