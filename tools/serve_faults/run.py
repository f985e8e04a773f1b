"""Provokes each fault in a new home folder, and makes a table of the results."""

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path

from tools.serve_faults.faults import FAULTS, Fault
from tools.serve_faults.world import StartCommand, World, make_world, start_command

HEAD = "| fault | engine | what happened | what the user read | what was lost |\n|---|---|---|---|---|"


def make_rows(folder: Path, faults: Iterable[Fault] = FAULTS, start: StartCommand = start_command) -> Iterator[str]:
    """Yield a line of the table for each fault. Each is provoked in a new folder below the empty folder `folder`."""
    for index, fault in enumerate(faults):
        with make_world(folder / str(index), start) as world:
            yield asyncio.run(_make_row(fault, world))


async def _make_row(fault: Fault, world: World) -> str:
    seen = await fault.provoke(world)
    lost = [*([seen.lost] if seen.lost else []), *await world.find_damage()]
    read = world.hide_changing_parts(seen.read)
    return f"| {fault.description} | {fault.engine} | {seen.happened} | {read} | {'; '.join(lost) or 'nothing'} |"
