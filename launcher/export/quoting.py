"""Quotes words for shells, configuration files and source code, which read them back unchanged."""

import re
from collections.abc import Iterable, Sequence
from subprocess import list2cmdline

_PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
_POWERSHELL_QUOTES = re.compile("['\u2018\u2019\u201a\u201b]")
"""PowerShell treats typographic quotes as single quotes (about_Quoting_Rules)."""
_MACRO_BEGIN = "${"


def quote_bash(word: str) -> str:
    """Return a word for bash. Control characters become escape codes, so that the line stays one line."""
    if _PLAIN.fullmatch(word):
        return word
    if word.isprintable():
        return _quote_single(word)
    return "$'" + _escape_bytes(word, quote="'") + "'"


def _quote_single(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def _escape_bytes(word: str, *, quote: str) -> str:
    """Return `word` with backslashes before backslashes and quotes, and other special characters as \\xNN.

    Those are the bytes of UTF-8, because in bash \\u would depend on the locale.
    """
    escaped = ""
    for character in word:
        if character in ("\\", quote):
            escaped += f"\\{character}"
        elif character.isprintable():
            escaped += character
        else:
            escaped += "".join(f"\\x{byte:02x}" for byte in character.encode())
    return escaped


def quote_bash_line(words: Iterable[str]) -> str:
    """Return a command line for bash."""
    return " ".join(map(quote_bash, words))


def quote_powershell(word: str) -> str:
    """Return a word for PowerShell, as a literal string."""
    return "'" + _POWERSHELL_QUOTES.sub(lambda found: found[0] * 2, word) + "'"


def quote_powershell_line(words: Sequence[str]) -> str:
    """Return a command line for PowerShell 5.1 or newer.

    PowerShell up to 7.2 passes inner quotes, empty arguments and trailing backslashes wrongly. A line with any of them
    becomes one string, which Windows programs split by the rules of the C runtime.
    """
    if any('"' in word or not word or word.endswith("\\") for word in words):
        program, arguments = quote_powershell(words[0]), quote_powershell(list2cmdline(words[1:]))
        return f"Start-Process -NoNewWindow -Wait -FilePath {program} -ArgumentList {arguments}"
    plain = (word if re.fullmatch(r"--?[a-z][a-z0-9-]*|\d+", word) else quote_powershell(word) for word in words[1:])
    return " ".join((f"& {quote_powershell(words[0])}", *plain))


def quote_yaml(text: str) -> str:
    """Return a text as a double-quoted YAML scalar, whose escapes cover every character (YAML 1.2, 5.7)."""
    return '"' + "".join(map(_escape_yaml, text)) + '"'


def _escape_yaml(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def quote_compose(text: str) -> str:
    """Return a text as a YAML scalar for a compose file, where a dollar sign would start a variable."""
    return quote_yaml(text.replace("$", "$$"))


def quote_systemd(word: str, *, program: bool = False) -> str:
    """Return a word of ExecStart= (systemd.service(5), "Command lines"; systemd.unit(5), "Specifiers").

    In the `program` itself systemd replaces no variables.
    """
    escaped = word.replace("%", "%%")
    if not program:
        escaped = escaped.replace("$", "$$")
    return escaped if _PLAIN.fullmatch(escaped) else '"' + _escape_bytes(escaped, quote='"') + '"'


def quote_swap_line(words: Sequence[str], *, windows: bool) -> str:
    """Return a command line for llama-swap, whose macros start with a dollar sign and a brace."""
    if windows:
        return list2cmdline(words)
    return " ".join(_quote_swap(word) for word in words)


def _quote_swap(word: str) -> str:
    if _PLAIN.fullmatch(word):
        return word
    return _quote_single(word).replace(_MACRO_BEGIN, "$''{")


def quote_source(text: str) -> str:
    """Return a text as a string literal that is valid in Python and in TypeScript."""
    return '"' + "".join(map(_escape_source, text)) + '"'


def _escape_source(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    units = character.encode("utf-16-be")
    if len(units) == 2:
        return f"\\u{units.hex()}"
    return character  # both languages accept characters beyond U+FFFF unescaped


def clean_comment(text: str) -> str:
    """Return a text for a comment, without line breaks, which would end it."""
    return "".join(character if character.isprintable() else "?" for character in text)
