"""The window compares an updated engine with the one before it while nothing is served."""

import asyncio
from pathlib import Path

import pytest

from launcher.engine.builds.installed import read_store
from launcher.engine.server.state import ENGINE_SLOWER, Notice
from launcher.gui.service import ServerService
from tests.app.measuring.test_engine_comparison import BROKEN, update


@pytest.mark.thorough
async def test_an_update_that_serves_no_model_is_undone_and_reported(tmp_path: Path) -> None:
    new, old = update(BROKEN, tmp_path)
    received: asyncio.Queue[object] = asyncio.Queue()
    watching = asyncio.create_task(ServerService(received.put_nowait).watch_updates(0.0))
    notice = await received.get()
    watching.cancel()
    await asyncio.wait([watching])
    assert isinstance(notice, Notice)
    assert notice.code == ENGINE_SLOWER
    assert notice.text.startswith(f"{new.name} does not serve demo")
    assert notice.text.endswith(f"{old.name} is used again.")
    assert read_store().current == old.name
