"""Reads the text of a PDF, in a process of its own: a broken or hostile file cannot block or crash the program.

The process gets the path as its standard input and prints JSON: the number of pages, and the text. See read_pdf in
launcher/app/pdf_reading.py.
"""

import json
import sys
from contextlib import suppress

from pypdf import PdfReader

if sys.platform != "win32":
    import resource

_MOST_CHARACTERS = 4_000_000
_MEMORY_BYTES = 2 << 30


def extract_text(path: str) -> dict[str, object]:
    """Return `pages`, the number of pages, and `text`, the text of all pages. Raises what pypdf raises."""
    reader = PdfReader(path)
    texts: list[str] = []
    characters = 0
    for page in reader.pages:
        texts.append(page.extract_text())
        characters += len(texts[-1])
        if characters > _MOST_CHARACTERS:
            break
    return {"pages": len(reader.pages), "text": "\n\n".join(filter(None, map(str.strip, texts)))[:_MOST_CHARACTERS]}


def _limit_memory() -> None:
    if sys.platform != "win32":
        with suppress(ValueError, OSError):  # a lower limit may be set already
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))


if __name__ == "__main__":
    _limit_memory()
    json.dump(extract_text(sys.stdin.buffer.read().decode("utf-8", "surrogateescape")), sys.stdout)
