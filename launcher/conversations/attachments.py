"""Files that go with a question: pictures, and the texts of files."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from launcher.base.errors import BadOption
from launcher.base.messages import message
from launcher.base.text import one_line

_MOST_TEXT_BYTES = 8 << 20
_SHOWN_NAME = 80


class AttachmentKind(StrEnum):
    """Form in which a file is sent to the model."""

    PICTURE = "picture"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that goes with a question.

    `data` is a picture as PNG or JPEG, `text` the text of a file; the other one is empty. `width` and `height` are
    those of a picture in pixels, `pages` the number of a PDF's pages, `tokens` that of a text's tokens; 0 if unknown.
    """

    kind: AttachmentKind
    name: str
    data: bytes = b""
    media_type: str = ""
    text: str = ""
    width: int = 0
    height: int = 0
    pages: int = 0
    tokens: int = 0


def build_content(text: str, attachments: Sequence[Attachment]) -> str | list[dict[str, Any]]:
    """Return the content of a message in OpenAI's format: the text alone, or parts if there are pictures."""
    files = [f"File {each.name}:\n\n{each.text.strip()}" for each in attachments if each.kind is AttachmentKind.TEXT]
    whole = "\n\n".join([*files, text])
    pictures: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": _make_data_url(each)}}
        for each in attachments
        if each.kind is AttachmentKind.PICTURE
    ]
    return [*pictures, {"type": "text", "text": whole}] if pictures else whole


def _make_data_url(picture: Attachment) -> str:
    return f"data:{picture.media_type};base64,{base64.b64encode(picture.data).decode()}"


def describe_attachment(attachment: Attachment) -> Mapping[str, object]:
    """Return an attachment as it is exported: without the picture's data."""
    sizes = {name: value for name in ("width", "height", "pages", "tokens") if (value := getattr(attachment, name))}
    text = {"text": attachment.text} if attachment.kind is AttachmentKind.TEXT else {}
    return {"kind": attachment.kind.value, "name": attachment.name, **sizes, **text}


def read_text_file(path: Path) -> Attachment:
    """Read a text file. Raises BadOption if it is not text, is too large, or cannot be read."""
    name = one_line(path.name, _SHOWN_NAME)
    try:
        if path.stat().st_size > _MOST_TEXT_BYTES:
            raise BadOption(
                message("{name} is too large for a chat.", name=name),
                message("Add a text of at most {megabytes} MB.", megabytes=_MOST_TEXT_BYTES >> 20),
            )
        data = path.read_bytes()
    except OSError as error:
        raise unreadable_file(name, error) from error
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise BadOption(
            message("{name} is not a text file that can be read here.", name=name),
            message("Add pictures, PDFs, or texts in UTF-8."),
        )
    return Attachment(AttachmentKind.TEXT, name, text=text.replace("\r\n", "\n"))


def unreadable_file(name: str, error: OSError) -> BadOption:
    """Return the error for a file that cannot be read."""
    return BadOption(
        message("{name} cannot be read: {why}.", name=name, why=error.strerror or str(error)),
        message("Check its permissions."),
    )
