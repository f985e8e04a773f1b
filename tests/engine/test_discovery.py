"""All engines of a computer."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from launcher.engine.builds import installed
from launcher.engine.builds.build import PROGRAMS, find_llama_server_on_path
from launcher.engine.builds.discovery import FoundEngine, find_engines, find_programs
from launcher.engine.builds.installed import PROGRAM, find_program
from launcher.engine.builds.probe import probe_engine


@pytest.fixture(autouse=True)
def no_engines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A computer without engines."""
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("launcher.engine.builds.discovery._LINUX_FOLDERS", ())


async def find_engines_by_name() -> dict[str, FoundEngine]:
    return {engine.name: engine for engine in (await find_engines())[0]}


def copy_program(program: Path, folder: Path) -> Path:
    folder.mkdir(parents=True)
    return Path(shutil.copy(program, folder / PROGRAM))


async def test_the_built_in_engine_is_always_listed() -> None:
    (engine,) = (await find_engines_by_name()).values()
    assert (engine.name, engine.origin, engine.backends, engine.mtp) == ("built-in", "built-in", ("cpu",), True)


async def test_engines_on_path_in_usual_folders_and_of_the_user_are_listed_once(
    fake_engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path = copy_program(fake_engine, tmp_path / "a")
    again = tmp_path / "b"
    again.mkdir()
    (again / PROGRAM).symlink_to(on_path)
    monkeypatch.setenv("PATH", os.pathsep.join(["", str(tmp_path / "a"), str(again), "relative", str(tmp_path / "no")]))
    built = copy_program(fake_engine, tmp_path / "user" / "llama.cpp" / "build" / "bin")
    own = copy_program(fake_engine, tmp_path / "fork")
    installed.add_engine(own)
    installed.pin_engine("fork")
    found = await find_engines_by_name()
    assert {name: engine.origin for name, engine in found.items()} == {
        "fork": "yours",
        str(on_path): "PATH",
        str(built): "found",
        "built-in": "built-in",
    }
    assert found["fork"].current
    assert found["fork"].pinned
    assert not found["built-in"].current


def one_program(folder: Path, server: Path) -> Path:
    """Make the one program of llama.cpp, whose server is the subcommand `serve`."""
    folder.mkdir(parents=True, exist_ok=True)
    usage = "usage: llama <command> [options]\\n\\ncommands:\\n  serve    start the server\\n  cli      chat"
    script = f"""#!/bin/sh
case "$1" in
serve) shift; exec {server} "$@" ;;
--version) echo "version: 0.2.0-dev (build 10586, commit b21e4de74)" >&2 ;;
--help) printf '{usage}\\n' ;;
*) exit 1 ;;
esac
"""
    (folder / PROGRAMS[1]).write_text(script)
    (folder / PROGRAMS[1]).chmod(0o755)
    return folder / PROGRAMS[1]


async def test_the_one_program_of_llama_cpp_is_an_engine(
    fake_engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = one_program(tmp_path / "app", fake_engine)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    found = (await find_engines_by_name())[str(program)]
    assert found.build
    assert found.build.command == (str(program), "serve")
    assert found.build.program == program
    assert found.build.version.startswith("0.2.0-dev (build 10586")
    assert "--model" in found.build.flags
    assert (await probe_engine(program)).command == found.build.command  # also from the cache
    assert find_llama_server_on_path() == program
    assert find_program(program.parent) == program
    real = copy_program(fake_engine, tmp_path / "real")
    monkeypatch.setenv("PATH", os.pathsep.join([str(program.parent), str(real.parent), os.environ["PATH"]]))
    assert find_llama_server_on_path() == real


async def test_another_program_called_llama_is_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack, other = "#!/usr/bin/env python3\nimport llama_stack\n", "#!/bin/sh\necho baa\n"
    for folder, text in (("stack", stack), ("other", other)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / PROGRAMS[1]).write_text(text)
        (tmp_path / folder / PROGRAMS[1]).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'stack'}{os.pathsep}{tmp_path / 'other'}")
    assert not any(str(tmp_path) in name for name in await find_engines_by_name())
    monkeypatch.setenv("PATH", str(tmp_path / "stack"))
    assert find_llama_server_on_path() is None


async def test_a_program_that_does_not_work_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    broken = tmp_path / "a" / PROGRAM
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'a'}:/usr/bin:/bin")
    engine = (await find_engines_by_name())[str(broken)]
    assert engine.build is None
    assert engine.error is not None
    assert "exit code 3" in engine.error.title
    assert engine.mtp is None


async def test_each_program_is_probed_once(fake_engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = tmp_path / "arguments"
    program = copy_program(fake_engine, tmp_path / "a")
    program.write_text(program.read_text().replace("exec", f"echo >> {calls}\nexec"))
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    await find_engines_by_name()
    times = calls.read_text()
    await find_engines_by_name()
    assert calls.read_text() == times


async def test_backends_are_recognised_by_the_libraries_beside_the_program(
    fake_engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = copy_program(fake_engine, tmp_path / "a")
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    assert (await find_engines_by_name())[str(program)].backends is None, "they may be inside the program"
    for name in ("libggml-cuda.so", "libggml-vulkan.so.0.9", "ggml-hip.dll", "libggml-cpu-x64.so", "libggml-base.so"):
        (program.parent / name).touch()
    assert (await find_engines_by_name())[str(program)].backends == ("cuda", "rocm", "vulkan")


async def test_a_known_bad_build_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    program = tmp_path / "a" / PROGRAM
    text = "#!/bin/sh\necho 'version: 0.5.0 (build 10745, commit x)'\necho '--model --spec-type draft-simple'\n"
    program.write_text(text)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    engine = (await find_engines_by_name())[str(program)]
    assert engine.fault is not None
    assert engine.fault.reason.startswith("it cannot start MTP")
    assert engine.mtp is False


@pytest.mark.skipif(sys.platform == "win32", reason="sets Windows's places on another system")
def test_folders_on_windows_follow_environment_variables(
    fake_engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    package = "Microsoft/WinGet/Packages/ggml.llamacpp_Microsoft.Winget.Source_8wekyb3d8bbwe"
    winget = copy_program(fake_engine, tmp_path / "local" / package)
    scoop = copy_program(fake_engine, tmp_path / "user" / "scoop" / "apps" / "llama.cpp" / "current")
    environ = {"LOCALAPPDATA": str(tmp_path / "local"), "USERPROFILE": str(tmp_path / "user")}
    assert list(find_programs(environ)) == [("found", winget), ("found", scoop)]
