"""A file is read to its end and compared with what it should be, one at a time; what came of it, in words."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal

from launcher.base.errors import LauncherError
from launcher.gui.models import words
from launcher.gui.words import tr

if TYPE_CHECKING:
    from launcher.gui.bridge import Bridge
    from launcher.models.library import LocalModel, Verified
    from launcher.runtime import Handle

_TELL_S = 0.1


class Verifying(QObject):
    """What was stopped tells nothing any more."""

    moved = Signal(object, float)
    """Bytes that were read, and bytes a second"""
    ended = Signal()
    """However it ended, also when it was stopped"""
    found = Signal(str, str)
    """What came of it, and its meaning"""
    failed = Signal(object)
    """LauncherError"""

    def __init__(self, bridge: Bridge, parent: QObject) -> None:
        super().__init__(parent)
        self._bridge = bridge
        self.local: LocalModel | None = None
        """What is being read."""
        self.handle: Handle[None] | None = None

    def begin(self, local: LocalModel) -> None:
        """Read a file."""

        async def work(tell: Callable[[object], None]) -> tuple[Verified, ...]:
            from launcher.models.library import verify

            told_s = began_s = time.monotonic()

            def on_bytes(done: int) -> None:
                nonlocal told_s
                if (now_s := time.monotonic()) - told_s >= _TELL_S:
                    told_s = now_s
                    tell((done, done / (now_s - began_s)))

            return await verify(local, on_bytes)

        self.local = local
        self.handle = self._bridge.run(
            work,
            told=lambda told: self.moved.emit(*told) if local is self.local else None,
            done=lambda results: self._end(local, results),
            failed=lambda error: self._fail(local, error),
        )

    def stop(self) -> None:
        """Read no further."""
        if self.handle is not None:
            self.handle.cancel()
            self._rest()

    def _end(self, local: LocalModel, results: tuple[Verified, ...]) -> None:
        if local is self.local:
            self._rest()
            self.found.emit(*said_of(words.name_of(local), {each.outcome.value for each in results}))

    def _fail(self, local: LocalModel, error: LauncherError) -> None:
        if local is self.local:
            self._rest()
            self.failed.emit(error)

    def _rest(self) -> None:
        self.local = self.handle = None
        self.ended.emit()


def said_of(name: str, outcomes: set[str]) -> tuple[str, str]:
    """Return what came of verifying all parts of a file, and what that means: the worst of them counts."""
    if "changed" in outcomes:
        return (
            tr("{name} is not the file that it should be: its SHA-256 is another one. Download it again.", name=name),
            "bad",
        )
    if "missing" in outcomes:
        return tr("{name} is not there any more.", name=name), "bad"
    if "unknown" in outcomes:
        text = tr("Nobody says what {name} should be. Its SHA-256 is kept and compared the next time.", name=name)
        return text, "information"
    return tr("{name} is what it should be.", name=name), "good"
