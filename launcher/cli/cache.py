"""`mtp-launcher cache`: list, verify and delete the conversations that models have read, which are kept on disk."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from launcher.app.settings import open_vault, read_cache_limits
from launcher.base.errors import BadOption
from launcher.base.messages import command_name, message
from launcher.cli.actions import confirm_deletion, deletes_all
from launcher.cli.layout import format_table, format_time, wrap_text
from launcher.cli.output import Result
from launcher.cli.progress import format_size

if TYPE_CHECKING:
    from launcher.gateway.vault import SavedState, StateVault


async def run(options: argparse.Namespace) -> Result | int:
    """Run the action `options.action`. Exit code 1 if files were damaged or the user declined."""
    if options.action == "delete" and not await confirm_deletion(options, "kept conversations"):
        return 1
    return await asyncio.to_thread(_run_action, options)


def _run_action(options: argparse.Namespace) -> Result:
    with closing(open_vault()) as vault:
        if options.action == "verify":
            return _verify_states(vault)
        return _delete_states(vault, options) if options.action == "delete" else _list_states(vault)


def _list_states(vault: StateVault) -> Result:
    states, use = sorted(vault.list_states(), key=lambda each: -each.used_s), vault.read_use()
    return Result({"states": states, "use": use, "problem": vault.problem or None}, _format_states(vault, states))


def _format_states(vault: StateVault, states: Sequence[SavedState]) -> Iterator[str]:
    if states:
        head = ("ID", "USED", "TOKENS", "READ IN", "SIZE", "TIMES", "FOR", "MODEL")
        yield from format_table([head, *map(_format_row, states)], right={2, 3, 4, 5}, indent="")
    else:
        off = not read_cache_limits()[0]
        yield "Nothing is kept: the setting cache.disk is 0." if off else "Nothing is kept here yet."
    if vault.problem:
        yield wrap_text(f"Nothing can be kept: {vault.problem}")
    if not states:
        return
    use = vault.read_use()
    size, limit, written = map(format_size, (use.size, use.limit, use.written_today))
    yield f"{size} of {limit} used, {written} written today."


def _format_row(state: SavedState) -> tuple[str, ...]:
    return (
        state.id,
        format_time(state.used_s),
        f"{state.tokens:,}",
        f"{state.read_s:.0f} s",
        f"{state.size / 1e6:,.0f} MB",
        str(state.uses),
        state.client.partition(" (")[0] if state.purpose == "conversation" else f"beginning of {state.client}",
        state.model,
    )


def _verify_states(vault: StateVault) -> Result:
    count = len(vault.list_states())
    damaged = vault.verify()
    lines = [f"{count - len(damaged)} of {count} files are whole."]
    if damaged:
        lines.append(f"Deleted: {', '.join(each.id for each in damaged)}.")
    return Result({"whole": count - len(damaged), "deleted": damaged}, lines, exit_code=1 if damaged else 0)


def _delete_states(vault: StateVault, options: argparse.Namespace) -> Result:
    states = vault.list_states()
    if deletes_all(options):
        left = vault.forget_all()
        lines = [f"Deleted {len(states)} of what was kept."]
        if left:
            lines.append(wrap_text(f"{left} files in {vault.folder} could not be deleted."))
        return Result({"deleted": [each.id for each in states], "left": left}, lines, exit_code=1 if left else 0)
    fitting = {given: [each for each in states if each.id.startswith(given or "-")] for given in options.ids}
    if wrong := [given for given, found in fitting.items() if len(found) != 1]:
        several = message("{id} is the beginning of {count} IDs.", id=wrong[0], count=len(fitting[wrong[0]]))
        raise BadOption(
            several if fitting[wrong[0]] else message("Nothing is kept with the ID {id}.", id=wrong[0]),
            message("{command} lists what is kept.", command=command_name("cache", None)),
        )
    states = [*{found.id: found for (found,) in fitting.values()}.values()]
    vault.forget(states)
    return Result({"deleted": [each.id for each in states]}, [f"Deleted {len(states)} of what was kept."])
