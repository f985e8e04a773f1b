"""The steps of a first start as they are told. Light to import: faces need it before anything runs."""

from dataclasses import dataclass
from enum import StrEnum

from launcher.base.errors import LauncherError


class Step(StrEnum):
    """What a first start goes through, in this order."""

    ENGINE = "engine"
    MODEL = "model"
    VERIFY = "verify"
    LOAD = "load"
    WARM_UP = "warm up"
    SELF_TEST = "self-test"


class Stage(StrEnum):
    """How far one of its steps is."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    PAUSED = "paused"
    FAILED = "failed"


class How(StrEnum):
    """What a step does or how it was done, where there is more to say than its stage."""

    TESTED = "installed, self-test passed"
    FOUND = "installed"
    BUILT_IN = "built in"
    ASKING = "asking how large it is, and whether it may be had"
    HERE = "here already"
    RECEIVED = "received"
    VERIFIED = "SHA-256 and header are as they should be"
    WITHOUT_SUM = "header is as it should be; nobody names a checksum"
    SERVED = "runs already"
    ANSWERED = "it answered; MTP is off"
    ELSEWHERE = "another program downloads it"


@dataclass(frozen=True, slots=True)
class StepTold:
    """How far a step is: bytes, bytes per second, seconds, percent (0 to 100); None where it has none or is unknown.

    `subject` is what it is about (an engine's name, a model's), `note` what the core says besides, `error` why it
    failed. `drafted` and `accepted` are the self-test's tokens.
    """

    step: Step
    stage: Stage = Stage.WAITING
    subject: str = ""
    how: How | None = None
    note: str = ""
    done_bytes: int | None = None
    bytes: int | None = None
    bytes_per_second: float | None = None
    seconds_left: float | None = None
    percent: float | None = None
    error: LauncherError | None = None
    drafted: int | None = None
    accepted: int | None = None
    tokens_per_second: float | None = None
