"""Installing engines from a release server over real sockets; the engines in the archives are real ones."""

import asyncio
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from launcher.base.errors import GpuUnseen
from launcher.base.progress import Phase, Progress
from launcher.engine.builds import installed
from launcher.engine.builds.assets import TargetComputer
from launcher.engine.builds.install import install_build, list_available_builds
from launcher.engine.builds.install_errors import KnownBadBuild, ReleaseMissing
from launcher.engine.builds.installed import InstalledEngine, read_store, store_dir
from launcher.fetch.transfer import TransferSettings
from launcher.machine.gpu import Gpu
from tests.conftest import ReleaseServer

FAKE = Path(__file__).parents[1] / "fakes" / "llama_server.py"
ADA = Gpu(
    "nvidia", 0, "GeForce RTX 4090", "GPU-1", driver="580.65", compute_capability=(8, 9), memory_bytes=24_082 << 20
)
WITH_GPU = TargetComputer("linux", "x86_64", (2, 41), (ADA,))
PLAIN = TargetComputer("linux", "x86_64", (2, 41))
CUDA = "CUDA0: NVIDIA GeForce RTX 4090 (24082 MiB, 23500 MiB free)"
VULKAN = "Vulkan0: NVIDIA GeForce RTX 4090 (24082 MiB, 23500 MiB free)"
GPU_BUILDS = "cpu", "vulkan", "cuda-13.4", "cuda-12.8"
QUICK = TransferSettings(attempts=2, backoff_s=0.01)


class ProgressRecorder:
    """Records the progress and the notes of an installation."""

    def __init__(self) -> None:
        self.all: list[Progress] = []
        self._notes: list[str] = []

    def __call__(self, progress: Progress) -> None:
        self.all.append(progress)

    def note(self, text: str) -> None:
        self._notes.append(text)

    @property
    def notes(self) -> str:
        return "\n".join(self._notes)


@pytest.fixture
def recorder() -> ProgressRecorder:
    return ProgressRecorder()


@pytest.fixture
def fake_command() -> str:
    """The command of the fake llama-server, which starts at once and can fail on demand."""
    return f"{sys.executable} -S {FAKE}"


async def run(
    tag: str | None, recorder: ProgressRecorder, target: TargetComputer = PLAIN, backend: str | None = None
) -> InstalledEngine:
    return await install_build(tag, backend, target=target, on_progress=recorder, on_note=recorder.note, settings=QUICK)


def nothing_is_left() -> bool:
    """Return whether the folder of engines has no temporary folder."""
    return not [path for path in store_dir().glob(".*") if path.is_dir()]


async def test_a_cuda_build_is_installed_with_its_runtime_tested_and_put_in_use(
    releases: ReleaseServer, recorder: ProgressRecorder, home: Path
) -> None:
    devices = {"cuda-13.4": [CUDA], "vulkan": [VULKAN]}
    releases.publish("b11434", *GPU_BUILDS, devices=devices)
    engine = await run("b11434", recorder, WITH_GPU)
    assert engine.name == "b11434-cuda-13.4-x64"
    assert sorted(path.name for path in engine.folder.iterdir()) == [
        "LICENSE",
        "installed.json",
        "libcudart.so",
        "libcudart.so.0.9",
        "libggml.so",
        "libggml.so.0.9",
        "llama-server",
    ]
    assert read_store().current == engine.name
    manifest = engine.manifest
    assert manifest is not None
    assert manifest.version == "0.6.0-dev (build 11434, commit 0123abc)"
    assert manifest.devices == ["CUDA0: NVIDIA GeForce RTX 4090"]
    assert 0 < manifest.accepted <= manifest.drafted
    assert all(len(sha256) == 64 for sha256 in manifest.archives.values())
    assert "CUDA 13.4 runs on the GeForce RTX 4090" in recorder.notes
    assert not list((home / "cache" / "downloads" / "engines").iterdir())
    assert nothing_is_left()
    done = [progress.done_bytes for progress in recorder.all if progress.phase is not Phase.WORKING]
    assert done == sorted(done), "the progress is of both archives together"


async def test_without_a_gpu_the_build_for_the_processor_is_installed(
    releases: ReleaseServer, recorder: ProgressRecorder
) -> None:
    releases.publish("b11434", *GPU_BUILDS)
    assert (await run("b11434", recorder)).name == "b11434-cpu-x64"
    downloads = [request["target"] for request in releases.requests() if "/download/" in request["target"]]
    assert downloads == ["/download/b11434/llama-b11434-bin-ubuntu-x64.tar.gz"]


async def test_the_stable_channel_is_the_default(releases: ReleaseServer, recorder: ProgressRecorder) -> None:
    releases.publish("b11400", "cpu")
    releases.publish("v0.7.0", points_at="b11400")
    releases.publish("b11434", "cpu")
    assert (await run(None, recorder)).name == "b11400-cpu-x64"
    assert (await run("nightly", recorder)).name == "b11434-cpu-x64"
    kept = await run(None, recorder)
    assert kept.name == read_store().current == "b11434-cpu-x64"
    assert "b11434-cpu-x64 is in use and newer than the stable release b11400. No change." in recorder.notes
    assert (await run("stable", recorder)).name == read_store().current == "b11400-cpu-x64"


@pytest.mark.thorough
async def test_a_build_that_does_not_see_the_gpu_is_replaced_by_the_next(
    releases: ReleaseServer, recorder: ProgressRecorder
) -> None:
    releases.publish("b11434", *GPU_BUILDS, devices={"vulkan": [VULKAN]})
    engine = await run("b11434", recorder, WITH_GPU)
    assert engine.name == "b11434-vulkan-x64"
    assert "The engine does not see the GPU (GeForce RTX 4090) and would run on the CPU." in recorder.notes
    assert "Trying cuda-12.8." in recorder.notes
    assert "Trying vulkan." in recorder.notes
    assert [each.name for each in read_store().engines] == ["b11434-vulkan-x64"]


@pytest.mark.thorough
async def test_a_working_gpu_build_is_not_replaced_by_a_slower_one(
    releases: ReleaseServer, recorder: ProgressRecorder, fake_command: str
) -> None:
    releases.publish("b11400", *GPU_BUILDS, devices={"vulkan": [VULKAN]}, command=fake_command)
    assert (await run("b11400", recorder, WITH_GPU)).name == "b11400-vulkan-x64"
    releases.publish("b11434", *GPU_BUILDS, command=fake_command)
    with pytest.raises(GpuUnseen):
        await run("b11434", recorder, WITH_GPU)
    assert read_store().current == "b11400-vulkan-x64"
    assert (
        "cpu would be slower than b11400-vulkan-x64, which is in use; `--backend cpu` installs it anyway."
        in recorder.notes
    )
    assert (await run("b11434", recorder, WITH_GPU, "cpu")).name == read_store().current == "b11434-cpu-x64"


@pytest.mark.thorough
async def test_an_installed_build_that_no_longer_sees_the_gpu_is_not_downloaded_again(
    releases: ReleaseServer, recorder: ProgressRecorder, fake_command: str
) -> None:
    devices = {"cuda-13.4": [CUDA], "vulkan": [VULKAN]}
    releases.publish("b11434", *GPU_BUILDS, devices=devices, command=fake_command)
    engine = await run("b11434", recorder, WITH_GPU)
    (engine.folder / "libcudart.so").unlink()  # as if a driver's library had been removed
    installed.use_engine("auto")
    releases.requests()
    assert (await run("b11434", recorder, WITH_GPU)).name == "b11434-vulkan-x64"
    assert not [each for each in releases.requests() if "cuda-13.4" in each["target"]]


async def test_cuda_without_its_runtime_finds_no_gpu_and_fails(
    releases: ReleaseServer, recorder: ProgressRecorder, home: Path
) -> None:
    empty = "cudart-llama-b11434-bin-ubuntu-cuda-13.4-x64"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo(f"{empty}/README"))
    change = {f"{empty}.tar.gz": {"hex": packed.getvalue().hex()}}
    releases.publish("b11434", "cuda-13.4", devices={"cuda-13.4": [CUDA]}, asset=change)
    with pytest.raises(GpuUnseen, match=r"does not see the GPU \(GeForce RTX 4090\) and would run on the CPU"):
        await run("b11434", recorder, WITH_GPU)
    assert read_store().engines == ()
    assert nothing_is_left()


async def test_a_requested_backend_is_not_replaced(
    releases: ReleaseServer, recorder: ProgressRecorder, home: Path
) -> None:
    releases.publish("b11434", *GPU_BUILDS)
    with pytest.raises(GpuUnseen):
        await run("b11434", recorder, WITH_GPU, "vulkan")
    assert "No change" in recorder.notes
    assert read_store().engines == ()


async def test_a_gpu_hidden_by_a_variable_is_named_and_nothing_else_is_tried(
    releases: ReleaseServer, recorder: ProgressRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    releases.publish("b11434", *GPU_BUILDS, devices={"vulkan": [VULKAN]})
    with pytest.raises(GpuUnseen, match="CUDA_VISIBLE_DEVICES= hides the GeForce RTX 4090"):
        await run("b11434", recorder, WITH_GPU)


async def test_downloads_of_failed_installations_are_deleted_after_a_day(
    releases: ReleaseServer, fake_command: str, home: Path
) -> None:
    downloads = home / "cache" / "downloads" / "engines"
    for name in ("b1-any", "b2-any"):
        (downloads / name).mkdir(parents=True)
        (downloads / name / "llama.tar.gz.part").write_bytes(b"begun")
    for path in (downloads / "b1-any", downloads / "b1-any" / "llama.tar.gz.part", downloads / "b2-any"):
        os.utime(path, (time.time() - 90_000,) * 2)
    releases.publish("b11434", "cpu", command=fake_command)
    await install_build("b11434", target=PLAIN, settings=QUICK)
    assert [path.name for path in downloads.iterdir()] == ["b2-any"]


async def test_a_pinned_engine_stays_in_use(
    releases: ReleaseServer, recorder: ProgressRecorder, fake_command: str
) -> None:
    for tag in ("b11400", "b11434"):
        releases.publish(tag, "cpu", command=fake_command)
    await run("b11400", recorder)
    installed.pin_engine()
    newer = await run("b11434", recorder)
    assert read_store().current == "b11400-cpu-x64"
    assert f"b11400-cpu-x64 is pinned and stays in use; `mtp-launcher engine use {newer.name}`" in recorder.notes
    assert len(read_store().engines) == 2


async def test_an_installed_build_is_tested_again_without_a_download(
    releases: ReleaseServer, recorder: ProgressRecorder, fake_command: str
) -> None:
    releases.publish("b11434", "cpu", command=fake_command)
    await run("b11434", recorder)
    releases.requests()
    installed.use_engine("auto")
    await run("b11434", recorder)
    assert read_store().current == "b11434-cpu-x64"
    assert "b11434-cpu-x64 is installed already." in recorder.notes
    assert not [request for request in releases.requests() if "/download/" in request["target"]]


@pytest.mark.thorough
async def test_a_broken_installed_build_is_installed_again(
    releases: ReleaseServer, recorder: ProgressRecorder, fake_command: str
) -> None:
    releases.publish("b11434", "cpu", command=fake_command)
    engine = await run("b11434", recorder)
    engine.program.write_text("#!/bin/sh\nexit 1\n")
    again = await run("b11434", recorder)
    assert "It failed its test, so it is being reinstalled" in recorder.notes
    assert "exec" in again.program.read_text()


class TestKnownBadBuilds:
    async def test_a_known_bad_build_is_refused(
        self, releases: ReleaseServer, recorder: ProgressRecorder, fake_command: str
    ) -> None:
        releases.publish("b10745", "cpu", command=fake_command)
        with pytest.raises(KnownBadBuild, match="b10745 has a known bug: it cannot start MTP") as caught:
            await run("b10745", recorder)
        assert "Use b10749 or newer" in caught.value.hint
        assert caught.value.facts["source"] == "ggml-org/llama.cpp issue 28196"

    async def test_a_known_bad_build_is_installed_by_its_exact_name_with_anyway(
        self, releases: ReleaseServer, recorder: ProgressRecorder, fake_command: str
    ) -> None:
        releases.publish("b10745", "cpu", command=fake_command)
        releases.publish("v0.3.0", points_at="b10745")
        engine = await install_build("b10745", anyway=True, target=PLAIN, on_progress=recorder, on_note=recorder.note)
        assert engine.number == 10_745
        with pytest.raises(KnownBadBuild):
            await install_build("v0.3.0", anyway=True, target=PLAIN, on_progress=recorder, on_note=recorder.note)

    async def test_the_nightly_channel_skips_known_bad_builds(
        self, releases: ReleaseServer, recorder: ProgressRecorder, fake_command: str
    ) -> None:
        for tag in ("b10740", "b10741", "b10748"):
            releases.publish(tag, "cpu", command=fake_command)
        assert (await run("nightly", recorder)).number == 10_740


async def test_an_incomplete_release_is_skipped_with_the_reason(releases: ReleaseServer) -> None:
    releases.publish("b11400", *GPU_BUILDS)
    releases.publish("b11401", "cpu", "vulkan")
    lacking = "cudart-llama-b11402-bin-ubuntu-cuda-13.4-x64.tar.gz"
    releases.publish("b11402", *GPU_BUILDS, asset={lacking: {"state": "starter"}})
    releases.publish("b11403", "cpu", platform="win-x64")
    found = await list_available_builds(target=WITH_GPU)
    assert [offer.release.tag for offer in found] == ["b11403", "b11402", "b11401", "b11400"]
    assert [offer.choice.build.label if offer.choice else None for offer in found] == [None, None, None, "cuda-13.4"]
    why = [str(offer.obstacle.title) for offer in found if offer.obstacle]
    assert why == [
        "b11403 is still being published: llama-b11403-bin-ubuntu-cuda-13.4-x64.tar.gz is missing.",
        "b11402 is still being published: llama-b11402-bin-ubuntu-cuda-13.4-x64.tar.gz is missing.",
        "b11401 is still being published: llama-b11401-bin-ubuntu-cuda-13.4-x64.tar.gz is missing.",
    ]
    assert found[3].bytes == sum(
        found[3].release.assets[name].bytes
        for name in (
            "llama-b11400-bin-ubuntu-cuda-13.4-x64.tar.gz",
            "cudart-llama-b11400-bin-ubuntu-cuda-13.4-x64.tar.gz",
        )
    )


async def test_without_a_complete_release_an_error_is_raised(
    releases: ReleaseServer, recorder: ProgressRecorder
) -> None:
    releases.publish("b11434", "cpu", asset={"llama-b11434-bin-ubuntu-x64.tar.gz": {"state": "starter"}})
    with pytest.raises(ReleaseMissing, match="None of the newest releases is complete"):
        await run("nightly", recorder)


async def test_a_cancelled_installation_leaves_only_its_download(
    releases: ReleaseServer, recorder: ProgressRecorder, home: Path, fake_command: str
) -> None:
    releases.publish("b11434", "cpu", command=fake_command)

    def cancel_at_the_test(progress: Progress) -> None:
        if progress.item.startswith("Running the demo"):
            task.cancel()

    task = asyncio.ensure_future(install_build("b11434", target=PLAIN, on_progress=cancel_at_the_test))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert nothing_is_left()
    assert read_store().engines == ()
    releases.requests()
    await run("b11434", recorder)
    targets = [each["target"] for each in releases.requests()]
    assert not [target for target in targets if "signature" in target], "it was not downloaded again"


@pytest.mark.cases(1)
@pytest.mark.parametrize("step", ["Unpacking", "Reading its version", "Running the demo"])
def test_an_installation_killed_at_any_moment_leaves_the_old_engine_in_use(
    step: str, releases: ReleaseServer, home: Path, fake_command: str
) -> None:
    releases.publish("b11400", "cpu", command=fake_command)
    releases.publish("b11434", "cpu", command=fake_command)
    script = (
        "import asyncio, os, signal\n"
        "from launcher.engine.builds.assets import TargetComputer\n"
        "from launcher.engine.builds.install import install_build\n"
        "def kill(progress):\n"
        f"    if progress.item.startswith({step!r}):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "target = TargetComputer('linux', 'x86_64', (2, 41))\n"
        "asyncio.run(install_build('b11434', target=target, on_progress=kill))\n"
    )
    assert asyncio.run(run("b11400", ProgressRecorder())).name == "b11400-cpu-x64"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGKILL
    store = read_store()
    assert (store.current, len(store.engines)) == ("b11400-cpu-x64", 1)
    assert asyncio.run(run("b11400", ProgressRecorder())).name == "b11400-cpu-x64"
    assert nothing_is_left(), "the next installation has cleared up"


@pytest.mark.thorough
async def test_a_windows_archive_is_unpacked_without_a_top_folder(
    releases: ReleaseServer, recorder: ProgressRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The zip archives are installed as on Windows; the program in them runs here."""
    monkeypatch.setattr("launcher.engine.builds.install.PROGRAM", "llama-server.exe")
    monkeypatch.setattr("launcher.engine.builds.installed.PROGRAM", "llama-server.exe")
    releases.publish("b11434", "cuda-13.4", "cpu", platform="win-x64", devices={"cuda-13.4": [CUDA]})
    engine = await run("b11434", recorder, TargetComputer("windows", "AMD64", None, (ADA,)))
    assert engine.name == "b11434-cuda-13.4-x64"
    assert sorted(path.name for path in engine.folder.iterdir()) == [
        "LICENSE",
        "cudart64.dll",
        "ggml.dll",
        "installed.json",
        "llama-server.exe",
    ]


def test_the_manifest_is_readable_json(releases: ReleaseServer, fake_command: str) -> None:
    releases.publish("b11434", "cpu", command=fake_command)
    engine = asyncio.run(run("b11434", ProgressRecorder()))
    kept = json.loads((engine.folder / "installed.json").read_text())
    assert kept["tag"] == "b11434"
    assert abs(kept["installed_s"] - time.time()) < 60
    assert os.access(engine.program, os.X_OK)
    shutil.rmtree(engine.folder)
    assert read_store().engines == ()
