"""What an engine that was asked has said, beside the formula's figures: for --json, and as sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher.cli.output import rounded

if TYPE_CHECKING:
    from launcher.base.errors import LauncherError
    from launcher.models.memory import Estimate
    from launcher.planner import Verdict

_MIB = 2**20


def verdict_json(verdict: Verdict | LauncherError) -> dict[str, Any]:
    """Return an engine's figures and the difference as --json has them, or why there are none."""
    from launcher.base.errors import LauncherError

    if isinstance(verdict, LauncherError):
        told = {"code": verdict.code, "message": verdict.title, "hint": verdict.hint}
        return {"engine": None, "engine_error": told, "difference_percent": None, "flagged": False}
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
            "seconds": rounded(engine.seconds, 3),
        },
        "engine_error": None,
        "difference_percent": rounded(verdict.difference_percent, 2),
        "flagged": verdict.flagged,
    }


def verdict_text(verdict: Verdict | LauncherError, estimate: Estimate | None) -> str:
    """Return what an engine said beside `estimate`, and how far the formula is from it; or why it said nothing."""
    from launcher.base.errors import LauncherError

    if isinstance(verdict, LauncherError):
        return f"could not be asked. {verdict} The formula's figures stand."
    engine = verdict.engine
    told = f"{engine.total_mib:,} MiB by {engine.engine} ({engine.backend}, asked in {engine.seconds:.1f} s)"
    percent = verdict.difference_percent
    if percent is None:
        return f"{told}; there is no formula to compare it with."
    told += f"; the formula for {engine.backend} says {abs(percent):.2f} % {'less' if percent < 0 else 'more'}"
    told += ", too far apart: believe the engine." if verdict.flagged else "."
    return " ".join(filter(None, (told, _other_backend(verdict, estimate))))


def _other_backend(verdict: Verdict, estimate: Estimate | None) -> str:
    """Say why its figures are not the estimate's where it computes by another backend than the estimate is for."""
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
