"""The least that a proxy in asyncio can be: it passes requests to a port on, and the bytes of the replies back.

    python -m benchmarks.plain_proxy PORT       prints its own port

It reads neither keys nor replies, and opens a connection for each request.
"""

import asyncio
import re
import sys

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_PART_BYTES = 1 << 16


async def serve_proxy(port: int) -> None:
    """Serve until the process is ended."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        body = await reader.readexactly(int(length[1]) if length else 0)
        answers, requests = await asyncio.open_connection("127.0.0.1", port)
        requests.write(head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1) + body)
        while data := await answers.read(_PART_BYTES):
            writer.write(data)
            await writer.drain()
        requests.close()
        writer.close()

    server = await asyncio.start_server(pass_on, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve_proxy(int(sys.argv[1])))
