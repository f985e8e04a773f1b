"""Exports a conversation as Markdown, JSON or plain text. Messages are written unchanged."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import PurePath

from launcher.base.errors import BadOption
from launcher.base.messages import message
from launcher.conversations.attachments import describe_attachment
from launcher.conversations.records import ChatMessage, Conversation, Role

_MADE_BY = "mtp-launcher"


def as_markdown(conversation: Conversation) -> str:
    """Return the open branch as Markdown. Viewers that support HTML show the reasoning folded."""
    parts = [f"# {conversation.title}", _describe_origin(conversation)]
    if conversation.system:
        parts += ["## System prompt", conversation.system]
    for each in conversation.messages:
        parts.append(f"## {_author_name(each)}")
        if each.thinking:
            parts.append(f"<details><summary>Thought</summary>\n\n{each.thinking.strip()}\n\n</details>")
        if each.attachments:
            parts.append(_list_attachments(each))
        parts.append(each.text.strip())
        if each.footer:
            parts.append(f"*{each.footer}*")
    return "\n\n".join(filter(None, parts)) + "\n"


def as_text(conversation: Conversation) -> str:
    """Return the open branch as plain text, without reasoning."""
    parts = [conversation.title, _describe_origin(conversation)]
    if conversation.system:
        parts.append(f"System prompt:\n{conversation.system}")
    for each in conversation.messages:
        footer = f"\n[{each.footer}]" if each.footer else ""
        attached = f"[{_list_attachments(each)}]\n" if each.attachments else ""
        parts.append(f"{_author_name(each)}:\n{attached}{each.text.strip()}{footer}")
    return "\n\n".join(filter(None, parts)) + "\n"


def as_json(conversation: Conversation) -> str:
    """Return the open branch as JSON, with figures and settings; times are Unix times in seconds."""
    return json.dumps(as_json_object(conversation), ensure_ascii=False, indent=1) + "\n"


def as_json_object(conversation: Conversation) -> dict[str, object]:
    """Return the open branch as a JSON object. `versions` of a message is their number, not their IDs."""
    data = asdict(conversation)
    for each in data["messages"]:
        each["versions"] = len(each["versions"])
        del each["attachments"]
    for each, chat_message in zip(data["messages"], conversation.messages, strict=True):
        if chat_message.attachments:
            each["attachments"] = [describe_attachment(attachment) for attachment in chat_message.attachments]
    return {"made_by": _MADE_BY, **data}


FormatWriter = Callable[[Conversation], str]
FORMATS: Mapping[str, FormatWriter] = {"md": as_markdown, "json": as_json, "txt": as_text}
"""The writers by file extension."""


def find_writer(file: PurePath) -> FormatWriter:
    """Return the writer for a file's extension. Raises BadOption for an unknown one."""
    extension = file.suffix.lower().removeprefix(".")
    extension = {"markdown": "md", "text": "txt"}.get(extension, extension)
    if extension not in FORMATS:
        raise BadOption(
            message("The format of {name} is not clear from its name.", name=file.name),
            message("End its name in .md, .json or .txt."),
        )
    return FORMATS[extension]


def make_file_name(conversation: Conversation, extension: str) -> str:
    """Return a file name made from the title, with only characters that every file system allows."""
    letters = "".join(letter if letter.isalnum() else "-" for letter in conversation.title.lower())
    words = "-".join(filter(None, letters.split("-")))[:50].strip("-")
    return f"{words or 'conversation'}.{extension}"


def _describe_origin(conversation: Conversation) -> str:
    began = datetime.fromtimestamp(conversation.created_s).astimezone()
    return " · ".join(filter(None, (conversation.model, f"{began:%Y-%m-%d %H:%M %z}")))


def _list_attachments(chat_message: ChatMessage) -> str:
    return f"With {', '.join(each.name for each in chat_message.attachments)}"


def _author_name(chat_message: ChatMessage) -> str:
    return "You" if chat_message.role is Role.USER else "Reply"
