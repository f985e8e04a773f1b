"""A download in words, and as JSON."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from launcher.cli.bar import duration, figures, size
from launcher.cli.output import rounded

if TYPE_CHECKING:
    from launcher.fetch.jobs import Failure, Figures, Job


def word(job: Job) -> str:
    """Return what a download is, in a word."""
    from launcher.fetch.jobs import Wish

    if job.obeying:
        return "pausing" if job.wish is Wish.PAUSE else "cancelling"
    return job.state.value


def told(job: Job) -> str:
    """Return what a download is, in words."""
    resting = job.state.value in ("paused", "cancelled")
    kept = f", {size(job.done_bytes)} are kept" if job.done_bytes and resting else ""
    if job.failure is not None:
        return f"{word(job)}: {job.failure.title.rstrip('.')}"
    return f"{word(job)}{kept}"


def how_far(job: Job, now: Figures | None) -> str:
    """Return how far it is; `now` is of a running one."""
    from launcher.fetch.jobs import State

    if now is not None:
        return figures(now.done_bytes, now.bytes, speed=now.bytes_per_second, left_s=now.seconds_left, note=now.note)
    if job.state is State.DONE or not job.done_bytes:
        return size(job.bytes) if job.bytes else ""
    return figures(job.done_bytes, job.bytes)


def why(job: Job) -> str:
    """Return why a download failed or waits, and until when."""
    if job.failure is None:
        return ""
    if job.retry_at_s is None:
        return job.failure.title
    return f"{job.failure.title} Trying again in {duration(max(job.retry_at_s - time.time(), 0))}."


def failure_json(failure: Failure | None) -> dict[str, str] | None:
    """Return an error as the verbs tell it."""
    return None if failure is None else {"code": failure.code, "message": failure.title, "hint": failure.hint}


def job_json(job: Job, now: Figures | None) -> dict[str, Any]:
    """Return all about a download; `now` is how far a running one is."""
    return {
        "id": job.id,
        "kind": job.kind,
        "title": job.title,
        "state": job.state.value,
        "asked": job.wish.value,
        "done_bytes": now.done_bytes if now else job.done_bytes,
        "bytes": now.bytes if now and now.bytes is not None else job.bytes,
        "bytes_per_second": rounded(now.bytes_per_second) if now else None,
        "seconds_left": rounded(now.seconds_left) if now else None,
        "note": (now.note or None) if now else None,
        "error": failure_json(job.failure),
        "retry_at_s": rounded(job.retry_at_s, 3),
        "result": job.result,
    }
