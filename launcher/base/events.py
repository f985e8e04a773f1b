"""Server-sent events, as far as llama-server uses them, from a server that may send anything.

https://html.spec.whatwg.org/multipage/server-sent-events.html, without names, numbers and lines that end in CR alone.
"""

from collections.abc import AsyncIterator

from launcher.base.errors import Refused


async def read_events(parts: AsyncIterator[bytes], most: int, where: str) -> AsyncIterator[str]:
    """Yield the data of each event. Raises Refused, naming `where`, for an event of more than `most` bytes."""
    line = bytearray()
    data: list[bytes] = []
    n_bytes = 0
    async for part in parts:
        *whole, rest = part.split(b"\n")
        for piece in whole:
            line += piece
            n_bytes += len(piece) + 1
            if n_bytes > most:
                raise _too_long(most, where)
            text = bytes(line).removesuffix(b"\r")
            line.clear()
            if text.startswith(b"data:"):
                data.append(text[5:].removeprefix(b" "))
            elif not text:
                if data:
                    yield b"\n".join(data).decode("utf-8", "replace")
                data, n_bytes = [], 0
        line += rest
        n_bytes += len(rest)
        if n_bytes > most:
            raise _too_long(most, where)


def _too_long(most: int, where: str) -> Refused:
    return Refused(f"{where} sends more than {most:,} bytes at once, as no llama-server does.", "Is it a llama-server?")
