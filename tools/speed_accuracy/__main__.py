"""Compare the speed forecasts with published runs, and fit their factors to them.

    python -m tools.speed_accuracy          errors of two forecasts: by the shipped factors, and by factors that were
                                            fitted without the runs of the same source and card
    python -m tools.speed_accuracy --rows   the same, and every run
    python -m tools.speed_accuracy --fit    the factors that fit all runs best, for launcher/models/speed.py

Only runs of llama.cpp itself count, with one card, MTP or no drafts, and mixed prompts. Rows left out are counted by
reason. The column "left out" is the fair test, because its factors were fitted without the run itself.
"""

import argparse
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from launcher.base.errors import LauncherError
from launcher.machine.cards import Card, find_card
from launcher.models.catalogue import ModelEntry, ModelFile
from launcher.models.catalogue_load import shipped_models
from launcher.models.evidence import count_gpus, family_key, read_rows
from launcher.models.file_size import expect_size
from launcher.models.memory import KV_TYPES, PlanSettings, estimate_memory
from launcher.models.speed import (
    COMMON,
    GENERATIONS,
    CommonFactors,
    GenerationFactors,
    PassWork,
    measure_work,
    token_rate,
)
from launcher.models.weights import weights_by_rules

OTHER_ENGINE = re.compile(
    r"ik_llama|fork|imp engine|vllm|beellama|private|turbo|lm studio|rdna-boosts|lucebox|ollama", re.I
)
_MIXED = re.compile(
    r"mixed|python \+ prose|narrative and code|prose and code|25 prompts|greedy streaming|fixed prompt", re.I
)
_SPILLED = re.compile(r"paging|spill|did not fit|desktop at", re.I)
_SMALLEST_STEP = 0.005


@dataclass(frozen=True, slots=True)
class Run:
    """A published run that is used: its settings, its card, and its rate."""

    row: dict[str, str]
    work: PassWork
    draft: int
    card: Card
    rate: float
    vulkan: bool
    power_w: float | None

    @property
    def group(self) -> tuple[str, str]:
        """The source and the card of the run; runs that share both are left out together."""
        return self.row["source"], self.card.name


@dataclass(frozen=True, slots=True)
class Factors:
    """All fitted factors."""

    generations: dict[str, GenerationFactors]
    common: CommonFactors

    def forecast(self, run: Run) -> float:
        """Return the forecast of a run, in tokens per second."""
        return token_rate(
            run.work,
            run.draft,
            (run.card,),
            (1.0,),
            vulkan=run.vulkan,
            power_limit_w=run.power_w,
            generations=self.generations,
            common=self.common,
        )

    def scaled(self, place: tuple[str, str], by: float) -> "Factors":
        """Return the factors with one of them multiplied by `by`."""
        group, name = place
        if group == "common":
            return replace(self, common=self.common._replace(**{name: getattr(self.common, name) * by}))
        old = self.generations[group]
        new = old._replace(**{name: getattr(old, name) * by})
        return replace(self, generations=self.generations | {group: new})


SHIPPED = Factors(dict(GENERATIONS), COMMON)
_SPREADS = {"bandwidth": 0.1, "layer_us": 0.5, "compute": 0.4}
_COMMON_SPREADS = {
    "few_bits": 0.15,
    "experts_us": 0.5,
    "more_experts": 0.3,
    "mixture_us": 0.7,
    "vulkan": 0.1,
    "watts": 0.4,
    "watts_compute": 0.4,
}
"""Assumed spread of each factor around its usual value, as a logarithm."""
_USUAL = GenerationFactors(0.9, 70.0, 0.27)
_USUAL_COMMON = CommonFactors(
    few_bits=1.1, experts_us=1.4, more_experts=0.75, mixture_us=10.0, vulkan=1.0, watts=0.7, watts_compute=0.7
)


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--rows", action="store_true")
    options = parser.parse_args()
    runs, left_out = read_runs()
    print(f"{len(runs)} runs of {sum(left_out.values()) + len(runs)}; left out:")
    for reason, count in left_out.most_common():
        print(f"  {count:4} {reason}")
    if options.fit:
        _print_factors(fit_factors(runs, SHIPPED))
        return
    shipped = {id(run): SHIPPED.forecast(run) for run in runs}
    without = _leave_out(runs)
    print(f"\n{'':26}{'runs':>5}{'shipped':>9}{'left out':>10}{'of five, four within':>24}")
    for name, some in _parts(runs):
        _print_part(name, some, shipped, without)
    if options.rows:
        for run in sorted(runs, key=lambda each: -abs(math.log(without[id(each)] / each.rate))):
            row = run.row
            print(
                f"{run.card.name:34} {row['model']:18} {row['quant']:14} draft {run.draft} {run.rate:7.1f} "
                f"{without[id(run)]:7.1f} {without[id(run)] / run.rate - 1:+.0%} {row['source'][:40]}"
            )


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
    if OTHER_ENGINE.search(f"{row['engine']} {row['backend']}"):
        return "another engine"
    if not row["tokens_per_second"] or not row["draft"]:
        return "rate or draft length unknown"
    if row["workload"] and not _MIXED.search(row["workload"]):
        return "one kind of prompt only"
    if int(row["prompt_tokens"] or 0) > 4_096:
        return "a long prompt before it"
    if _SPILLED.search(row["note"]):
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
    draft, kv = int(row["draft"]), row["kv"] if row["kv"] in KV_TYPES else "q8_0"
    setting = PlanSettings(int(row["ctx"] or 4_096), kv, draft, backend="cuda")
    if estimate_memory(entry.geometry, weights, setting).needed_bytes > card.memory_gb * 2**30:
        return "larger than the card, with its context"
    work = measure_work(file, entry.geometry, weights, 0)
    power = float(row["power_w"]) if row["power_w"] else None
    vulkan = "vulkan" in row["backend"].casefold()
    return Run(row, work, draft, card, float(row["tokens_per_second"]), vulkan, power)


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


def fit_factors(runs: Sequence[Run], begin: Factors, *, rounds: int = 6) -> Factors:
    """Return the factors that fit `runs` best, from `begin`, one at a time with ever smaller steps.

    The cost of factors is the sum of the errors' logarithms, in which a group of runs weighs as the square root of its
    size, and of a penalty for factors that are far from the usual ones.
    """
    weights = _group_weights(runs)
    places = [(name, field) for name in GENERATIONS for field in _SPREADS] + [
        ("common", field) for field in _COMMON_SPREADS
    ]
    found, cost, step = begin, _fitting_cost(runs, weights, begin), 0.16
    for _ in range(rounds):
        for place in places:
            for by in (1 + step, 1 / (1 + step)):
                while (tried := _fitting_cost(runs, weights, better := found.scaled(place, by))) < cost - 1e-9:
                    found, cost = better, tried
        step = max(step / 2, _SMALLEST_STEP)
    return found


def _group_weights(runs: Sequence[Run]) -> list[float]:
    sizes = Counter(run.group for run in runs)
    return [sizes[run.group] ** -0.5 for run in runs]


def _fitting_cost(runs: Sequence[Run], weights: Sequence[float], factors: Factors) -> float:
    errors = sum(
        weight * abs(math.log(factors.forecast(run) / run.rate)) / 0.12
        for run, weight in zip(runs, weights, strict=True)
    )
    far = sum(
        (math.log(getattr(each, name) / getattr(_USUAL, name)) / spread) ** 2
        for each in factors.generations.values()
        for name, spread in _SPREADS.items()
    ) + sum(
        (math.log(getattr(factors.common, name) / getattr(_USUAL_COMMON, name)) / spread) ** 2
        for name, spread in _COMMON_SPREADS.items()
    )
    return errors + far / 2


def _leave_out(runs: Sequence[Run]) -> dict[int, float]:
    """Return the forecast of each run by factors that were fitted without its group."""
    forecasts: dict[int, float] = {}
    for group in dict.fromkeys(run.group for run in runs):
        factors = fit_factors([run for run in runs if run.group != group], SHIPPED, rounds=4)
        forecasts |= {id(run): factors.forecast(run) for run in runs if run.group == group}
    return forecasts


def _parts(runs: Sequence[Run]) -> Iterable[tuple[str, list[Run]]]:
    """Yield all runs and parts of them, with names."""
    yield "all", list(runs)
    yield "with MTP", [run for run in runs if run.draft]
    yield "without drafts", [run for run in runs if not run.draft]
    yield "mixtures with MTP", [run for run in runs if run.draft and run.work.mixture]
    yield "prompts known to be mixed", [run for run in runs if run.row["workload"]]
    by_generation: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_generation[run.card.generation].append(run)
    yield from sorted(by_generation.items())


def _print_part(name: str, runs: Sequence[Run], shipped: dict[int, float], without: dict[int, float]) -> None:
    if not runs:
        return
    errors = [median(abs(one[id(run)] / run.rate - 1) for run in runs) for one in (shipped, without)]
    ratios = sorted(run.rate / without[id(run)] for run in runs)
    low, high = ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]
    print(f"{name:26}{len(runs):5}{errors[0]:9.1%}{errors[1]:10.1%}{f'{low:.2f} to {high:.2f}':>24}")


def _print_factors(found: Factors) -> None:
    for name, one in found.generations.items():
        print(f'    "{name}": GenerationFactors({one.bandwidth:.3f}, {one.layer_us:.1f}, {one.compute:.3f}),')
    for name, value in found.common._asdict().items():
        print(f"    {name}: float = {value:.3f}")


if __name__ == "__main__":
    main()
