"""Compares `plan` with llama-server's own --fit on the same cards: does a model fit, partly fit, or not fit at all."""
# ruff: noqa: S101

import asyncio
import json
import re
from dataclasses import dataclass, fields, replace
from itertools import product

from harness import FOLDER, engine, launcher, model, planned_flags, proof, records, run

from launcher.app.planning.planner import estimate_by_formula, read_source
from launcher.engine.builds.probe import probe_engine
from launcher.models import fitting
from launcher.models.catalogue_load import load_catalogue
from launcher.models.fitting import CONTEXTS
from launcher.models.geometry import read_geometry
from launcher.models.memory import PlanSettings, recurrent_bytes
from launcher.models.overhead import USUAL_MIB
from launcher.models.plan import Plan, PlanCriteria, Status, make_plans
from launcher.models.situation import HEADLESS_MARGIN_MIB, describe_machine

USED_MIB = 400
OVERHEAD = USUAL_MIB["vulkan"]
FILES = {
    # For each file of the catalogue, a sparse model of the same geometry and nearly the same size.
    ("qwen3.6-35b-a3b-mtp", "UD-IQ3_S"): "qwen35moe-35b-iq3_s",
    ("qwen3.6-35b-a3b-mtp", "UD-Q3_K_XL"): "qwen35moe-35b-q3_k_xl",
    ("qwen3.6-35b-a3b-mtp", "UD-IQ4_XS"): "qwen35moe-35b-iq4_xs",
    ("qwen3.6-35b-a3b-mtp", "UD-Q4_K_M"): "qwen35moe-35b-q4_k_m",
    ("qwen3.8-27b", "UD-Q4_K_S"): "qwen35-27b-q4_k_s",
    ("qwen3.6-27b-mtp", "Q4_K_M"): "qwen35-27b-q4_k_m",
    ("qwen3.5-9b-mtp", "Q4_K_M"): "qwen35-9b-q4_k_m",
}
NEAR_MIB = 60
"""Allowed difference between a file's weights by our rules and those of its sparse model, rounding included."""
FITS, CHANGES, FAILS = "no changes needed", "cannot meet free memory target", "failed to fit"
CATALOGUE = load_catalogue(FOLDER / "no-own-models")
BUILD = asyncio.run(probe_engine(engine("24g")))


@dataclass(frozen=True)
class Fit:
    """Result of an engine's own fitting: the verdict, the chosen context, and how many layers' experts overflow."""

    verdict: str
    context: int | None = None
    overflowing: int | None = None


def fit(
    cards: str, name: str, setting: PlanSettings, target_mib: int, *, place: bool = False, wait: bool = False
) -> Fit:
    """Let the engine fit a model by --fit.

    With `place` the engine chooses itself which layers are on the card; `wait` waits for its final verdict.
    """
    flags = planned_flags(setting, BUILD)
    if place:
        at = flags.index("--gpu-layers")
        del flags[at : at + 2]
    if not setting.context:
        flags = flags[flags.index("--parallel") :]
    result = Fit("says nothing")
    for record in records(cards, "-m", str(model(name)), *flags, "-fitt", str(target_mib)):
        text = str(record.get("msg", ""))
        if found := re.search(r"context size reduced from \d+ to (\d+)", text):
            result = replace(result, context=int(found[1]))
        if found := re.search(r"(\d+) overflowing\)", text):
            result = replace(result, overflowing=int(found[1]))
        for verdict in (FITS, CHANGES, FAILS):
            if verdict in text:
                result = replace(result, verdict=verdict)
                if not wait:
                    return result
        if "fitting params to free memory took" in text or (wait and result.verdict in (FITS, FAILS)):
            return result
    return result


def plan_for(gb: int, file: tuple[str, str], **settings: int | str) -> Plan:
    """Return the first plan for a headless machine with an emulated card of `gb` GB."""
    machine = describe_machine(gb, free_mib=1_024 * gb - USED_MIB, headless=True, host_gib=64, backend="vulkan")
    wish = PlanCriteria(model=file[0], quant=file[1], slots=1, **settings)  # type: ignore[arg-type]
    return make_plans(CATALOGUE, machine, wish)[0]


def fit_by_our_code(gb: int, name: str, setting: PlanSettings, free: set[str]) -> PlanSettings:
    """Return a setting fitted by our own code, from the model's header; only the fields in `free` may change."""
    source = read_source(str(model(name)))
    fixed = frozenset(each.name for each in fields(PlanSettings)) - free
    layers = 41 if "n_cpu_moe" in free else 0
    budget = 1_024 * gb - USED_MIB - HEADLESS_MARGIN_MIB
    return fitting.fit_settings(setting, (budget,), fixed, layers, lambda one: estimate_by_formula(source, one)).setting


def engine_target_mib(name: str, setting: PlanSettings) -> int:
    """Return the margin that gives the engine as much room as `fit_by_our_code` has: the engine counts states twice."""
    return OVERHEAD + HEADLESS_MARGIN_MIB - int(state_mib(name, setting))


def state_mib(name: str, setting: PlanSettings) -> float:
    """Return the recurrent states, which an engine counts twice: allocated already, and in its projection."""
    geometry = read_geometry(read_source(str(model(name))).model)
    return recurrent_bytes(geometry, slots=setting.slots, draft=setting.draft) / 2**20


@proof("what fits by plan fits by the engine, and what does not does not")
def _verdicts() -> str:
    seen, near = {FITS: 0, CHANGES: 0}, 0
    settings = (
        (32_768, "q4_0", 2, 256),
        (131_072, "q8_0", 2, 512),
        (262_144, "q8_0", 0, 256),
        (262_144, "f16", 3, 512),
    )
    for gb, (file, name), (context, kv, draft, ubatch) in product((8, 12, 16, 20, 24, 32, 40), FILES.items(), settings):
        plan = plan_for(gb, file, context=context, kv=kv, draft=draft, ubatch=ubatch, n_cpu_moe=0)
        assert (plan.setting.context, plan.setting.kv, plan.setting.n_cpu_moe) == (context, kv, 0), plan
        margin = HEADLESS_MARGIN_MIB if plan.status is Status.FITS else 0
        spare = plan.free_mib - plan.required_mib - margin
        if -NEAR_MIB < spare < state_mib(name, plan.setting) + NEAR_MIB:
            near += 1
            continue
        expected = CHANGES if plan.status is Status.TOO_BIG else FITS
        found = fit(f"{gb}g", name, plan.setting, OVERHEAD + margin, place=True)
        assert found.verdict == expected, (gb, file, plan.setting, plan.status, plan.required_mib, found)
        seen[expected] += 1
    assert min(seen.values()) >= 40, seen
    return f"{seen[FITS]} fit, {seen[CHANGES]} do not; {near} too near to compare, for the engine counts states twice"


@proof("too big with all layers on the card: the engine's fit gives up, and so does its load")
def _too_big() -> str:
    for gb, file in ((8, ("qwen3.8-27b", "UD-Q4_K_S")), (12, ("qwen3.6-35b-a3b-mtp", "UD-IQ3_S"))):
        plan = plan_for(gb, file, context=32_768, kv="q4_0", draft=2, ubatch=512, n_cpu_moe=0)
        assert plan.status is Status.TOO_BIG, plan
        found = fit(f"{gb}g", FILES[file], plan.setting, OVERHEAD, wait=True)
        assert found.verdict == FAILS, found
        code, output = launcher(
            *("serve", "--model", str(model(FILES[file])), "--engine", str(engine(f"{gb}g")), "--json"),
            *("--ctx", "32768", "--kv", "q4_0", "--n-cpu-moe", "0", "--", "-ngl", "99", "--load-mode", "none"),
        )
        assert code == 1, output
        error = json.loads(output)["error"]
        assert "Not enough GPU memory" in error["message"], error
        assert "smaller" in error["hint"], error
    return "2 models, and `serve` says that there is not enough GPU memory"


@proof("plans with experts on the host fit the card, and without them the engine's fit changes something")
def _offloads() -> str:
    figures = []
    for gb, quant in product((8, 10, 12, 16), ("UD-IQ3_S", "UD-Q4_K_M")):
        file = "qwen3.6-35b-a3b-mtp", quant
        plan = plan_for(gb, file, context=65_536, kv="q8_0", draft=2, ubatch=512)
        setting = plan.setting
        if not setting.n_cpu_moe:
            continue
        assert plan.status is Status.OFFLOADS, plan
        target = min(HEADLESS_MARGIN_MIB, plan.free_mib - plan.required_mib)
        found = fit(f"{gb}g", FILES[file], setting, target)
        assert found.verdict == FITS, (setting, plan.required_mib, found)
        found = fit(f"{gb}g", FILES[file], replace(setting, n_cpu_moe=0), target, place=True)
        assert found.verdict == CHANGES, (setting, found)
        figures.append(f"{gb} GB {quant} {setting.n_cpu_moe}")
    assert len(figures) >= 6, figures
    return f"layers on the host: {', '.join(figures)}"


@proof("as many layers' experts on the host as the engine puts there itself")
def _placements() -> str:
    figures = []
    for gb, name in product((10, 12, 16), ("qwen35moe-35b-q3_k_xl", "qwen35moe-35b-q4_k_m")):
        setting = PlanSettings(context=65_536, kv="q8_0", draft=2, ubatch=512, backend="vulkan")
        ours = fit_by_our_code(gb, name, setting, free={"n_cpu_moe"})
        alone = fit(f"{gb}g", name, setting, engine_target_mib(name, setting), place=True, wait=True)
        assert alone.overflowing is not None, (ours, alone)
        # The engine begins at the last layers, which are smaller in these models, and counts partly overflowing ones.
        assert 0 <= alone.overflowing - ours.n_cpu_moe <= 2, (gb, name, ours, alone)
        figures.append(f"{gb} GB {name.split('-')[-1]} {ours.n_cpu_moe} ({alone.overflowing})")
    return f"by the formula (by the engine): {', '.join(figures)}"


@proof("the context that fits is the longest of ours that the engine would choose")
def _contexts() -> str:
    figures = []
    for gb, name, kv in (
        (16, "qwen35moe-35b-iq3_s", "q8_0"),
        (20, "qwen35moe-35b-iq4_xs", "f16"),
        (20, "qwen35-27b-q4_k_s", "q8_0"),
        (24, "qwen35-27b-q4_k_m", "q8_0"),
        (8, "qwen35-9b-q4_k_m", "q8_0"),
    ):
        setting = PlanSettings(context=262_144, kv=kv, draft=2, ubatch=256, backend="vulkan")
        ours = fit_by_our_code(gb, name, setting, free={"context"}).context
        alone = fit(
            f"{gb}g", name, replace(setting, context=0), engine_target_mib(name, setting), place=True, wait=True
        )
        assert alone.context is not None, (gb, name, ours, alone)
        assert ours == max(context for context in CONTEXTS if context <= alone.context), (gb, name, ours, alone)
        figures.append(f"{gb} GB {name} {ours:,} ({alone.context:,})")
    return f"ours (the engine's): {', '.join(figures)}"


@proof("two cards: what fits each of them by the formula fits them by the engine")
def _two() -> str:
    results = []
    for name, context, kv in product(
        ("qwen35moe-35b-q3_k_xl", "qwen35moe-35b-q4_k_m", "qwen35-27b-q4_k_m"),
        (32_768, 131_072, 262_144),
        ("q8_0", "f16"),
    ):
        setting = PlanSettings(context=context, kv=kv, draft=2, ubatch=512, backend="vulkan", gpus=2)
        source = read_source(str(model(name)))
        spare = 12 * 1_024 - USED_MIB - max(estimate_by_formula(source, setting).by_gpu) / 2**20
        found = fit("2x12g", name, setting, OVERHEAD, place=True).verdict
        results.append((round(spare), found))
        if abs(spare) > NEAR_MIB:
            assert (found == FITS) == (spare > 0), (name, setting, spare, found)
    clear = [spare for spare, _ in results if abs(spare) > NEAR_MIB]
    assert min(clear) < 0 < max(clear), results
    return f"{len(clear)} settings, and {len(results) - len(clear)} too near to compare"


run()
