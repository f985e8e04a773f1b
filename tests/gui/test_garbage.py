"""Garbage is collected in the window's thread, because the core's thread must not destroy widgets."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator

import pytest
from PySide6.QtCore import QObject
from PySide6.QtWidgets import QApplication, QDialog
from pytestqt.qtbot import QtBot

from launcher.gui.application import collect_garbage_in_this_thread, shorten_collections
from launcher.gui.window import Window
from launcher.runtime import Runtime

_OBJECTS = 20_000
"""More than the thresholds of all generations need for a collection."""


@pytest.fixture
def owner(qapp: QApplication) -> Iterator[QObject]:
    """The owner of the collector. Python collects by itself until it exists, as in the program."""
    gc.enable()
    owner = QObject(qapp)
    yield owner
    owner.setParent(None)


def test_a_closed_dialog_is_destroyed_in_the_thread_of_the_window(owner: QObject, qtbot: QtBot) -> None:
    collect_garbage_in_this_thread(owner)
    destroyed_in: list[int] = []
    dialog = QDialog()
    dialog.itself = dialog  # type: ignore[attr-defined] -- a cycle, as the slots of a dialog make
    weakref.finalize(dialog, lambda: destroyed_in.append(threading.get_ident()))
    del dialog
    kept: list[list[object]] = []  # keeps enough objects alive for a collection to be due
    runtime = Runtime()
    ended = threading.Event()
    try:
        runtime.submit(_allocate_objects(kept)).when_done(lambda _: ended.set())
        assert ended.wait(60)
    finally:
        assert runtime.close()
    assert not destroyed_in
    qtbot.waitUntil(lambda: bool(destroyed_in))
    assert destroyed_in == [threading.get_ident()]


async def _allocate_objects(kept: list[list[object]]) -> None:
    for _ in range(20):
        await asyncio.sleep(0)
        kept.extend([] for _ in range(_OBJECTS))


def test_pages_are_left_out_of_garbage_collections_until_they_are_replaced(window: Window, qtbot: QtBot) -> None:
    shorten_collections(window)
    try:
        with qtbot.waitSignal(window.prebuilt, timeout=60_000):
            window.prebuild_next()
        assert gc.get_freeze_count() > 10_000
        window.pages_replaced.emit()
        assert gc.get_freeze_count() == 0
    finally:
        gc.unfreeze()
