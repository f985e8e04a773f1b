"""Builds that were slower on this computer than the one before them, as an update's comparison has measured.

They are kept in engines/slower.json. `install` without a tag does not take them again, and `engine list` names them.
"""

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from launcher.base.files import write_atomically
from launcher.base.kept_files import KeptFile
from launcher.base.validation import BaseModel, Field
from launcher.engine.builds.build import store_dir
from launcher.engine.builds.known_bad import KnownFault

_MOST_KEPT = 100


class SlowerBuild(BaseModel):
    """A build `name` with which `model` ran `ratio` times as fast as with the build `against`.

    `low` and `high` are the limits of the ratio at 95 %. All are None for a build that did not serve the model, for the
    reason `error`. `number` is the number of the build, `gpu` the GPU, `measured_s` the Unix time.
    """

    name: str
    against: str
    model: str
    number: int | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    error: str | None = None
    gpu: str | None = None
    measured_s: float = 0.0

    @property
    def reason(self) -> str:
        """A clause that can follow "because", as in the list of known-bad builds. In English: reports quote it."""
        where = f" on {self.gpu}" if self.gpu else ""
        if self.ratio is None or self.low is None or self.high is None:
            return f"it does not serve {self.model}{where}, which {self.against} does: {self.error}"
        slower = f"{100 * (1 - self.ratio):.0f} % slower than {self.against}"
        limits = f"{100 * (1 - self.high):.0f} to {100 * (1 - self.low):.0f} %"
        return f"it is {slower} with {self.model}{where} ({limits} with 95 % confidence)"

    def as_row(self) -> str:
        """Return the row of the list of known-bad builds (resources/known-bad-builds.toml) that would report this."""
        day = f"{datetime.fromtimestamp(self.measured_s, UTC):%Y-%m-%d}"
        reason = self.reason.replace("\\", "/").replace('"', "'")
        lines = ["[[builds]]", f"first = {self.number or 0}", f"last = {self.number or 0}", f'reason = "{reason}"']
        return "\n".join([*lines, f'source = "measured on {day}"'])

    def as_fault(self) -> KnownFault:
        """Return the result as a fault of this build alone, on this computer."""
        return KnownFault(self.number or 0, self.number or 0, self.reason, "measured on this computer")


class _File(BaseModel):
    builds: list[SlowerBuild] = Field(default=[])


def list_slower_builds() -> dict[str, SlowerBuild]:
    """Return the builds that were slower here, by name. Empty if the list cannot be read."""
    with suppress(OSError):
        return {build.name: build for build in _FILE.load(_slower_builds_file()).builds}
    return {}


def add_slower_build(build: SlowerBuild) -> None:
    """Add a build to the list, in place of an earlier result. Raises OSError."""
    others = [each for name, each in list_slower_builds().items() if name != build.name]
    file = _File(builds=[*others[1 - _MOST_KEPT :], build])
    write_atomically(_slower_builds_file(), file.model_dump_json(indent=1).encode())


def forget_slower_build(name: str) -> None:
    """Remove a build from the list. Raises OSError."""
    builds = list_slower_builds()
    if builds.pop(name, None) is not None:
        file = _File(builds=list(builds.values()))
        write_atomically(_slower_builds_file(), file.model_dump_json(indent=1).encode())


def _slower_builds_file() -> Path:
    return store_dir() / "slower.json"


_FILE = KeptFile("The list of slower engine builds", _File.model_validate_json, _File)
