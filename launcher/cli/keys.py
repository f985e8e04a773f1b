"""`mtp-launcher keys`: list, add, rotate and revoke the API keys of this program's servers."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from launcher.app.serving.running_servers import reload_keys
from launcher.base.errors import BadOption
from launcher.cli.output import Result
from launcher.engine.server import registry
from launcher.engine.server.endpoint import DEFAULT_KEY, add_key, replace_keys, revoke_key, rotate_key, saved_endpoints

if TYPE_CHECKING:
    from launcher.engine.server.endpoint import Endpoint

_NAMED = ("add", "rotate", "revoke")
"""Actions on one key by its name."""
_SHOWING_KEY = ("add", "rotate")
"""Actions that print the key, because the user copies it into a client next."""
_DONE = {"add": "added", "rotate": "replaced", "replace": "replaced", "revoke": "revoked"}


class _ListedKey(NamedTuple):
    """One key of a port; `api_key` is None if it was revoked.

    `applied` is whether the running server has taken the change over; None if none runs, or nothing was changed.
    """

    endpoint: Endpoint
    name: str
    api_key: str | None
    is_running: bool
    applied: bool | None


async def run(options: argparse.Namespace) -> Result:
    """List or change keys; running servers take a change over at once."""
    _check_options(options)
    endpoints = await asyncio.to_thread(_change_keys, options)
    running = {entry.port: entry for entry in await asyncio.to_thread(registry.list_entries)}
    keys: list[_ListedKey] = []
    for endpoint in endpoints:
        entry, applied = running.get(endpoint.port), None
        if entry is not None and options.action != "list":
            applied = await reload_keys(entry)
        keys += (
            _ListedKey(endpoint, name, endpoint.keys.get(name), entry is not None, applied)
            for name in _names_to_list(endpoint, options)
        )
    show_key = options.show_key or options.action in _SHOWING_KEY
    data = [
        {"name": each.name, "port": each.endpoint.port, "url": each.endpoint.url, "running": each.is_running}
        | ({"applied": each.applied} if options.action != "list" else {})
        | ({"api_key": each.api_key} if show_key and each.api_key else {})
        for each in keys
    ]
    lines = _format_keys(keys, action=options.action, show_key=show_key)
    return Result({"action": options.action, "replaced": options.action == "replace", "keys": data}, lines)


def _check_options(options: argparse.Namespace) -> None:
    """Raise BadOption for options that do not belong together."""
    action = options.action
    if action in _NAMED and options.name is None:
        raise BadOption("Name the key.", f"Write `mtp-launcher keys {action} NAME`.")
    if action not in _NAMED and options.name is not None:
        raise BadOption(f"`keys {action}` takes no name.", "Write `mtp-launcher keys rotate NAME` to replace one key.")
    if action != "replace" and options.all:
        raise BadOption("--all says which keys to replace.", "Write `mtp-launcher keys replace`.")


def _change_keys(options: argparse.Namespace) -> Sequence[Endpoint]:
    """Change the saved keys, and return the endpoints to list."""
    if options.action in _NAMED:
        change = {"add": add_key, "rotate": rotate_key, "revoke": revoke_key}[options.action]
        return (change(options.port, options.name),)
    endpoints = saved_endpoints()
    if options.action == "list":
        listed = [each for each in endpoints if options.port in (None, each.port)]
        if options.port is not None and not listed:
            raise BadOption(f"Port {options.port} has no API key.")
        return listed
    if len(endpoints) > 1 and options.port is None and not options.all:
        ports = ", ".join(str(each.port) for each in endpoints)
        raise BadOption(f"There are keys for the ports {ports}.", "Choose: --port P, or --all.")
    return replace_keys(options.port)


def _names_to_list(endpoint: Endpoint, options: argparse.Namespace) -> Sequence[str]:
    if options.action == "list":
        return tuple(endpoint.keys)
    return (options.name or DEFAULT_KEY,)


def _format_keys(keys: Sequence[_ListedKey], *, action: str, show_key: bool) -> Iterator[str]:
    """Yield a line for each key, and what to do where the running server does not know it yet."""
    if not keys:
        yield "There are no keys yet: a port gets one with its first server."
    for each in keys:
        state = _DONE.get(action) or ("running" if each.is_running else "not running")
        name = "" if each.name == DEFAULT_KEY else f"  {each.name}"
        api_key = f"  API key  {each.api_key}" if show_key and each.api_key else ""
        yield f"{each.endpoint.url}/v1{name}  {state}{api_key}"
        if each.applied is False:
            yield "  It still uses the old keys: `mtp-launcher stop`, then `serve`, starts it with the new ones."
