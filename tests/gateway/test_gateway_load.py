"""Load: long queues and large bodies during a handover, and clients that do not read."""

import asyncio
import json
import socket
from contextlib import suppress
from dataclasses import dataclass

from launcher.gateway.engine_link import EngineLink
from tests.gateway.test_access import CHAT, KEY, Front, open_gateway, read_answer

QUEUE = 200
CHAT_LINE = "POST /v1/chat/completions"


def engine_link(front: Front, port: int | None = None) -> EngineLink:
    url = f"http://127.0.0.1:{port or front.engine.port}"
    return EngineLink(url, "e" * 43, slots=2, slot_folder=None, state_key="")


async def wait_until_waiting(front: Front, count: int) -> None:
    while front.gateway.gate.waiting_requests < count:
        await asyncio.sleep(0.01)


async def test_a_queue_of_200_is_held_over_a_handover_and_answered_in_order() -> None:
    async with open_gateway() as front, asyncio.timeout(60):
        await front.gateway.gate.pause_requests(0.0)
        connections = []
        for number in range(QUEUE):
            reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
            writer.write(front.request(CHAT_LINE, body=CHAT.replace(b"Hi", b"%d" % number)))
            connections.append((reader, writer))
            await wait_until_waiting(front, number + 1)
        assert front.engine.requests == []
        await front.gateway.gate.resume_requests(engine_link(front))
        answers = await asyncio.gather(*(read_answer(reader) for reader, _ in connections))
        assert {each.status for each in answers} == {200}
        came = [
            int(json.loads(each.partition(b"\r\n\r\n")[2])["messages"][0]["content"]) for each in front.engine.requests
        ]
        assert sorted(came) == [*range(QUEUE)]
        assert all(abs(number - place) <= 2 for place, number in enumerate(came))  # two work at once
        for _, writer in connections:
            writer.close()


async def test_a_body_of_28_mb_that_comes_during_a_handover_reaches_the_engine_whole() -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "0123456789abcdef" * (28 << 16)}]}).encode()
    assert len(body) > 28 << 20
    async with open_gateway() as front, asyncio.timeout(60):
        await front.gateway.gate.pause_requests(0.0)
        asking = asyncio.create_task(front.ask(CHAT_LINE, body=body))
        await wait_until_waiting(front, 1)
        await front.gateway.gate.resume_requests(engine_link(front))
        assert (await asking).status == 200
        assert front.engine.requests[-1].partition(b"\r\n\r\n")[2] == body


@dataclass
class Flood:
    """An engine that streams as fast as it is read."""

    sent: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
            event = {"choices": [{"index": 0, "delta": {"content": " word" * 10_000}}]}
            frame = b"data: " + json.dumps(event).encode() + b"\n\n"
            while True:
                writer.write(frame)
                await writer.drain()
                self.sent += len(frame)
        writer.close()

    async def sent_at_rest(self) -> int:
        """Return the bytes sent, once they grow no more."""
        before = -1
        while before != self.sent:
            before = self.sent
            await asyncio.sleep(0.3)
        return self.sent


async def test_a_client_that_does_not_read_stops_the_engine_instead_of_filling_the_gateway() -> None:
    flood = Flood()
    server = await asyncio.start_server(flood.serve, "127.0.0.1", 0)
    async with open_gateway() as front, asyncio.timeout(60):
        await front.gateway.gate.pause_requests(0.0)
        await front.gateway.gate.resume_requests(engine_link(front, server.sockets[0].getsockname()[1]))
        body = b'{"messages": [{"role": "user", "content": "Hi"}], "stream": true}'
        with socket.create_connection(("127.0.0.1", front.port)) as client:
            client.sendall(front.request(CHAT_LINE, body=body, key=KEY))
            held = await flood.sent_at_rest()
            assert 0 < held < 20 << 20  # most of it is in the buffers of the two connections
            client.setblocking(False)
            read = 0
            while read < held:  # each read lets the engine send more
                read += len(await asyncio.get_running_loop().sock_recv(client, 1 << 20))
            assert await flood.sent_at_rest() > held
        while front.gateway.gate._forwarders:
            await asyncio.sleep(0.01)
    server.close()
