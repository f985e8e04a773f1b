"""Reference lines of the rate plot: the limit set by memory bandwidth, and the measured rate without MTP."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal

from launcher.gui.late import measured_tunes, speed_limits
from launcher.gui.plots.row import Reference
from launcher.gui.translation import tr
from launcher.machine.gpu import Reading

if TYPE_CHECKING:
    from launcher.engine.server.launch import Launch
    from launcher.gui.controller import Controller


class RateReferences(QObject):
    """Reference lines for the running server. They are read again at each launch."""

    changed = Signal()

    def __init__(self, controller: Controller, parent: QObject) -> None:
        super().__init__(parent)
        self._controller = controller
        self.limit: Reading | None = None
        """The limit in tokens per second, or the reason why it is unknown; None before it is read."""
        self.baseline: Reference | None = None
        controller.launched.connect(self.request_references)

    @property
    def lines(self) -> dict[str, Reference | None]:
        """The reference lines by name, None where unknown."""
        rate = self.limit.value if self.limit is not None else None
        limit = Reference(rate, tr("limit {rate:,.0f}", rate=rate)) if rate else None
        return {"limit": limit, "baseline": self.baseline}

    def set_limit(self, limit: Reading | None) -> None:
        """Draw the bandwidth limit as a dashed line; None removes it."""
        self.limit = limit
        self.changed.emit()

    def set_baseline(self, tokens_per_second: float | None) -> None:
        """Draw the rate without MTP, which a tune measured, as a dotted line; None removes it."""
        self.baseline = None
        if tokens_per_second is not None:
            text = tr("MTP off {rate:,.0f}", rate=tokens_per_second)  # short, for the room beside the plot
            self.baseline = Reference(tokens_per_second, text, dotted=True)
        self.changed.emit()

    def request_references(self, launch: Launch | None) -> None:
        """Request the references of a newly launched server."""
        self.set_limit(None)
        self.set_baseline(None)
        if launch is None:
            return

        def show_limit(limit: Reading) -> None:
            if self._controller.launch is launch:
                self.set_limit(limit)

        def show_baseline(rate: float | None) -> None:
            if self._controller.launch is launch:
                self.set_baseline(rate)

        run = self._controller.bridge.run
        run(_read_limit, launch, done=show_limit)
        run(_read_baseline, launch, done=show_baseline, failed=_ignore_error)


def _ignore_error(_error: object) -> None:
    """Ignore an error: the reference line is optional."""


async def _read_baseline(launch: Launch) -> float | None:
    return await asyncio.to_thread(measured_tunes.find_rate_without_mtp, launch)


async def _read_limit(launch: Launch) -> Reading:
    return await asyncio.to_thread(speed_limits.find_speed_limit, launch)
