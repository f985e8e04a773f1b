"""Reads the text of a PDF for a chat."""

import json
import os
from pathlib import Path

from launcher.app.module_process import ModuleFailed, run_module
from launcher.base.errors import BadOption
from launcher.base.messages import message
from launcher.base.text import one_line
from launcher.conversations.attachments import Attachment, AttachmentKind

_READ_LIMIT_S = 120.0
_SHOWN_NAME = 80


async def read_pdf(path: Path) -> Attachment:
    """Return the text of a PDF. Raises BadOption if it cannot be read or has no text."""
    name = one_line(path.name, _SHOWN_NAME)
    try:
        answer = await run_module("launcher.conversations.pdf_text", os.fsencode(path), limit_s=_READ_LIMIT_S)
    except (ModuleFailed, OSError) as error:
        raise BadOption(
            message("{name} cannot be read: {why}.", name=name, why=one_line(str(error), 200)),
            message("Open it in another program, and copy its text."),
        ) from error
    except TimeoutError as error:
        raise BadOption(
            message("{name} takes too long to read.", name=name),
            message("Open it in another program, and copy its text."),
        ) from error
    data = json.loads(answer)
    if not data["text"].strip():
        raise BadOption(
            message("{name} has no text: its pages are pictures.", name=name),
            message("Add pictures of the pages to a model that can see."),
        )
    return Attachment(AttachmentKind.TEXT, name, text=data["text"], pages=int(data["pages"]))
