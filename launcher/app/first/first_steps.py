"""Steps of a first start and their progress. Imports little, because both faces load it before anything runs."""

from enum import StrEnum
from typing import NamedTuple

from launcher.base.errors import LauncherError
from launcher.base.progress import NO_PROGRESS, Progress


class Step(StrEnum):
    """Steps of a first start, in this order."""

    ENGINE = "engine"
    MODEL = "model"
    VERIFY = "verify"
    LOAD = "load"
    WARM_UP = "warm up"
    SELF_TEST = "self-test"


class StepStage(StrEnum):
    """State of a step."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    PAUSED = "paused"
    FAILED = "failed"


class StepDetail(StrEnum):
    """Detail of a step besides its stage.

    ENGINE has INSTALLED_AND_TESTED, FOUND, BUILT_IN; MODEL has ALREADY_DOWNLOADED, RECEIVED; VERIFY has VERIFIED,
    NO_CHECKSUM; LOAD and WARM_UP have SERVED; SELF_TEST has ANSWERED, WRITES_NO_TEXT. CHECKING_ACCESS and
    DOWNLOADED_ELSEWHERE belong to a download of MODEL or ENGINE.
    """

    INSTALLED_AND_TESTED = "installed, self-test passed"
    FOUND = "installed"
    BUILT_IN = "built in"
    CHECKING_ACCESS = "checking size and access"
    ALREADY_DOWNLOADED = "here already"
    RECEIVED = "received"
    VERIFIED = "SHA-256 and header are correct"
    NO_CHECKSUM = "header is correct; no checksum is published"
    SERVED = "already running"
    ANSWERED = "working; MTP is off"
    WRITES_NO_TEXT = "working; generates no text"
    DOWNLOADED_ELSEWHERE = "being downloaded by another program"


class StepProgress(NamedTuple):
    """A step and its progress. None where unknown or not applicable.

    `subject` is the name of the engine or model. `progress` belongs to a download or an installation, `percent` (0 to
    100) to loading and to the self-test's reply. `error` is the reason for a failure. `drafted` and `accepted` count
    the self-test's draft tokens.
    """

    step: Step
    stage: StepStage = StepStage.WAITING
    subject: str = ""
    detail: StepDetail | None = None
    progress: Progress = NO_PROGRESS
    percent: float | None = None
    error: LauncherError | None = None
    drafted: int | None = None
    accepted: int | None = None
    tokens_per_second: float | None = None
