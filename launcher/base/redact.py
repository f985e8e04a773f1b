"""Redaction of keys, tokens, passwords and personal data from text."""

import getpass
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

HIDDEN = "[removed]"
_LEAST = 6
"""Minimum length of a known secret: a shorter one would match ordinary words."""
_SHAPES = re.compile(
    r"\b(?:sk-(?:proj-|ant-)?|hf_|gh[pousr]_|github_pat_|glpat-|xox[abp]-|AKIA)[\w-]{8,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"  # a JSON Web Token (RFC 7519)
)
_BEARER = re.compile(r"(\b(?:bearer|basic)[ :=]+)[\w.~+/=-]{6,}", re.IGNORECASE)
_ASSIGNED = re.compile(
    r"(--api-key|--hf-token|-hft|\b[\w-]*(?:api[_-]?key|token|secret|passwo?r?d|signature|authorization)"
    r"|\bX-Amz-(?:Credential|Signature))"
    r"(\"?\s*(?:[=:]\s*|\s)\"?'?)(?!(?:bearer|basic)\b)([\w.~+/%-]*[\w~+/%-])",
    re.IGNORECASE,
)
_OF_TEXT = re.compile(r"[=:\"']|--|-hft", re.IGNORECASE)
_USER = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s/@\"']+@", re.IGNORECASE)
_QUERY = re.compile(r"(\bhttps?://[^\s?#\"']+\?)[^\s\"']+", re.IGNORECASE)
_ADDRESS = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\d)")
_MAIL = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b")


def redact_text(text: str, secrets: Iterable[str] = (), *, home: Path | None = None, user: str | None = None) -> str:
    """Return `text` without keys and tokens, known by their format or by the name they are assigned to, and without
    `secrets`.

    Also hidden: passwords and queries in URLs, e-mail addresses, IP addresses of other computers, and the user's name
    and home folder (`user` and `home`; None: those of the current user). Model names and all other words stay.
    """
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        if len(secret) >= _LEAST:
            text = text.replace(secret, HIDDEN)
    text = _SHAPES.sub(HIDDEN, text)
    text = _BEARER.sub(rf"\1{HIDDEN}", text)
    text = _ASSIGNED.sub(_hide_value, text)
    text = _USER.sub(rf"\1{HIDDEN}@", text)
    text = _QUERY.sub(rf"\1{HIDDEN}", text)
    text = _MAIL.sub(HIDDEN, text)
    text = _ADDRESS.sub(_hide_address, text)
    return _without_user(text, home, user)


def _hide_value(found: "re.Match[str]") -> str:
    """Hide an assigned value. A word that merely follows "token" in a sentence is not one."""
    name, between, value = found.groups()
    option = name.startswith("-")
    if not option and not _OF_TEXT.search(between):
        return found[0]
    if not option and ((value.isdecimal() and len(value) < _LEAST * 2) or len(value) < _LEAST):
        return found[0]  # "n_token: 42", "token = 5": counts
    return f"{name}{between}{HIDDEN}"


def _hide_address(found: "re.Match[str]") -> str:
    parts = [int(part) for part in found[0].split(".")]
    ours = max(parts) > 255 or parts[0] in (0, 127) or parts == [255, 255, 255, 255]
    return found[0] if ours else "[address]"


def _without_user(text: str, home: Path | None, user: str | None) -> str:
    folder = str(home) if home is not None else _home()
    for written in (folder, folder.replace("\\", "\\\\"), folder.replace("\\", "/")):
        if len(written) > len("/x"):
            text = re.sub(rf"{re.escape(written)}(?![\w-])", "~", text)
    name = user if user is not None else _user()
    if len(name) >= 3 and name not in ("root", "user", "admin"):
        text = re.sub(rf"(?<=[/\\]){re.escape(name)}(?=[/\\])", "[user]", text)
    return text


def _home() -> str:
    with suppress(RuntimeError):
        return str(Path.home())
    return ""


def _user() -> str:
    with suppress(OSError, KeyError):
        return getpass.getuser()
    return ""
