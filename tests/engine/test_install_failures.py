"""Installations that fail: the engine in use stays in use, and no files are left behind."""

import asyncio
import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from launcher.base.errors import DraftsInert, EngineFailed, EngineUnsuitable, LauncherError, LibraryMissing
from launcher.engine.builds import installed
from launcher.engine.builds.assets import TargetComputer
from launcher.engine.builds.install import install_build
from launcher.engine.builds.install_errors import ArchiveRefused, EngineUnfit, ReleaseMissing, SelfTestFailed
from launcher.engine.builds.installed import Manifest, installation_folder, put_in_place, read_store, store_dir
from launcher.engine.builds.releases import API_VARIABLE
from launcher.fetch.transfer import TransferSettings
from tests.conftest import FAKES, ReleaseServer

FAKE = FAKES / "llama_server.py"
PLAIN = TargetComputer("linux", "x86_64", (2, 41))
QUICK = TransferSettings(attempts=2, backoff_s=0.01)


@pytest.fixture
def fake_command() -> str:
    """The command of the fake llama-server, which starts at once and can fail on demand."""
    return f"{sys.executable} -S {FAKE}"


@pytest.fixture
def old_build() -> str:
    """An older build, in use."""
    with installation_folder() as folder:
        (folder / "0").mkdir()
        facts = {
            "tag": "b11400",
            "backend": "cpu",
            "arch": "x64",
            "version": "v",
            "installed_s": 0.0,
            "archives": {},
        }
        name = put_in_place(folder / "0", "b11400-cpu-x64", Manifest.model_validate(facts)).name
    assert installed.switch_after_install(name)
    return name


async def check(old_name: str, error: type[LauncherError], why: str) -> None:
    with pytest.raises(error, match=why):
        await install_build("b11434", target=PLAIN, settings=QUICK)
    store = read_store()
    assert (store.current, [engine.name for engine in store.engines]) == (old_name, [old_name])
    assert not [path for path in store_dir().glob(".*") if path.is_dir()], "nothing is left"


async def test_a_build_with_another_number_than_its_tag_fails(releases: ReleaseServer, old_build: str) -> None:
    releases.publish("b11434", "cpu", says=11430)
    await check(old_build, SelfTestFailed, r"The archive of b11434 contains another build: .*build 11430")


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("faults", "error", "why"),
    [
        ("not-speculative", DraftsInert, "MTP drafts no tokens"),
        ("no-drafts", DraftsInert, "MTP drafts no tokens"),
        ("dies-loading", LauncherError, "Not enough memory for the KV cache"),
        ("dies-on-chat", LauncherError, "an internal error"),
        ("old", LauncherError, "does not support --spec-type"),
    ],
)
async def test_an_engine_that_does_not_work_fails(
    faults: str,
    error: type[LauncherError],
    why: str,
    releases: ReleaseServer,
    old_build: str,
    fake_command: str,
) -> None:
    releases.publish("b11434", "cpu", command=f"env FAKE_FAULTS={faults} {fake_command}")
    await check(old_build, error, why)


async def test_an_engine_whose_drafts_are_never_accepted_fails(
    releases: ReleaseServer, old_build: str, home: Path, tmp_path: Path
) -> None:
    inert = tmp_path / "inert.py"
    inert.write_text(FAKE.read_text().replace('"draft_n_accepted": tokens - 1', '"draft_n_accepted": 0'))
    releases.publish("b11434", "cpu", command=f"{sys.executable} {inert}")
    await check(old_build, DraftsInert, "none of its 8 drafted tokens on the demo model were accepted")


async def test_a_missing_system_library_is_named_with_its_install_command(
    releases: ReleaseServer, old_build: str, home: Path
) -> None:
    loader = "llama-server: error while loading shared libraries: libssl.so.3: cannot open shared object file"
    releases.publish("b11434", "cpu", program=f"#!/bin/sh\necho '{loader}' >&2\nexit 127\n")
    await check(old_build, LibraryMissing, r"libssl\.so\.3 is not installed.*apt-get install .*libssl3")


async def test_a_system_that_is_too_old_is_reported(releases: ReleaseServer, old_build: str) -> None:
    loader = "./llama-server: /lib/libc.so.6: version `GLIBC_2.39' not found"
    releases.publish("b11434", "cpu", program=f"#!/bin/sh\ncat >&2 <<'E'\n{loader}\nE\nexit 1\n")
    await check(old_build, LauncherError, r"built for a newer system .GLIBC_2\.39")


async def test_an_archive_without_a_program_fails(releases: ReleaseServer, old_build: str) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("llama/README"))
    name = "llama-b11434-bin-ubuntu-x64.tar.gz"
    releases.publish("b11434", "cpu", asset={name: {"hex": packed.getvalue().hex()}})
    await check(old_build, SelfTestFailed, f"{name} contains no llama-server")


async def test_an_invalid_archive_fails(releases: ReleaseServer, old_build: str) -> None:
    name = "llama-b11434-bin-ubuntu-x64.tar.gz"
    releases.publish("b11434", "cpu", asset={name: {"hex": b"no archive at all".hex()}})
    await check(old_build, ArchiveRefused, "is damaged or not a tar.gz archive. Its checksum is correct")


@pytest.mark.parametrize(
    ("program", "error", "why"),
    [
        ("#!/bin/sh\nexit 3\n", EngineFailed, r"while answering --version\. Choose another release"),
        ("#!/bin/sh\necho hello\n", EngineUnsuitable, "^llama-server is not a llama-server"),
    ],
)
async def test_no_deleted_folder_is_named_in_an_error(
    program: str, error: type[LauncherError], why: str, releases: ReleaseServer, old_build: str
) -> None:
    releases.publish("b11434", "cpu", program=program)
    with pytest.raises(error, match=why) as caught:
        await install_build("b11434", target=PLAIN, settings=QUICK)
    assert str(store_dir()) not in str(caught.value)


@pytest.mark.parametrize("fault", ["wrong-bytes", "page"])
async def test_a_file_with_another_checksum_is_never_run(
    fault: str, releases: ReleaseServer, old_build: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    releases.publish("b11434", "cpu", program=f"#!/bin/sh\ntouch {ran}\n")
    monkeypatch.setenv(API_VARIABLE, releases.with_faults(fault))
    with pytest.raises(LauncherError) as caught:
        await install_build("b11434", target=PLAIN, settings=QUICK)
    assert caught.value.title
    assert not ran.exists()
    assert read_store().current == old_build


async def test_a_file_without_a_checksum_is_refused(releases: ReleaseServer, old_build: str) -> None:
    releases.publish("b11434", "cpu", asset={"llama-b11434-bin-ubuntu-x64.tar.gz": {"digest": None}})
    await check(old_build, ReleaseMissing, "GitHub publishes no checksum for llama-b11434-bin-ubuntu-x64.tar.gz")


async def test_a_file_that_is_still_being_uploaded_is_refused(releases: ReleaseServer, old_build: str) -> None:
    releases.publish("b11434", "cpu", asset={"llama-b11434-bin-ubuntu-x64.tar.gz": {"state": "starter"}})
    await check(old_build, ReleaseMissing, "b11434 is still being published")


async def test_a_computer_without_a_build_is_reported(releases: ReleaseServer, old_build: str) -> None:
    releases.publish("b11434", "cpu", platform="win-x64")
    await check(old_build, EngineUnfit, "The release has no build for Linux x64")


async def test_a_full_disk_is_reported(releases: ReleaseServer, old_build: str) -> None:
    """A limit on the size of files stands in for a full disk: the same calls fail."""
    releases.publish("b11434", "cpu", program="#!/bin/sh\n" + "#" * 300_000)
    script = (
        "import asyncio, resource, signal\n"
        "from launcher.engine.builds.assets import TargetComputer\n"
        "from launcher.engine.builds.install import install_build\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "asyncio.run(install_build('b11434', target=TargetComputer('linux', 'x86_64', (2, 41))))\n"
    )
    command = [sys.executable, "-c", script]
    ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert "DiskFull: Cannot unpack llama-b11434-bin-ubuntu-x64.tar.gz in " in ended.stderr
    assert "Free disk space and try again. The download is kept." in ended.stderr
    assert read_store().current == old_build
    assert not [path for path in store_dir().glob(".*") if path.is_dir()], "nothing is left"
