"""Saves the figures of ended requests in the history, in batches, while the app setting allows it."""

import asyncio
import logging
from collections import deque
from contextlib import suppress

from launcher.app import settings
from launcher.app.settings_declared import REQUEST_LOG
from launcher.base.errors import LauncherError
from launcher.gateway.request_log import RequestLog, RequestRecord
from launcher.tuning.history import History

_PERIOD_S = 5.0
"""Seconds between two batches; a crash loses at most the requests that ended within them."""
_MOST_PENDING = 2_000
"""Requests that wait for a locked file. Beyond these the oldest are lost."""
_log = logging.getLogger(__name__)


class RequestKeeping:
    """Saves the requests of a log in the history, unless `server.request_log` is off.

    Requests that cannot be saved are lost; the first such failure is logged as a warning. Belongs to the log's loop.
    """

    def __init__(self, log: RequestLog) -> None:
        self._pending: deque[RequestRecord] = deque(maxlen=_MOST_PENDING)
        self._saving: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._has_warned = False
        log.add_listener(self._note_record)

    def _note_record(self, record: RequestRecord) -> None:
        if not record.has_ended:
            return
        self._pending.append(record)
        if self._saving is None or self._saving.done():
            self._saving = asyncio.create_task(self._save_later())

    async def save_pending(self) -> None:
        """Save now the requests that ended since the last batch."""
        if self._saving is not None:
            self._hurry.set()
            await self._saving
            self._hurry.clear()

    async def _save_later(self) -> None:
        while self._pending:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PERIOD_S):
                    await self._hurry.wait()
            records = list(self._pending)
            self._pending.clear()
            try:
                await asyncio.to_thread(_save_records, records)
            except (LauncherError, OSError) as error:
                if not self._has_warned:
                    _log.warning("The log of requests cannot be saved: %s", error)
                self._has_warned = True


def _save_records(records: list[RequestRecord]) -> None:
    if settings.stored_value(REQUEST_LOG):
        with History() as history:
            history.add_requests(records)
