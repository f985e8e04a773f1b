"""An engine's own memory figures beside the memory estimate, as JSON and as sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher.cli.output import error_json, round_figure

if TYPE_CHECKING:
    from launcher.app.planner import EngineComparison
    from launcher.base.errors import LauncherError
    from launcher.models.memory import MemoryEstimate

_MIB = 2**20
MODEL_ALONE = " That is the model alone, without its drafts."


def verdict_json(verdict: EngineComparison | LauncherError) -> dict[str, Any]:
    """Return an engine's figures and their difference from the estimate as JSON, or the error."""
    from launcher.base.errors import LauncherError

    if isinstance(verdict, LauncherError):
        return {"engine": None, "engine_error": error_json(verdict), "difference_percent": None, "flagged": False}
    engine = verdict.engine
    return {
        "engine": {
            "name": engine.engine,
            "backend": engine.backend,
            "model_mib": engine.model_mib,
            "context_mib": engine.context_mib,
            "compute_mib": engine.compute_mib,
            "draft_context_mib": engine.draft_context_mib,
            "draft_compute_mib": engine.draft_compute_mib,
            "host_mib": engine.host_mib,
            "free_mib": engine.free_mib,
            "seconds": round_figure(engine.seconds, 3),
        },
        "engine_error": None,
        "difference_percent": round_figure(verdict.difference_percent, 2),
        "flagged": verdict.flagged,
    }


def verdict_text(verdict: EngineComparison | LauncherError, estimate: MemoryEstimate | None) -> str:
    """Return a sentence with an engine's total and its difference from the formula's; or the error."""
    from launcher.base.errors import LauncherError

    if isinstance(verdict, LauncherError):
        return f"could not be asked. {verdict} The formula's figures stand."
    engine = verdict.engine
    text = f"{engine.total_mib:,} MiB by {engine.engine} ({engine.backend}, asked in {engine.seconds:.1f} s)"
    percent = verdict.difference_percent
    if percent is None:
        return f"{text}; there is no formula to compare it with."
    text += f"; the formula for {engine.backend} says {abs(percent):.2f} % {'less' if percent < 0 else 'more'}"
    text += ", too far apart: believe the engine." if verdict.flagged else "."
    return " ".join(filter(None, (text, _other_backend(verdict, estimate))))


def _other_backend(verdict: EngineComparison, estimate: MemoryEstimate | None) -> str:
    """Return a sentence on why the figures differ, if the engine uses another backend than the estimate."""
    backend = verdict.engine.backend
    if estimate is None or verdict.formula is None or backend == estimate.setting.backend:
        return ""
    more = verdict.formula.parts.weights - estimate.parts.weights
    what = "input embedding and experts lie" if estimate.setting.n_cpu_moe else "the input embedding lies"
    weights = "the weights and the caches are the same"
    if more:
        moved = f"{abs(more) / _MIB:,.0f} MiB {'more' if more > 0 else 'less'}"
        weights = f"its weights are {moved}, because {what} in the host's memory beside a GPU; the caches are the same"
    own = estimate.setting.backend
    return f"It computes by {backend}, and these figures are for {own}: {weights}, compute buffers differ."
