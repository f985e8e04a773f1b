"""Verification of a file: reads all of it on the core's thread and says whether it is as published."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal

from launcher.app.models.model_library import name_local
from launcher.base.errors import LauncherError
from launcher.gui.late import library
from launcher.gui.translation import tr

if TYPE_CHECKING:
    from launcher.gui.bridge import Bridge
    from launcher.models.library import LocalModel, VerifiedFile
    from launcher.runtime import WorkHandle

_PROGRESS_INTERVAL_S = 0.1


class Verification(QObject):
    """Verifies one file at a time: reads all of it and compares hashes. After `stop` no result is emitted."""

    progressed = Signal(object, float)
    """Bytes read, and bytes per second."""
    ended = Signal()
    """Verification has ended in any way, also by a stop."""
    verified = Signal(str, str)
    """The result as text, and its meaning for the banner's colour."""
    failed = Signal(object)
    """LauncherError."""

    def __init__(self, bridge: Bridge, parent: QObject) -> None:
        super().__init__(parent)
        self._bridge = bridge
        self.local: LocalModel | None = None
        """The file being read."""
        self.handle: WorkHandle[None] | None = None

    def start_verifying(self, local: LocalModel) -> None:
        """Verify a file."""

        async def verify_file(report: Callable[[object], None]) -> tuple[VerifiedFile, ...]:
            reported_s = started_s = time.monotonic()

            def on_bytes(done: int) -> None:
                nonlocal reported_s
                if (now_s := time.monotonic()) - reported_s >= _PROGRESS_INTERVAL_S:
                    reported_s = now_s
                    report((done, done / (now_s - started_s)))

            return await library.verify_model(local, on_bytes)

        def emit_progress(progress: tuple[int, float]) -> None:
            if local is self.local:
                self.progressed.emit(*progress)

        self.local = local
        self.handle = self._bridge.run(
            verify_file,
            reported=emit_progress,
            done=lambda results: self._emit_result(local, results),
            failed=lambda error: self._emit_error(local, error),
        )

    def stop(self) -> None:
        """Stop reading."""
        if self.handle is not None:
            self.handle.cancel()
            self._reset()

    def _emit_result(self, local: LocalModel, results: tuple[VerifiedFile, ...]) -> None:
        if local is self.local:
            self._reset()
            self.verified.emit(*verification_result(name_local(local), {each.outcome.value for each in results}))

    def _emit_error(self, local: LocalModel, error: LauncherError) -> None:
        if local is self.local:
            self._reset()
            self.failed.emit(error)

    def _reset(self) -> None:
        self.local = self.handle = None
        self.ended.emit()


def verification_result(name: str, outcomes: set[str]) -> tuple[str, str]:
    """Return the result of verifying all parts of a file as text, and its meaning. The worst outcome counts."""
    if "changed" in outcomes:
        return (
            tr("{name} is damaged or was changed: its SHA-256 does not match. Download it again.", name=name),
            "bad",
        )
    if "missing" in outcomes:
        return tr("{name} no longer exists.", name=name), "bad"
    if "unknown" in outcomes:
        text = tr("No checksum is published for {name}. Its SHA-256 was saved for the next check.", name=name)
        return text, "information"
    return tr("{name} is intact: its SHA-256 matches.", name=name), "good"
