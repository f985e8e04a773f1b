"""The soak test's definition of growth."""

from collections import Counter
from dataclasses import replace

import pytest

from tools.soak.__main__ import format_report
from tools.soak.watch import ResourceUse, compute_growths

_FLAT = ResourceUse(0.0, 0.0, 65.0, 15, 5, 3, 200.0, 14, 18, 7, 1.0)


def samples(name: str, grows_by: float, *, seconds: int = 1_800, restart_s: int = 900) -> list[ResourceUse]:
    """Return a run in which one quantity rises evenly; the engine is a new one at `restart_s`."""
    began = getattr(_FLAT, name)
    return [
        replace(_FLAT, time_s=float(at), age_s=float(at % restart_s), **{name: began + grows_by * at / seconds})
        for at in range(seconds)
    ]


def forbidden_growths(name: str, grows_by: float) -> set[str]:
    return {growth.what for growth in compute_growths(samples(name, grows_by)) if not growth.is_allowed}


# Growth is measured from the middle of the second fifth to the middle of the last fifth. So it covers three fifths of
# the run, or of its second half for the engine.
@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("program_rss", 9.0),
        ("program_files", 6.0),
        ("program_threads", 2.0),
        ("program_sockets", 6.0),
        ("engine_files", 21.0),
        ("engine_threads", 21.0),
        ("engine_sockets", 21.0),
    ],
)
def test_steady_growth_counts_as_growth(name: str, least: float) -> None:
    assert forbidden_growths(name, least) == {name}
    assert forbidden_growths(name, least / 2) == set()


def test_the_engines_memory_is_reported_and_not_judged() -> None:
    text, good = format_report(30.0, 1, samples("engine_rss", 100.0), Counter(), [])
    assert good
    (row,) = (line for line in text.splitlines() if "engine: resident memory" in line)
    assert row.endswith("| - | no limit |")


def test_growth_makes_the_proof_fail() -> None:
    text, good = format_report(30.0, 1, samples("program_rss", 20.0), Counter(), [])
    assert not good
    assert "GREW" in text
