"""Text from elsewhere (a model's reply or metadata, a file's name, a server's answer) that does nothing when shown.

Terminals obey control characters: they may set the clipboard, the title, hidden links, or write over what stands there
(ECMA-48, and the OSC sequences of xterm). Bidirectional controls let a name read otherwise than it is (Unicode UAX 9,
CVE-2021-42574), and invisible characters hide text from who reads it, but not from who pastes it.
"""

import json
import re

_ACTING = re.compile(
    r"\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # C0, DEL and C1, but for tabs and ends of lines
    r"\u202a-\u202e\u2066-\u2069"  # bidirectional embeddings, overrides and isolates
    r"\u180e\u200b\u2060-\u2064\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff"  # invisible; tags
    r"\ud800-\udfff\ufffe\uffff]"  # halves of characters, and no characters
)
_BREAKS = re.compile(r"\r\n|[\n\r\t\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_UNKNOWN = "\N{REPLACEMENT CHARACTER}"


def visible(text: str) -> str:
    """Return `text` with each character that acts or hides replaced by one that is seen; lines stay lines.

    Joiners and direction marks, which scripts and emoji need, stay, and so do tabs and ends of lines.
    """
    return _ACTING.sub(_picture, text) if _ACTING.search(text) else text


def prose(text: str) -> str:
    """Return a reply, or a part of one, as `visible` does, without carriage returns, which would write over a line."""
    return visible(text.replace("\r", "").replace("\u2028", "\n").replace("\u2029", "\n"))


def one_line(text: str, most: int = 400) -> str:
    """Return `text` as `visible` does, in one line of at most `most` characters."""
    line = visible(_BREAKS.sub(" ", text[: 2 * most]))
    return line if len(text) <= most else f"{line[: most - 1]}…"


def escaped_json(text: str) -> str:
    r"""Return a JSON document that means the same, with what acts or hides written as \uXXXX."""
    return _ACTING.sub(lambda found: json.dumps(found[0])[1:-1], text)


def _picture(found: "re.Match[str]") -> str:
    code = ord(found[0])
    if code == 0x7F:
        return "\N{SYMBOL FOR DELETE}"
    return chr(0x2400 + code) if code < 0x20 else _UNKNOWN
