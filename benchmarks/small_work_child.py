"""Times small pieces of work once, in a process with empty caches: prints milliseconds as one JSON object."""

import json
import time
from collections.abc import Callable

from launcher.app.planning.preview import Previewer
from launcher.engine.demo import unpack_demo_model
from launcher.machine.machine import read_machine
from launcher.models.gguf import read_header
from launcher.models.header_summary import load_summary, store_summary
from tests.app.planning.test_preview import describe_server

_ANY_SHA256 = "0" * 64


def _time_work(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return 1_000 * (time.perf_counter() - began_s)


def main() -> None:
    """Read the machine six times, move three sliders over their ranges, read the stored summary of a header. Before
    sliders move, the core previews the running server, then each value of each slider.
    """
    machine_ms = [_time_work(read_machine) for _ in range(6)]
    previewer = Previewer(describe_server())
    steps = previewer.fill_cache()
    ahead_ms = [_time_work(lambda: previewer.preview({}))]
    more = True

    def fill_next() -> None:
        nonlocal more
        more = next(steps, None) is not None

    while more:
        ahead_ms.append(_time_work(fill_next))
    moves_ms = [
        _time_work(lambda wish={"draft": draft, "ctx": context, "kv": kv}: previewer.preview(wish))  # type: ignore[misc]
        for draft in range(9)
        for context in previewer.basis.contexts[4:]
        for kv in ("q8_0", "f16")
    ]
    store_summary(_ANY_SHA256, read_header(unpack_demo_model()))
    kept_ms = _time_work(lambda: load_summary(_ANY_SHA256))
    print(json.dumps({"machine_ms": machine_ms, "ahead_ms": ahead_ms, "moves_ms": moves_ms, "kept_ms": kept_ms}))


if __name__ == "__main__":
    main()
