"""SHA-256 of a large file, with progress, outside the event loop."""

import asyncio
import hashlib
import threading
from collections.abc import Callable
from pathlib import Path

_CHUNK_BYTES = 2**22


async def hash_file(path: Path, on_bytes: Callable[[int], None] | None = None) -> str:
    """Return a file's SHA-256 in lower-case hexadecimal. `on_bytes` is called on the loop with the bytes read so far.

    Cancelling stops the reading. Raises OSError.
    """
    loop, ended = asyncio.get_running_loop(), threading.Event()

    def read() -> str:
        digest, done = hashlib.sha256(), 0
        buffer = memoryview(bytearray(_CHUNK_BYTES))
        with path.open("rb", buffering=0) as file:
            while (count := file.readinto(buffer)) and not ended.is_set():
                digest.update(buffer[:count])
                done += count
                if on_bytes is not None and not ended.is_set():
                    loop.call_soon_threadsafe(on_bytes, done)
        return digest.hexdigest()

    try:
        return await asyncio.to_thread(read)
    finally:
        ended.set()
