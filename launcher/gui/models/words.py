"""Models, files and downloads in the window's words."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from PySide6.QtCore import QDateTime, QLocale

from launcher.gui.sentences import say
from launcher.gui.widgets.number import UNKNOWN
from launcher.gui.words import ntr, tr

if TYPE_CHECKING:
    from launcher.fetch.jobs import Figures, Job
    from launcher.models.leftovers import Leftover
    from launcher.models.library import LocalModel

_UNITS = (("GB", 2, 10**9), ("MB", 1, 10**6), ("kB", 0, 10**3))


def size(n_bytes: int | None) -> str:
    """Return bytes in the decimal unit that suits them, as downloads are named."""
    if n_bytes is None:
        return UNKNOWN
    for unit, digits, factor in _UNITS:
        if n_bytes >= factor:
            return f"{n_bytes / factor:,.{digits}f} {unit}"
    return tr("{count} bytes", count=n_bytes)


def duration(seconds: float) -> str:
    """Return a time to come."""
    if seconds < 90:
        return tr("{count} s", count=f"{seconds:.0f}")
    minutes = round(seconds / 60)
    if minutes < 90:
        return tr("{count} min", count=minutes)
    return tr("{hours} h {minutes} min", hours=minutes // 60, minutes=minutes % 60)


def when(time_s: float | None) -> str:
    """Return a day, or the time of today."""
    if time_s is None:
        return UNKNOWN
    moment = QDateTime.fromSecsSinceEpoch(int(time_s))
    if moment.date() == QDateTime.currentDateTime().date():
        return QLocale().toString(moment.time(), QLocale.FormatType.ShortFormat)
    return QLocale().toString(moment.date(), QLocale.FormatType.ShortFormat)


def name_of(local: LocalModel) -> str:
    """Return what a file is called."""
    return local.record.model or local.path.stem


def quant_of(local: LocalModel) -> str:
    """Return how the weights are stored, or what the file is beside a model."""
    if local.record.kind == "model":
        return local.record.quant or UNKNOWN
    return tr("vision projector") if local.record.kind == "mmproj" else tr("draft")


def head_of(local: LocalModel) -> tuple[str, str, str]:
    """Return whether it has an MTP head: a word, a glyph and its role."""
    if local.record.kind != "model":
        return "", "", "secondary"
    return {
        "present": (tr("yes"), "tick", "good"),
        "none": (tr("no"), "minus", "secondary"),
        "promised": (tr("lost"), "cross", "bad"),
        None: (UNKNOWN, "", "secondary"),
    }[local.record.head]


def state_of(local: LocalModel) -> tuple[str, str, str]:
    """Return what is known of its bytes: a word, a glyph and its role."""
    if local.record.problem and local.state.value in ("unverified", "good"):
        return tr("unreadable") if local.record.head is None else tr("not as promised"), "cross", "bad"
    return {
        "good": (tr("verified"), "tick", "good"),
        "damaged": (tr("damaged"), "cross", "bad"),
        "touched": (tr("changed since"), "triangle", "attention"),
        "unverified": (tr("not verified"), "ring", "secondary"),
        "missing": (tr("missing"), "cross", "bad"),
    }[local.state.value]


def place_of(local: LocalModel) -> str:
    """Return where it lies."""
    return {
        "ours": tr("our folder"),
        "cache": tr("Hugging Face cache"),
        "elsewhere": tr("added folder") if local.record.received_s is None else tr("other folder"),
    }[local.place.value]


def leftover_words(left: Leftover) -> str:
    """Return what a download has left, and why."""
    if left.kind.value == "bad":
        return say(left.reason or "") or tr("It is not the file that it should be.")
    if left.done_bytes is None:
        return tr("Unfinished; how much of it arrived is not known.")
    if left.whole_bytes is None:
        return tr("Unfinished: {done} have arrived.", done=size(left.done_bytes))
    return tr("Unfinished: {done} of {whole} have arrived.", done=size(left.done_bytes), whole=size(left.whole_bytes))


def job_words(job: Job, now: Figures | None) -> str:
    """Return how far a download is."""
    if job.obeying:
        return tr("pausing") if job.wish.value == "pause" else tr("cancelling")
    state = job.state.value
    if state == "running":
        if now is None:
            return tr("begins")
        parts = [_of(now.done_bytes, now.bytes)]
        if now.bytes_per_second:
            parts.append(f"{size(round(now.bytes_per_second))}/s")
        if now.seconds_left is not None:
            parts.append(tr("{time} left", time=duration(now.seconds_left)))
        if now.note:
            parts.append(say(now.note))
        return " · ".join(parts)
    if job.failure is not None:
        again = ""
        if job.retry_at_s is not None:
            again = tr("Tried again in {time}.", time=duration(max(job.retry_at_s - time.time(), 0)))
        return " ".join(filter(None, (say(job.failure.title), again or say(job.failure.hint))))
    words = {"waiting": tr("waits"), "paused": tr("paused"), "done": tr("done"), "cancelled": tr("cancelled")}
    parts = [words.get(state, state)]
    if state in ("waiting", "paused", "cancelled") and job.done_bytes:
        parts.append(tr("{done} are kept", done=_of(job.done_bytes, job.bytes)))
    elif job.bytes:
        parts.append(size(job.bytes))
    return " · ".join(parts)


def _of(done: int, whole: int | None) -> str:
    return tr("{done} of {whole}", done=size(done), whole=size(whole)) if whole else size(done)


def files(count: int) -> str:
    """Return a count of models."""
    return ntr("1 file", "{n} files", count)
