"""Self-tests of engines."""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.base.errors import DraftsInert, EngineMissing, GpuUnseen, LauncherError, LibraryMissing
from launcher.base.paths import state_dir
from launcher.engine.builds import installed
from launcher.engine.builds.install_errors import SelfTestFailed
from launcher.engine.builds.installed import installation_folder
from launcher.engine.builds.probe import probe_engine
from launcher.engine.builds.self_test import check_engine, run_self_test
from launcher.engine.builds.slot_files import SlotFiles, known_slot_files
from launcher.machine.gpu import Gpu
from launcher.machine.machine import read_machine

ADA = Gpu("nvidia", 0, "GeForce RTX 4090", "GPU-1", compute_capability=(8, 9), memory_bytes=24_082 << 20)
RADEON = Gpu("amd", 0, "Radeon RX 7900 XTX", "0000:03:00.0", memory_bytes=24_560 << 20)
CUDA = "CUDA0: NVIDIA GeForce RTX 4090 (24082 MiB, 23500 MiB free)"
SOFTWARE = "Vulkan0: llvmpipe (LLVM 15.0.6, 256 bits) (16000 MiB, 16000 MiB free)"
INTEL = "Vulkan0: Intel(R) Iris(R) Xe Graphics (16000 MiB, 16000 MiB free)"


def list_devices(*devices: str) -> str:
    return "\n".join(["Available devices:", *(f"  {device}" for device in devices or ["(none)"])])


async def test_the_built_in_engine_passes_and_reports_its_figures() -> None:
    steps: list[str] = []
    passed = await run_self_test(None, on_step=steps.append)
    assert passed.build.name == "built-in"
    assert 0 < passed.accepted <= passed.drafted
    assert passed.acceptance_text.startswith(f"{passed.accepted} of {passed.drafted} drafted tokens accepted (")
    assert steps == ["Reading its version and flags", "Reading its GPUs", "Running the demo model with MTP"]


async def test_the_content_of_slot_files_is_tested_by_a_save_and_a_restore(
    engine_without_checkpoints: Path,
) -> None:
    built_in = await probe_engine(None)
    assert known_slot_files(built_in) is None
    assert (await run_self_test(None)).slot_files is SlotFiles.COMPLETE
    assert known_slot_files(built_in) is SlotFiles.COMPLETE
    result = await run_self_test(engine_without_checkpoints)
    assert result.slot_files is known_slot_files(result.build) is SlotFiles.NO_CHECKPOINTS
    assert not (state_dir() / "engine-test-slots").exists()


async def test_an_engine_without_slot_saving_passes(fake_engine: Path) -> None:
    result = await run_self_test(fake_engine)
    assert result.slot_files is known_slot_files(result.build) is SlotFiles.NONE


async def test_another_build_number_than_expected_fails(fake_engine: Path) -> None:
    assert (await run_self_test(fake_engine, number=1)).drafted
    with pytest.raises(SelfTestFailed, match="The archive of b11434 contains another build: 0\\.0\\.0"):
        await run_self_test(fake_engine, number=11_434)


@pytest.mark.parametrize(
    ("devices", "backend", "gpu", "why"),
    [
        ((), "cuda", ADA, r"does not see the GPU \(GeForce RTX 4090\) and would run on the CPU"),
        ((), "cuda", None, "does not see the GPU and would run on the CPU"),
        ((SOFTWARE,), "vulkan", None, "does not see the GPU"),
        ((CUDA.replace("CUDA0", "Vulkan0"),), "cuda", ADA, "does not see the GPU"),
        ((INTEL,), "vulkan", ADA, "does not see the GPU"),
        (("RPC0: far away (24082 MiB, 23500 MiB free)",), "cuda", ADA, "does not see the GPU"),
    ],
)
async def test_a_gpu_that_is_not_listed_is_a_failure(
    devices: tuple[str, ...],
    backend: str,
    gpu: Gpu | None,
    why: str,
    fake_engine: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKE_DEVICES", list_devices(*devices))
    with pytest.raises(GpuUnseen, match=why) as caught:
        await run_self_test(fake_engine, backend=backend, gpu=gpu)
    assert caught.value.hint


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("device", "backend", "gpu"),
    [
        (CUDA, "cuda", ADA),
        (CUDA, "cuda", None),
        (CUDA.replace("CUDA0", "Vulkan0"), "vulkan", ADA),
        ("Vulkan0: AMD Radeon RX 7900 XTX (RADV NAVI31) (24560 MiB, 24000 MiB free)", "vulkan", RADEON),
        ("ROCm0: AMD Radeon RX 7900 XTX (24560 MiB, 24000 MiB free)", "rocm", RADEON),
        (INTEL, "vulkan", None),
        ("(none)", "cpu", None),
        ("(none)", None, ADA),
    ],
)
async def test_a_listed_gpu_is_enough(
    device: str, backend: str | None, gpu: Gpu | None, fake_engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_DEVICES", list_devices(device))
    assert (await run_self_test(fake_engine, backend=backend, gpu=gpu)).notes == ()


async def test_a_hidden_gpu_is_recognised_by_the_variable(fake_engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(GpuUnseen, match="CUDA_VISIBLE_DEVICES= hides the GeForce RTX 4090") as caught:
        await run_self_test(fake_engine, backend="cuda", gpu=ADA)
    assert caught.value.facts["hidden"]
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("FAKE_DEVICES", list_devices(INTEL))
    passed = await run_self_test(fake_engine, backend="vulkan", gpu=ADA)
    assert passed.notes == (
        "GGML_VK_VISIBLE_DEVICES=1 hides the GeForce RTX 4090 from the engine. Another one was tested.",
    )


@pytest.mark.parametrize(
    ("line", "install"),
    [
        ("libgomp.so.1: cannot open shared object file", "libgomp1"),
        ("libcrypto.so.3: cannot open shared object file", "libssl3"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="Debian's packages")
async def test_a_missing_library_is_named_with_its_package(line: str, install: str, tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text(f"#!/bin/sh\necho 'error while loading shared libraries: {line}' >&2\nexit 127\n")
    program.chmod(0o755)
    with pytest.raises(LibraryMissing, match=line.partition(":")[0]) as caught:
        await run_self_test(program)
    assert caught.value.hint == f"Install it: sudo apt-get install --no-install-recommends {install}"


async def test_an_unknown_library_has_the_general_hint(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text(
        "#!/bin/sh\n"
        "echo 'error while loading shared libraries: libx.so.9: cannot open shared object file' >&2\n"
        "exit 127\n"
    )
    program.chmod(0o755)
    with pytest.raises(LibraryMissing, match=r"libx\.so\.9 is not installed") as caught:
        await run_self_test(program)
    assert caught.value.hint.startswith("Install it, or unpack the engine again.")


@pytest.mark.parametrize("fault", ["no-drafts", "not-speculative"])
async def test_drafts_that_are_never_accepted_are_a_failure(
    fault: str, fake_engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_FAULTS", fault)
    with pytest.raises(DraftsInert):
        await run_self_test(fake_engine)


@pytest.mark.parametrize("fault", ["dies-loading", "dies-on-chat", "old"])
async def test_an_engine_that_crashes_is_a_failure(
    fault: str, fake_engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_FAULTS", fault)
    with pytest.raises(LauncherError):
        await run_self_test(fake_engine)


async def test_an_engine_is_tested_by_its_name(fake_engine: Path, tmp_path: Path) -> None:
    folder = tmp_path / "fork"
    folder.mkdir()
    shutil.copy(fake_engine, folder / installed.PROGRAM)
    installed.add_engine(folder)
    assert (await check_engine("fork"))[0] == "fork"
    assert (await check_engine(str(fake_engine)))[0] == str(fake_engine)
    installed.use_engine("fork")
    assert (await check_engine())[0] == "fork"
    installed.use_engine("built-in")
    assert (await check_engine())[0] == "built-in"
    with pytest.raises(EngineMissing, match="No engine is called nothing"):
        await check_engine("nothing")


async def test_an_installed_build_must_list_a_gpu_of_its_backend(
    fake_engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with installation_folder() as folder:
        shutil.copy(fake_engine, folder / installed.PROGRAM)
        facts = {"tag": "b1", "backend": "rocm-10.0", "arch": "x64", "archives": {}, "version": "v", "installed_s": 0.0}
        engine = installed.put_in_place(folder, "b1-rocm-10.0-x64", installed.Manifest.model_validate(facts))
    both = replace(read_machine(), gpus=(ADA, RADEON))
    monkeypatch.setattr("launcher.engine.builds.self_test.read_machine", lambda **_: both)
    monkeypatch.setenv("FAKE_DEVICES", list_devices("ROCm0: Radeon RX 7900 XTX (24560 MiB, 24000 MiB free)"))
    assert (await check_engine(engine.name))[1].drafted


async def test_an_engine_is_tested_by_a_path_with_another_spelling_on_windows(
    fake_engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sep", "\\")
    assert (await check_engine(str(fake_engine)))[0] == str(fake_engine)


async def test_the_automatic_choice_is_tested_by_default(
    fake_engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "path"
    folder.mkdir()
    shutil.copy(fake_engine, folder / "llama-server")
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    assert (await check_engine())[0] == str(folder / "llama-server")
