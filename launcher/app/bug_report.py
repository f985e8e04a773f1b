"""Bug report: versions, the diagnosis and the log, without secrets."""

import asyncio
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress

from launcher.app.versions import read_versions, versions_text
from launcher.base.errors import LauncherError
from launcher.base.messages import message
from launcher.base.redact import redact_text
from launcher.base.text import make_visible
from launcher.engine.diagnosis.explain import diagnose_log
from launcher.engine.server import registry
from launcher.engine.server.endpoint import saved_endpoints
from launcher.engine.server.started import load_last_start
from launcher.fetch.hub import hub_token

REPORT_LINES = 400
_LONGEST = 2_000
_FENCE = "```"


async def bug_report(lines: Sequence[str], *, exit_code: int | None = None, most: int = REPORT_LINES) -> str:
    """Return a report in Markdown with the last `most` lines of a log. The diagnosis reads all lines.

    Versions and the diagnosis come first. Keys of our servers, the hub's token, anything that resembles a key, the
    user's name and addresses of other computers are removed: see `redact_text`. Users should still read it before they
    send it, because prompts that the engine has logged remain.
    """
    versions = versions_text(await read_versions())
    return await asyncio.to_thread(_report, versions, list(lines), exit_code, most)


def _report(versions: str, lines: list[str], exit_code: int | None, most: int) -> str:
    diagnosis = diagnose_log("\n".join(lines), exit_code=exit_code)
    what = (
        [diagnosis.title, diagnosis.cause, f"`{diagnosis.line}`" if diagnosis.line else ""]
        if diagnosis
        else [message("No known cause.")]
    )
    last = lines[max(0, len(lines) - most) :]
    left_out = len(lines) - len(last)
    head = [f"... {left_out:,} lines before these are left out ..."] if left_out else []
    log = [make_visible(line[:_LONGEST]).replace(_FENCE, "'''") for line in last]
    parts = [
        "### Versions",
        _fenced(versions.splitlines()),
        "### Diagnosis",
        "\n\n".join(filter(None, what)),
        f"### Log, last {len(last):,} lines",
        _fenced([*head, *log]),
    ]
    return redact_text("\n\n".join(parts), secrets_here()) + "\n"


def _fenced(lines: Iterable[str]) -> str:
    return "\n".join((f"{_FENCE}text", *lines, _FENCE))


def secrets_here() -> set[str]:
    """Return the secrets of this user that the program knows: keys of servers, tokens, and environment variables."""
    secrets = {endpoint.api_key for endpoint in saved_endpoints()}
    secrets |= {entry.api_key for entry in registry.list_running() if entry.api_key}
    with suppress(LauncherError):
        secrets.add(hub_token() or "")
    last = load_last_start()
    extra = last.start.options.extra if last and last.start else ()
    for before, word in zip(("", *extra), extra, strict=False):
        if before in ("--api-key", "--hf-token", "-hft"):
            secrets |= set(word.split(","))
    secrets |= {value for name, value in os.environ.items() if name.upper().endswith(("_TOKEN", "_KEY", "_SECRET"))}
    return secrets - {""}
