"""Quoting of a word for other languages, so that it is read back unchanged."""

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
        return "'" + word.replace("'", "'\\''") + "'"
    return "$'" + "".join(map(_escape_ansi_c, word)) + "'"


def _escape_ansi_c(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode())  # as bytes: \u would depend on the locale


def quote_bash_line(words: Iterable[str]) -> str:
    """Return a command line for bash."""
    return " ".join(map(quote_bash, words))


def quote_powershell(word: str) -> str:
    """Return a word for PowerShell, as a literal string."""
    return "'" + _POWERSHELL_QUOTES.sub(lambda found: found[0] * 2, word) + "'"


def quote_powershell_line(words: Sequence[str]) -> str:
    """Return a command line for PowerShell 5.1 or newer.

    Up to 7.2 it passes inner quotes, empty arguments and trailing backslashes wrongly; such a line is passed as one
    string, which Windows programs split by the rules of the C runtime.
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
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def quote_compose(text: str) -> str:
    """Return a text as a YAML scalar for a compose file, where a dollar sign would start a variable."""
    return quote_yaml(text.replace("$", "$$"))


def quote_systemd(word: str, *, program: bool = False) -> str:
    """Return a word of ExecStart= (systemd.service(5), "Command lines"; systemd.unit(5), "Specifiers").

    In the `program` itself systemd replaces no variables.
    """
    escaped = word.replace("%", "%%") if program else word.replace("%", "%%").replace("$", "$$")
    return '"' + "".join(map(_escape_systemd, escaped)) + '"' if not _PLAIN.fullmatch(escaped) else escaped


def _escape_systemd(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode())


def quote_swap_line(words: Sequence[str], *, windows: bool) -> str:
    """Return a command line for llama-swap, whose macros start with a dollar sign and a brace."""
    if windows:
        return list2cmdline(words)
    return " ".join(_quote_swap(word) for word in words)


def _quote_swap(word: str) -> str:
    if _PLAIN.fullmatch(word):
        return word
    quoted = "'" + word.replace("'", "'\\''") + "'"
    return quoted.replace(_MACRO_BEGIN, "$''{")


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
