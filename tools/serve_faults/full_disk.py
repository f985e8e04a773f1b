"""Serve on a disk that is then filled to the last byte and freed again: `FOLDER`. Prints the observation as JSON."""

import asyncio
import dataclasses
import errno
import json
import sys
from pathlib import Path

from tools.serve_faults.world import Observation, World, describe_survival, is_answering, make_world, wait_until


def _fill(path: Path) -> None:
    try:
        with path.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(512))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


async def _serve_and_fill(world: World) -> Observation:
    async with world.run_supervisor() as supervisor:
        await supervisor.become(world.built_in_options)
        pid = supervisor.engine_pid
        log = supervisor.log.path
        await wait_until(log.exists, "the log")
        filler = world.home / "filler"
        while supervisor.log.problem is None:  # the last page of the log may have room for some lines more
            _fill(filler)
            await is_answering(supervisor)
        result = await world.wait_for_notice("log_unwritable")
        happened = await describe_survival(supervisor, pid)
        filler.unlink()
        await is_answering(supervisor)
        again = await world.wait_for_notice("log_writable")
        missing = "lines are missing here" in log.read_text("utf-8", "replace")
    gap = "the gap is marked in the log" if missing else "THE GAP IS NOT MARKED"
    return Observation(
        f"{happened}; {gap}", f"{result} When there is room: {again}", "lines of the log file of that time"
    )


def main() -> None:
    """Provoke the fault and print the observation."""
    with make_world(Path(sys.argv[1]) / "home") as world:
        print(json.dumps(dataclasses.asdict(asyncio.run(_serve_and_fill(world)))))


if __name__ == "__main__":
    main()
