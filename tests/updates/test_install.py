"""A newer version received over HTTP, verified, and installed by scripts of the test; never while a model is served."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from launcher.app.measuring.saved_tunes import TuneUnderWay, hold_tune_lock
from launcher.base.errors import DownloadBroken
from launcher.base.progress import Progress
from launcher.engine.server import registry
from launcher.updates.check import NotOffered, UpdateFailed, UpdateWaits, check_for_update, this_platform
from launcher.updates.install import DownloadedUpdate, download_update, install_update
from launcher.updates.install_method import InstallMethod
from tests.updates.published import CONTENT, Release


def downloaded_versions(home: Path) -> list[str]:
    """The versions of which files were downloaded."""
    return [each.name for each in (home / "cache" / "updates").iterdir()]


async def receive_update(release: Release) -> DownloadedUpdate:
    return await download_update(await check_for_update())


async def test_the_script_is_downloaded_verified_and_run_for_that_release(release: Release, by_script: Path) -> None:
    got = await receive_update(release)
    assert got.path.read_bytes() == CONTENT
    assert (got.method, got.version) == (InstallMethod.SCRIPT, "7.0.0")
    assert got.shell_line == f"sh {got.path}"
    assert await install_update(got)
    assert got.path.with_name("ran").read_text() == f"{got.path} {release.use_address()}\n"


async def test_a_file_with_another_checksum_is_never_used(release: Release, by_script: Path, home: Path) -> None:
    release.publish(sha256="0" * 64)
    with pytest.raises(DownloadBroken):
        await receive_update(release)
    assert not (home / "cache" / "updates" / "7.0.0" / "install.sh").exists()


async def test_an_interrupted_download_is_resumed(release: Release, by_script: Path, home: Path) -> None:
    newest = await check_for_update()
    release.use_address("slow=400000")
    slow = await check_for_update()

    def enough(progress: Progress) -> None:
        if progress.done_bytes > 2 * len(CONTENT) // 5:
            task.cancel()

    task = asyncio.ensure_future(download_update(slow, enough))
    with pytest.raises(asyncio.CancelledError):
        await task
    sent = release.record.sent_bytes
    got = await download_update(newest)
    assert got.path.read_bytes() == CONTENT
    assert release.record.sent_bytes - sent < len(CONTENT)
    assert (await download_update(newest)).path == got.path  # the second time the file is already there
    assert downloaded_versions(home) == ["7.0.0"]


async def test_a_republished_version_is_downloaded_again(release: Release, by_script: Path) -> None:
    await receive_update(release)
    release.publish(content=b"exit 0\n")
    assert (await receive_update(release)).path.read_bytes() == b"exit 0\n"


async def test_downloads_of_an_older_release_are_deleted(release: Release, by_script: Path, home: Path) -> None:
    await receive_update(release)
    release.publish("7.1.0")
    assert (await receive_update(release)).version == "7.1.0"
    assert downloaded_versions(home) == ["7.1.0"]


async def test_nothing_is_downloaded_or_installed_while_a_model_is_served_or_tuned(
    release: Release, by_script: Path
) -> None:
    got = await receive_update(release)
    with hold_tune_lock():
        for work in (receive_update(release), install_update(got)):
            with pytest.raises(TuneUnderWay):
                await work
    request_count = len(release.record.requests)
    newest = await check_for_update()
    endpoint, registration = registry.register_server(None, registry.ServedModel(model="m", engine="e", draft=0))
    for work in (download_update(newest), install_update(got)):
        with pytest.raises(UpdateWaits, match=f"A server is running at {endpoint.url}") as caught:
            await work
        assert "mtp-launcher stop" in caught.value.hint
    registration.remove()
    assert len(release.record.requests) == request_count + 2  # the manifest and its signature
    assert not got.path.with_name("ran").exists()


@pytest.mark.parametrize(
    ("script", "title", "hint"),
    [
        (
            "echo fetching\necho 'Error: The disk is full.' >&2\necho '       Make room.' >&2\nexit 1\n",
            "The disk is full.",
            "Make room.",
        ),
        ("echo 'Error: No.'\nexit 1\n", "No.", "Run again: {line}"),
        ("echo 'Error: No.' >&2; echo '  Wait.' >&2; echo fetching; exit 1\n", "No.", "Wait."),
        ("echo a; echo b; echo c; exit 3\n", "The installer ended with exit code 3: b c", "Run again: {line}"),
        ("kill -9 $$\n", "The installer ended with exit code -9: ", "Run again: {line}"),
    ],
)
async def test_the_output_of_a_failed_script_is_the_error(
    release: Release, by_script: Path, script: str, title: str, hint: str
) -> None:
    release.publish(content=script.encode())
    got = await receive_update(release)
    with pytest.raises(UpdateFailed) as caught:
        await install_update(got)
    assert (caught.value.title, caught.value.hint) == (title, hint.format(line=got.shell_line))


async def test_cancelling_ends_a_script_with_its_child_processes(
    release: Release, by_script: Path, tmp_path: Path
) -> None:
    began = tmp_path / "began"
    os.mkfifo(began)
    release.publish(content=f"trap 'exit 130' TERM\nsleep 1000 &\necho $$ $! >'{began}'\nsleep 1000\n".encode())
    work = asyncio.ensure_future(install_update(await receive_update(release)))
    processes = [psutil.Process(int(pid)) for pid in (await asyncio.to_thread(began.read_text)).split()]
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(120):
            await work
    # Processes that are not our children are reaped by another process.
    _, left = psutil.wait_procs(processes, timeout=60)
    assert left == []


async def test_the_debian_package_is_left_to_the_user_to_install(tmp_path: Path) -> None:
    got = DownloadedUpdate(tmp_path / "mtp launcher_7.0.0_amd64.deb", InstallMethod.DEB, "7.0.0", "")
    assert not await install_update(got)
    assert got.shell_line == f"sudo apt install '{got.path}'"


START = """
import asyncio, sys
from pathlib import Path
from launcher.updates.install import DownloadedUpdate, install_update
from launcher.updates.install_method import InstallMethod
assert asyncio.run(install_update(DownloadedUpdate(Path(sys.argv[1]), InstallMethod.SETUP, "7.0.0", "")))
"""


def test_the_windows_installer_goes_on_after_this_program(tmp_path: Path) -> None:
    setup, go_on, ended = (tmp_path / name for name in ("mtp-launcher-7.0.0-setup.exe", "go-on", "ended"))
    os.mkfifo(go_on)
    os.mkfifo(ended)
    setup.write_text(f"#!/bin/sh\nread -r _ <'{go_on}'\necho $# >'{ended}'\n")
    setup.chmod(0o755)
    subprocess.run([sys.executable, "-c", START, setup], check=True, timeout=60)
    go_on.write_text("\n")
    assert ended.read_text() == "0\n"  # no arguments, as after a double click


async def test_an_installer_that_cannot_be_started_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UpdateFailed, match="Cannot start the installer: ") as caught:
        await install_update(DownloadedUpdate(tmp_path / "none.exe", InstallMethod.SETUP, "7.0.0", ""))
    assert caught.value.hint == f"Start it yourself: {tmp_path / 'none.exe'}"


async def test_a_missing_shell_is_reported(
    release: Release, by_script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = await receive_update(release)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UpdateFailed, match=r"^Cannot start sh: .+\. Start it yourself: sh "):
        await install_update(got)


async def test_a_release_without_a_file_for_this_computer_is_named(release: Release, by_script: Path) -> None:
    release.publish(platform="windows-arm64")
    with pytest.raises(
        NotOffered, match=rf"Version 7.0.0 has no file for this computer \({this_platform()}, \*install.sh\)"
    ):
        await receive_update(release)
    release.publish(name="install.ps1")
    with pytest.raises(NotOffered):
        await receive_update(release)


async def test_an_installation_made_by_the_user_is_not_updated(release: Release, by_script: Path) -> None:
    (by_script / "install.sh").unlink()
    with pytest.raises(NotOffered, match="uv tool install") as caught:
        await receive_update(release)
    assert "uv tool upgrade mtp-launcher" in caught.value.hint
    next(by_script.rglob("uv-receipt.toml")).unlink()
    with pytest.raises(NotOffered, match="checkout") as caught:
        await receive_update(release)
    assert "git pull" in caught.value.hint
