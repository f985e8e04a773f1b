"""Requests of others during a measurement, recognised by the engine's counters."""

import asyncio

import pytest

from launcher.base.errors import Unreachable
from launcher.engine.server.client import Timings
from launcher.monitor.meter import Acceptance
from launcher.monitor.reply import Reply
from launcher.monitor.traffic import Counters
from launcher.tuning.other_requests import OtherRequests

READ, WRITTEN = 20, 48
TIMINGS = Timings(READ - 5, 5, 1.0, WRITTEN, 1.0, 1.0, None, None)


def reply(timings: Timings | None = TIMINGS) -> Reply:
    return Reply("", "", timings, Acceptance(0, 0, (), ()), None, None)


class Server:
    """Counts as llama-server does: tokens when a request ends, requests at once."""

    def __init__(self) -> None:
        self.read = self.written = 1_000.0
        self.processing = self.waiting = 0
        self.answers = True
        self.hangs, self.given_up = False, 0

    async def count(self) -> Counters:
        if self.hangs:
            try:
                await asyncio.Event().wait()
            finally:
                self.given_up += 1
        await asyncio.sleep(0)
        if not self.answers:
            raise Unreachable("It does not answer.", "")
        return Counters(self.written, 1.0, 0, 0, 0, (), self.processing, prompt_n=self.read, waiting=self.waiting)

    def begin(self) -> None:
        self.processing += 1

    def end(self, read: int = READ, written: int = WRITTEN) -> None:
        self.processing -= 1
        self.read += read
        self.written += written


@pytest.fixture
def server() -> Server:
    return Server()


async def test_without_other_requests_nothing_is_found(server: Server) -> None:
    others = OtherRequests(server.count)
    for _ in range(3):
        async with others.observe_request() as observed:
            server.begin()
            server.end()
            observed.reply = reply()
        assert not observed.disturbed
        server.begin()  # a request of another program, between two of ours
        server.end()


@pytest.mark.parametrize(("read", "written"), [(1, 1), (300, 0), (0, 5)])
async def test_a_request_within_ours_is_found_by_its_tokens(server: Server, read: int, written: int) -> None:
    async with OtherRequests(server.count).observe_request() as observed:
        server.begin()
        server.begin()
        server.end(read, written)
        server.end()
        observed.reply = reply()
    assert observed.disturbed


@pytest.mark.parametrize("when", ["before", "after", "waiting before"])
async def test_a_request_before_or_after_ours_is_found(server: Server, when: str) -> None:
    if when == "before":
        server.begin()
    server.waiting = int(when == "waiting before")
    async with OtherRequests(server.count).observe_request() as observed:
        if when == "before":
            server.processing = 0  # the other request was given up, without tokens
        server.waiting = 0
        server.begin()
        server.end()
        if when == "after":
            server.begin()
        observed.reply = reply()
    assert observed.disturbed


async def test_our_parallel_replies_are_summed(server: Server) -> None:
    others = OtherRequests(server.count)
    go_on = [asyncio.Event() for _ in range(3)]

    async def observe_our_request(number: int, *, with_another: bool = False) -> bool:
        async with others.observe_request() as observed:
            server.begin()
            await go_on[number].wait()
            server.end()
            if with_another:
                server.read += 7
            observed.reply = reply()
        return observed.disturbed

    for with_another in (False, True):
        for event in go_on:
            event.clear()
        tasks = [
            asyncio.create_task(observe_our_request(number, with_another=with_another and number == 1))
            for number in range(3)
        ]
        while server.processing < 3:
            await asyncio.sleep(0)
        found = []
        for event, task in zip(go_on, tasks, strict=True):
            event.set()
            found.append(await task)
        assert found == [False, False, with_another]


async def test_without_counters_or_timings_no_disturbance_is_reported(server: Server) -> None:
    server.answers = False
    async with OtherRequests(server.count).observe_request() as observed:
        server.read += 500
        observed.reply = reply()
    assert not observed.disturbed
    server.answers = True
    async with OtherRequests(server.count).observe_request() as observed:
        server.read += 500  # without timings nobody knows whose tokens these are
        observed.reply = reply(None)
    assert not observed.disturbed


async def test_our_failed_requests_leave_no_trace(server: Server) -> None:
    others = OtherRequests(server.count)
    with pytest.raises(Unreachable):
        async with others.observe_request():
            raise Unreachable("It ended.", "")
    server.hangs = True

    async def ask() -> None:
        async with others.observe_request():
            pass

    observed = asyncio.create_task(ask())
    await asyncio.sleep(0)
    observed.cancel()
    with pytest.raises(asyncio.CancelledError):
        await observed
    await asyncio.sleep(0)
    assert server.given_up == 1
    server.hangs = False
    async with others.observe_request() as again:
        server.begin()
        server.end()
        again.reply = reply()
    assert not again.disturbed
