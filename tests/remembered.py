"""Caches shared by all tests: the probe of the built-in engine, and the unpacked demo model.

A probe starts two programs and unpacking takes memory and time, hundreds of times in a run of all tests. Programs that
tests start by themselves still do both, and tests/engine proves both.
"""

import functools
import lzma
from types import SimpleNamespace
from typing import Any

from launcher.engine import demo
from launcher.engine.builds import probe


def remember_answers() -> None:
    """Make this process, and all that are forked from it, probe the built-in engine and unpack the demo only once."""
    known: dict[tuple[str | int, ...], Any] = {}
    load, save = probe._load_cached_probe, probe._save_probe
    built_in = str(probe._BUILT_IN_SCRIPT)

    def load_known(identity: list[str | int]) -> Any:  # noqa: ANN401 -- a private class
        found = load(identity)
        remember(found)
        return found or known.get(tuple(identity))

    def save_known(found: Any) -> None:  # noqa: ANN401
        save(found)
        remember(found)

    def remember(found: Any) -> None:  # noqa: ANN401
        if found is not None and found.identity[0] == built_in:
            known[tuple(found.identity)] = found

    probe._load_cached_probe, probe._save_probe = load_known, save_known
    demo.lzma = SimpleNamespace(  # type: ignore[assignment]
        decompress=functools.cache(lzma.decompress), LZMAError=lzma.LZMAError
    )
