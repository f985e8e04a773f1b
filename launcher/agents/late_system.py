"""Chat templates that refuse a system message after the first user message, which some coding agents send."""

import re
from pathlib import Path

from launcher.base.errors import LauncherError, Refused
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

    Only the refusal is replaced, and only in the templates of which it is known how they write a turn.
    """
    if "<|im_start|>" not in template or not _GUARD.search(template):
        return None
    content = "content" if _CONTENT.search(template) else "message.content"
    turn = "{{- '<|im_start|>system\\n' + " + content + " + '<|im_end|>\\n' }}"
    return _GUARD.sub(lambda _: turn, template)


async def takes_late_system(client: EngineClient) -> bool | None:
    """Return whether a server's chat template takes a late system message; None if the server cannot tell.

    No token is generated.
    """
    try:
        await client.request_json("/apply-template", {"messages": _LATE_SYSTEM})
    except Refused as error:
        return None if error.status in (401, 404, 405, 501, 503) else False
    except LauncherError:
        return None
    return True


def read_template(metadata: dict[str, object]) -> str | None:
    """Return the chat template in a GGUF header's metadata; None if it has none."""
    template = metadata.get("tokenizer.chat_template")
    return template if isinstance(template, str) else None


def template_file(folder: Path, model: Path) -> Path:
    """Return the path for a corrected template of a model."""
    return folder / f"{model.stem}.late-system.jinja"
