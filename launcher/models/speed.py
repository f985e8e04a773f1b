"""Expected speed of a plan: the nearest published measurements, and the limit by memory bandwidth."""

import re
from dataclasses import replace
from math import log2

from launcher.base.messages import message
from launcher.models.catalogue import ModelEntry
from launcher.models.geometry import Geometry
from launcher.models.memory import PlanSettings, kv_bytes
from launcher.models.preset import Measurement
from launcher.models.situation import Situation
from launcher.models.weights import Weights

_FAR = 3.0
_SHOWN = 3
_USUAL_BITS = 4
"""Bits per weight assumed for a result without a named file; most people run four bits."""
_OTHER_ENGINES = ("vLLM", "ik_llama", "fork", "Ollama")
"""Words in a result's engine that mean it is not llama.cpp; any other text names a build of llama.cpp."""
_VARIANTS = frozenset({"TI", "SUPER", "LAPTOP", "D", "XT", "XTX", "MAX", "GRE"})
"""Words that distinguish GPU models of the same number."""
_SAME_MEMORY = 1.15
"""Largest ratio of two memory sizes that count as the same card: the RTX 5060 Ti exists with 8 and 16 GB."""


def nearest_measurements(
    entry: ModelEntry, quant: str, setting: PlanSettings, situation: Situation
) -> tuple[Measurement, ...]:
    """Return the published results of the same model that are nearest to a plan, nearest first; () if all are far.

    Results on this GPU model come first. Near means: similar GPU memory and file size, experts on the host in both or
    in neither, and a rate with MTP for a plan with MTP, without it for one without. Of several results of one source on
    one file and GPU only the nearest is returned.
    """
    scored = [
        (not _same_gpu(result, situation), distance, index, result)
        for index, result in enumerate(entry.measurements)
        if (distance := _distance(entry, result, quant, setting, situation)) < _FAR
    ]
    found: dict[tuple[str, str | None, str], Measurement] = {}
    for _, _, _, result in sorted(scored, key=lambda one: one[:3]):
        found.setdefault((result.gpu, result.quant, result.source), result)
    return tuple(found.values())[:_SHOWN]


def comparable_rate(result: Measurement, setting: PlanSettings) -> float | None:
    """Return the tokens per second of a result that compare with a plan: its baseline for a plan without drafts."""
    if bool(setting.draft) == (result.draft != 0):
        return result.tokens_per_second
    return result.baseline if result.draft != 0 else None


def _distance(entry: ModelEntry, result: Measurement, quant: str, setting: PlanSettings, situation: Situation) -> float:
    if comparable_rate(result, setting) is None or result.trust == "low" or situation.backend == "cpu":
        return _FAR
    if any(name in (result.engine or "") for name in _OTHER_ENGINES):
        return _FAR
    if _had_host_experts(entry, result) != bool(setting.n_cpu_moe):
        return _FAR
    distance = 0.0
    if not _same_gpu(result, situation):
        if result.gpu_memory_gb is None:
            return _FAR
        distance = 0.5 + 2 * abs(log2(result.gpu_memory_gb / situation.nominal_gb))
    ours, its = entry.file(quant), entry.file(result.quant or "")
    if ours is None or its is None or ours.size_bytes is None or its.size_bytes is None:
        distance += 1.0
    else:
        distance += 3 * abs(log2(ours.size_bytes / its.size_bytes)) + 0.3 * (ours is not its)
    if result.ctx:
        distance += 0.2 * abs(log2(result.ctx / setting.context))
    if result.draft and setting.draft:
        distance += 0.3 * abs(result.draft - setting.draft)
    if result.kv:
        distance += 0.2 * (result.kv != setting.kv)
    return distance + (1.0 if result.filled else 0.0)


def _had_host_experts(entry: ModelEntry, result: Measurement) -> bool:
    """Return whether experts were in host memory: as reported, else if the file is larger than the GPU's memory."""
    if result.n_cpu_moe is not None:
        return result.n_cpu_moe > 0
    if result.gpu_memory_gb is None or entry.geometry is None or not entry.geometry.experts:
        return False
    file = entry.file(result.quant or "")
    sizes = [file] if file else [each for each in entry.files if each.bits == _USUAL_BITS]
    size = max((each.size_bytes or 0 for each in sizes), default=0)
    return size > result.gpu_memory_gb * 2**30


def _same_gpu(result: Measurement, situation: Situation) -> bool:
    """Return whether a published GPU, such as "2x RTX 4090", is this machine's (two "NVIDIA GeForce RTX 4090").

    This machine's name must have all words of the published one and no further word of a variant; the memory must be
    about the same.
    """
    if situation.gpu_name is None:
        return False
    several = re.fullmatch(r"(\d)x (.+)", result.gpu)
    count, name = (int(several[1]), several[2]) if several else (1, result.gpu)
    wanted, here = (set(re.findall(r"[A-Z0-9]+", each.upper())) for each in (name, situation.gpu_name))
    if "MOBILE" in wanted:
        wanted = wanted - {"MOBILE"} | {"LAPTOP"}
    alike = result.gpu_memory_gb or situation.nominal_gb
    return (
        count == situation.gpus
        and wanted <= here
        and not (here - wanted) & _VARIANTS
        and max(alike, situation.nominal_gb) <= _SAME_MEMORY * min(alike, situation.nominal_gb)
    )


def describe_measurement(entry: ModelEntry, result: Measurement) -> str:
    """Return a published result of `entry` as a sentence, with its source and its rate with the context filled."""
    where = [result.gpu]
    if result.gpu_memory_gb and not re.search(rf"\b{result.gpu_memory_gb} ?GB", result.gpu):
        where.append(f"{result.gpu_memory_gb} GB")
    how = [result.quant or "quant unknown"]
    if result.ctx:
        how.append(f"context {result.ctx:,}")
    if result.filled:
        how.append(f"{result.filled:,} tokens of it filled")
    if result.kv:
        how.append(f"KV {result.kv}")
    if result.n_cpu_moe:
        how.append(f"experts of {result.n_cpu_moe} layers on the host")
    how.append("MTP off" if result.draft == 0 else f"draft {result.draft}" if result.draft else "draft length unknown")
    text = f"{', '.join(where)}: {_format_rate(result)} with {', '.join(how)}"
    if result.baseline:
        text += f"; {result.baseline:g} t/s without MTP"
    if result.acceptance is not None:
        top = f" to {100 * result.acceptance_high:g}" if result.acceptance_high else ""
        text += f"; {100 * result.acceptance:g}{top} % of drafts accepted"
    fullest = max(_same_run(entry, result), key=lambda each: each.filled or 0)
    if fullest is not result:
        without = f" ({fullest.baseline:g} without MTP)" if fullest.baseline else ""
        text += f"; {_format_rate(fullest)}{without} with {fullest.filled:,} tokens in the context"
    note = f" {result.note}" if result.note else ""
    return message("{told}.{note} Source: {source}.", told=text, note=note, source=result.source)


def _format_rate(result: Measurement) -> str:
    high = f" to {result.tokens_per_second_high:g}" if result.tokens_per_second_high else ""
    return f"{result.tokens_per_second:g}{high} t/s"


def _same_run(entry: ModelEntry, result: Measurement) -> list[Measurement]:
    """Return the results that equal `result` in all conditions but the filled context."""
    return [
        each
        for each in entry.measurements
        if (each.gpu, each.engine, each.quant, each.ctx, each.kv, each.draft, each.n_cpu_moe, each.source)
        == (
            result.gpu,
            result.engine,
            result.quant,
            result.ctx,
            result.kv,
            result.draft,
            result.n_cpu_moe,
            result.source,
        )
        and each.tokens_per_second is not None
    ]


def bytes_per_token(geometry: Geometry, weights: Weights, setting: PlanSettings, *, full: bool = False) -> int:
    """Return the bytes read to compute one token: the active weights and, with a `full` context, one slot's KV cache.

    Of the routed experts only the active ones count. The MTP head and recurrent states are not counted.
    """
    active = geometry.experts_used / geometry.experts if geometry.experts else 0.0
    read = weights.output + sum(block.rest + int(active * block.experts) for block in weights.blocks)
    slot = replace(setting, context=setting.context // setting.slots, slots=1)
    return read + (kv_bytes(geometry, slot) if full else 0)


def bandwidth_limit(
    geometry: Geometry, weights: Weights, setting: PlanSettings, situation: Situation, *, full: bool = False
) -> float | None:
    """Return the limit by memory bandwidth, in tokens per second, without drafts, at an empty or a `full` context.

    It is a limit, not a forecast. MTP can exceed it, because one pass then yields several tokens. Returns None if the
    bandwidth is unknown, or if some weights are read from the host.
    """
    if situation.bandwidth_gb_s is None or setting.n_cpu_moe:
        return None
    return situation.bandwidth_gb_s * 1e9 / bytes_per_token(geometry, weights, setting, full=full)
