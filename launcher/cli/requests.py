"""`mtp-launcher requests`: list the requests that clients sent, and follow them."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from launcher.app.serving.running_servers import read_requests
from launcher.base.text import one_line
from launcher.cli.layout import UNKNOWN, format_count, format_table, wrap_text
from launcher.cli.output import Result, print_result

_HEADER = ("TIME", "WHO", "MODEL", "PROMPT (REUSED)", "FIRST TOKEN", "T/S", "DRAFTS", "END")
_FOLLOWED_WIDTHS = (19, 30, 20, 17, 11, 7, 6, 8)
"""Widths of the columns with --follow, where the rows to come are not known."""
_RIGHT = {3, 4, 5, 6}
_MAX_NAME = 40


async def run(options: argparse.Namespace) -> Result | int:
    """List the requests; with --follow each on a line of its own, until the server ends."""
    found = read_requests(options.url, count=options.count, follow=options.follow)
    if not options.follow:
        records = [record async for record in found]
        table = format_table([_HEADER, *map(_format_record, records)], right=_RIGHT, indent="")
        lines = [*table, *format_failures(records), *_format_notices(records)] if records else ["No requests yet."]
        return Result({"requests": [*map(_add_diagnosis, records)]}, lines)
    header = _format_followed(_HEADER)
    async for record in found:
        lines = [*header, *_format_followed(_format_record(record)), *format_failures([record])]
        lines += _format_notices([record])
        print_result(Result(_add_diagnosis(record), lines), as_json=options.json)
        header = []
    return 0


def format_failures(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield lines for the failures among the records: the message, and if it names a known cause, what to do."""
    if not any(record.get("message") or record.get("status") for record in records):
        return
    from launcher.app.serving.failed_requests import group_failures

    for group in group_failures(records):
        text = group.message or "no message"
        status = "" if group.status is None else f" ({group.status})"
        yield wrap_text(text, f"{group.count} failed{status}: ")
        if group.diagnosis is not None:
            yield wrap_text(f"{group.diagnosis.title} {group.diagnosis.hint}", "  ")


def _format_notices(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what replies lack, each sentence with the number of replies."""
    notices = Counter(record["notice"] for record in records if record.get("notice"))
    yield from (wrap_text(text, f"{count} complete: ") for text, count in notices.items())


def _add_diagnosis(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a record with the cause of its failure, None if there is none that is known."""
    if not record.get("message"):
        return {**record, "diagnosis": None}
    from launcher.app.serving.failed_requests import diagnose_record

    found = diagnose_record(record)
    cause = None if found is None else {"code": found.code, "title": found.title, "hint": found.hint}
    return {**record, "diagnosis": cause}


def _format_followed(cells: Sequence[str]) -> list[str]:
    padded = [
        cell.rjust(width) if column in _RIGHT else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(cells, _FOLLOWED_WIDTHS, strict=True))
    ]
    return list(format_table([padded], indent=""))


def _format_record(record: Mapping[str, Any]) -> Sequence[str]:
    """Return the cells of a request's row."""
    who, drafted, accepted = record["who"], record["draft_n"], record["draft_n_accepted"]
    agent = (who["user_agent"] or "").partition(" (")[0]
    prompt, reused = record["prompt_tokens"], record["reused_tokens"]
    first_s, speed, handovers = record["first_token_s"], record["tokens_per_second"], record["handovers"]
    end = record["end"] or record["state"]
    if record.get("status") is not None:
        end += f" {record['status']}"
    if handovers:
        end += f", {handovers} {'handover' if handovers == 1 else 'handovers'}"
    if record.get("restored_tokens"):
        end += f", from disk in {max(record['restored_s'], 0.1):.1f} s instead of {record['spared_s']:.0f} s"
    return (
        datetime.fromisoformat(record["started"]).strftime("%Y-%m-%d %H:%M:%S"),
        one_line(", ".join(filter(None, (who["key"], agent))) or UNKNOWN, _MAX_NAME),
        one_line(record["model"] or UNKNOWN, _MAX_NAME),
        format_count(prompt) + (f" ({reused:,})" if reused else ""),
        UNKNOWN if first_s is None else f"{first_s:.2f} s",
        UNKNOWN if speed is None else f"{speed:.1f}",
        f"{accepted / drafted:.0%}" if drafted else UNKNOWN,
        end,
    )
