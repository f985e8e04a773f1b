"""Published runs of models, from presets/evidence/runs.csv: speed, acceptance and memory on the computers of others.

A row is one run. Rates are in tokens per second, memory is in MiB, a missing figure is empty. `baseline` is the rate of
the same run without drafts. `code`, `prose` and `shell` are the rates by kind of prompt, `runs` is the number of
requests, `method` how the source supports its figures. A row with trust `low` is shown, but never used.

How many drafts were accepted by drafter and kind of text is in presets/evidence/acceptance.csv, each with its source:
as the share of the drafted tokens, or as the tokens that a pass yields with the one that the model adds itself. Rows
without a model are medians over models, which forecasts use for each of them.

When models were released is in presets/evidence/releases.csv, each date with its source.
"""

import csv
import re
from collections.abc import Iterable, Sequence
from functools import cache
from math import exp, log
from typing import NamedTuple

from launcher.base.messages import message
from launcher.base.paths import shipped_file
from launcher.models.drafters import DRAFTERS, LONGEST_DRAFT, MTP, Drafter
from launcher.models.preset import PublishedRun

RUNS_FILE = "presets", "evidence", "runs.csv"
RELEASES_FILE = "presets", "evidence", "releases.csv"
ACCEPTANCE_FILE = "presets", "evidence", "acceptance.csv"
_HALVINGS = 30
_LONG_PROMPT = 2_000
"""From this length, in tokens, a prompt counts as a context that was filled before the generation."""
_OTHER_ENGINES = re.compile(
    r"ik_llama|\bfork\b|imp engine|vllm|beellama|turbo|lm studio|rdna-boosts|lucebox|ollama", re.I
)
"""Words in a run's engine or backend that mean it is not llama.cpp; any other text names a build of llama.cpp."""
_SPILLED = re.compile(r"paging(?! with MTP)|spill|did not fit|larger than the card", re.I)
_SPILLED_WITH_DRAFTS = re.compile(r"paging with MTP", re.I)
"""Words in a run's note that mean a part of the model was in host memory, how much is not told."""
_BESIDE_FAMILY = re.compile(r"^nvidia[-_]|-\(.*\)$|(-it|-qat|-bf16)+(?=$|-\()")
"""What names of models have besides the family: a publisher, a remark, and how the file was made."""
_SEVERAL = re.compile(r"(\d)x |\+")


@cache
def read_published_runs() -> dict[str, tuple[PublishedRun, ...]]:
    """Return the published runs by the model's `family_key`, each in the order of the file."""
    found: dict[str, list[PublishedRun]] = {}
    for row in read_rows():
        found.setdefault(family_key(row["model"]), []).append(_to_published_run(row))
    return {family: tuple(runs) for family, runs in found.items()}


class AcceptedDrafts(NamedTuple):
    """The share of a drafter's tokens that were accepted with one kind of text, as somebody published it."""

    drafter: str
    draft: int
    workload: str
    share: float
    date: str
    source: str

    @property
    def tokens(self) -> float:
        """The tokens that a pass yielded, with the one that the model adds itself."""
        return 1 + self.draft * self.share


@cache
def read_acceptance(family: str, drafter: Drafter) -> tuple[AcceptedDrafts, ...]:
    """Return which share of drafts was accepted with a model, by draft length and kind of text; () if it is unknown.

    Drafters whose files are of the same kind count as well, since only an engine tells them apart.
    """
    rows = _acceptance_rows().get(family_key(family), {}) if family else {}
    return tuple(
        each for each in rows.values() if each.drafter == drafter.name or DRAFTERS[each.drafter].uses_any(drafter.files)
    )


def find_overall(found: Sequence[AcceptedDrafts]) -> AcceptedDrafts | None:
    """Return the row for all kinds of text, else the one in the middle; None if there is none."""
    rows = [each for each in found if each.workload == "overall"] or sorted(found, key=lambda each: each.share)
    return rows[len(rows) // 2] if rows else None


def compare_drafters(runs: Iterable[PublishedRun]) -> list[dict[str, PublishedRun]]:
    """Return the best run with each drafter, as --spec-type calls it, the one with the best gain first.

    Those of one dictionary are by one source, on one computer, with one file and the same rate without drafts. Runs by
    other engines, and those that are not to be trusted, are left out.
    """
    good = [run for run in runs if run.speedup and run.trust == "good" and not is_other_engine(run.engine, run.backend)]
    found: dict[tuple[object, ...], dict[str, PublishedRun]] = {_setting_of(run): {} for run in good}
    for run in sorted(good, key=lambda run: run.speedup or 0, reverse=True):
        found[_setting_of(run)].setdefault(run.spec_type, run)
    return list(found.values())


def _setting_of(run: PublishedRun) -> tuple[object, ...]:
    return run.source, run.gpu, run.quant, run.baseline


@cache
def accepted_shares(drafter: Drafter, family: str = "") -> tuple[float, ...]:
    """Return the share of drafts that is expected to be accepted, by draft length from 1; () if nobody published it.

    It is the median over models where there is one; else it follows from the rows of this `family`, by one chance for
    each position. Texts differ more than drafters: where sources ran MTP in the same way, the mean difference to that,
    in log odds, is added to MTP's median.
    """
    medians = [
        each for each in _acceptance_rows()[""].values() if DRAFTERS[each.drafter].spec_type == drafter.spec_type
    ]
    usual = [each.share for each in medians]
    if usual:
        return (*usual, *usual[-1:] * (LONGEST_DRAFT - len(usual)))
    rows = _acceptance_rows().get(family_key(family), {}) if family else {}
    own = [key for key in rows if key[0] == drafter.name]
    own = own or [key for key in rows if DRAFTERS[key[0]].uses_any(drafter.files)]
    if not own:
        return ()
    odds = {key: _log_odds(each.share, each.draft) for key, each in rows.items()}
    by_source: dict[str, list[float]] = {}
    for key in own:
        alike = [odds[other] for other in rows if (other[0], *other[2:]) == (MTP.name, *key[2:])]
        if alike:
            by_source.setdefault(key[-1], []).append(odds[key] - _mean(alike))
    mean = _mean([_mean(found) for found in by_source.values()] or [odds[key] for key in own])
    of_mtp = enumerate(accepted_shares(MTP), start=1)
    expected = [mean + (_log_odds(share, length) if by_source else 0.0) for length, share in of_mtp]
    return tuple(_share_of(1 / (1 + exp(-each)), length) for length, each in enumerate(expected, start=1))


def tokens_per_pass(accepted: Sequence[float], length: int) -> float:
    """Return the tokens that a pass yields with a draft length, by the share of drafts that is accepted."""
    return 1.0 + length * accepted[min(length, len(accepted)) - 1] if length else 1.0


@cache
def _acceptance_rows() -> dict[str, dict[tuple[str, ...], AcceptedDrafts]]:
    """Return the rows by the model's `family_key`, and by drafter, length, and what two rows need alike."""
    found: dict[str, dict[tuple[str, ...], AcceptedDrafts]] = {}
    with shipped_file(*ACCEPTANCE_FILE).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            draft = int(row["draft"])
            share = float(row["share"]) if row["share"] else round((float(row["tokens_per_pass"]) - 1) / draft, 3)
            key = tuple(row[name] for name in ("drafter", "draft", "quant", "temperature", "workload", "source"))
            accepted = AcceptedDrafts(row["drafter"], draft, row["workload"], share, row["date"], row["source"])
            found.setdefault(family_key(row["model"]), {})[key] = accepted
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _share_of(chance: float, length: int) -> float:
    """Return the share of drafts that is accepted if each token is with `chance`, as long as those before it are."""
    return sum(chance**position for position in range(1, length + 1)) / length


def _log_odds(share: float, length: int) -> float:
    """Return the log odds of the chance that gives `share` with a draft length."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _share_of(middle, length) < share else (low, middle)
    return log(middle / (1 - middle))


@cache
def read_release_dates() -> dict[str, str]:
    """Return when models were released, as YYYY-MM-DD or YYYY-MM, by their `family_key`.

    Where the day is not known, it is that of the first published run.
    """
    dates: dict[str, str] = {}
    for row in read_rows():
        if row["date"]:
            key = family_key(row["model"])
            dates[key] = min(dates.get(key, row["date"]), row["date"])
    with shipped_file(*RELEASES_FILE).open(encoding="utf-8", newline="") as file:
        return dates | {family_key(row["model"]): row["released"] for row in csv.DictReader(file)}


def family_key(name: str) -> str:
    """Return a family's name in the form that runs and catalogue share, such as gemma-4-31b."""
    return _BESIDE_FAMILY.sub("", name.casefold().replace(" ", "-"))


def read_rows() -> list[dict[str, str]]:
    """Return the rows of the file as text, by column."""
    with shipped_file(*RUNS_FILE).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@cache
def is_other_engine(engine: str | None, backend: str | None) -> bool:
    """Return whether a published run's engine is another one than llama.cpp."""
    return _OTHER_ENGINES.search(f"{engine or ''} {backend or ''}") is not None


@cache
def has_spilled(note: str, *, drafts: bool) -> bool:
    """Return whether a published run's note says that its model did not fit into the GPU's memory.

    `drafts`: the run had drafts, which need memory of their own.
    """
    return bool(_SPILLED.search(note) or (drafts and _SPILLED_WITH_DRAFTS.search(note)))


def _to_published_run(row: dict[str, str]) -> PublishedRun:
    prompt = _parse_integer(row["prompt_tokens"])
    return PublishedRun(
        gpu=row["gpu"] or message("unknown GPU"),
        gpu_memory_gb=_parse_integer(row["gpu_memory_gb"]),
        backend=row["backend"] or None,
        os=row["os"] or None,
        engine=row["engine"] or None,
        quant=row["quant"] or None,
        ctx=_parse_integer(row["ctx"]),
        filled=prompt if prompt == 0 or (prompt and prompt >= _LONG_PROMPT) else None,
        kv=row["kv"] or None,
        draft=_parse_integer(row["draft"]),
        n_cpu_moe=_parse_integer(row["n_cpu_moe"]),
        expert_cache=row["expert_cache"] == "yes",
        speculation="" if row["speculation"] in ("draft-mtp", "none") else row["speculation"],
        gpus=count_gpus(row["gpu"]),
        workload=row["workload"],
        temperature=_parse_number(row["temperature"]),
        power_w=_parse_number(row["power_w"]),
        file_bytes=_parse_integer(row["file_bytes"]),
        date=row["date"],
        tokens_per_second=_parse_number(row["tokens_per_second"]),
        tokens_per_second_high=_parse_number(row["tokens_per_second_high"]),
        baseline=_parse_number(row["baseline"]),
        acceptance=_parse_number(row["acceptance_low"]) or _parse_number(row["acceptance"]),
        acceptance_high=_parse_number(row["acceptance_high"]),
        memory_mib=_parse_integer(row["memory_mib"]),
        trust="low" if row["trust"] == "low" else "good",
        note=row["note"],
        source=row["source"],
    )


def count_gpus(name: str) -> int:
    """Return the number of GPUs that a published name means: 2 for "2x RTX 3060" and for "RTX 5080 + RTX 3090"."""
    several = _SEVERAL.search(name)
    if several is None:
        return 1
    return int(several[1] or name.count("+") + 1)


def _parse_integer(text: str) -> int | None:
    return round(float(text)) if text else None


def _parse_number(text: str) -> float | None:
    return float(text) if text else None
