"""The store of engines."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from launcher.base.errors import BadOption, EngineBusy, EngineMissing, WrittenByNewer
from launcher.base.identity import ProcessId
from launcher.engine.builds import installed
from launcher.engine.builds.install_errors import EngineInUse
from launcher.engine.builds.installed import (
    PROGRAM,
    Manifest,
    discard_folder,
    installation_folder,
    put_in_place,
    read_store,
    store_dir,
)
from launcher.engine.server import registry


def install_program(name: str, program: str = "#!/bin/sh\n") -> installed.InstalledEngine:
    """Install a program under a name such as b11434-vulkan-x64."""
    tag, *backend, arch = name.split("-")
    with installation_folder() as folder:
        prepared = folder / "0"
        prepared.mkdir()
        (prepared / PROGRAM).write_text(program)
        (prepared / PROGRAM).chmod(0o755)
        manifest = Manifest(
            tag=tag, backend="-".join(backend), arch=arch, archives={}, version="v", installed_s=time.time()
        )
        return put_in_place(prepared, name, manifest)


@pytest.fixture
def two_builds() -> tuple[str, str]:
    """Two installed builds, the newer one in use."""
    names = "b11434-vulkan-x64", "b11500-vulkan-x64"
    for name in names:
        install_program(name)
        assert installed.switch_after_install(name)
    return names


def test_the_list_is_empty_at_first_and_nothing_is_written(home: Path) -> None:
    store = read_store()
    assert (store.engines, store.current, store.previous, store.pinned) == ((), "auto", None, False)
    assert installed.engine_in_use() is None
    assert not home.exists()


def test_versions_are_installed_side_by_side_and_listed_newest_first(two_builds: tuple[str, str]) -> None:
    install_program("b9999-cpu-x64")
    store = read_store()
    assert [engine.name for engine in store.engines] == ["b11500-vulkan-x64", "b11434-vulkan-x64", "b9999-cpu-x64"]
    assert (store.current, store.previous) == (two_builds[1], two_builds[0])
    current = installed.engine_in_use()
    assert current is not None
    assert current.program == store_dir() / two_builds[1] / PROGRAM
    assert current.number == 11_500


def test_rollback_switches_between_two_engines(two_builds: tuple[str, str]) -> None:
    assert installed.roll_back().current == two_builds[0]
    assert installed.roll_back().current == two_builds[1]


def test_rollback_after_the_first_installation_restores_the_automatic_choice() -> None:
    install_program("b1-cpu-x64")
    installed.switch_after_install("b1-cpu-x64")
    assert installed.roll_back().current == "auto"


def test_rollback_without_an_earlier_engine_is_refused() -> None:
    with pytest.raises(EngineMissing, match="no previous engine"):
        installed.roll_back()


def test_rollback_to_a_removed_engine_is_refused(two_builds: tuple[str, str]) -> None:
    shutil.rmtree(store_dir() / two_builds[0])
    with pytest.raises(EngineMissing, match="The previous engine, b11434-vulkan-x64, no longer exists"):
        installed.roll_back()
    assert read_store().current == two_builds[1]


def test_an_engine_is_used_by_its_name_or_its_tag(two_builds: tuple[str, str]) -> None:
    assert installed.use_engine("b11434").current == two_builds[0]
    assert installed.use_engine("built-in").current == "built-in"
    assert installed.is_built_in_chosen()
    assert installed.use_engine("auto").current == "auto"
    install_program("b11434-cpu-x64")
    with pytest.raises(EngineMissing, match="b11434 is installed 2 times: b11434-cpu-x64, b11434-vulkan-x64"):
        installed.use_engine("b11434")
    with pytest.raises(EngineMissing, match="No engine is called b1"):
        installed.use_engine("b1")


def test_an_engine_is_used_by_the_path_with_which_it_was_added(
    real_engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "checkout" / "build" / "bin"
    folder.mkdir(parents=True)
    program = folder / PROGRAM
    real_engine.rename(program)
    installed.add_engine(program, "mine")
    (tmp_path / "link").symlink_to(program)
    for path in (program, folder, folder.parents[1], tmp_path / "link"):
        installed.use_engine("built-in")
        assert installed.use_engine(str(path)).current == "mine"
    monkeypatch.chdir(folder)
    for relative in (PROGRAM, f"./{PROGRAM}", "../bin"):
        assert installed.read_store().find_engine(relative).name == "mine"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EngineMissing, match="No engine is called checkout"):
        installed.use_engine("checkout")
    (tmp_path / "other").write_text("")
    with pytest.raises(EngineMissing, match="other is not an engine of the list") as missing:
        installed.use_engine("./other")
    assert "engine add PATH" in missing.value.hint


def test_a_pinned_engine_stays_in_use_when_another_is_installed(two_builds: tuple[str, str]) -> None:
    assert installed.pin_engine("b11434").pinned
    install_program("b11600-vulkan-x64")
    assert not installed.switch_after_install("b11600-vulkan-x64")
    assert read_store().current == two_builds[0]
    assert not installed.unpin_engine().pinned
    assert installed.switch_after_install("b11600-vulkan-x64")


def test_a_pin_ends_when_the_user_chooses_another_engine(two_builds: tuple[str, str]) -> None:
    installed.pin_engine()
    assert not installed.use_engine(two_builds[0]).pinned
    installed.pin_engine()
    assert not installed.roll_back().pinned


def test_the_automatic_choice_cannot_be_pinned() -> None:
    with pytest.raises(EngineMissing, match="No engine is selected"):
        installed.pin_engine()


def test_the_engine_in_use_is_not_removed(two_builds: tuple[str, str]) -> None:
    installed.pin_engine()
    with pytest.raises(EngineInUse, match="b11500-vulkan-x64 is in use and pinned, so it was kept"):
        installed.remove_engine(two_builds[1])
    assert (store_dir() / two_builds[1] / PROGRAM).exists()


def test_the_built_in_engine_is_not_removed() -> None:
    with pytest.raises(EngineInUse, match="is part of this program and cannot be removed"):
        installed.remove_engine("built-in")


def test_another_engine_is_removed_completely(two_builds: tuple[str, str]) -> None:
    engine, freed = installed.remove_engine("b11434")
    assert engine.name == two_builds[0]
    assert freed > 0
    assert read_store().previous is None
    assert [path.name for path in store_dir().iterdir() if path.is_dir()] == [two_builds[1]]


def test_an_engine_that_runs_is_not_removed(two_builds: tuple[str, str]) -> None:
    sleep = shutil.which("sleep")
    assert sleep
    program = store_dir() / two_builds[0] / PROGRAM
    shutil.copy(sleep, program)
    with subprocess.Popen([program, "60"]) as running:
        while Path(psutil.Process(running.pid).exe()) != program:  # the process is still between fork and exec
            time.sleep(0.001)
        with pytest.raises(EngineBusy, match=f"is running .process {running.pid}."):
            installed.remove_engine(two_builds[0])
        running.kill()
    installed.remove_engine(two_builds[0])


def test_an_engine_that_runs_is_not_replaced(two_builds: tuple[str, str]) -> None:
    sleep = shutil.which("sleep")
    assert sleep
    program = store_dir() / two_builds[0] / PROGRAM
    shutil.copy(sleep, program)
    with subprocess.Popen([program, "60"]) as running:
        while Path(psutil.Process(running.pid).exe()) != program:  # the process is still between fork and exec
            time.sleep(0.001)
        with pytest.raises(EngineBusy, match=f"is running .process {running.pid}."):
            install_program(two_builds[0], "new")
        running.kill()
    assert install_program(two_builds[0], "new").program.read_text() == "new"


def test_a_list_of_a_newer_version_is_not_changed(two_builds: tuple[str, str]) -> None:
    file = store_dir() / "engines.json"
    assert json.loads(file.read_bytes())["version"] == 1
    file.write_text(newer := '{"version": 2, "current": ["b11500-vulkan-x64"]}')
    for act in (read_store, installed.roll_back):
        with pytest.raises(WrittenByNewer, match="written by a newer version"):
            act()
    assert file.read_text() == newer


def test_an_engine_that_serves_is_not_removed(two_builds: tuple[str, str]) -> None:
    assert ProcessId.from_pid(os.getpid())
    _, registration = registry.register_server(None, registry.ServedModel(model="m", engine=two_builds[0], draft=2))
    with pytest.raises(EngineBusy, match=r"is running \(the server at http://127\.0\.0\.1:\d+\), so it was kept"):
        installed.remove_engine(two_builds[0])
    registration.remove()
    installed.remove_engine(two_builds[0])


def test_an_engine_of_the_user_is_added_and_forgotten_in_place(real_engine: Path, tmp_path: Path) -> None:
    built = tmp_path / "ik_llama.cpp" / "build" / "bin"
    built.mkdir(parents=True)
    shutil.copy(real_engine, built / PROGRAM)
    engine = installed.add_engine(tmp_path / "ik_llama.cpp")
    assert (engine.name, engine.program) == ("ik_llama.cpp", built / PROGRAM)
    assert installed.add_engine(built / PROGRAM, "fork").name == "fork"
    assert installed.use_engine("fork").current == "fork"
    installed.use_engine("auto")
    assert installed.remove_engine("fork") == (installed.InstalledEngine("fork", built / PROGRAM, None), 0)
    assert (built / PROGRAM).exists()
    assert [each.name for each in read_store().engines] == ["ik_llama.cpp"]


@pytest.mark.parametrize("name", ["auto", "built-in", "../x", "a b", "-x", "x" * 99])
def test_invalid_names_are_refused(name: str, real_engine: Path) -> None:
    with pytest.raises(BadOption, match="cannot be an engine's name"):
        installed.add_engine(real_engine, name)


def test_two_engines_do_not_share_a_name(two_builds: tuple[str, str], real_engine: Path) -> None:
    with pytest.raises(BadOption, match="name b11434-vulkan-x64 is already used"):
        installed.add_engine(real_engine, two_builds[0])


def test_paths_without_an_engine_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineMissing, match="contains no llama-server"):
        installed.add_engine(tmp_path)
    with pytest.raises(EngineMissing, match="not found"):
        installed.add_engine(tmp_path / "nothing")


def test_a_missing_engine_in_use_is_an_error_with_a_hint(two_builds: tuple[str, str]) -> None:
    shutil.rmtree(store_dir() / two_builds[1])
    with pytest.raises(EngineMissing, match="b11500-vulkan-x64, no longer exists") as caught:
        installed.engine_in_use()
    assert "engine rollback" in caught.value.hint
    assert installed.roll_back().current == two_builds[0]


def test_a_damaged_list_is_renamed_and_no_engine_is_lost(two_builds: tuple[str, str]) -> None:
    (store_dir() / "engines.json").write_text("{")
    store = read_store()
    assert len(store.engines) == 2
    assert store.current == "auto"
    assert store.notice
    assert (store_dir() / "engines.json.bad").read_text() == "{"
    assert read_store().notice is None


def test_a_folder_without_a_manifest_is_not_an_engine(two_builds: tuple[str, str]) -> None:
    (store_dir() / two_builds[0] / "installed.json").write_text("{")
    (store_dir() / "other").mkdir()
    assert [engine.name for engine in read_store().engines] == [two_builds[1]]


def test_one_program_installs_at_a_time() -> None:
    with installation_folder(), pytest.raises(EngineBusy, match="Another program is installing"), installation_folder():
        pass


def test_an_interrupted_installation_is_deleted_by_the_next(two_builds: tuple[str, str]) -> None:
    script = (
        "from launcher.engine.builds.installed import installation_folder\n"
        "import os, signal\n"
        "with installation_folder() as folder:\n"
        "    (folder / 'half').write_text('x')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=False)
    assert [path.name for path in store_dir().glob(".new-*/*")] == ["half"]
    with installation_folder():
        assert not list(store_dir().glob(".new-*/*"))
    assert not list(store_dir().glob(".new-*"))
    assert read_store().current == two_builds[1]


def test_a_folder_is_removed_in_one_step(two_builds: tuple[str, str]) -> None:
    discard_folder(store_dir() / two_builds[0])
    assert not list(store_dir().glob(".old-*"))
    assert [engine.name for engine in read_store().engines] == [two_builds[1]]


def test_an_incomplete_engine_is_replaced() -> None:
    (store_dir() / "b1-cpu-x64").mkdir(parents=True)
    (store_dir() / "b1-cpu-x64" / "left").write_text("x")
    engine = install_program("b1-cpu-x64")
    assert not (engine.folder / "left").exists()
    assert engine.program.exists()
