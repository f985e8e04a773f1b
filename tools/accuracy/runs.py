"""Published totals of GPU memory, from presets/evidence/runs.csv, beside the formula's. Only runs on one CUDA card
count whose file size, context, KV cache type and draft length are known and whose layers are all on the card. Memory
that was in use before is added to the formula's. An unknown ubatch counts as 512, an unknown number of slots as 1.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from launcher.base.errors import LauncherError
from launcher.machine.cards import Card, find_card
from launcher.models.catalogue import ModelEntry, ModelFile
from launcher.models.evidence import count_gpus, family_key, has_spilled, is_other_engine, read_rows
from launcher.models.memory import KV_TYPES, PlanSettings, estimate_memory
from launcher.models.overhead import expected_overhead_mib
from launcher.models.weights import weights_by_rules
from tools.accuracy.published import load_shipped_catalogue

NEAR = 0.02
"""Difference from which a run is listed with its cause, as a share."""
_MIB = 2**20
_BEFORE = re.compile(r"(\d+)(?:-(\d+))? MiB (?:desktop|idle|used before)")
_PEAK = re.compile(r"([\d.]+) Gi?B peak|([\d.]+) GiB$")
"""Peak memory as written in notes. GB in them means GiB: figures reach 11.9 on cards of 12 GiB."""
_REPLACED = {"qwen3.8-27b": "2026-08-19"}
"""Models whose files were replaced, with the day: the catalogue has the sizes of the later files."""
CAUSES: Mapping[tuple[str, str, str], str] = {
    # The key is GPU, quantisation and beginning of the source.
    (
        "RTX 5090",
        "UD-Q4_K_XL",
        "sudoingX/qwen38-mtp PR #43",
    ): "Without MTP only, and by 449 MiB: the recurrent states of "
    "four slots, llama-server's default. The same host measured 440 less with one slot (PR #47).",
    (
        "RTX 4060 Ti",
        "Q4-XYZ-v1",
        "sudoingX/qwen38-mtp PR #63",
    ): "The file's types are unknown: 606 MiB less are on the "
    "card if its embedding is Q8_0, and its other file of this sweep is within 1 %.",
    (
        "RTX 3090 Ti",
        "UD-Q4_K_XL",
        "llmfit board",
    ): "A build of April 2026, which still allocates logits for each token of "
    "a ubatch: 248,320 x 2,048 x 4 bytes are 1,940 MiB. The figure is rounded to 1 GB.",
    (
        "RTX 3060",
        "Q4_K_M",
        "llmfit board",
    ): "Ubatch 1,024 in a build that allocates logits for each token (970 MiB), and a desktop of unknown size.",
    (
        "RTX 5060 Ti",
        "Q4-XYZ-v2",
        "sudoingX/qwen38-mtp PR #52",
    ): "Only the run without MTP of a build of June 2026: 316 MiB "
    "more than the later build took, while runs with MTP took the same.",
    (
        "RTX 3090",
        "Q4_K_M",
        "noonghunna/club-3090 issue #94",
    ): "A build of May 2026, which allocates logits twice: 970 MiB.",
}


@dataclass(frozen=True, slots=True)
class PublishedTotal:
    """A published run with the memory that was in use and the formula's, in MiB."""

    row: Mapping[str, str]
    card: Card
    draft: int
    measured_mib: float
    before_mib: float
    formula_mib: float

    @property
    def difference(self) -> float:
        """Difference of the formula from the measurement, as a share."""
        return (self.formula_mib + self.before_mib) / self.measured_mib - 1

    @property
    def is_near(self) -> bool:
        """Whether the difference is at most NEAR."""
        return abs(self.difference) <= NEAR

    @property
    def cause(self) -> str | None:
        """The cause of a large difference, None if it is not known."""
        row = self.row
        return next(
            (
                why
                for (gpu, quant, source), why in CAUSES.items()
                if (gpu, quant) == (row["gpu"], row["quant"]) and row["source"].startswith(source)
            ),
            None,
        )


@cache
def read_totals() -> tuple[tuple[PublishedTotal, ...], Counter[str]]:
    """Return the runs that are counted, and the number of those left out although their memory is known, by reason."""
    rows = read_rows()
    with_head = {_file_key(row) for row in rows if row["speculation"] == "draft-mtp"}
    found: list[PublishedTotal] = []
    left_out: Counter[str] = Counter()
    for row in [*rows, *_baselines(rows)]:
        measured = _measured_mib(row)
        if measured is None:
            if row["memory_as_written"]:
                left_out["unit or run of the figure unclear"] += 1
            continue
        total = _read_total(row, measured, _file_key(row) in with_head)
        if isinstance(total, PublishedTotal):
            found.append(total)
        else:
            left_out[total] += 1
    return tuple(found), left_out


def _file_key(row: Mapping[str, str]) -> tuple[str, ...]:
    return row["model"], row["quant"], row["file_bytes"]


def _baselines(rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Return additional rows for the memory of the same servers without drafts, unless the table has such rows."""
    keys = ("model", "quant", "gpu", "ctx", "kv", "source")
    received = {tuple(row[key] for key in keys) for row in rows if row["draft"] == "0" and row["memory_mib"]}
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        key = tuple(row[each] for each in keys)
        if row["memory_baseline_mib"] and key not in received:
            found[key] = row | {"draft": "0", "speculation": "none", "memory_mib": row["memory_baseline_mib"]}
    return list(found.values())


def _measured_mib(row: Mapping[str, str]) -> float | None:
    if row["memory_mib"]:
        return float(row["memory_mib"])
    peak = _PEAK.search(row["memory_as_written"])
    return float(peak[1] or peak[2]) * 1_024 if peak else None


def _read_total(row: Mapping[str, str], measured_mib: float, with_head: bool) -> PublishedTotal | str:
    """Return a row with the formula's total, or the reason why it is not counted."""
    if count_gpus(row["gpu"]) > 1:
        return "several cards"
    if row["backend"] and "cuda" not in row["backend"].casefold():
        return "another backend"
    if is_other_engine(row["engine"], row["backend"]) or row["speculation"] not in ("draft-mtp", "none", "mtp"):
        return "another engine, or drafted in another way"
    if has_spilled(row["note"], drafts=row["draft"] != "0") or row["n_cpu_moe"] not in ("", "0"):
        return "spilled, or experts in host memory"
    if not row["ctx"] or row["kv"] not in KV_TYPES:
        return "context or KV cache type unknown"
    if not row["draft"]:
        return "draft length unknown"
    found = _find_file(row, with_head)
    if found is None:
        return "file size unknown"
    entry, file = found
    assert entry.geometry is not None
    try:
        card = find_card(re.sub(r"\(.*\)", "", row["gpu"]), float(row["gpu_memory_gb"] or 0) or None)
    except LauncherError:
        return "card not known"
    weights = weights_by_rules(entry, file, entry.geometry)
    system, draft = row["os"].partition(" ")[0].casefold() or None, int(row["draft"])
    if weights is None or (draft and not weights.heads):
        return "file size unknown"
    overhead = expected_overhead_mib("cuda", card, system=system, driver=row["driver"] or None)
    setting = PlanSettings(
        int(row["ctx"]),
        row["kv"],
        draft,
        int(row["ubatch"] or _UBATCHES.get(row["source"], 512)),
        overheads_mib=(overhead,),
        cards=(card,),
    )
    formula = estimate_memory(entry.geometry, weights, setting).parts.total / _MIB
    if formula > card.memory_gb * 1_024:
        return "larger than the card: layers are elsewhere"
    before = _BEFORE.search(row["note"])
    before_mib = (int(before[1]) + int(before[2] or before[1])) / 2 if before else 0.0
    return PublishedTotal(row, card, draft, measured_mib, before_mib, formula)


_UBATCHES = {"qiip engine logs": 256}
"""Facts that a source gives in its notes for all of its runs."""


def _find_file(row: Mapping[str, str], with_head: bool) -> tuple[ModelEntry, ModelFile] | None:
    """Return the catalogue's model and the file, with the size in the row, else in the catalogue."""
    if "+" in row["quant"]:
        return None  # somebody's own mixture of two files
    family, quant = family_key(row["model"]), row["quant"].partition(" ")[0]
    entries = [each for each in load_shipped_catalogue().models if family_key(each.family) == family and each.geometry]
    if row["file_bytes"] and entries:
        entry = max(entries, key=lambda each: each.speculation == "mtp")
        known = entry.file(quant) or ModelFile(quant=quant, file=f"{quant}.gguf")
        if known.size_bytes != int(row["file_bytes"]):
            known = replace(known, token_embd_type=None, has_head=with_head or entry.speculation == "mtp")
        return entry, replace(known, size_bytes=int(row["file_bytes"]))
    if row["date"] and row["date"] < _REPLACED.get(family, ""):
        return None
    drafts = row["draft"] != "0"
    sized = [(each, file) for each in entries if (file := each.file(quant)) and file.size_bytes]
    return next((one for one in sized if one[0].has_head(one[1]) == drafts), sized[0] if sized else None)
