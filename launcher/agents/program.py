"""Finds an agent's program and its version."""

import asyncio
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.agents.agent import Agent, load_agents
from launcher.base.errors import LauncherError
from launcher.base.messages import message

_VERSION = re.compile(r"\d+\.\d+(?:\.\d+)*")
_VERSION_TIMEOUT_S = 20.0
_SHIM_TARGET = re.compile(r'"%(?:~dp0|dp0%)\\([^"]+)"\s+%\*')
"""The line of a .cmd file of npm that starts the script, and the path in it."""
_FOLDERS = (
    ".local/bin",
    ".volta/bin",
    ".nvm/versions/node/*/bin",
    ".config/nvm/versions/node/*/bin",
    ".local/share/fnm/aliases/default/bin",
    ".local/share/fnm/node-versions/*/installation/bin",
    ".local/share/mise/shims",
    ".asdf/shims",
    ".npm-global/bin",
    ".npm-packages/bin",
    ".local/share/pnpm",
    ".bun/bin",
    ".opencode/bin",
    ".claude/local",
)
"""Folders below the home that installers add to PATH in a shell's startup files, which a desktop does not read."""


class AgentMissing(LauncherError):
    """The agent is not installed."""

    code = "agent_missing"


@dataclass(frozen=True, slots=True)
class FoundAgents:
    """All agents: those that are installed and the others; and whether there is npm, which installs most of them."""

    installed: tuple[Agent, ...]
    others: tuple[Agent, ...]
    has_npm: bool


def find_agents() -> FoundAgents:
    """Return all agents, and which of them are installed."""
    agents = load_agents()
    installed = tuple(agent for agent in agents if _find_command(agent.program))
    others = tuple(agent for agent in agents if agent not in installed)
    return FoundAgents(installed, others, _find_command("npm") is not None)


def find_program(agent: Agent) -> tuple[str, ...]:
    """Return the command line that starts the agent's program. Raises AgentMissing.

    On Windows npm installs a .cmd file, which would make the shell parse the arguments a second time. So the script
    that it runs is started directly.
    """
    found = _find_command(agent.program)
    if found is None:
        raise AgentMissing(
            message(
                "{title} is not installed: `{program}` is not on the PATH.", title=agent.title, program=agent.program
            ),
            message("Install it: {install_line}", install_line=agent.install),
            agent=agent.name,
            install=agent.install,
        )
    if sys.platform == "win32" and found.lower().endswith((".cmd", ".bat")):
        return _read_shim(Path(found)) or (found,)
    return (found,)


def search_path(program: tuple[str, ...]) -> str:
    """Return the PATH with which the program runs.

    A program that is not in PATH gets its own folder first, as in the shell in which it was installed: its Node may be
    newer than the system's.
    """
    path, others = os.environ.get("PATH", os.defpath), [str(folder) for folder in _list_folders()]
    own = str(Path(program[0]).parent)
    return os.pathsep.join([*([own] if own in others and own not in path.split(os.pathsep) else []), path, *others])


def _find_command(name: str) -> str | None:
    """Return the path of a command in PATH, else in one of the folders that shells add to it."""
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(map(str, _list_folders())))


def _list_folders() -> Iterator[Path]:
    """Yield the folders that shells add to PATH and that exist, those of newer versions of Node first."""
    try:
        home = Path.home()
    except RuntimeError:  # this user has no home
        return
    for pattern in _FOLDERS:
        yield from sorted(home.glob(pattern), key=_read_numbers, reverse=True)
    try:
        lines = (home / ".npmrc").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        name, _, value = line.partition("=")
        if name.strip() == "prefix" and (prefix := value.strip().strip("\"'")):
            folder = Path(os.path.expandvars(prefix.replace("${HOME}", str(home)))).expanduser() / "bin"
            if folder.is_dir():
                yield folder


def _read_numbers(path: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", path.as_posix().partition("/node")[2]))


def _read_shim(path: Path) -> tuple[str, ...] | None:
    """Return the command line that a .cmd file of npm runs, None if npm did not write the file."""
    target = _SHIM_TARGET.search(path.read_text(encoding="utf-8", errors="replace"))
    if target is None:
        return None
    script = path.parent / target[1].replace("\\", "/")
    if script.suffix.lower() == ".exe":
        return (str(script),)
    node = path.parent / "node.exe"
    return (str(node) if node.exists() else "node", str(script))


async def read_version(program: tuple[str, ...]) -> str | None:
    """Return the version that the program prints; None if it prints none within 20 s, or fails."""
    try:
        process = await asyncio.create_subprocess_exec(
            *program,
            "--version",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | {"PATH": search_path(program)},
        )
    except OSError:
        return None
    try:
        async with asyncio.timeout(_VERSION_TIMEOUT_S):
            printed = await process.communicate()
    except TimeoutError:
        return None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:  # a program that fails may print the version of Node
        return None
    for output in printed:  # pi prints it on standard error
        if found := _VERSION.search(output.decode(errors="replace")):
            return found[0]
    return None
