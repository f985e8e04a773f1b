"""Foreign text made safe to display: model replies and metadata, file names, server responses.

Terminals obey control characters: they can set the clipboard, the title or hidden links, or overwrite the screen
(ECMA-48, and the OSC sequences of xterm). Bidirectional controls make a name read differently from its characters
(Unicode UAX 9, CVE-2021-42574), and invisible characters hide text from readers but not from those who paste it.
"""

import json
import re

_CONTROL = re.compile(
    r"\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # C0, DEL and C1, except tabs and line ends
    r"\u202a-\u202e\u2066-\u2069"  # bidirectional embeddings, overrides and isolates
    r"\u180e\u200b\u2060-\u2064\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff"  # invisible; tags
    r"\ud800-\udfff\ufffe\uffff]"  # surrogates and noncharacters
)
_BREAKS = re.compile(r"\r\n|[\n\r\t\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_LOGIN = re.compile(r"(?<=://)[^\s/\"'`]*@")
_UNKNOWN = "\N{REPLACEMENT CHARACTER}"


def make_visible(text: str) -> str:
    """Return `text` with control and invisible characters replaced by visible ones; line breaks stay.

    Joiners and direction marks, which scripts and emoji need, stay, and so do tabs.
    """
    return _CONTROL.sub(_visible_form, text) if _CONTROL.search(text) else text


def visible_reply(text: str) -> str:
    """Return a reply, or a part of one, as `make_visible` does, but without carriage returns, which overwrite lines."""
    return make_visible(text.replace("\r", "").replace("\u2028", "\n").replace("\u2029", "\n"))


def one_line(text: str, max_characters: int = 400) -> str:
    """Return `text` as `make_visible` does, on one line of at most `max_characters`."""
    line = make_visible(_BREAKS.sub(" ", text[: 2 * max_characters]))
    return line if len(text) <= max_characters else f"{line[: max_characters - 1]}…"


def hide_logins(text: str) -> str:
    """Return `text` with names and passwords in web addresses replaced by ***; the same object if it has none."""
    return _LOGIN.sub("***@", text) if _LOGIN.search(text) else text


def shown_address(typed: str) -> str:
    """Return an address as a user typed it, for a message: on one line, without password, query and fragment.

    The text may not be an address at all; everything between // and the last @ counts as a password.
    """
    scheme, slashes, rest = typed.partition("://") if "://" in typed else ("", "", typed)
    _login, at, place = rest.rpartition("@")
    return one_line(re.split(r"[?#]", f"{scheme}{slashes}{'***' if at else ''}{at}{place}")[0])


def escape_json(text: str) -> str:
    r"""Return an equivalent JSON document with control and invisible characters written as \uXXXX."""
    return _CONTROL.sub(lambda found: json.dumps(found[0])[1:-1], text)


def storable_text(text: str) -> str:
    """Return `text` without lone surrogates, which file names and typed text may contain and UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()


def _visible_form(found: "re.Match[str]") -> str:
    code = ord(found[0])
    if code == 0x7F:
        return "\N{SYMBOL FOR DELETE}"
    return chr(0x2400 + code) if code < 0x20 else _UNKNOWN
