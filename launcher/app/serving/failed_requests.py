"""Requests that failed, as JSON: which failures there were, and the causes that they name."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from launcher.engine.diagnosis.explain import Diagnosis, diagnose_reply_error

_diagnose = lru_cache(maxsize=256)(diagnose_reply_error)


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Requests that failed for the same reason. `status` and `message` are those of the newest one.

    `diagnosis` is the cause, None if the message names none that is known.
    """

    count: int
    status: int | None
    message: str
    diagnosis: Diagnosis | None


def diagnose_record(record: Mapping[str, Any]) -> Diagnosis | None:
    """Return the cause of a request's failure; None if it did not fail, or for a cause that is not known."""
    return _diagnose(record["message"]) if record.get("message") else None


def group_failures(records: Iterable[Mapping[str, Any]]) -> list[FailureGroup]:
    """Return the failures among the records, by their cause or else their message; the newest last."""
    groups: dict[object, FailureGroup] = {}
    for record in records:
        status, message, found = record.get("status"), record.get("message") or "", diagnose_record(record)
        if status is None and not message:
            continue
        key = found.code if found is not None else (status, message)
        earlier = groups.pop(key, None)
        groups[key] = FailureGroup(1 + (earlier.count if earlier else 0), status, message, found)
    return list(groups.values())
