"""Slots saved by one engine for the next: the state of its conversations in files, with a digest."""

import asyncio
import hashlib
import shutil
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from launcher.gateway.engine_connection import EngineLost
from launcher.gateway.engine_link import EngineLink
from launcher.gateway.slot_folder import SLOT_FILES, clear_slot_folder

_HEADER = struct.Struct("<4sII")
"""Magic, version, and the number of 32-bit numbers that follow (llama.cpp, llama_state_seq_save_file)."""
_MAGICS = (b"qsgg", b"ggsq")
_PACKED, _TEXT_ONLY = -1, 1
"""Newer builds pack a slot's tokens: -1, the number of chunks (1 if all is text), the number of tokens, the tokens."""
_LEAST_FREE = 2
"""Free disk space that is needed to save a further slot, as a multiple of the last slot's file."""


@dataclass(frozen=True, slots=True)
class SavedSlot:
    """A slot in a file of `size` bytes, whose SHA-256 is `digest`.

    `tokens` are the conversation's, None if it has images.
    """

    number: int
    path: Path
    tokens: list[int] | None
    digest: bytes
    size: int
    state_key: str


async def save_slots(link: EngineLink) -> list[SavedSlot]:
    """Save every slot of an engine that has a conversation. Slots that cannot be saved are left out."""
    if link.slot_folder is None:
        return []
    saved: list[SavedSlot] = []
    with suppress(OSError, EngineLost):
        await asyncio.to_thread(clear_slot_folder, link.slot_folder)
        for number in range(link.slots):
            name = f"slot-{number}.bin"
            status, data = await link.request_json(f"/slots/{number}?action=save", {"filename": name})
            if status != 200 or not data.get("n_saved"):
                continue
            path = link.slot_folder / name
            tokens, digest, size = await asyncio.to_thread(_read_slot_file, path)
            saved.append(SavedSlot(number, path, tokens, digest, size, link.state_key))
            if shutil.disk_usage(link.slot_folder).free < _LEAST_FREE * size:
                break
    await asyncio.to_thread(_delete_rest, link.slot_folder, saved)
    return saved


def _delete_rest(folder: Path, saved: list[SavedSlot]) -> None:
    """Delete what is left of slots that could not be saved, such as half a file on a full disk."""
    kept = {slot.path for slot in saved}
    for path in folder.glob(SLOT_FILES):
        if path not in kept:
            path.unlink(missing_ok=True)


async def restore_slots(link: EngineLink, saved: list[SavedSlot]) -> set[int]:
    """Restore slots into an engine and delete their files; return the numbers of those that were restored.

    A file that has changed, or was saved by an engine with another kind of state, is not offered: the engine would
    accept the slot of another quantisation of the model, or a damaged one, without an error.
    """
    restored: set[int] = set()
    try:
        for slot in saved:
            if link.slot_folder is None or slot.number >= link.slots or slot.state_key != link.state_key:
                continue
            with suppress(OSError, EngineLost):
                if await asyncio.to_thread(_file_digest, slot.path) != slot.digest:
                    continue
                body = {"filename": slot.path.name}
                status, _ = await link.request_json(f"/slots/{slot.number}?action=restore", body)
                if status == 200:
                    restored.add(slot.number)
    finally:
        await asyncio.to_thread(delete_slots, saved)
    return restored


def delete_slots(saved: list[SavedSlot]) -> None:
    """Delete the files of saved slots: they hold conversations."""
    for slot in saved:
        slot.path.unlink(missing_ok=True)


def _read_slot_file(path: Path) -> tuple[list[int] | None, bytes, int]:
    """Return the tokens, the SHA-256 and the size of a slot's file. Raises OSError."""
    path.chmod(0o600)
    with path.open("rb") as file:
        tokens = _read_tokens(file)
    return tokens, _file_digest(path), path.stat().st_size


def _read_tokens(file: BinaryIO) -> list[int] | None:
    """Return the tokens at the beginning of a slot's file; None if its format is another or it has images."""
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    magic, _, count = _HEADER.unpack(header)
    data = file.read(4 * count)
    if magic not in _MAGICS or len(data) < 4 * count:
        return None
    numbers = list(struct.unpack(f"<{count}i", data))
    if not numbers or numbers[0] != _PACKED:
        return numbers
    if len(numbers) < 3 or numbers[1] != _TEXT_ONLY:
        return None
    return numbers[3 : 3 + numbers[2]]


def _file_digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
