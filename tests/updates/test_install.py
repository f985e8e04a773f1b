"""A newer version received over HTTP, verified, and installed by a uv of the test; never while a model is served."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.base.errors import DownloadBroken
from launcher.fetch.transfer import Progress
from launcher.tuner_kept import TuneUnderWay, only_tune
from launcher.updates import install as installing
from launcher.updates.check import check
from launcher.updates.errors import NotOffered, UpdateFailed, UpdateWaits
from launcher.updates.install import Received, install, receive
from launcher.updates.manifest import this_platform
from launcher.updates.way import Way
from tests.updates.published import CONTENT, WHEEL, Release

Tool = Callable[..., Path]


def kept(home: Path) -> list[str]:
    """The versions of which something was received."""
    return [each.name for each in (home / "cache" / "updates").iterdir()]


async def received(release: Release) -> Received:
    return await receive(await check())


async def test_the_wheel_is_received_verified_and_handed_to_uv(release: Release, uv_tool: Tool) -> None:
    noted = uv_tool()
    got = await received(release)
    assert got.path.read_bytes() == CONTENT
    assert (got.way, got.version) == (Way.TOOL, "7.0.0")
    assert await install(got)
    assert noted.read_text().splitlines() == ["tool", "install", "--force", str(got.path)]
    assert got.line.endswith(f"/uv tool install --force {got.path}")


async def test_a_file_that_is_another_is_never_installed(release: Release, uv_tool: Tool) -> None:
    noted = uv_tool()
    release.publish(sha256="0" * 64)
    with pytest.raises(DownloadBroken):
        await received(release)
    assert not noted.exists()


async def test_a_download_that_was_broken_off_goes_on_where_it_was(release: Release, uv_tool: Tool, home: Path) -> None:
    uv_tool()
    newest = await check()
    release.at("slow=400000")
    slow = await check()

    def enough(progress: Progress) -> None:
        if progress.done_bytes > 2 * len(CONTENT) // 5:
            task.cancel()

    task = asyncio.ensure_future(receive(slow, enough))
    with pytest.raises(asyncio.CancelledError):
        await task
    sent = release.told.sent_bytes
    got = await receive(newest)
    assert got.path.read_bytes() == CONTENT
    assert release.told.sent_bytes - sent < len(CONTENT)
    assert (await receive(newest)).path == got.path  # it is there
    assert kept(home) == ["7.0.0"]


async def test_what_was_received_of_an_older_release_goes(release: Release, uv_tool: Tool, home: Path) -> None:
    uv_tool()
    await received(release)
    release.publish("7.1.0")
    assert (await received(release)).version == "7.1.0"
    assert kept(home) == ["7.1.0"]


async def test_nothing_is_received_or_installed_while_a_model_is_served_or_tuned(
    release: Release, uv_tool: Tool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    noted = uv_tool()
    got = await received(release)
    with only_tune():
        for work in (received(release), install(got)):
            with pytest.raises(TuneUnderWay):
                await work
    asked = len(release.told.requests)

    class Entry:
        url = "http://127.0.0.1:21846"

    monkeypatch.setattr(installing.registry, "running", lambda: (Entry(),))
    newest = await check()
    for work in (receive(newest), install(got)):
        with pytest.raises(UpdateWaits, match=r"A model is served at http://127.0.0.1:21846") as told:
            await work
        assert "mtp-launcher stop" in told.value.hint
    assert len(release.told.requests) == asked + 1
    assert not noted.exists()


async def test_nothing_is_exchanged_below_an_open_window(release: Release, uv_tool: Tool) -> None:
    noted = uv_tool()
    got = await received(release)
    other = Path(sys.prefix) / "bin" / "window"
    other.write_text("#!/bin/sh\nread -r _\n")
    other.chmod(0o755)
    with subprocess.Popen([other], stdin=subprocess.PIPE) as window:  # noqa: ASYNC220 -- it only starts
        with pytest.raises(UpdateWaits, match=f"This program is open: process {window.pid}"):
            await install(got)
        assert window.stdin
        window.stdin.close()
    assert not noted.exists()
    assert await install(got)


async def test_a_uv_that_fails_is_quoted_with_the_line_to_run_again(release: Release, uv_tool: Tool) -> None:
    uv_tool("echo resolving >&2; echo 'error: no space left on device' >&2; exit 2")
    got = await received(release)
    with pytest.raises(UpdateFailed, match=r"uv failed: .*no space left on device") as told:
        await install(got)
    assert told.value.hint == f"Run it again: {got.line}"


async def test_what_is_still_the_old_version_is_no_success(release: Release, uv_tool: Tool) -> None:
    uv_tool(says="0.1.0")
    got = await received(release)
    with pytest.raises(UpdateFailed, match=r"says that it is mtp-launcher 0.1.0"):
        await install(got)


async def test_without_uv_on_path_the_line_is_told(
    release: Release, uv_tool: Tool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    uv_tool()
    got = await received(release)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UpdateFailed, match=r"There is no uv any more, or it is not on PATH") as told:
        await install(got)
    assert told.value.hint == f"Run it again: uv tool install --force {got.path}"


async def test_debians_package_is_left_to_the_user_to_install(tmp_path: Path) -> None:
    got = Received(tmp_path / "mtp launcher_7.0.0_amd64.deb", Way.DEB, "7.0.0")
    assert not await install(got)
    assert got.line == f"sudo apt install '{got.path}'"


async def test_the_installer_for_windows_is_started(tmp_path: Path) -> None:
    setup, began = tmp_path / "mtp-launcher-7.0.0-setup.exe", tmp_path / "began"
    os.mkfifo(began)
    setup.write_text(f'#!/bin/sh\necho "$#" >"{began}"\n')
    setup.chmod(0o755)
    assert await install(Received(setup, Way.SETUP, "7.0.0"))
    assert began.read_text() == "0\n"  # as a double click starts it
    with pytest.raises(UpdateFailed, match=r"The installer cannot be started") as told:
        await install(Received(tmp_path / "none.exe", Way.SETUP, "7.0.0"))
    assert "none.exe" in told.value.hint


async def test_a_release_without_a_file_for_this_computer_is_named(release: Release, uv_tool: Tool) -> None:
    uv_tool()
    release.publish(platform="windows-arm64")
    with pytest.raises(NotOffered, match=rf"Version 7.0.0 has no file for this computer \({this_platform()}, \*.whl\)"):
        await received(release)
    release.publish(name=WHEEL.replace(".whl", ".zip"))
    with pytest.raises(NotOffered):
        await received(release)


async def test_a_checkout_is_the_users_own_to_renew(release: Release) -> None:
    with pytest.raises(NotOffered, match="checkout") as told:
        await received(release)
    assert "git pull" in told.value.hint
