"""Published runs that forecasts are compared with: their work, their card, and their rate."""

import re
from collections import Counter
from dataclasses import dataclass, replace

from launcher.base.errors import LauncherError
from launcher.machine.cards import Card, find_card
from launcher.models.catalogue import ModelEntry, ModelFile
from launcher.models.catalogue_load import shipped_models
from launcher.models.evidence import count_gpus, family_key, has_spilled, is_other_engine, read_rows
from launcher.models.file_size import expect_size
from launcher.models.memory import KV_TYPES, PlanSettings, estimate_memory
from launcher.models.pass_time import CacheWork, PassWork, measure_cache, measure_work
from launcher.models.weights import weights_by_rules

_MIXED = re.compile(
    r"mixed|python \+ prose|narrative and code|prose and code|25 prompts|greedy streaming|fixed prompt|mtp-bench\.py|"
    r"tg128|depth ladder|at this prompt depth|filler prompt",
    re.I,
)
"""Words in a workload by which its drafts are as good as usual."""
_CUT_SHORT = 0.25
"""Least probability of a draft (--spec-p-min) from which on its length says little of the tokens that are verified."""
_BOARD_ROW = re.compile(r",? row \w+")


@dataclass(frozen=True, slots=True)
class Run:
    """A published run that is used: its settings, its card, and its rate.

    `filled` is the number of tokens in the context, `accepted` the share of accepted drafts if it was published.
    """

    row: dict[str, str]
    work: PassWork
    cache: CacheWork
    draft: int
    card: Card
    rate: float
    filled: int
    accepted: float | None
    power_w: float | None

    @property
    def origin(self) -> tuple[str, str]:
        """The source (of a public board: the person) and the card; runs that share both are left out together."""
        return _BOARD_ROW.sub("", self.row["source"]), self.card.name


def read_runs() -> tuple[list[Run], Counter[str]]:
    """Return the runs that are counted, and how many rows are left out by reason."""
    runs: list[Run] = []
    left_out: Counter[str] = Counter()
    entries = {family_key(entry.family): entry for entry in reversed(shipped_models()) if entry.geometry}
    for row in read_rows():
        found = _read_run(row, entries)
        if isinstance(found, Run):
            runs.append(found)
        else:
            left_out[found] += 1
    return runs, left_out


def _read_run(row: dict[str, str], entries: dict[str, ModelEntry]) -> Run | str:
    """Return a row as a run, or the reason why it is not counted."""
    if row["speculation"] not in ("draft-mtp", "none"):
        return "drafted in another way"
    if count_gpus(row["gpu"]) > 1:
        return "several cards"
    if row["trust"] == "low":
        return "withdrawn, or of low trust"
    if is_other_engine(row["engine"], row["backend"]):
        return "another engine"
    if not row["tokens_per_second"] or not row["draft"]:
        return "rate or draft length unknown"
    draft, filled = int(row["draft"]), int(row["prompt_tokens"] or 0)
    if draft and row["workload"] and not _MIXED.search(row["workload"]):
        return "drafts of one kind of prompt only"
    if draft and float(row["p_min"] or 0) >= _CUT_SHORT:
        return "drafts cut short (--spec-p-min)"
    if has_spilled(row["note"], drafts=draft > 0):
        return "memory spilled"
    if row["n_cpu_moe"] not in ("", "0"):
        return "experts in host memory"
    try:
        card = find_card(re.sub(r"\(.*\)", "", row["gpu"]), float(row["gpu_memory_gb"] or 0) or None)
    except LauncherError:
        return "card not known"
    entry = entries.get(family_key(row["model"]))
    if entry is None or entry.geometry is None:
        return "model not in the catalogue"
    file = _file_of(entry, row)
    weights = weights_by_rules(entry, file, entry.geometry) if file else None
    if file is None or weights is None:
        return "file size unknown"
    kv = row["kv"] if row["kv"] in KV_TYPES else "q8_0"
    setting = PlanSettings(int(row["ctx"] or max(4_096, filled)), kv, draft, backend="cuda")
    if estimate_memory(entry.geometry, weights, setting).needed_bytes > card.memory_gb * 2**30:
        return "larger than the card, with its context"
    return Run(
        row,
        measure_work(file, entry.geometry, weights, 0),
        measure_cache(entry.geometry, setting if row["kv"] else replace(setting, kv="f16"), filled),
        draft,
        card,
        float(row["tokens_per_second"]),
        filled,
        float(row["acceptance"]) if row["acceptance"] and draft else None,
        float(row["power_w"]) if row["power_w"] else None,
    )


def _file_of(entry: ModelEntry, row: dict[str, str]) -> ModelFile | None:
    """Return the model file of a row. Its size is the row's, else the catalogue's, else by the quant's bits."""
    quant = row["quant"].partition(" ")[0]
    result = ModelFile(
        quant=quant, file=f"{quant}.gguf", has_head=row["speculation"] != "none" or entry.speculation == "mtp"
    )
    expected = expect_size(entry, entry.file(quant) or result)
    if row["file_bytes"]:
        return replace(result, size_bytes=int(row["file_bytes"]))
    return replace(result, size_bytes=expected.size_bytes) if expected else None
