"""Times small pieces of work once, in a process with empty caches: prints milliseconds as one JSON object."""

import json
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from launcher.app.planning.preview import Previewer
from launcher.engine.demo import unpack_demo_model
from launcher.gateway.vault import StateVault, hash_request
from launcher.machine.machine import read_machine
from launcher.models.gguf import read_header
from launcher.models.header_summary import load_summary, store_summary
from tests.app.planning.test_preview import describe_server
from tests.gateway.test_vault import make_state

_ANY_SHA256 = "0" * 64
_STATES, _LOOKS = 500, 20
_REQUEST_BYTES = 120_000
"""Bytes of a request of 30,000 tokens."""


def _time_work(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return 1_000 * (time.perf_counter() - began_s)


def _time_vault() -> tuple[list[float], list[float]]:
    """Return the milliseconds of hashing long requests, and of looking each up among the kept conversations."""
    texts = [[(f"{number} word " * _REQUEST_BYTES)[:_REQUEST_BYTES].encode()] for number in range(_STATES)]
    hashing_ms = [_time_work(lambda each=each: hash_request(each)) for each in texts[:_LOOKS]]  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as folder, closing(StateVault(Path(folder), lambda: (1 << 30, 30.0))) as vault:
        for number, text in enumerate(texts):
            path = Path(folder, "slot.bin")
            path.write_bytes(b"x")
            if not vault.keep_file(path, make_state(f"state{number}", text[0], size=1)):
                raise RuntimeError(vault.problem)
        chains = [hash_request(text)[0] for text in texts[:_LOOKS]]
        looks_ms = [_time_work(lambda each=each: vault.find_state("kind", each)) for each in chains]  # type: ignore[misc]
    return hashing_ms, looks_ms


def main() -> None:
    """Read the machine six times, move three sliders over their ranges, read the stored summary of a header. Before
    sliders move, the core previews the running server, then each value of each slider. Last, requests are looked up
    among kept conversations.
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
    hashing_ms, looks_ms = _time_vault()
    measured = {"machine_ms": machine_ms, "ahead_ms": ahead_ms, "moves_ms": moves_ms, "kept_ms": kept_ms}
    print(json.dumps(measured | {"hashing_ms": hashing_ms, "looks_ms": looks_ms}))


if __name__ == "__main__":
    main()
