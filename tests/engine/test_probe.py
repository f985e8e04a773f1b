"""Finding engines and probing their features."""

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.base.errors import CpuUnsupported, EngineFailed, EngineMissing, EngineUnsuitable, LibraryMissing
from launcher.engine.builds import probe
from launcher.engine.builds.build import Device
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.launch import choose_build
from launcher.machine.host import read_host

DEVICES = "Available devices:\n  CUDA0: NVIDIA GeForce RTX 4090 (24082 MiB, 23500 MiB free)"


def program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


async def test_version_and_flags_of_the_built_in_engine_are_read() -> None:
    found = await probe.probe_engine(None)
    assert found.name == "built-in"
    assert found.version.startswith("xllamacpp ")
    assert {"--model", "--spec-type", "--spec-draft-n-max", "-ctk", "--cors-origins"} <= found.flags
    assert await probe.list_devices(found) == ()


async def test_a_probe_is_kept_until_the_program_changes(fake_engine: Path, tmp_path: Path) -> None:
    calls = tmp_path / "arguments"
    text = fake_engine.read_text().replace("exec", f"echo >> {calls}\nexec")
    program(fake_engine, text)
    await probe.probe_engine(fake_engine)
    times = len(calls.read_text())
    await probe.probe_engine(fake_engine)
    assert len(calls.read_text()) == times
    program(fake_engine, text + "# changed\n")
    await probe.probe_engine(fake_engine)
    assert len(calls.read_text()) > times


@pytest.mark.parametrize(
    "damage",
    ["{", "[]", "{}", {"version": 7}, {"flags": "--model"}, {"flags": [1]}, {"kv_types": None}, {"spec_types": "no"}],
    ids=str,
)
async def test_a_damaged_stored_probe_is_repeated(fake_engine: Path, home: Path, damage: str | dict[str, Any]) -> None:
    wanted = await probe.probe_engine(fake_engine)
    (kept,) = (home / "cache" / "probes").iterdir()
    kept.write_text(damage if isinstance(damage, str) else json.dumps(json.loads(kept.read_text()) | damage))
    assert await probe.probe_engine(fake_engine) == wanted


async def test_the_gpus_that_an_engine_lists_are_read(fake_engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_DEVICES", DEVICES)
    (device,) = await probe.list_devices(await probe.probe_engine(fake_engine))
    assert device == Device("CUDA0", "NVIDIA GeForce RTX 4090", 24_082, 23_500)


async def test_a_missing_engine_is_reported() -> None:
    with pytest.raises(EngineMissing, match="not found"):
        await probe.probe_engine(Path("/no/such/llama-server"))


async def test_an_engine_without_execute_permission_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "llama-server"
    path.write_text("#!/bin/sh\n")
    with pytest.raises(EngineMissing, match=r"is not executable.*chmod \+x"):
        await probe.probe_engine(path)


async def test_another_file_is_not_suggested_to_be_made_executable(tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    path.write_text("root:x:0:0\n")
    with pytest.raises(EngineMissing, match="is not a program") as raised:
        await probe.probe_engine(path)
    assert "chmod" not in raised.value.hint


@pytest.mark.parametrize("name", ["llama-b9000-bin-win-cuda.zip", "https://host.example/llama.tar.gz"])
async def test_an_archive_and_a_web_address_are_to_be_unpacked(tmp_path: Path, name: str) -> None:
    if "//" not in name:
        (tmp_path / name).write_bytes(b"PK\x03\x04" + bytes(64))
        name = str(tmp_path / name)
    with pytest.raises(EngineMissing) as raised:
        await probe.probe_engine(Path(name))
    assert "unpack" in raised.value.hint
    assert "engine add" in raised.value.hint


async def test_a_folder_in_place_of_an_engine_is_reported(tmp_path: Path) -> None:
    with pytest.raises(EngineMissing, match="is a folder"):
        await probe.probe_engine(tmp_path)


async def test_a_program_for_another_processor_is_reported(tmp_path: Path) -> None:
    with pytest.raises(EngineMissing, match="Cannot start"):
        await probe.probe_engine(program(tmp_path / "llama-server", "\x7fELF of another world"))


async def test_another_program_than_llama_server_is_reported() -> None:
    with pytest.raises(EngineUnsuitable, match="is not a llama-server"):
        await probe.probe_engine(Path("/bin/echo"))


async def test_a_program_with_a_missing_library_is_reported(tmp_path: Path) -> None:
    says = "llama-server: error while loading shared libraries: libcudart.so.13: cannot open shared object file"
    broken = program(tmp_path / "llama-server", f"#!/bin/sh\necho '{says}' >&2\nexit 127\n")
    with pytest.raises(LibraryMissing, match=r"libcudart\.so\.13 is not installed"):
        await probe.probe_engine(broken)


async def test_a_program_that_cannot_run_here_is_reported(tmp_path: Path) -> None:
    broken = program(tmp_path / "llama-server", "#!/bin/sh\necho 'something is wrong' >&2\nexit 3\n")
    with pytest.raises(EngineFailed, match=r"exit code 3 while answering --version.*something is wrong"):
        await probe.probe_engine(broken)


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="a program of this system")
async def test_a_program_for_a_system_with_another_loader_is_reported(tmp_path: Path) -> None:
    """jan #8315: NixOS and Alpine have no /lib64/ld-linux-x86-64.so.2, and say of the program that it is not there."""
    path, loader = tmp_path / "llama-server", b"/lib64/ld-linux-x86-64.so.2"
    path.write_bytes(Path("/bin/true").read_bytes().replace(loader, loader.replace(b"lib64", b"lib32")))
    path.chmod(0o755)
    with pytest.raises(EngineMissing, match="the loader that it is built for, /lib32/ld-linux") as raised:
        await probe.probe_engine(path)
    assert "NixOS" in raised.value.hint


async def test_a_program_that_never_answers_is_killed(tmp_path: Path) -> None:
    with pytest.raises(EngineUnsuitable, match="gave no answer"):
        await probe.probe_engine(program(tmp_path / "llama-server", "#!/bin/sh\nexec sleep 600\n"), timeout_s=0.2)


async def test_a_hanging_script_is_killed_with_its_child_processes(tmp_path: Path) -> None:
    """The fixture `nothing_left_running` proves that the sleep has ended."""
    with pytest.raises(EngineUnsuitable, match="gave no answer"):
        await probe.probe_engine(program(tmp_path / "llama-server", "#!/bin/sh\nsleep 600\necho late\n"), timeout_s=0.3)


async def test_endless_output_of_a_program_is_limited(tmp_path: Path) -> None:
    with pytest.raises(EngineUnsuitable, match="prints endlessly"):
        await probe.probe_engine(program(tmp_path / "llama-server", "#!/bin/sh\nexec yes\n"))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/cpuinfo")
def test_a_missing_avx2_is_reported_before_a_start(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text("model name\t: Old One\nflags\t\t: fpu sse sse2 avx\n")
    with pytest.raises(CpuUnsupported, match="lacks AVX2"):
        probe.check_built_in_engine(read_host(tmp_path))


async def test_a_llama_server_on_path_is_chosen_only_if_it_sees_a_gpu(
    fake_engine: Path, demo_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path = fake_engine.rename(fake_engine.with_name("llama-server"))
    monkeypatch.setenv("PATH", f"{on_path.parent}{os.pathsep}{os.environ['PATH']}")
    assert (await choose_build(ServeOptions(model=demo_model))).name == "built-in"
    monkeypatch.setenv("FAKE_DEVICES", DEVICES)
    assert (await choose_build(ServeOptions(model=demo_model))).command == (str(on_path),)
    assert (await choose_build(ServeOptions(model=demo_model, built_in=True))).name == "built-in"


async def test_a_broken_llama_server_on_path_is_skipped(
    tmp_path: Path, demo_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "llama-server", "#!/bin/sh\nexit 1\n")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert (await choose_build(ServeOptions(model=demo_model))).name == "built-in"
