"""Accepts connections at all addresses of this computer: without TLS at 127.0.0.1, with it at all others.

127.0.1.1 is one of the others: Debian gives it to the computer's own name, which clients use with TLS.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress

from launcher.engine.server.endpoint import HOST

ContextFor = Callable[[str], Awaitable[ssl.SSLContext]]
"""Returns the context for connections to an address of this computer."""
_log = logging.getLogger(__name__)
_PAUSE_S = 0.2
"""Seconds until the next try when a connection cannot be accepted, as with too many open files."""
_HANDSHAKE_S = 10.0


async def accept_connections(
    listener: socket.socket, make_protocol: Callable[[], asyncio.Protocol], context_for: ContextFor
) -> None:
    """Accept connections until this is cancelled."""
    loop = asyncio.get_running_loop()
    contexts: dict[str, ssl.SSLContext] = {}
    opening: set[asyncio.Task[None]] = set()

    async def find_context(address: str) -> ssl.SSLContext | None:
        if address == HOST:
            return None
        if address not in contexts:
            contexts[address] = await context_for(address)
        return contexts[address]

    async def open_connection(client: socket.socket) -> None:
        try:
            context = await find_context(client.getsockname()[0])
        except OSError as error:
            _log.warning("Connections of other computers are refused, because no key can be made: %s.", error)
            client.close()
            return
        except BaseException:
            client.close()
            raise
        limit_s = _HANDSHAKE_S if context else None
        with suppress(OSError):  # the client speaks no TLS, or does not trust the certificate
            await loop.connect_accepted_socket(make_protocol, client, ssl=context, ssl_handshake_timeout=limit_s)

    try:
        while True:
            try:
                client, _ = await loop.sock_accept(listener)
            except OSError:
                await asyncio.sleep(_PAUSE_S)
                continue
            task = asyncio.create_task(open_connection(client))
            opening.add(task)
            task.add_done_callback(opening.discard)
    finally:
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
