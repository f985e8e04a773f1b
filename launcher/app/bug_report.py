"""Writes a bug report: versions, the diagnosis and the log, without secrets."""

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
from launcher.engine.server.last_start import load_last_start
from launcher.fetch.hub import hub_token

REPORT_LINES = 400
_MAX_LINE_CHARACTERS = 2_000
_FENCE = "```"


async def write_bug_report(lines: Sequence[str], *, exit_code: int | None = None, max_lines: int = REPORT_LINES) -> str:
    """Return a report in Markdown with the last `max_lines` lines of a log. The diagnosis reads all lines.

    Versions and the diagnosis come first. Keys of our servers, the hub's token, anything that resembles a key, the
    user's name and addresses of other computers are removed: see `redact_text`. Users should still read it before they
    send it, because prompts that the engine has logged remain.
    """
    versions = versions_text(await read_versions())
    return await asyncio.to_thread(_write_report, versions, list(lines), exit_code, max_lines)


def _write_report(versions: str, lines: list[str], exit_code: int | None, max_lines: int) -> str:
    diagnosis = diagnose_log("\n".join(lines), exit_code=exit_code)
    description: list[str] = [message("No known cause.")]
    if diagnosis is not None:
        description = [diagnosis.title, diagnosis.cause, f"`{diagnosis.line}`" if diagnosis.line else ""]
    last = lines[max(0, len(lines) - max_lines) :]
    left_out = len(lines) - len(last)
    head = [f"... {left_out:,} lines before these are left out ..."] if left_out else []
    log = [make_visible(line[:_MAX_LINE_CHARACTERS]).replace(_FENCE, "'''") for line in last]
    parts = [
        "### Versions",
        _fence_lines(versions.splitlines()),
        "### Diagnosis",
        "\n\n".join(filter(None, description)),
        f"### Log, last {len(last):,} lines",
        _fence_lines([*head, *log]),
    ]
    return redact_text("\n\n".join(parts), find_secrets()) + "\n"


def _fence_lines(lines: Iterable[str]) -> str:
    return "\n".join((f"{_FENCE}text", *lines, _FENCE))


def find_secrets() -> set[str]:
    """Return the secrets of this user that the program knows: keys of servers, tokens, and environment variables."""
    secrets = {key for endpoint in saved_endpoints() for key in endpoint.keys.values()}
    secrets |= {entry.api_key for entry in registry.list_entries() if entry.api_key}
    with suppress(LauncherError):
        secrets.add(hub_token() or "")
    last = load_last_start()
    extra = last.start.options.extra if last and last.start else ()
    for before, word in zip(("", *extra), extra, strict=False):
        if before in ("--api-key", "--hf-token", "-hft"):
            secrets |= set(word.split(","))
    secrets |= {value for name, value in os.environ.items() if name.upper().endswith(("_TOKEN", "_KEY", "_SECRET"))}
    return secrets - {""}
