"""Serve on a disk that is then filled to the last byte, and freed again: FOLDER; prints the observation as JSON."""

import asyncio
import dataclasses
import errno
import json
import sys
from pathlib import Path

from tools.serve_faults.world import Seen, World, a_world, answers, goes_on, until


def _fill(path: Path) -> None:
    try:
        with path.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(512))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


async def _meet(world: World) -> Seen:
    async with world.supervised() as supervisor:
        await supervisor.become(world.real)
        pid = supervisor.engine_pid
        log = supervisor.log.path
        await until(log.exists, "the log")
        filler = world.home / "filler"
        while supervisor.log.problem is None:  # the last page of the log may have room for some lines more
            _fill(filler)
            await answers(supervisor)
        result = await world.noticed("log_unwritable")
        happened = await goes_on(supervisor, pid)
        filler.unlink()
        await answers(supervisor)
        again = await world.noticed("log_writable")
        missing = "lines are missing here" in log.read_text("utf-8", "replace")
    gap = "the gap is marked in the log" if missing else "THE GAP IS NOT MARKED"
    return Seen(f"{happened}; {gap}", f"{result} When there is room: {again}", "lines of the log file of that time")


def main() -> None:
    """Provoke the fault and print the observation."""
    with a_world(Path(sys.argv[1]) / "home") as world:
        print(json.dumps(dataclasses.asdict(asyncio.run(_meet(world)))))


if __name__ == "__main__":
    main()
