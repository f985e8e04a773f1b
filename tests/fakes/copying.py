"""A kind of job for the queue that moves real bytes, the server that they come from, and a program that works a queue.

python -m tests.fakes.copying [--at-once N]      works the queue to its end and prints its events, one JSON a line
"""

import asyncio
import dataclasses
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Self

from launcher.base.errors import Unreachable
from launcher.base.progress import Progress
from launcher.fetch.queue import DownloadQueue, JobKind, ReportProgress
from launcher.fetch.queue_runner import QueueEvent, QueueRunner

CHUNK_BYTES = 4_096


class Server:
    """Serves files from any offset, each only as far as the test allows."""

    def __init__(self, **files: bytes) -> None:
        self.files = files
        self.port = 0
        self.requests: list[tuple[str, int]] = []
        self.sent_bytes = 0
        self.open: Counter[str] = Counter()
        self.most_open = 0
        self._allowed = {name: len(data) for name, data in files.items()}
        self._reached: Counter[str] = Counter()
        self._news = asyncio.Condition()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self.allow_all()

    async def wait_until_closed(self) -> None:
        assert self._server is not None
        await self._server.wait_closed()

    def job(self, name: str, folder: Path) -> dict[str, Any]:
        """Return the arguments of a job that copies a file into `folder`."""
        return {"port": self.port, "name": name, "to": str(folder / name)}

    async def allow(self, name: str, n_bytes: int) -> None:
        """Serve the first `n_bytes` of a file, then keep its reader waiting."""
        async with self._news:
            self._allowed[name] = n_bytes
            self._news.notify_all()

    async def allow_all(self) -> None:
        for name, data in self.files.items():
            await self.allow(name, len(data))

    async def wait_until_reached(self, name: str, n_bytes: int) -> None:
        """Wait until the reader of a file has written that many bytes."""
        async with self._news:
            await self._news.wait_for(lambda: self._reached[name] >= n_bytes)

    async def wait_until_unread(self, name: str) -> None:
        """Wait until no client reads a file."""
        async with self._news:
            await self._news.wait_for(lambda: not self.open[name])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = json.loads(await reader.readline())
        name, offset = request["name"], request["offset"]
        self.requests.append((name, offset))
        self.open[name] += 1
        self.most_open = max(self.most_open, self.open.total())
        giving = asyncio.ensure_future(self._give(name, offset, writer))
        try:
            async for line in reader:
                async with self._news:
                    self._reached[name] = int(line)
                    self._news.notify_all()
        except ConnectionError:
            pass
        finally:
            giving.cancel()
            writer.close()
            self.open[name] -= 1
            async with self._news:
                self._news.notify_all()

    async def _give(self, name: str, offset: int, writer: asyncio.StreamWriter) -> None:
        data = self.files[name]
        writer.write(json.dumps({"bytes": len(data)}).encode() + b"\n")
        while offset < len(data):
            async with self._news:
                await self._news.wait_for(lambda begin=offset: self._allowed[name] > begin)
            piece = data[offset : min(offset + CHUNK_BYTES, self._allowed[name])]
            writer.write(piece)
            await writer.drain()
            offset += len(piece)
            self.sent_bytes += len(piece)
        writer.write_eof()


def part_of(arguments: dict[str, Any]) -> Path:
    return Path(arguments["to"] + ".part")


async def copy(arguments: dict[str, Any], report: ReportProgress) -> dict[str, Any]:
    """Copy a file from the server, from where its part ends."""
    part = part_of(arguments)
    resumed = offset = part.stat().st_size if part.exists() else 0
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", arguments["port"])
    except OSError as error:
        raise Unreachable("The server did not answer.", "Try again later.") from error
    try:
        writer.write(json.dumps({"name": arguments["name"], "offset": offset}).encode() + b"\n")
        size = json.loads(await reader.readline())["bytes"]
        with part.open("ab") as file:
            while data := await reader.read(CHUNK_BYTES):
                file.write(data)
                file.flush()
                offset += len(data)
                writer.write(b"%d\n" % offset)
                report(Progress(offset, size))
    finally:
        writer.close()
    if offset < size:
        raise Unreachable("The server broke off.", "Try again later.")
    part.replace(arguments["to"])
    return {"path": arguments["to"], "bytes": offset, "resumed_bytes": resumed}


def discard(arguments: dict[str, Any]) -> None:
    """Remove the part."""
    part_of(arguments).unlink(missing_ok=True)


WORKS = {"copy": JobKind(copy, discard)}


def _print_event(event: QueueEvent) -> None:
    print(json.dumps({"event": type(event).__name__, **dataclasses.asdict(event)}), flush=True)


if __name__ == "__main__":
    at_once = int(sys.argv[2]) if sys.argv[1:2] == ["--at-once"] else 1

    async def run_queue() -> None:
        await QueueRunner(DownloadQueue(WORKS), _print_event, at_once=at_once, round_s=0.02).run(until_idle=True)

    asyncio.run(run_queue())
