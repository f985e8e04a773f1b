"""One word as each of the other languages writes it, so that it is read back as it was."""

import re
from collections.abc import Iterable, Sequence
from subprocess import list2cmdline

_PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
_POWERSHELL_QUOTES = re.compile("['\u2018\u2019\u201a\u201b]")
"""PowerShell takes typographic quotes for single quotes (about_Quoting_Rules)."""
_MACRO_BEGIN = "${"


def bash(word: str) -> str:
    """Return a word for bash. Control characters are written by their codes, so that the line stays one line."""
    if _PLAIN.fullmatch(word):
        return word
    if word.isprintable():
        return "'" + word.replace("'", "'\\''") + "'"
    return "$'" + "".join(map(_ansi_c, word)) + "'"


def _ansi_c(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode())  # by bytes: \u would follow the locale


def bash_line(words: Iterable[str]) -> str:
    """Return a command line for bash."""
    return " ".join(map(bash, words))


def powershell(word: str) -> str:
    """Return a word for PowerShell, as a literal string."""
    return "'" + _POWERSHELL_QUOTES.sub(lambda found: found[0] * 2, word) + "'"


def powershell_line(words: Sequence[str]) -> str:
    """Return a command line for PowerShell, from version 5.1 on.

    Up to 7.2 it passes on quotes inside an argument, empty arguments and backslashes at the end wrongly; the whole line
    is then handed over as one string, which Windows programs split by the rules of the C runtime.
    """
    if any('"' in word or not word or word.endswith("\\") for word in words):
        program, arguments = powershell(words[0]), powershell(list2cmdline(words[1:]))
        return f"Start-Process -NoNewWindow -Wait -FilePath {program} -ArgumentList {arguments}"
    plain = (word if re.fullmatch(r"--?[a-z][a-z0-9-]*|\d+", word) else powershell(word) for word in words[1:])
    return " ".join((f"& {powershell(words[0])}", *plain))


def yaml(text: str) -> str:
    """Return a text as a double-quoted YAML scalar, whose escapes reach every character (YAML 1.2, 5.7)."""
    return '"' + "".join(map(_yaml, text)) + '"'


def _yaml(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def compose(text: str) -> str:
    """Return a text as a YAML scalar of a compose file, where a dollar sign would begin a variable."""
    return yaml(text.replace("$", "$$"))


def systemd(word: str, *, program: bool = False) -> str:
    """Return a word of ExecStart= (systemd.service(5), "Command lines"; systemd.unit(5), "Specifiers").

    Of the `program` itself no variables are replaced.
    """
    escaped = word.replace("%", "%%") if program else word.replace("%", "%%").replace("$", "$$")
    return '"' + "".join(map(_systemd, escaped)) + '"' if not _PLAIN.fullmatch(escaped) else escaped


def _systemd(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode())


def swap_line(words: Sequence[str], *, windows: bool) -> str:
    """Return a command line for llama-swap, whose macros begin with a dollar sign and a brace."""
    if windows:
        return list2cmdline(words)
    return " ".join(_swap(word) for word in words)


def _swap(word: str) -> str:
    if _PLAIN.fullmatch(word):
        return word
    quoted = "'" + word.replace("'", "'\\''") + "'"
    return quoted.replace(_MACRO_BEGIN, "$''{")


def double_quoted(text: str) -> str:
    """Return a text as a string of Python and TypeScript alike."""
    return '"' + "".join(map(_source, text)) + '"'


def _source(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    units = character.encode("utf-16-be")
    if len(units) == 2:
        return f"\\u{units.hex()}"
    return character  # beyond U+FFFF both languages take it as it is


def comment(text: str) -> str:
    """Return a text for a comment, which a line break in it would end."""
    return "".join(character if character.isprintable() else "?" for character in text)
