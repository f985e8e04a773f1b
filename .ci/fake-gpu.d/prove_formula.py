"""Compares the memory formula for Vulkan with the figures of a real engine, over hundreds of settings."""
# ruff: noqa: S101

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

from harness import FOLDER, engine, launcher, model, planned_flags, proof, read_memory_tables, run

from launcher.app.planning.planner import estimate_by_formula, read_source
from launcher.engine.builds.probe import list_devices, probe_engine
from launcher.models.memory import PlanSettings
from launcher.models.overhead import USUAL_MIB
from tools.accuracy.grid import COUNTS, PARTS, Case, Outcome, draw_cases, measure_cases

MOST_PERCENT = 3.0
MOST_MIB = 3.0
"""Allowed difference of a card's share: the engine cuts each figure to whole MiB."""
CACHES = ("model_mib", "context_mib", "draft_context_mib")
MOE, DENSE = "qwen35moe-35b-q3_k_xl", "qwen35-27b-q4_k_s"


def compare_figures(cards: str, wanted: Sequence[Case]) -> str:
    """Compare all cases; return a text with the number of equal figures and the largest difference of the others."""
    build = asyncio.run(probe_engine(engine(cards)))
    outcomes = asyncio.run(measure_cases(build, wanted, FOLDER / "models"))
    wrong = [describe_figure(one, part) for one in outcomes for part in CACHES if not one.is_equal(part)]
    wrong += [
        describe_figure(one, part) for one in outcomes for part in PARTS if abs(one.beyond_percent(part)) > MOST_PERCENT
    ]
    assert not wrong, f"{len(wrong)} differ: {'; '.join(wrong[:20])}"
    figures = [(one, part) for one in outcomes for part in PARTS if one.case.setting.draft or "draft" not in part]
    equal = sum(one.is_equal(part) for one, part in figures)
    most = max((one.beyond_percent(part) for one, part in figures), key=abs)
    return f"{len(outcomes)} settings, {equal} of {len(figures)} figures equal to the MiB, at most {most:+.2f} % apart"


def describe_figure(outcome: Outcome, part: str) -> str:
    """Return a figure of the formula and the same of the engine, as text."""
    return f"{outcome.case} {part} {outcome.formula[part]:.1f}, engine {outcome.engine_mib(part)}"


@proof("one card: all parts of all models, experts on the host among them")
def _one() -> str:
    return compare_figures("80g", draw_cases(COUNTS, gpu=True))


@proof("two cards: all parts together")
def _two() -> str:
    counts: Mapping[str, int] = {MOE: 30, DENSE: 30}
    wanted = [Case(one.model, replace(one.setting, gpus=2)) for one in draw_cases(counts, gpu=True)]
    return compare_figures("2x24g", list(dict.fromkeys(wanted)))


@proof("two cards, of one size and of two: what each of them holds")
def _shares() -> str:
    apart = []
    for cards in ("24g+12g", "2x12g"):
        build = asyncio.run(probe_engine(engine(cards)))
        free = tuple(device.free_mib for device in asyncio.run(list_devices(build)))
        for name, context, (kv, draft) in product(
            (MOE, DENSE), (32_768, 131_072), (("q8_0", 2), ("f16", 4), ("q4_0", 0))
        ):
            setting = PlanSettings(context=context, kv=kv, draft=draft, ubatch=512, backend="vulkan", gpus=2)
            setting = replace(setting, gpu_free_mib=free)
            flags = ["-m", str(model(name)), *planned_flags(setting, build)]
            target, *head = read_memory_tables(cards, *flags, tables=2 if draft else 1)
            ours = estimate_by_formula(read_source(str(model(name))), setting).by_gpu
            for card, in_bytes in enumerate(ours):
                # The head's table repeats the weights, which are in memory only once, so they are not added.
                of_engine = target[card]["self"] + sum(rows[card]["context"] + rows[card]["compute"] for rows in head)
                apart.append(in_bytes / 2**20 - USUAL_MIB["vulkan"] - of_engine)
                assert abs(apart[-1]) < MOST_MIB, (cards, name, setting, card, apart[-1])
    return f"{len(apart) // 2} settings, at most {max(apart, key=abs):+.1f} MiB apart"


@proof("what stays on the host: embedding, experts and buffers")
def _host() -> str:
    settings = (
        PlanSettings(context=32_768, kv="q8_0", draft=2, ubatch=512, backend="vulkan"),
        PlanSettings(context=262_144, kv="q4_0", draft=2, ubatch=256, n_cpu_moe=20, backend="vulkan"),
        PlanSettings(context=65_536, kv="f16", draft=4, ubatch=1_024, n_cpu_moe=40, backend="vulkan"),
        PlanSettings(context=65_536, kv="q8_0", draft=1, ubatch=128, slots=4, backend="vulkan"),
    )
    build = asyncio.run(probe_engine(engine("80g")))
    for name in (MOE, DENSE):
        source = read_source(str(model(name)))
        for setting in settings:
            flags = ["-m", str(model(name)), *planned_flags(setting, build)]
            target, head = (table[-1] for table in read_memory_tables("80g", *flags, tables=2))
            host = estimate_by_formula(source, setting).host
            assert 0 <= host.weights / 2**20 - target["model"] < 2, (name, setting, host, target)
            buffers = target["compute"] + head["compute"]
            assert -1 <= host.compute / 2**20 - buffers < 3, (name, setting, host, target, head)
    return f"{2 * len(settings)} settings"


@proof("estimate --ask-engine shows the engine beside the formula")
def _estimate() -> str:
    flags = ("--ctx", "262144", "--kv", "q8_0", "--ubatch", "256", "--draft", "2", "--backend", "vulkan")
    described = ("--gpu-memory", "24")
    asking = ("--ask-engine", "--engine", str(engine("24g")), "--json")
    code, output = launcher("estimate", str(model(MOE)), *flags, *described, *asking)
    assert code == 0, output
    answer = json.loads(output)
    parts, of_engine = answer["parts"], answer["engine"]
    assert of_engine["backend"] == "vulkan"
    assert of_engine["context_mib"] == 2_908 == int(parts["kv"] + parts["recurrent"]), answer
    assert of_engine["draft_context_mib"] == 512 == parts["draft_kv"], answer
    assert abs(answer["difference_percent"]) < 0.1, answer
    code, output = launcher("estimate", str(model(MOE)), *flags, *described, *asking[:-1])
    assert code == 0
    assert f"{of_engine['model_mib']:,}" in output, output
    return f"{answer['difference_percent']:+.2f} %, asked in {of_engine['seconds']:.1f} s"


run()
