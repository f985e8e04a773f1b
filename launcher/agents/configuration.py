"""Make the environment variables, files and command with which a coding agent uses a server for one session."""

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
_MOST_REPLY_TOKENS = 16_384


class ContextTooSmall(LauncherError):
    """The server's context is too small for a coding agent."""

    code = "context_too_small"


@dataclass(frozen=True, slots=True)
class AgentServer:
    """The server that an agent talks to: address without /v1, key, the model's name, and tokens of context per slot.

    If the context is unknown (None), settings that depend on it are left out.
    """

    url: str
    api_key: str = field(repr=False)
    model: str
    context: int | None

    @property
    def values(self) -> dict[str, str | int | None]:
        """The values of placeholders in an agent's files."""
        output = limit_reply(self.context)
        return {
            "url": self.url,
            "key": self.api_key,
            "model": self.model,
            "context": self.context,
            "output": output,
            "compact": None if self.context is None or output is None else self.context - output,
        }


def limit_reply(context: int | None) -> int | None:
    """Return the longest reply, in tokens, to announce to clients for a context; None if the context is unknown.

    The server itself sets no limit. Clients without this figure reserve 16,000 to 32,000 tokens, which leaves no room
    for a prompt in a small context.
    """
    return None if context is None else min(_MOST_REPLY_TOKENS, context // 4)


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
    """Return the configuration of an agent for one session. Nothing is written.

    `program` are the words that start it, `folder` is where its files will be, `sessions` where it may keep its
    conversations, `arguments` are the user's own. The context must have been checked.

    Placeholders: <url>, <key>, <model>, <context> (tokens per slot), <output> (tokens of the longest reply), <compact>
    (tokens at which the agent should sum its conversation up), <folder>, <sessions>. A text that is nothing but a
    placeholder for a number becomes a number.
    """
    values = {**server.values, "folder": str(folder), "sessions": str(sessions)}
    is_small = agent.small is not None and server.context is not None and server.context < agent.least_context
    small = agent.small.environment if agent.small and is_small else {}
    environment = {name: str(text) for name, text in fill_in({**agent.environment, **small}, values).items()}
    files = {folder / name: format_json(fill_in(content, values)) for name, content in agent.files.items()}
    options = [
        word
        for name, value in fill_in(agent.options.get("values", {}), values).items()
        for word in (agent.options["flag"], f"{name}={format_toml(value)}")
    ]
    own = [str(word) for word in fill_in(list(agent.arguments), values)]
    return AgentConfiguration(environment, agent.unset, files, (*program, *options, *own, *arguments))


def context_error(agent: Agent, context: int, hint: str, *, suggested: str | None = None) -> ContextTooSmall:
    """Return the error for a server whose `context`, in tokens per slot, is too small for the agent.

    `hint` says what to do; `suggested` is a model with a larger context, as ID:QUANT.
    """
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
        suggested=suggested,
    )


def fill_in(content: Any, values: Mapping[str, str | int | None]) -> Any:  # noqa: ANN401 -- data of a TOML file
    """Return a copy of `content` with values in place of placeholders, also in the names of tables.

    Entries with an unknown value (None) are left out, and so are tables that become empty.
    """
    filled = _fill_in(content, values)
    return type(content)() if filled is None else filled


def _fill_in(content: Any, values: Mapping[str, str | int | None]) -> Any:  # noqa: ANN401
    """Return a copy of `content` with values in place of placeholders; None if a value is unknown."""
    if isinstance(content, dict):
        pairs = ((str(_fill_in(name, values)), _fill_in(value, values)) for name, value in content.items())
        return {name: value for name, value in pairs if value is not None} or (None if content else {})
    if isinstance(content, list):
        return [each for part in content if (each := _fill_in(part, values)) is not None]
    if not isinstance(content, str):
        return content
    if alone := _PLACEHOLDER.fullmatch(content):
        return values[alone[1]]
    return _PLACEHOLDER.sub(lambda found: str(values[found[1]]), content)


def format_json(data: Any) -> str:  # noqa: ANN401 -- any JSON value
    """Return data as a JSON file."""
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def format_toml(value: str | bool | int) -> str:
    """Return a value as TOML, in one line."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
