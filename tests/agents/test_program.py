"""Agents whose folder only the startup files of a shell add to PATH."""

import asyncio
import os
from pathlib import Path

import pytest

from launcher.agents.agent import find_agent
from launcher.agents.program import AgentMissing, _read_shim, find_agents, find_program, read_version, search_path

pytestmark = pytest.mark.skipif(os.name != "posix", reason="on Windows installers change PATH itself")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home, and a PATH that has only the system's folders, as that of a desktop."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return tmp_path


def write_program(folder: Path, name: str, script: str) -> Path:
    """Write an executable file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(script)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    "folder", [".local/bin", ".volta/bin", ".nvm/versions/node/v22.1.0/bin", ".npm-global/bin", ".opencode/bin"]
)
def test_an_agent_outside_the_path_of_the_desktop_is_found(home: Path, folder: str) -> None:
    """The folders of npm's prefix, nvm, volta and the agents' own installers are searched."""
    path = write_program(home / folder, "opencode", "#!/bin/sh\n")
    assert find_program(find_agent("opencode")) == (str(path),)
    assert [agent.name for agent in find_agents().installed] == ["opencode"]


def test_the_prefix_in_npmrc_is_used(home: Path) -> None:
    """A prefix of npm may be any folder."""
    path = write_program(home / "tools/bin", "pi", "#!/bin/sh\n")
    (home / ".npmrc").write_text("fund=false\nprefix = ${HOME}/tools\n")
    assert find_program(find_agent("pi")) == (str(path),)


def test_an_agent_runs_with_the_node_beside_it(home: Path) -> None:
    """The script needs `node`, which is in the same folder; of two versions the newer one is used."""
    for version in ("v9.11.2", "v22.1.0"):
        folder = home / f".nvm/versions/node/{version}/bin"
        write_program(folder, "node", f"#!/bin/sh\necho {version}\n")
        write_program(folder, "qwen", "#!/usr/bin/env node\n")
    program = find_program(find_agent("qwen"))
    assert asyncio.run(read_version(program)) == "22.1.0"
    assert search_path(program).startswith(str(home / ".nvm/versions/node/v22.1.0/bin"))


def test_a_program_on_path_comes_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell that has its own order keeps it."""
    monkeypatch.setenv("PATH", f"{home / 'mine'}:/usr/bin:/bin")
    write_program(home / ".local/bin", "pi", "#!/bin/sh\n")
    path = write_program(home / "mine", "pi", "#!/bin/sh\n")
    program = find_program(find_agent("pi"))
    assert program == (str(path),)
    assert search_path(program).startswith(f"{home / 'mine'}:")


def test_a_missing_agent_is_named(home: Path) -> None:
    """The error has the line that installs it."""
    assert home.is_dir()
    with pytest.raises(AgentMissing) as caught:
        find_program(find_agent("opencode"))
    assert caught.value.facts["install"] == "npm install -g opencode-ai"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (r'"%_prog%"  "%dp0%\node_modules\pi\cli.js" %*', ("node", "node_modules/pi/cli.js")),
        (r'"%~dp0\node.exe"  "%~dp0\..\pi\cli.js" %*', ("node", "../pi/cli.js")),
        (r'"%dp0%\node_modules\pi\pi.exe"   %*', ("node_modules/pi/pi.exe",)),
        ("@echo off", None),
    ],
)
def test_the_script_of_an_npm_shim_is_started_directly(
    tmp_path: Path, line: str, words: tuple[str, ...] | None
) -> None:
    """A shell that runs the .cmd file would parse the arguments a second time."""
    shim = tmp_path / "pi.cmd"
    shim.write_text(f"@ECHO off\n{line}\n")
    expected = None if words is None else (*words[:-1], str(tmp_path / words[-1]))
    assert _read_shim(shim) == expected


@pytest.mark.parametrize(("ending", "version"), [("exit 0", "0.74.2"), ("exit 1", None)])
async def test_no_version_is_read_from_a_program_that_fails(tmp_path: Path, ending: str, version: str | None) -> None:
    """Node names its version when a script does not load."""
    path = write_program(tmp_path, "pi", f"#!/bin/sh\necho 0.74.2 >&2\n{ending}\n")
    assert await read_version((str(path),)) == version
