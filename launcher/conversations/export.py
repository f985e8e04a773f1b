"""A conversation as a file for others: Markdown, JSON or plain text. What was said is written as it was."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import PurePath

from launcher.base.errors import BadOption
from launcher.conversations.records import Conversation, Message, Role

_MADE_BY = "mtp-launcher"


def as_markdown(conversation: Conversation) -> str:
    """Return the open branch as Markdown; thoughts are folded where HTML is understood."""
    parts = [f"# {conversation.title}", _about(conversation)]
    if conversation.system:
        parts += ["## System prompt", conversation.system]
    for message in conversation.messages:
        parts.append(f"## {_who(message)}")
        if message.thinking:
            parts.append(f"<details><summary>Thought</summary>\n\n{message.thinking.strip()}\n\n</details>")
        parts.append(message.text.strip())
        if message.footer:
            parts.append(f"*{message.footer}*")
    return "\n\n".join(filter(None, parts)) + "\n"


def as_text(conversation: Conversation) -> str:
    """Return the open branch as plain text, without thoughts."""
    parts = [conversation.title, _about(conversation)]
    if conversation.system:
        parts.append(f"System prompt:\n{conversation.system}")
    for message in conversation.messages:
        footer = f"\n[{message.footer}]" if message.footer else ""
        parts.append(f"{_who(message)}:\n{message.text.strip()}{footer}")
    return "\n\n".join(filter(None, parts)) + "\n"


def as_json(conversation: Conversation) -> str:
    """Return the open branch as JSON, with figures and settings; times are seconds since 1970."""
    return json.dumps(as_data(conversation), ensure_ascii=False, indent=1) + "\n"


def as_data(conversation: Conversation) -> dict[str, object]:
    """Return the open branch as what JSON knows."""
    data = asdict(conversation)
    for message in data["messages"]:
        message["versions"] = len(message["versions"])
    return {"made_by": _MADE_BY, **data}


Writer = Callable[[Conversation], str]
FORMATS: Mapping[str, Writer] = {"md": as_markdown, "json": as_json, "txt": as_text}
"""By the ending of the file's name."""


def writer_for(file: PurePath) -> Writer:
    """Return what writes a file of that name. Raises BadOption for an ending that names no format."""
    ending = file.suffix.lower().removeprefix(".")
    ending = {"markdown": "md", "text": "txt"}.get(ending, ending)
    if ending not in FORMATS:
        raise BadOption(f"{file.name} does not say which format it should have.", "End its name in .md, .json or .txt.")
    return FORMATS[ending]


def file_name(conversation: Conversation, ending: str) -> str:
    """Return a name for the file that every file system takes."""
    letters = "".join(letter if letter.isalnum() else "-" for letter in conversation.title.lower())
    words = "-".join(filter(None, letters.split("-")))[:50].strip("-")
    return f"{words or 'conversation'}.{ending}"


def _about(conversation: Conversation) -> str:
    began = datetime.fromtimestamp(conversation.created_s).astimezone()
    return " · ".join(filter(None, (conversation.model, f"{began:%Y-%m-%d %H:%M %z}")))


def _who(message: Message) -> str:
    return "You" if message.role is Role.USER else "Reply"
