"""Steps of a first start and their progress. Light to import: both faces need it before anything runs."""

from dataclasses import dataclass
from enum import StrEnum

from launcher.base.errors import LauncherError


class Step(StrEnum):
    """Steps of a first start, in this order."""

    ENGINE = "engine"
    MODEL = "model"
    VERIFY = "verify"
    LOAD = "load"
    WARM_UP = "warm up"
    SELF_TEST = "self-test"


class Stage(StrEnum):
    """Progress of a step."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    PAUSED = "paused"
    FAILED = "failed"


class StepDetail(StrEnum):
    """Detail of a step, where there is more to report than its stage."""

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
class StepProgress:
    """Progress report of a step: bytes, bytes per second, seconds, percent (0 to 100).

    None where unknown or not applicable.

    `subject` is the name of the engine or model, `note` a further remark, `error` the reason for a failure. `drafted`
    and `accepted` are tokens of the self-test.
    """

    step: Step
    stage: Stage = Stage.WAITING
    subject: str = ""
    how: StepDetail | None = None
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
