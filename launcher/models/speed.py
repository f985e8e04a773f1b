"""How fast a plan may be: what somebody measured nearest to it, and the limit that memory bandwidth sets."""

import re
from dataclasses import replace
from math import log2

from launcher.models.catalogue import ModelEntry
from launcher.models.geometry import Geometry
from launcher.models.memory import Setting, kv_bytes
from launcher.models.preset import Measurement
from launcher.models.situation import Situation
from launcher.models.weights import Weights

_FAR = 3.0
_SHOWN = 3
_USUAL_BITS = 4
"""A result that does not name its file is taken for one of four bits, which most people run."""
_OTHER_ENGINES = ("vLLM", "ik_llama", "fork", "Ollama")
"""Words in a result's engine that make it none of llama.cpp's own; anything else there names a build."""
_VARIANTS = frozenset({"TI", "SUPER", "LAPTOP", "D", "XT", "XTX", "MAX", "GRE"})
"""Words that make a GPU another one than that of the same number without them."""
_SAME_MEMORY = 1.15
"""Cards of one name come with different memory: 8 and 16 GB of the RTX 5060 Ti."""


def nearest(entry: ModelEntry, quant: str, setting: Setting, situation: Situation) -> tuple[Measurement, ...]:
    """Return the published results of the same model that lie nearest to a plan, nearest first; () when all are far.

    A result on this very GPU comes before all others. Near means: GPU memory and bits alike, experts on the host in
    both or in neither, and a rate with MTP for a plan with it, without for one without. Of the results of one report on
    one file and GPU the nearest stands for all.
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


def rate(result: Measurement, setting: Setting) -> float | None:
    """Return the tokens per second of a result that are comparable with a plan: without MTP for one without it."""
    if bool(setting.draft) == (result.draft != 0):
        return result.tokens_per_second
    return result.baseline if result.draft != 0 else None


def _distance(entry: ModelEntry, result: Measurement, quant: str, setting: Setting, situation: Situation) -> float:
    if rate(result, setting) is None or result.trust == "low" or situation.backend == "cpu":
        return _FAR
    if any(name in (result.engine or "") for name in _OTHER_ENGINES):
        return _FAR
    if _on_host(entry, result) != bool(setting.n_cpu_moe):
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


def _on_host(entry: ModelEntry, result: Measurement) -> bool:
    """Whether experts were in host memory: as the report says, else if the file is larger than the GPU's memory."""
    if result.n_cpu_moe is not None:
        return result.n_cpu_moe > 0
    if result.gpu_memory_gb is None or entry.geometry is None or not entry.geometry.experts:
        return False
    file = entry.file(result.quant or "")
    sizes = [file] if file else [each for each in entry.files if each.bits == _USUAL_BITS]
    size = max((each.size_bytes or 0 for each in sizes), default=0)
    return size > result.gpu_memory_gb * 2**30


def _same_gpu(result: Measurement, situation: Situation) -> bool:
    """Whether "2x RTX 4090" are the two "NVIDIA GeForce RTX 4090" here.

    All words of the published name must be there, none besides that names a variant, and as much memory.
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


def describe(entry: ModelEntry, result: Measurement) -> str:
    """Return a published result of `entry` as a sentence with its source, and what it became as the context filled."""
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
    told = f"{', '.join(where)}: {_rate(result)} with {', '.join(how)}"
    if result.baseline:
        told += f"; {result.baseline:g} t/s without MTP"
    if result.acceptance is not None:
        top = f" to {100 * result.acceptance_high:g}" if result.acceptance_high else ""
        told += f"; {100 * result.acceptance:g}{top} % of drafts accepted"
    fullest = max(_same_run(entry, result), key=lambda each: each.filled or 0)
    if fullest is not result:
        without = f" ({fullest.baseline:g} without MTP)" if fullest.baseline else ""
        told += f"; {_rate(fullest)}{without} with {fullest.filled:,} tokens in the context"
    note = f" {result.note}" if result.note else ""
    return f"{told}.{note} Source: {result.source}."


def _rate(result: Measurement) -> str:
    high = f" to {result.tokens_per_second_high:g}" if result.tokens_per_second_high else ""
    return f"{result.tokens_per_second:g}{high} t/s"


def _same_run(entry: ModelEntry, result: Measurement) -> list[Measurement]:
    """The results that differ from `result` at most in how far the context was filled, and the rates that follow."""
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


def bytes_per_token(geometry: Geometry, weights: Weights, setting: Setting, *, full: bool = False) -> int:
    """Return the bytes that one pass over one token reads: active weights, and when it is `full` one slot's KV cache.

    Of routed experts those are read that work on a token; the MTP head and recurrent states are not counted.
    """
    active = geometry.experts_used / geometry.experts if geometry.experts else 0.0
    read = weights.output + sum(block.rest + int(active * block.experts) for block in weights.blocks)
    slot = replace(setting, context=setting.context // setting.slots, slots=1)
    return read + (kv_bytes(geometry, slot) if full else 0)


def roofline(
    geometry: Geometry, weights: Weights, setting: Setting, situation: Situation, *, full: bool = False
) -> float | None:
    """Return the limit in tokens per second that memory bandwidth sets to passes of one token.

    That is at an empty context, or at a `full` one.

    It is a limit, not a forecast: MTP gets past it, because one pass then yields several tokens. None while the
    bandwidth is unknown, or when some weights are read from the host.
    """
    if situation.bandwidth_gb_s is None or setting.n_cpu_moe:
        return None
    return situation.bandwidth_gb_s * 1e9 / bytes_per_token(geometry, weights, setting, full=full)
