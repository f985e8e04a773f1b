"""Retries of requests that a server rejected for now (HTTP 429 and 503)."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from launcher.base.errors import Refused
from launcher.fetch.transfer import TransferSettings, pause_s, waiting_note

_T = TypeVar("_T")
_LATER = (429, 503)
"""HTTP statuses that may come with a Retry-After (RFC 6585, section 4; RFC 9110, section 15.6.4)."""


async def ask_again_later(
    ask: Callable[[], _T], settings: TransferSettings, on_wait: Callable[[str], object] | None = None
) -> _T:
    """Call `ask` in a thread; while a server asks for a later retry, wait as long as it says and call it again.

    `on_wait` gets a sentence before each wait. The wait and the number of attempts have the limits in `settings`; the
    last error is raised. Raises what `ask` raises.
    """
    failures = 0
    while True:
        try:
            return await asyncio.to_thread(ask)
        except Refused as error:
            failures += 1
            if error.status not in _LATER or failures >= settings.attempts:
                raise
            seconds = pause_s(failures, error.wait_s, settings)
            if on_wait is not None:
                on_wait(waiting_note(error, seconds))
        await asyncio.sleep(seconds)
