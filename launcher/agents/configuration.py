"""What an agent gets for one session with a server: variables, files and its command."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.agents.agent import Agent
from launcher.base.errors import LauncherError
from launcher.base.messages import message

_PLACEHOLDER = re.compile(r"<([a-z]+)>")
_MOST_OUTPUT, _LEAST_OUTPUT = 16_384, 4_096
"""Limits of a reply's length in tokens. Between them it is a quarter of the context."""


class ContextTooSmall(LauncherError):
    """The server's context is too small for a coding agent."""

    code = "context_too_small"


@dataclass(frozen=True, slots=True)
class AgentServer:
    """The server that an agent talks to: address without /v1, key, the model's name, and tokens of context per slot."""

    url: str
    api_key: str = field(repr=False)
    model: str
    context: int

    @property
    def output_tokens(self) -> int:
        """The longest reply that the agent may ask for, in tokens."""
        return max(_LEAST_OUTPUT, min(_MOST_OUTPUT, self.context // 4))


@dataclass(frozen=True, slots=True)
class AgentConfiguration:
    """The variables to set and to unset, the texts of files by their absolute path, and the command with arguments."""

    environment: Mapping[str, str]
    unset: tuple[str, ...]
    files: Mapping[Path, str]
    command: tuple[str, ...]


def make_configuration(
    agent: Agent,
    server: AgentServer,
    *,
    program: Sequence[str],
    folder: Path,
    sessions: Path,
    arguments: Sequence[str] = (),
) -> AgentConfiguration:
    """Return what the agent gets in this session. Nothing is written.

    `program` are the words that start it, `folder` is where its files will be, `sessions` where it may keep its
    conversations, `arguments` are the user's own. Check the context before.

    Placeholders: <url>, <key>, <model>, <context> (tokens per slot), <output> (tokens of the longest reply), <compact>
    (tokens at which the agent should sum its conversation up), <folder>, <sessions>. A text that is nothing but a
    placeholder for a number becomes a number.
    """
    values: dict[str, str | int] = {
        "url": server.url,
        "key": server.api_key,
        "model": server.model,
        "context": server.context,
        "output": server.output_tokens,
        "compact": server.context - server.output_tokens,
        "folder": str(folder),
        "sessions": str(sessions),
    }
    small = agent.small.environment if agent.small and server.context < agent.least_context else {}
    environment = {name: str(_fill_in(text, values)) for name, text in {**agent.environment, **small}.items()}
    files = {
        folder / name: json.dumps(_fill_in(content, values), indent=2, ensure_ascii=False) + "\n"
        for name, content in agent.files.items()
    }
    options = [
        word
        for name, value in agent.options.get("values", {}).items()
        for word in (agent.options["flag"], f"{name}={json.dumps(_fill_in(value, values))}")
    ]
    own = [str(_fill_in(word, values)) for word in agent.arguments]
    return AgentConfiguration(environment, agent.unset, files, (*program, *options, *own, *arguments))


def context_error(agent: Agent, context: int, hint: str) -> ContextTooSmall:
    """Return the error for a server with so many tokens of context per slot. `hint` says what would do."""
    return ContextTooSmall(
        message(
            "{title} needs a context of at least {least:,} tokens, and there would be {context:,}.",
            title=agent.title,
            least=agent.smallest_context,
            context=context,
        ),
        hint,
        agent=agent.name,
        least_context=agent.smallest_context,
        context=context,
    )


def _fill_in(content: Any, values: Mapping[str, str | int]) -> Any:  # noqa: ANN401 -- data of a TOML file
    """Return a copy of `content` with values in place of placeholders, also in the names of tables."""
    if isinstance(content, dict):
        return {str(_fill_in(name, values)): _fill_in(value, values) for name, value in content.items()}
    if isinstance(content, list):
        return [_fill_in(each, values) for each in content]
    if not isinstance(content, str):
        return content
    alone = _PLACEHOLDER.fullmatch(content)
    if alone:
        return values[alone[1]]
    return _PLACEHOLDER.sub(lambda found: str(values[found[1]]), content)
