"""Comparison of an engine's own memory figures with the memory estimate, as JSON and as sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher.base.codec import JsonView, to_json
from launcher.base.errors import LauncherError

if TYPE_CHECKING:
    from launcher.app.planning.planner import EngineComparison
    from launcher.models.memory import MemoryEstimate

_MIB = 2**20
_ENGINE = JsonView(
    "name=engine backend model_mib context_mib compute_mib draft_context_mib draft_compute_mib host_mib "
    "free_mib seconds:3"
)
MODEL_ALONE = " That is the model alone, without its drafts."


def comparison_json(comparison: EngineComparison | LauncherError) -> dict[str, Any]:
    """Return an engine's figures and their difference from the estimate as JSON, or the error of asking it."""
    if isinstance(comparison, LauncherError):
        return {"engine": None, "engine_error": to_json(comparison), "difference_percent": None, "flagged": False}
    engine = to_json(comparison.engine, _ENGINE)
    return {"engine": engine, "engine_error": None, **to_json(comparison, JsonView("difference_percent:2 flagged"))}


def describe_comparison(comparison: EngineComparison | LauncherError, estimate: MemoryEstimate | None) -> str:
    """Return sentences with an engine's total and its difference from the formula's; or the error of asking it."""
    if isinstance(comparison, LauncherError):
        return f"could not be asked. {comparison} The formula's figures stand."
    engine = comparison.engine
    text = f"{engine.total_mib:,} MiB by {engine.engine} ({engine.backend}, asked in {engine.seconds:.1f} s)"
    percent = comparison.difference_percent
    if percent is None:
        return f"{text}; there is no formula to compare it with."
    text += f"; the formula for {engine.backend} says {abs(percent):.2f} % {'less' if percent < 0 else 'more'}"
    text += ", too far apart: believe the engine." if comparison.flagged else "."
    return " ".join(filter(None, (text, _explain_backends(comparison, estimate))))


def _explain_backends(comparison: EngineComparison, estimate: MemoryEstimate | None) -> str:
    """Return a sentence on why the figures differ, if the engine uses another backend than the estimate, else ""."""
    backend = comparison.engine.backend
    if estimate is None or comparison.formula is None or backend == estimate.setting.backend:
        return ""
    difference = comparison.formula.parts.weights - estimate.parts.weights
    weights = "the weights and the caches are the same"
    if difference:
        tensors = "input embedding and experts lie" if estimate.setting.n_cpu_moe else "the input embedding lies"
        size = f"{abs(difference) / _MIB:,.0f} MiB {'more' if difference > 0 else 'less'}"
        weights = f"its weights are {size}, because {tensors} in host memory beside a GPU; the caches are the same"
    estimated = estimate.setting.backend
    return f"It computes by {backend}, and these figures are for {estimated}: {weights}, compute buffers differ."
