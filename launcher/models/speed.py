"""How fast a plan may be: what somebody measured nearest to it, and the limit that memory bandwidth sets."""

from math import log2

from launcher.models.catalogue import ModelEntry
from launcher.models.geometry import Geometry
from launcher.models.memory import KV_TYPES, Setting
from launcher.models.preset import Measurement
from launcher.models.situation import Situation
from launcher.models.weights import Weights

_FAR = 3.0
_SHOWN = 3
_OTHER_ENGINES = ("vLLM", "ik_llama", "fork", "Ollama")
"""Words in a result's engine that make it none of llama.cpp's own; anything else there names a build."""


def nearest(entry: ModelEntry, quant: str, setting: Setting, situation: Situation) -> tuple[Measurement, ...]:
    """Return the published results of the same model that lie nearest to a plan, nearest first; () when all are far.

    A result on this very GPU comes before all others. Near means: GPU memory and bits alike, experts on the host in
    both or in neither, MTP in both.
    """
    scored = [
        (distance, index, result)
        for index, result in enumerate(entry.measurements)
        if (distance := _distance(entry, result, quant, setting, situation)) < _FAR
    ]
    return tuple(result for _, _, result in sorted(scored, key=lambda found: found[:2])[:_SHOWN])


def _distance(entry: ModelEntry, result: Measurement, quant: str, setting: Setting, situation: Situation) -> float:
    if result.tokens_per_second is None or result.trust == "low" or situation.backend == "cpu":
        return _FAR
    if any(name in (result.engine or "") for name in _OTHER_ENGINES):
        return _FAR
    if bool(result.n_cpu_moe) != bool(setting.n_cpu_moe):
        return _FAR
    same_gpu = situation.gpu_name is not None and _same_gpu(result.gpu, situation.gpu_name)
    distance = 0.0 if same_gpu else 0.5
    if not same_gpu:
        if result.gpu_memory_gb is None:
            return _FAR
        distance += 2 * abs(log2(result.gpu_memory_gb / situation.nominal_gb))
    ours, its = entry.file(quant), entry.file(result.quant or "")
    if ours is None or its is None or ours.size_bytes is None or its.size_bytes is None:
        distance += 1.0
    else:
        distance += 3 * abs(log2(ours.size_bytes / its.size_bytes)) + 0.3 * (ours is not its)
    if result.ctx:
        distance += 0.2 * abs(log2(result.ctx / setting.context))
    if result.draft is not None:
        distance += 0.3 * abs(result.draft - setting.draft)
    if result.kv:
        distance += 0.2 * (result.kv != setting.kv)
    return distance + (1.0 if result.filled else 0.0)


def _same_gpu(published: str, here: str) -> bool:
    """Whether "RTX 4090" names "NVIDIA GeForce RTX 4090": all its words are there, and no suffix makes it another."""
    wanted = published.upper().replace(",", " ").split()
    words = here.upper().split()
    variants = {"TI", "SUPER", "LAPTOP", "D", "XT", "XTX", "MAX-Q", "GRE"}
    return set(wanted) <= set(words) and not (set(words) - set(wanted)) & variants


def describe(result: Measurement) -> str:
    """Return a published result as a sentence with its source."""
    where = [result.gpu]
    if (
        result.gpu_memory_gb
        and f"{result.gpu_memory_gb} GB" not in result.gpu
        and f"{result.gpu_memory_gb}GB" not in result.gpu
    ):
        where.append(f"{result.gpu_memory_gb} GB")
    how = [result.quant or "quant unknown"]
    if result.ctx:
        how.append(f"context {result.ctx:,}")
    if result.filled:
        how.append(f"{result.filled:,} tokens of it filled")
    if result.kv:
        how.append(f"{result.kv} KV")
    if result.n_cpu_moe:
        how.append(f"experts of {result.n_cpu_moe} layers on the host")
    how.append("MTP off" if result.draft == 0 else f"draft {result.draft}" if result.draft else "draft length unknown")
    rate = f"{result.tokens_per_second:g}"
    if result.tokens_per_second_high:
        rate += f" to {result.tokens_per_second_high:g}"
    told = f"{', '.join(where)}: {rate} t/s with {', '.join(how)}"
    if result.baseline:
        told += f"; {result.baseline:g} t/s without MTP"
    if result.acceptance is not None:
        top = f" to {100 * result.acceptance_high:g}" if result.acceptance_high else ""
        told += f"; {100 * result.acceptance:g}{top} % of drafts accepted"
    return f"{told} ({result.source})"


def bytes_per_token(geometry: Geometry, weights: Weights, setting: Setting, filled: int = 0) -> int:
    """Return the bytes that one pass over one token reads: active weights, and the KV cache of `filled` tokens.

    Of routed experts those are read that work on a token; the MTP head is not counted.
    """
    active = geometry.experts_used / geometry.experts if geometry.experts else 0.0
    read = weights.output + sum(block.rest + int(active * block.experts) for block in weights.blocks)
    per_block, block_bytes = KV_TYPES[setting.kv]
    width = geometry.kv_heads * (geometry.key_length + geometry.value_length)
    return read + geometry.attention_layers * filled * width * block_bytes // per_block


def roofline(geometry: Geometry, weights: Weights, setting: Setting, situation: Situation) -> float | None:
    """Return the limit in tokens per second that memory bandwidth sets to passes of one token, at an empty context.

    It is a limit, not a forecast: MTP gets past it, because one pass then yields several tokens. None while the
    bandwidth is unknown, or when some weights are read from the host.
    """
    if situation.bandwidth_gb_s is None or setting.n_cpu_moe:
        return None
    return situation.bandwidth_gb_s * 1e9 / bytes_per_token(geometry, weights, setting)
