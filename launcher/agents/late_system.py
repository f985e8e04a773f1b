"""Chat templates that refuse a system message after the first user message, which some coding agents send."""

import re
from pathlib import Path

from launcher.agents.agent import Agent
from launcher.base.errors import LauncherError, Refused
from launcher.base.messages import FaceName, command_name, mark, message
from launcher.engine.server.client import EngineClient

_GUARD = re.compile(r"\{\{-?\s*raise_exception\((['\"])System message must be at the beginning\.?\1\)\s*-?\}\}")
"""The expression by which the chat templates of the Qwen3.5 family refuse a late system message."""
_CONTENT = re.compile(r"\bset content\s*=")
_LATE_SYSTEM = [
    {"role": "system", "content": "a"},
    {"role": "user", "content": "b"},
    {"role": "system", "content": "c"},
]


class TemplateRefuses(LauncherError):
    """A server's chat template refuses messages that an agent sends."""

    code = "template_refuses"


def correct_template(template: str) -> str | None:
    """Return a template that writes a late system message as a turn of its own; None if that cannot be done.

    Only the refusal is replaced, and only in templates that begin each turn with <|im_start|>.
    """
    if "<|im_start|>" not in template or not _GUARD.search(template):
        return None
    content = "content" if _CONTENT.search(template) else "message.content"
    turn = "{{- '<|im_start|>system\\n' + " + content + " + '<|im_end|>\\n' }}"
    return _GUARD.sub(lambda _: turn, template)


async def takes_late_system(client: EngineClient) -> bool | None:
    """Return whether a server's chat template takes a late system message; None if the server does not report it.

    No token is generated.
    """
    try:
        await client.request_json("/apply-template", {"messages": _LATE_SYSTEM})
    except Refused as error:
        return None if error.status in (401, 404, 405, 501, 503) else False
    except LauncherError:
        return None
    return True


async def find_refusal(client: EngineClient, agent: Agent, model: str) -> TemplateRefuses | None:
    """Return an error with a remedy if a server's chat template refuses the agent's messages, else None.

    `model` is the server's model, as the error names it.
    """
    if not agent.late_system or await takes_late_system(client) is not False:
        return None
    if await _is_correctable(client):
        hint = message(
            "Stop this server: {command} starts it with a corrected template.[ {option} tries it all the same.]",
            command=command_name(f"code {agent.name}", mark("starting the agent again")),
            option=FaceName("--own-template"),
        )
    else:
        hint = message(
            "It cannot be corrected. Choose another model[; {option} tries it all the same].",
            option=FaceName("--own-template"),
        )
    return TemplateRefuses(
        message(
            "The chat template of {model} refuses the late system messages of {title}.", model=model, title=agent.title
        ),
        hint,
    )


async def _is_correctable(client: EngineClient) -> bool:
    """Return whether a server's chat template is one that correct_template corrects."""
    try:
        template = (await client.request_json("/props")).get("chat_template")
    except LauncherError:
        return False
    return isinstance(template, str) and correct_template(template) is not None


def read_template(metadata: dict[str, object]) -> str | None:
    """Return the chat template in a GGUF header's metadata; None if it has none."""
    template = metadata.get("tokenizer.chat_template")
    return template if isinstance(template, str) else None


def template_file(folder: Path, model: Path) -> Path:
    """Return the path for a corrected template of a model."""
    return folder / f"{model.stem}.late-system.jinja"
