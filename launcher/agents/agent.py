"""Coding agents that can be started with a server, from presets/agents/: one file for each."""

import datetime
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from launcher.base.errors import BadOption
from launcher.base.messages import message
from launcher.base.paths import shipped_file

Api = Literal["chat", "responses", "messages"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallContext:
    """Settings of an agent for less context: variables that shorten its prompt."""

    least_context: int
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A coding agent, and how it is pointed at a server without touching the user's own files.

    `program` is its command, `install` the command that installs it. `versions` are the versions that were tried with
    this program, on the day `tried`. `api` is the API that it uses. `first_prompt` is the number of tokens of its first
    prompt, `least_context` the tokens of context below which it does not work, `slots` how many requests it sends at
    once. Without `calls_tools` it finds what to do in the model's text. With `late_system` it sends a system or
    developer message after the first user message, which some chat templates refuse.

    `environment`, `arguments`, `options` and `files` may contain placeholders: see configuration.py. `unset` are
    variables that it must not get. The values of `options` become arguments KEY=VALUE, each after its flag. `files` are
    JSON files by their path in the session's folder.
    """

    name: str
    title: str
    program: str
    install: str
    homepage: str
    licence: str
    versions: tuple[str, ...]
    tried: datetime.date
    source: str
    api: Api
    first_prompt: int
    least_context: int
    slots: int
    calls_tools: bool = True
    late_system: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, Any] = field(default_factory=dict)
    small: SmallContext | None = None

    @property
    def smallest_context(self) -> int:
        """The tokens of context with which it works at all, if need be with a shorter prompt."""
        return self.small.least_context if self.small else self.least_context


def load_agents() -> tuple[Agent, ...]:
    """Return all agents, by name."""
    paths = sorted(shipped_file("presets", "agents").glob("*.toml"))
    return tuple(_parse_agent(tomllib.loads(path.read_text(encoding="utf-8"))) for path in paths)


def list_names() -> str:
    """Return the names of all agents as a list for users."""
    return ", ".join(agent.name for agent in load_agents())


def find_agent(name: str) -> Agent:
    """Return the agent with this name. Raises BadOption for an unknown one."""
    for agent in load_agents():
        if name.lower() in (agent.name, agent.program):
            return agent
    names = list_names()
    raise BadOption(
        message("{name} is not a coding agent that this program knows.", name=name),
        message("Choose one of {usable}.", usable=names),
        agents=names,
    )


def _parse_agent(data: dict[str, Any]) -> Agent:
    for name in ("versions", "unset", "arguments"):
        data[name] = tuple(data.get(name, ()))
    if "small" in data:
        data["small"] = SmallContext(**data["small"])
    return Agent(**data)
