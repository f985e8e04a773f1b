"""What a report about a failure should hold: versions, the diagnosis, the log; without anybody's secrets."""

import asyncio
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress

from launcher.base.errors import LauncherError
from launcher.base.redact import redacted
from launcher.base.text import visible
from launcher.engine import registry
from launcher.engine.diagnosis import diagnose
from launcher.engine.endpoint import all_kept
from launcher.engine.started import last_start
from launcher.fetch.hub import token
from launcher.versions import as_text, versions

REPORT_LINES = 400
_LONGEST = 2_000
_FENCE = "```"


async def bug_report(lines: Sequence[str], *, exit_code: int | None = None, most: int = REPORT_LINES) -> str:
    """Return a report in Markdown of a log's last lines, `most` of them; the diagnosis reads all.

    Versions and what the diagnosis makes of the log come first. Keys of our servers, the hub's token, what looks like a
    key, the user's name and the addresses of other computers are not in it: see `redacted`. It is to be read all the
    same before it is sent: a prompt that the engine has logged stays.
    """
    told = as_text(await versions())
    return await asyncio.to_thread(_report, told, list(lines), exit_code, most)


def _report(told: str, lines: list[str], exit_code: int | None, most: int) -> str:
    found = diagnose("\n".join(lines), exit_code=exit_code)
    what = [found.title, found.cause, f"`{found.line}`" if found.line else ""] if found else ["No known cause."]
    last = lines[max(0, len(lines) - most) :]
    left_out = len(lines) - len(last)
    head = [f"... {left_out:,} lines before these are left out ..."] if left_out else []
    log = [visible(line[:_LONGEST]).replace(_FENCE, "'''") for line in last]
    parts = [
        "### Versions",
        _fenced(told.splitlines()),
        "### Diagnosis",
        "\n\n".join(filter(None, what)),
        f"### Log, last {len(last):,} lines",
        _fenced([*head, *log]),
    ]
    return redacted("\n\n".join(parts), secrets_here()) + "\n"


def _fenced(lines: Iterable[str]) -> str:
    return "\n".join((f"{_FENCE}text", *lines, _FENCE))


def secrets_here() -> set[str]:
    """Return the secrets of this user that the program knows of: keys of servers, tokens, and such variables."""
    found = {endpoint.api_key for endpoint in all_kept()}
    found |= {entry.api_key for entry in registry.running() if entry.api_key}
    with suppress(LauncherError):
        found.add(token() or "")
    last = last_start()
    extra = last.start.options.extra if last and last.start else ()
    for before, word in zip(("", *extra), extra, strict=False):
        if before in ("--api-key", "--hf-token", "-hft"):
            found |= set(word.split(","))
    found |= {value for name, value in os.environ.items() if name.upper().endswith(("_TOKEN", "_KEY", "_SECRET"))}
    return found - {""}
