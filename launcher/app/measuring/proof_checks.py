"""The checks of a proof, each with the line of the documentation that it is about, and the report of their outcomes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar, Self

from launcher.base.codec import JsonView
from launcher.base.messages import message
from launcher.tuning.history_environment import Environment
from launcher.tuning.session_file import anonymize_environment, remove_personal_data


class CheckResult(StrEnum):
    """Result of a check."""

    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    NOT_TRIED = "not_tried"


@dataclass(frozen=True, slots=True)
class Check:
    """A claim, and the row of a document that makes it; `rows` are by system or backend if there are several."""

    id: str
    claim: str
    document: str
    rows: Mapping[str, str]

    def line_for(self, key: str) -> str:
        """Return the document and its row for a system or backend."""
        return f"{self.document}: {self.rows.get(key) or next(iter(self.rows.values()))}"


_PLATFORMS, _ACCURACY = "docs/platforms.md", "docs/accuracy.md"
NVML_ROWS = {"linux": "NVML on Linux", "windows": "NVML on Windows", "wsl": "NVML in WSL2"}
_BUFFER_ROWS = {
    "cpu": "compute buffers, processor",
    "vulkan": "compute buffers, Vulkan",
    "cuda": "compute buffers, CUDA",
    "rocm": "ROCm and Metal",
    "metal": "ROCm and Metal",
}
NVML_CLAIMS = {
    "nvml-driver": message("The driver has the version that nvidia-smi names."),
    "nvml-name": message("The card has the name that nvidia-smi shows."),
    "nvml-total": message("The card's memory is what nvidia-smi shows, to 1 MiB."),
    "nvml-used": message("The memory in use is what nvidia-smi shows, to 1 MiB."),
    "nvml-temperature": message("The temperature is what nvidia-smi shows, to 1 °C."),
    "nvml-power": message("The power is what nvidia-smi shows, to 10 %."),
}
SERVED, CONTEXT, KV, MTP = "served", "context", "kv", "mtp"
"""Settings for which the memory is measured, one after the other."""
_PLAN_CLAIMS = {
    SERVED: message(
        "As served, the engine allocates the planned memory: weights, caches, compute buffer, then cache and buffer of"
        " the drafts, each to the MiB or 1 %."
    ),
    CONTEXT: message("With half the context, the engine allocates the planned memory."),
    KV: message("With another KV cache type, the engine allocates the planned memory."),
    MTP: message("With MTP off (on if it is off), the engine allocates the planned memory."),
}
_MEMORY_CLAIMS = {
    SERVED: message("As served, the driver counts the planned GPU memory, to 2 %."),
    CONTEXT: message("With half the context, the driver counts the planned GPU memory."),
    KV: message("With another KV cache type, the driver counts the planned GPU memory."),
    MTP: message("With MTP off (on if it is off), the driver counts the planned GPU memory."),
}
CHECKS: Mapping[str, Check] = {
    check.id: check
    for check in (
        *(Check(name, claim, _PLATFORMS, NVML_ROWS) for name, claim in NVML_CLAIMS.items()),
        *(Check(f"plan-{name}", claim, _ACCURACY, _BUFFER_ROWS) for name, claim in _PLAN_CLAIMS.items()),
        *(
            Check(f"memory-{name}", claim, _ACCURACY, {"": "totals in GPU memory"})
            for name, claim in _MEMORY_CLAIMS.items()
        ),
        Check(
            "load-time",
            message("A model loads in the time that is shown before a restart, within a factor of 2."),
            _PLATFORMS,
            {"": "load times"},
        ),
        Check(
            "monitoring",
            message("Monitoring the server costs at most 1 % of its tokens/s."),
            _PLATFORMS,
            {"": "tokens lost to monitoring"},
        ),
        Check(
            "spill",
            message("Under load, no GPU memory moves to the host."),
            _PLATFORMS,
            {"": "memory that spills"},
        ),
        Check(
            "throttling",
            message("Under load, neither heat nor the power supply slows the GPU down."),
            _PLATFORMS,
            {"": "throttling"},
        ),
        Check("sleep", message("After the computer slept, the server answers."), _PLATFORMS, {"": "sleep"}),
        Check(
            "wsl-paths",
            message("Windows and its driver are at the expected paths in WSL."),
            _PLATFORMS,
            {"": "paths in WSL2"},
        ),
        Check("tray", message("The desktop shows tray icons."), _PLATFORMS, {"": "tray"}),
        Check(
            "smartscreen",
            message("SmartScreen stops the setup program once, and Defender never."),
            _PLATFORMS,
            {"": "SmartScreen and Defender"},
        ),
        Check(
            "engine-ends",
            message("Every engine has ended when its server has stopped."),
            _PLATFORMS,
            {"": "the engine ends with its parent"},
        ),
    )
}


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """The result of a check. `expected` and `measured` are figures with their unit, None if unknown.

    `reason` says why a check was not tried.
    """

    JSON_VIEW: ClassVar[JsonView] = JsonView(
        "id=check.id claim=check.claim line result expected=clean.expected measured=clean.measured reason=clean.reason"
    )
    check: Check
    line: str
    result: CheckResult
    expected: str | None = None
    measured: str | None = None
    reason: str | None = None

    @property
    def clean(self) -> Self:
        """The outcome without personal data."""
        texts = {"expected": self.expected, "measured": self.measured, "reason": self.reason}
        return replace(self, **remove_personal_data(texts))


@dataclass(frozen=True, slots=True)
class ProofReport:
    """The report of a proof. `evidence` are rows as in presets/evidence/runs.csv. JSON has no personal data."""

    JSON_VIEW: ClassVar[JsonView] = JsonView("date machine checks=outcomes evidence")
    date: str
    environment: Environment | None
    outcomes: tuple[CheckOutcome, ...]
    evidence: tuple[dict[str, str], ...]

    @property
    def refuted(self) -> tuple[CheckOutcome, ...]:
        """The outcomes of refuted claims."""
        return tuple(each for each in self.outcomes if each.result is CheckResult.REFUTED)

    @property
    def machine(self) -> Environment | None:
        """The environment without personal data."""
        return anonymize_environment(self.environment) if self.environment else None
