"""Retries of requests that a server rejected temporarily (HTTP 429 and 503)."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from launcher.base.errors import Refused
from launcher.fetch.transfer import TransferSettings, retry_pause_s, waiting_note

_T = TypeVar("_T")
_TEMPORARY_STATUSES = (429, 503)
"""HTTP statuses that may come with a Retry-After (RFC 6585, section 4; RFC 9110, section 15.6.4)."""


async def call_with_retries(
    send_request: Callable[[], _T], settings: TransferSettings, on_wait: Callable[[str], object] | None = None
) -> _T:
    """Call `send_request` in a thread and return its result; while the server asks for a later retry, call it again.

    `settings` limits the pauses and the number of attempts. `on_wait` gets a sentence before each pause. Raises what
    `send_request` raises, after the last attempt.
    """
    failures = 0
    while True:
        try:
            return await asyncio.to_thread(send_request)
        except Refused as error:
            failures += 1
            if error.status not in _TEMPORARY_STATUSES or failures >= settings.attempts:
                raise
            seconds = retry_pause_s(failures, error.wait_s, settings)
            if on_wait is not None:
                on_wait(waiting_note(error, seconds))
        await asyncio.sleep(seconds)
