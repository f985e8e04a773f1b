"""The window resumes the download of a killed window, and notifies when it is done."""

import asyncio
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from launcher.app import settings
from launcher.app.models.downloads import add_pull, download_queue
from launcher.app.settings_declared import CONNECTIONS
from launcher.gui.tray import Tray
from launcher.gui.window import Window
from tools.fault_matrix.server import FileServer, run_file_server

FIRST_PAGE = "about"
ARRIVED = 3_000_000


@pytest.fixture
def server(tmp_path: Path, demo_model: Path) -> Iterator[FileServer]:
    folder = tmp_path / "served"
    folder.mkdir()
    shutil.copy(demo_model, folder / "demo.gguf")
    with run_file_server(folder) as found:
        yield found


def arrived(job_id: int) -> int:
    """Return the received bytes of a job as reported by the process that runs it."""
    figures = download_queue().read_snapshot().progress_by_id.get(job_id)
    return figures.done_bytes if figures else 0


@pytest.mark.thorough
def test_a_download_resumes_after_the_program_was_killed(
    server: FileServer,
    demo_model: Path,
    window: Window,
    qtbot: QtBot,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    received: list[tuple[str, str]] = []
    tray = Tray(window.controller, lambda: False, window)
    monkeypatch.setattr(
        type(tray.icon), "showMessage", lambda _self, title, text, _icon: received.append((title, text))
    )
    window.use_tray(tray)
    settings.change_setting(CONNECTIONS, 1)
    size, sha256 = demo_model.stat().st_size, hashlib.sha256(demo_model.read_bytes()).hexdigest()
    job = asyncio.run(add_pull(server.url("killed", f"stalls={ARRIVED}*1", "demo.gguf"), sha256=sha256)).job
    command = [sys.executable, "-m", "launcher", "gui", "--page", "models"]
    with subprocess.Popen(command, env=os.environ | {"QT_QPA_PLATFORM": "offscreen"}) as killed:
        try:
            qtbot.waitUntil(lambda: arrived(job.id) > 0)
        finally:
            killed.kill()
    window.show_page("models")
    page = window.page("models")
    qtbot.waitUntil(lambda: any(each.state.value == "done" for each in page.queue.snapshot.jobs))
    assert received == [("Download finished", job.title)]
    qtbot.waitUntil(lambda: page.shelf is not None)
    assert page.shelf is not None
    _first, second = server.read_record("killed").requests
    begin = int(second["Range"].removeprefix("bytes=").partition("-")[0])
    assert 0 < begin <= ARRIVED < size
