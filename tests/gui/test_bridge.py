"""The bridge between the threads."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from pytestqt.qtbot import QtBot

from launcher.gui.bridge import Bridge, Ended
from launcher.runtime import Runtime


@pytest.fixture
def bridge(qtbot: QtBot) -> Iterator[Bridge]:
    bridge = Bridge()
    yield bridge
    assert bridge.close()


def test_events_of_any_thread_arrive_in_order_on_this_one_in_few_batches(bridge: Bridge, qtbot: QtBot) -> None:
    batches: list[list[object]] = []
    threads: set[int] = set()
    bridge.drained.connect(lambda batch: (batches.append(batch), threads.add(threading.get_ident())))

    def post() -> None:
        for number in range(5_000):
            bridge.post(number)

    posting = threading.Thread(target=post)
    posting.start()
    qtbot.waitUntil(lambda: sum(map(len, batches)) == 5_000, timeout=5_000)
    posting.join()
    assert [event for batch in batches for event in batch] == list(range(5_000))
    assert threads == {threading.get_ident()}
    assert len(batches) < 100


def test_nothing_wakes_up_while_nothing_happens(bridge: Bridge, qtbot: QtBot) -> None:
    with qtbot.waitSignal(bridge.drained, timeout=1_000):
        bridge.post("something")
    assert not bridge._timer.isActive()
    with qtbot.assertNotEmitted(bridge.drained, wait=100):
        pass


def test_work_tells_its_end_and_its_error(bridge: Bridge, qtbot: QtBot) -> None:
    events: list[object] = []
    bridge.drained.connect(events.extend)

    async def works() -> None:
        await asyncio.sleep(0)

    async def fails() -> None:
        raise ValueError("why")

    bridge.submit("good", works)
    bridge.submit("bad", fails)
    qtbot.waitUntil(lambda: len(events) == 2, timeout=2_000)
    ends = {event.what: event.error for event in events if isinstance(event, Ended)}
    assert ends["good"] is None
    assert isinstance(ends["bad"], ValueError)


def test_cancelled_work_cleans_up_and_is_no_error(bridge: Bridge, qtbot: QtBot) -> None:
    events: list[object] = []
    bridge.drained.connect(events.extend)
    begun, cleaned = threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    handle = bridge.submit("long", work)
    assert begun.wait(2)
    handle.cancel()
    qtbot.waitUntil(lambda: events == [Ended("long", None)], timeout=2_000)
    assert cleaned.wait(2)


def test_closing_waits_for_what_must_be_cleaned_up() -> None:
    runtime = Runtime()
    begun, cleaned = threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            cleaned.set()

    runtime.submit(work())
    assert begun.wait(2)
    assert runtime.close()
    assert cleaned.is_set()
    assert runtime.close(), "closing twice is no harm"


def test_the_loop_has_a_thread_with_a_name() -> None:
    runtime = Runtime()

    async def name() -> str:
        return threading.current_thread().name

    handle = runtime.submit(name())
    assert handle._future.result(timeout=2) == "launcher-core"
    assert runtime.close()
