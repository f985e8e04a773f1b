"""Removes keys, tokens, passwords and personal data from text."""

import getpass
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

HIDDEN = "[removed]"
_MIN_SECRET_LENGTH = 6
"""Characters that a secret has at least; a shorter one would match ordinary words."""
_KNOWN_FORMATS = re.compile(
    r"\b(?:sk-(?:proj-|ant-)?|hf_|gh[pousr]_|github_pat_|glpat-|xox[abp]-|AKIA)[\w-]{8,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"  # a JSON Web Token (RFC 7519)
)
_BEARER = re.compile(r"(\b(?:bearer|basic)[ :=]+)[\w.~+/=-]{6,}", re.IGNORECASE)
_ASSIGNMENT = re.compile(
    r"(--api-key|--hf-token|-hft|\b[\w-]*(?:api[_-]?key|token|secret|passwo?r?d|signature|authorization)"
    r"|\bX-Amz-(?:Credential|Signature))"
    r"(\"?\s*(?:[=:]\s*|\s)\"?'?)(?!(?:bearer|basic)\b)([\w.~+/%-]*[\w~+/%-])",
    re.IGNORECASE,
)
_ASSIGNS = re.compile(r"[=:\"']|--|-hft", re.IGNORECASE)
"""Signs, between a name and a word, that the word is the name's value."""
_URL_LOGIN = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s/@\"']+@", re.IGNORECASE)
_URL_QUERY = re.compile(r"(\bhttps?://[^\s?#\"']+\?)[^\s\"']+", re.IGNORECASE)
_IP_ADDRESS = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\d)")
_EMAIL = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b")


def redact_text(text: str, secrets: Iterable[str] = (), *, home: Path | None = None, user: str | None = None) -> str:
    """Return `text` without `secrets`, and without anything that looks like a key or a token.

    Keys and tokens are recognised by their format, or by the name that they are assigned to. Also hidden are passwords
    and queries in URLs, e-mail addresses, IP addresses of other computers, and the user's name and home folder (`user`
    and `home`; None: those of the current user).
    """
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        if len(secret) >= _MIN_SECRET_LENGTH:
            text = text.replace(secret, HIDDEN)
    text = _KNOWN_FORMATS.sub(HIDDEN, text)
    text = _BEARER.sub(rf"\1{HIDDEN}", text)
    text = _ASSIGNMENT.sub(_hide_value, text)
    text = _URL_LOGIN.sub(rf"\1{HIDDEN}@", text)
    text = _URL_QUERY.sub(rf"\1{HIDDEN}", text)
    text = _EMAIL.sub(HIDDEN, text)
    text = _IP_ADDRESS.sub(_hide_address, text)
    return _hide_user(text, home, user)


def _hide_value(found: "re.Match[str]") -> str:
    """Hide the value in a match of _ASSIGNMENT. A word after "token" in a sentence stays, and so does a count."""
    name, between, value = found.groups()
    if not name.startswith("-"):  # the word after an option is always its value
        if not _ASSIGNS.search(between):
            return found[0]
        shortest = 2 * _MIN_SECRET_LENGTH if value.isdecimal() else _MIN_SECRET_LENGTH
        if len(value) < shortest:
            return found[0]  # a count, such as "n_token: 42"
    return f"{name}{between}{HIDDEN}"


def _hide_address(found: "re.Match[str]") -> str:
    parts = [int(part) for part in found[0].split(".")]
    # Version numbers, addresses of this computer, and broadcasts are harmless.
    harmless = max(parts) > 255 or parts[0] in (0, 127) or parts == [255, 255, 255, 255]
    return found[0] if harmless else "[address]"


def _hide_user(text: str, home: Path | None, user: str | None) -> str:
    folder = str(home) if home is not None else _find_home()
    # Logs have the home folder's path as it is, as JSON escapes it, and with slashes as some programs on Windows do.
    for written in (folder, folder.replace("\\", "\\\\"), folder.replace("\\", "/")):
        if len(written) > len("/x"):  # a folder of one letter or none is not personal
            text = re.sub(rf"{re.escape(written)}(?![\w-])", "~", text)
    name = user if user is not None else find_user()
    if len(name) >= 3 and name not in ("root", "user", "admin"):  # a short or usual name would match other words
        text = re.sub(rf"(?<=[/\\]){re.escape(name)}(?=[/\\])", "[user]", text)
    return text


def _find_home() -> str:
    with suppress(RuntimeError):
        return str(Path.home())
    return ""


def find_user() -> str:
    """Return the name of the current user, "" if it is unknown."""
    with suppress(OSError, KeyError):
        return getpass.getuser()
    return ""
