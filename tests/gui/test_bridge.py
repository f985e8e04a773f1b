"""The bridge between the threads."""

import asyncio
import gc
import inspect
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator

import pytest
from PySide6.QtCore import QTimer
from pytestqt.qtbot import QtBot

from launcher.base.errors import LauncherError
from launcher.gui.bridge import Bridge, Ended
from launcher.runtime import Runtime


@pytest.fixture
def bridge(qtbot: QtBot) -> Iterator[Bridge]:
    bridge = Bridge()
    yield bridge
    assert bridge.close()


def test_events_of_any_thread_arrive_in_order_in_few_batches(bridge: Bridge, qtbot: QtBot) -> None:
    batches: list[list[object]] = []
    threads: set[int] = set()
    bridge.drained.connect(lambda batch: (batches.append(batch), threads.add(threading.get_ident())))

    def post() -> None:
        for number in range(5_000):
            bridge.post(number)

    posting = threading.Thread(target=post)
    posting.start()
    qtbot.waitUntil(lambda: sum(map(len, batches)) == 5_000)
    posting.join()
    assert [event for batch in batches for event in batch] == list(range(5_000))
    assert threads == {threading.get_ident()}
    assert len(batches) < 100


def test_nothing_wakes_up_without_events(bridge: Bridge, qtbot: QtBot) -> None:
    with qtbot.waitSignal(bridge.drained):
        bridge.post("something")
    assert not any(timer.isActive() for timer in bridge.findChildren(QTimer))
    with qtbot.assertNotEmitted(bridge.drained, wait=100):
        pass


def test_work_reports_its_end_and_its_error(bridge: Bridge, qtbot: QtBot) -> None:
    events: list[object] = []
    bridge.drained.connect(events.extend)

    async def wait_one_step() -> None:
        await asyncio.sleep(0)

    async def raise_value_error() -> None:
        raise ValueError("why")

    bridge.submit("good", wait_one_step)
    bridge.submit("bad", raise_value_error)
    qtbot.waitUntil(lambda: len(events) == 2)
    ends = {event.name: event.error for event in events if isinstance(event, Ended)}
    assert ends["good"] is None
    assert isinstance(ends["bad"], ValueError)


def test_cancelled_work_cleans_up_and_is_not_an_error(bridge: Bridge, qtbot: QtBot) -> None:
    events: list[object] = []
    bridge.drained.connect(events.extend)
    begun, cleaned = threading.Event(), threading.Event()

    async def wait_for_cancel() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    handle = bridge.submit("long", wait_for_cancel)
    assert begun.wait(60)
    handle.cancel()
    qtbot.waitUntil(lambda: events == [Ended("long", None)])
    assert cleaned.wait(60)


def test_work_without_a_reference_is_not_lost_while_it_waits_for_another_program(bridge: Bridge, qtbot: QtBot) -> None:
    ours, theirs = socket.socketpair()
    begun, lines = threading.Event(), list[bytes]()

    async def read_line() -> bytes:
        reader, writer = await asyncio.open_connection(sock=ours)  # only the waiting reader has a reference to it
        begun.set()
        try:
            return await asyncio.shield(asyncio.ensure_future(reader.readline()))
        finally:
            writer.close()

    bridge.run(read_line, done=lines.append)
    assert begun.wait(120)
    with qtbot.waitSignal(bridge.drained):
        bridge.submit("later", lambda: asyncio.sleep(0))  # once this has run, `read_line` waits for its line
    gc.collect()
    with theirs:
        theirs.sendall(b"here\n")
        qtbot.waitUntil(lambda: lines == [b"here\n"])


def test_the_loop_is_created_on_its_own_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop created on the main thread takes over the signal wake-up on Windows: Ctrl-C no longer ends the window."""
    made, make = list[str](), asyncio.new_event_loop

    def new_event_loop() -> asyncio.AbstractEventLoop:
        made.append(threading.current_thread().name)
        return make()

    monkeypatch.setattr(asyncio, "new_event_loop", new_event_loop)
    assert Runtime().close()
    assert made == ["launcher-core"]
    refusal = OSError(24, "Too many open files")

    def refuse() -> asyncio.AbstractEventLoop:
        raise refusal

    monkeypatch.setattr(asyncio, "new_event_loop", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        Runtime()


def test_closing_waits_for_clean_up() -> None:
    runtime = Runtime()
    begun, cleaned = threading.Event(), threading.Event()

    async def wait_for_cancel() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            cleaned.set()

    runtime.submit(wait_for_cancel())
    assert begun.wait(60)
    assert runtime.close()
    assert cleaned.is_set()
    assert runtime.close(), "closing twice is no harm"


def test_closing_does_not_interrupt_the_clean_up_of_cancelled_work() -> None:
    runtime = Runtime()
    begun, cleaning, closes, cleaned = (threading.Event() for _ in range(4))

    async def wait_for_cancel() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await asyncio.to_thread(closes.wait)
            cleaned.set()

    async def close_soon() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            closes.set()  # `close` cancels this work after `wait_for_cancel`

    handle = runtime.submit(wait_for_cancel())
    assert begun.wait(60)
    handle.cancel()
    assert cleaning.wait(60)
    runtime.submit(close_soon())
    assert runtime.close()
    assert cleaned.is_set()


def test_tasks_started_by_work_run_while_it_cleans_up() -> None:
    runtime = Runtime()
    begun, cleaned = threading.Event(), threading.Event()

    async def work() -> None:
        answer = asyncio.get_running_loop().create_future()

        async def helper() -> None:
            await asyncio.sleep(0.05)
            answer.set_result(None)

        helping = asyncio.create_task(helper())
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.shield(answer)
            await helping
            cleaned.set()

    runtime.submit(work())
    assert begun.wait(60)
    assert runtime.close(5)
    assert cleaned.is_set()


def test_results_of_work_are_delivered_on_this_thread(bridge: Bridge, qtbot: QtBot) -> None:
    received: list[object] = []
    threads: set[int] = set()

    def note(what: object) -> None:
        received.append(what)
        threads.add(threading.get_ident())

    async def work(tell: Callable[[object], None]) -> int:
        for percent in (10, 50):
            tell(percent)
        await asyncio.sleep(0)
        return 3

    async def raise_launcher_error() -> None:
        raise LauncherError("It failed.")

    async def breaks() -> None:
        raise ValueError("why")

    bridge.run(work, done=lambda each: note(("done", each)), reported=note)
    qtbot.waitUntil(lambda: received == [10, 50, ("done", 3)])
    bridge.run(raise_launcher_error, failed=lambda error: note(error.title))
    bridge.run(breaks, failed=lambda error: note(error.title))
    qtbot.waitUntil(lambda: len(received) == 5)
    assert set(received[3:]) == {"It failed.", "Something unforeseen went wrong: ValueError: why."}
    assert threads == {threading.get_ident()}


def test_only_async_functions_run_on_the_thread_of_the_loop(bridge: Bridge, qtbot: QtBot) -> None:
    names: list[str] = []

    async def name_thread(word: str) -> str:
        return f"{word} {threading.current_thread().name}"

    def name_worker(word: str) -> str:
        return f"{word} {threading.current_thread().name}"

    bridge.run(name_thread, "async", done=names.append)
    bridge.run(name_worker, "plain", done=names.append)
    bridge.run(lambda: name_thread("lambda"), done=names.append)
    qtbot.waitUntil(lambda: len(names) == 3)
    assert {"async launcher-core", "lambda launcher-core"} < {*names}
    assert "plain launcher-core" not in names


@pytest.mark.filterwarnings("error")
def test_a_coroutine_that_comes_after_the_cancel_is_closed(bridge: Bridge, qtbot: QtBot) -> None:
    begun, cancelled, ends = threading.Event(), threading.Event(), list[str]()
    coroutines: list[Coroutine[None, None, None]] = []

    def return_coroutine() -> Coroutine[None, None, None]:
        begun.set()
        assert cancelled.wait(60)
        coroutines.append(asyncio.sleep(0))
        return coroutines[0]

    handle = bridge.run(return_coroutine, cancelled=lambda: ends.append("cancelled"))
    assert begun.wait(60)
    handle.cancel()
    qtbot.waitUntil(lambda: ends == ["cancelled"])
    cancelled.set()
    qtbot.waitUntil(lambda: bool(coroutines) and inspect.getcoroutinestate(coroutines[0]) == inspect.CORO_CLOSED)


def test_an_unhandled_error_is_shown_by_the_window(bridge: Bridge, qtbot: QtBot) -> None:
    events: list[object] = []
    bridge.drained.connect(events.extend)

    async def raise_launcher_error() -> None:
        raise LauncherError("It failed.")

    bridge.run(raise_launcher_error)
    qtbot.waitUntil(lambda: len(events) == 1)
    (event,) = events
    assert isinstance(event, Ended)
    assert str(event.error) == "It failed."


def test_cancelled_is_called_after_the_clean_up(bridge: Bridge, qtbot: QtBot) -> None:
    received: list[str] = []
    begun = threading.Event()

    async def wait_for_cancel() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            received.append("cleaned")

    handle = bridge.run(
        wait_for_cancel,
        done=lambda _: received.append("done"),
        failed=lambda _: received.append("failed"),
        cancelled=lambda: received.append("cancelled"),
    )
    assert begun.wait(60)
    handle.cancel()
    qtbot.waitUntil(lambda: received == ["cleaned", "cancelled"])


def test_a_result_that_waits_while_the_pages_go_is_not_delivered(bridge: Bridge, qtbot: QtBot) -> None:
    results: list[str] = []
    ended = threading.Event()

    async def read() -> str:
        return "read"

    bridge.run(read, done=results.append).when_done(lambda _error: ended.set())
    assert ended.wait(60)
    bridge.cancel_page_work()
    with qtbot.waitSignal(bridge.drained):
        bridge.post("later")
    qtbot.waitUntil(lambda: not bridge._page_work)
    assert results == []


def test_a_closed_bridge_starts_no_work(qtbot: QtBot) -> None:
    bridge, begun = Bridge(), []

    async def work(*_: object) -> None:
        begun.append(1)

    assert bridge.close()
    bridge.run(work, done=begun.append).cancel()
    bridge.submit("work", work)
    assert bridge.close()
    qtbot.wait(50)
    assert begun == []


def test_the_thread_of_the_loop_has_a_name() -> None:
    runtime = Runtime()

    names: list[str] = []
    ended = threading.Event()

    async def name() -> None:
        names.append(threading.current_thread().name)

    runtime.submit(name()).when_done(lambda _error: ended.set())
    assert ended.wait(120)
    assert names == ["launcher-core"]
    assert runtime.close()


def test_an_exception_in_one_callback_does_not_block_others(bridge: Bridge, qtbot: QtBot) -> None:
    received: list[int] = []

    async def return_three() -> int:
        return 3

    def break_page(_result: int) -> None:
        raise ValueError("a page is broken")

    with qtbot.captureExceptions() as raised:
        bridge.run(return_three, done=break_page)
        bridge.run(return_three, done=received.append)
        qtbot.waitUntil(lambda: received == [3])
    assert [kind for kind, *_ in raised] == [ValueError]


@pytest.mark.parametrize("waits_for_the_cancel", [False, True])
def test_cancelling_ended_work_calls_the_right_callback(
    waits_for_the_cancel: bool, bridge: Bridge, qtbot: QtBot
) -> None:
    calls: list[str] = []
    ended = threading.Event()

    async def do_nothing() -> None:
        pass

    first = bridge.run(
        do_nothing,
        done=lambda _: calls.append("first"),
        cancelled=(lambda: calls.append("cancelled")) if waits_for_the_cancel else None,
    )
    first.when_done(lambda _error: ended.set())
    assert ended.wait(60)
    first.cancel()
    bridge.run(do_nothing, done=lambda _: calls.append("second"))
    qtbot.waitUntil(lambda: "second" in calls)
    assert calls == (["first", "second"] if waits_for_the_cancel else ["second"])
