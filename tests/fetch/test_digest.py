"""Computing the SHA-256 of a file on the disk."""

import asyncio
import hashlib
from pathlib import Path

import pytest

from launcher.fetch.digest import hash_file


async def test_a_file_is_hashed_with_progress(tmp_path: Path) -> None:
    content = bytes(range(256)) * 40_000
    path = tmp_path / "file"
    path.write_bytes(content)
    received: list[int] = []
    assert await hash_file(path, received.append) == hashlib.sha256(content).hexdigest()
    assert received == sorted(received)
    assert received[-1] == len(content)


async def test_an_empty_file_is_hashed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    assert await hash_file(path) == hashlib.sha256(b"").hexdigest()


async def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await hash_file(tmp_path / "file")


async def test_cancelling_stops_reading(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(2**33)
    received: list[int] = []
    work = asyncio.create_task(hash_file(path, received.append))
    while not received:
        await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert received[-1] < 2**33
