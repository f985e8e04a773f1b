"""What the rate is measured against: the limit that memory bandwidth sets, and the measured rate without MTP."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal

from launcher.gui.plots.card import Reference
from launcher.gui.words import tr

if TYPE_CHECKING:
    from launcher.engine.launch import Launch
    from launcher.gui.controller import Controller
    from launcher.machine.reading import Reading


class References(QObject):
    """Both of what runs; they are asked for when it is launched."""

    changed = Signal()

    def __init__(self, controller: Controller, parent: QObject) -> None:
        super().__init__(parent)
        self._controller = controller
        self.limit: Reading | None = None
        """In tokens per second; without a value it says why there is none."""
        self.baseline: Reference | None = None
        controller.launched.connect(self.take_launch)

    @property
    def lines(self) -> tuple[Reference, ...]:
        """What is drawn of them."""
        rate = self.limit.value if self.limit is not None else None
        line = Reference(rate, tr("limit {rate:,.0f}", rate=rate)) if rate else None
        return tuple(each for each in (line, self.baseline) if each is not None)

    def set_limit(self, limit: Reading | None) -> None:
        """Draw a limit as a dashed line; None takes it away."""
        self.limit = limit
        self.changed.emit()

    def set_baseline(self, tokens_per_second: float | None, source: str = "") -> None:
        """Draw a rate without MTP as a dotted line; None takes it away. `source` says whence it is."""
        self.baseline = None
        if tokens_per_second is not None:
            words = tr("without MTP {rate:,.0f}", rate=tokens_per_second)
            self.baseline = Reference(tokens_per_second, f"{words} · {source}" if source else words, dotted=True)
        self.changed.emit()

    def take_launch(self, launch: Launch | None) -> None:
        """Ask for those of what runs now."""
        self.set_limit(None)
        self.set_baseline(None)
        if launch is None:
            return

        def took_limit(limit: Reading) -> None:
            if self._controller.launch is launch:
                self.set_limit(limit)

        def took_baseline(rate: float | None) -> None:
            if self._controller.launch is launch:
                self.set_baseline(rate, tr("as tuned"))

        run = self._controller.bridge.run
        run(lambda _tell: _limit_of(launch), done=took_limit)
        run(lambda _tell: _baseline_of(launch), done=took_baseline, failed=_pass)


def _pass(_error: object) -> None:
    """Say nothing: a line more or less."""


async def _baseline_of(launch: Launch) -> float | None:
    from launcher.tuner import measured_without_mtp

    return await asyncio.to_thread(measured_without_mtp, launch)


async def _limit_of(launch: Launch) -> Reading:
    from launcher.speed_limit import speed_limit

    return await asyncio.to_thread(speed_limit, launch)
