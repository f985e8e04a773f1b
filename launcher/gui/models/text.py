"""Text for models, files and downloads."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from PySide6.QtCore import QDate, QDateTime, QLocale, Qt

from launcher.gui.duration import format_duration
from launcher.gui.labels import UNKNOWN
from launcher.gui.translation import find_locale, join_sentences, render, tr

if TYPE_CHECKING:
    from launcher.base.progress import Progress
    from launcher.fetch.jobs import Job
    from launcher.models.leftovers import Leftover
    from launcher.models.library import LocalModel

_FLAGS = re.compile(r"\s*[(\uff08]--[^()\uff08\uff09]*[)\uff09]")
_UNITS = (("GB", 2, 10**9), ("MB", 1, 10**6), ("kB", 0, 10**3))


def format_size(n_bytes: int | None) -> str:
    """Return bytes in a decimal unit (kB, MB, GB), as download sites do."""
    if n_bytes is None:
        return UNKNOWN
    for unit, digits, factor in _UNITS:
        if n_bytes >= factor:
            return f"{n_bytes / factor:,.{digits}f} {unit}"
    return tr("{count} bytes", count=n_bytes)


def format_date(time_s: float | None) -> str:
    """Return a time as text: the time of day if it is today, else the date. `time_s` is since the epoch."""
    if time_s is None:
        return UNKNOWN
    moment = QDateTime.fromSecsSinceEpoch(int(time_s))
    if moment.date() == QDateTime.currentDateTime().date():
        return find_locale().toString(moment.time(), QLocale.FormatType.ShortFormat)
    return find_locale().toString(moment.date(), QLocale.FormatType.ShortFormat)


def format_day(date: str) -> str:
    """Return a date of YYYY-MM-DD or YYYY-MM as text."""
    day = QDate.fromString(f"{date}-01"[:10], Qt.DateFormat.ISODate)
    if len(date) < len("YYYY-MM-DD"):
        return find_locale().toString(day, "MMM yyyy")
    return find_locale().toString(day, QLocale.FormatType.ShortFormat)


def quant_text(local: LocalModel) -> str:
    """Return the quantisation, or the file's role beside a model."""
    return render(local.kind.label) if local.kind is not None else local.record.quant or UNKNOWN


def head_state(local: LocalModel) -> tuple[str, str, str]:
    """Return whether the model has an MTP head, as (text, glyph, colour role)."""
    if local.record.kind != "model":
        return "", "", "secondary"
    return {
        "present": (tr("yes"), "tick", "good"),
        "none": (tr("no"), "minus", "secondary"),
        "promised": (tr("lost"), "cross", "bad"),  # the header lists a head, but the file lacks its tensors
        None: (UNKNOWN, "", "secondary"),
    }[local.record.head]


def file_state(local: LocalModel) -> tuple[str, str, str]:
    """Return the verification state, as (text, glyph, colour role)."""
    if local.record.problem and local.state.value in ("unverified", "good"):
        # `head` is None if the header could not be read.
        return tr("unreadable") if local.record.head is None else tr("not as published"), "cross", "bad"
    return {
        "good": (tr("verified"), "tick", "good"),
        "damaged": (tr("damaged"), "cross", "bad"),
        "incomplete": (tr("incomplete"), "cross", "bad"),
        "touched": (tr("changed since"), "triangle", "attention"),
        "unverified": (tr("not verified"), "ring", "secondary"),
        "missing": (tr("missing"), "cross", "bad"),
    }[local.state.value]


def place_text(local: LocalModel) -> str:
    """Return the place of a file, as text: a folder, or the other program that it belongs to."""
    if local.place.value == "store" and local.store is not None:
        return local.store.title
    # If we downloaded a file that is elsewhere, the models folder was another one then.
    return {
        "ours": tr("our folder"),
        "cache": tr("Hugging Face cache"),
        "elsewhere": tr("added folder") if local.record.received_s is None else tr("other folder"),
    }[local.place.value]


def leftover_text(leftover: Leftover) -> str:
    """Return the state of an unfinished or damaged download, as text."""
    if leftover.kind.value == "bad":
        return render(leftover.reason or "") or tr("The file is damaged or was changed.")
    if leftover.done_bytes is None:
        return tr("Unfinished; downloaded size unknown.")
    if leftover.whole_bytes is None:
        return tr("Unfinished: {done} downloaded.", done=format_size(leftover.done_bytes))
    return tr(
        "Unfinished: {done} of {whole} downloaded.",
        done=format_size(leftover.done_bytes),
        whole=format_size(leftover.whole_bytes),
    )


def job_percent(job: Job, progress: Progress | None) -> float | None:
    """Return how much of a download has arrived, in per cent; None if that is unknown."""
    done = progress.done_bytes if progress is not None else job.done_bytes
    size = (progress.bytes if progress is not None else None) or job.bytes
    return 100 * (done or 0) / size if size else None


def job_text(job: Job, progress: Progress | None) -> str:
    """Return a download's progress, as text."""
    if job.is_changing:
        return tr("pausing") if job.requested.value == "pause" else tr("cancelling")
    state = job.state.value
    if state == "running":
        if progress is None:
            return tr("starting")
        parts = [_progress_text(progress.done_bytes, progress.bytes)]
        if progress.bytes_per_second:
            parts.append(f"{format_size(round(progress.bytes_per_second))}/s")
        if progress.seconds_left is not None:
            parts.append(tr("{time} left", time=format_duration(progress.seconds_left)))
        if progress.note:
            parts.append(render(progress.note))
        return " · ".join(parts)
    if job.failure is not None:
        retry = ""
        if job.retry_at_s is not None:
            retry = tr("Retry in {time}.", time=format_duration(job.retry_at_s - time.time()))
        return join_sentences(render(job.failure.title), retry or render(job.failure.hint))
    state_names = {"waiting": tr("waiting"), "paused": tr("paused"), "done": tr("done"), "cancelled": tr("cancelled")}
    parts = [state_names.get(state, state)]
    if state in ("waiting", "paused", "cancelled") and job.done_bytes:
        parts.append(tr("{done} are kept", done=_progress_text(job.done_bytes, job.bytes)))
    elif job.bytes:
        parts.append(format_size(job.bytes))
    return " · ".join(parts)


def _progress_text(done: int, total: int | None) -> str:
    return tr("{done} of {whole}", done=format_size(done), whole=format_size(total)) if total else format_size(done)


def without_flags(text: str) -> str:
    """Return a reason of a plan without the flags of the command line that it names in brackets."""
    return _FLAGS.sub("", text)
