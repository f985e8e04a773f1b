"""The comparison of an updated engine with the previous one: with a slower fake engine, and a broken real one."""

import shlex
import sys
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from launcher.app.measuring.engine_comparison import (
    BuildComparison,
    compare_engines,
    describe_slower_build,
    find_uncompared_update,
)
from launcher.app.serving.session import ServerSession
from launcher.engine.builds.build import store_dir
from launcher.engine.builds.installed import (
    PROGRAM,
    InstalledEngine,
    Manifest,
    pin_engine,
    put_in_place,
    read_store,
    switch_after_install,
    use_engine,
)
from launcher.engine.builds.known_bad import KnownFault
from launcher.engine.builds.slower_builds import list_slower_builds
from launcher.tuning.records import Prompt
from launcher.tuning.statistics import Interval
from tests.conftest import BUILT_IN, FAKES

PROMPT = Prompt("boat", (("user", "Tell me of a boat on a river."),), 64, {"temperature": 0.0})
FAKE = """
import os, runpy
os.environ["FAKE_TOKEN_MS"] = "{ms}"
runpy.run_path({{program!r}}, run_name="__main__")
"""
BROKEN = """
import runpy, sys
if "--model" in sys.argv:
    sys.exit("error: invalid argument: --model")
runpy.run_path({program!r}, run_name="__main__")
"""


def install(number: int, text: str, folder: Path, engine: Path = BUILT_IN) -> InstalledEngine:
    """Add an engine to the store whose program is this one."""
    script = folder / f"b{number}.py"
    script.write_text(text.format(program=str(engine)))
    prepared = folder / f"new-{number}"
    prepared.mkdir()
    program = prepared / PROGRAM
    program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-P", str(script)])} "$@"\n')
    program.chmod(0o755)
    manifest = Manifest(tag=f"b{number}", backend="cpu", arch="x64", archives={}, version="", installed_s=0.0)
    store_dir().mkdir(parents=True, exist_ok=True)
    return put_in_place(prepared, f"b{number}-cpu-x64", manifest)


def update(text: str, folder: Path) -> tuple[InstalledEngine, InstalledEngine]:
    old = install(11_400, "import runpy\nrunpy.run_path({program!r}, run_name='__main__')", folder)
    new = install(11_434, text, folder)
    use_engine(old.name)
    switch_after_install(new.name)
    return new, old


@pytest.fixture
async def session() -> AsyncIterator[ServerSession]:
    opened = ServerSession()
    yield opened
    await opened.stop()


async def test_after_a_slower_update_the_previous_build_is_used_again(session: ServerSession, tmp_path: Path) -> None:
    fake = FAKES / "llama_server.py"
    old = install(11_400, FAKE.format(ms=10), tmp_path, fake)
    new = install(11_434, FAKE.format(ms=11), tmp_path, fake)
    use_engine(old.name)
    switch_after_install(new.name)
    assert find_uncompared_update() == (new, old)
    turns: list[str] = []
    found = await compare_engines(
        session,
        new,
        old,
        "demo",
        seconds=0.0,
        prompts=[PROMPT],
        on_turn=lambda name, _: turns.append(name),
        is_update=True,
    )
    assert turns == [old.name, new.name, new.name, old.name, old.name, new.name]
    assert found.ratio is not None
    assert found.ratio.estimate == pytest.approx(10 / 11)
    assert found.is_slower, found.ratio
    assert session.is_idle
    store = read_store()
    assert (store.current, store.previous) == (old.name, new.name)
    assert find_uncompared_update() is None
    (slower,) = list_slower_builds().values()
    assert (slower.name, slower.against, slower.model) == (new.name, old.name, "demo")
    fault = KnownFault(**tomllib.loads(slower.as_row())["builds"][0])
    assert (fault.first, fault.last, fault.fixed_in) == (11_434, 11_434, None)
    assert "% slower than b11400-cpu-x64 with demo" in fault.reason


@pytest.mark.thorough
async def test_after_an_update_that_does_not_serve_the_model_the_previous_build_is_used_again(
    session: ServerSession, tmp_path: Path
) -> None:
    new, old = update(BROKEN, tmp_path)
    found = await compare_engines(session, new, old, "demo", seconds=0.0, is_update=True)
    assert (found.ratio, found.pairs) == (None, 0)
    assert found.sentence.startswith(f"{new.name} does not serve demo, which {old.name} does: ")
    assert read_store().current == old.name
    assert "does not serve demo" in list_slower_builds()[new.name].reason


def test_only_updates_by_the_program_are_compared(tmp_path: Path) -> None:
    new, old = update(BROKEN, tmp_path)
    pin_engine()
    assert find_uncompared_update() is None
    use_engine(old.name)
    assert find_uncompared_update() is None  # the user's own choice
    use_engine("auto")
    switch_after_install(new.name)
    assert find_uncompared_update() is None  # with "auto" no particular engine was in use before


@pytest.mark.parametrize(
    ("estimate", "low", "high", "slower"),
    [(1.02, 1.0, 1.04, False), (0.98, 0.975, 0.985, False), (0.95, 0.89, 1.01, False), (0.97, 0.96, 0.98, True)],
)
def test_a_build_is_slower_if_the_difference_is_3_percent_and_certain(
    tmp_path: Path, estimate: float, low: float, high: float, slower: bool
) -> None:
    new, old = update(BROKEN, tmp_path)
    found = BuildComparison(old, new, "demo", 6, Interval(estimate, low, high, 6))
    assert found.is_slower is slower
    assert ("is not slower" in found.sentence) is not slower
    assert describe_slower_build(found).reason.startswith(f"it is {100 * (1 - estimate):.0f} % slower")
