"""The table of published runs of a model, for `mtp-launcher plan --evidence`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from launcher.base.units import format_percent
from launcher.cli.layout import UNKNOWN, format_count, format_table

if TYPE_CHECKING:
    from launcher.models.catalogue import ModelEntry
    from launcher.models.preset import PublishedRun

_HEAD = (
    "GPU",
    "GB",
    "QUANT",
    "CONTEXT",
    "FILLED",
    "KV",
    "DRAFT",
    "CPU-MOE",
    "T/S",
    "WITHOUT",
    "ACCEPTED",
    "MIB",
    "BUILD",
    "DATE",
    "TRUST",
    "SOURCE",
)


def format_evidence(model: ModelEntry, nearest: Sequence[PublishedRun]) -> Iterator[str]:
    """Yield all published runs of a model, those in `nearest` first."""
    if not model.measurements:
        yield f"\nNo run of {model.name} was published."
        return
    others = [run for run in model.measurements if run not in nearest]
    yield f"\n{len(model.measurements)} published runs of {model.name} (tokens per second with and without drafts)"
    rows = [_HEAD, *map(_format_run, (*nearest, *others))]
    yield from format_table(rows, right={1, 3, 4, 6, 7, 8, 9, 10, 11})


def _format_run(run: PublishedRun) -> tuple[str, ...]:
    return (
        " ".join(filter(None, (run.gpu, run.os))),
        format_count(run.gpu_memory_gb),
        run.quant or UNKNOWN,
        format_count(run.ctx),
        format_count(run.filled),
        run.kv or UNKNOWN,
        run.speculation or format_count(run.draft),
        format_count(run.n_cpu_moe),
        _format_span(run.tokens_per_second, run.tokens_per_second_high, "{:g}".format),
        _format_span(run.baseline, None, "{:g}".format),
        _format_span(run.acceptance, run.acceptance_high, format_percent),
        format_count(run.memory_mib),
        run.engine or UNKNOWN,
        run.date or UNKNOWN,
        run.trust,
        run.source,
    )


def _format_span(low: float | None, high: float | None, format_value: Callable[[float], str]) -> str:
    if low is None:
        return UNKNOWN
    return format_value(low) if high is None else f"{format_value(low)} to {format_value(high)}"
