"""What a plan costs or risks, in plain words."""

from collections.abc import Sequence
from dataclasses import replace

from launcher.base.words import part
from launcher.models.catalogue import ModelEntry, ModelFile
from launcher.models.fitting import Fitted, Measure
from launcher.models.limits import beyond_training
from launcher.models.memory import ENCODER_MIB
from launcher.models.preset import Measurement
from launcher.models.situation import Situation
from launcher.models.weights import Weights

_MIB = 2**20
_ROOM_MIB = 1_024
"""Host memory that the system needs beside what the engine puts there."""
_SLOW_ON_CUDA = ("q5_1", "q5_0", "q4_1")
"""KV cache types without a vector kernel unless a build asks for it (ggml/CMakeLists.txt: GGML_CUDA_FA_QUANTS)."""


def host_need_mib(fitted: Fitted) -> int:
    """Return the host memory in MiB that a plan needs at its start, with room for the system."""
    return fitted.estimate.host.at_start // _MIB + _ROOM_MIB


def cautions_for(
    entry: ModelEntry,
    file: ModelFile,
    weights: Weights,
    fitted: Fitted,
    situation: Situation,
    evidence: Sequence[Measurement],
    measure: Measure,
) -> tuple[str, ...]:
    """Return what a plan costs or risks: first memory that is missing and slowness, then quality, MTP and the rest."""
    setting = fitted.setting
    found = [_too_big(situation)] if fitted.needed_mib > situation.free_mib else []
    if situation.backend == "cpu":
        found.append("Without a GPU tokens come slowly, and nobody measured whether MTP helps then: try --no-mtp.")
    found += _host_cautions(fitted, situation)
    found += [f"{note.text} Source: {note.source}." for note in entry.quality_notes(file.quant, setting.kv)]
    if longer := beyond_training(entry.native_context, setting.context):
        found.append(longer)
    if setting.kv in _SLOW_ON_CUDA and setting.backend in ("cuda", "rocm"):
        found.append(
            f"Default builds of llama.cpp have no fast attention for a KV cache of {setting.kv}: it is converted to f16"
            " for each token, which is slow. Take q8_0 or q4_0, or a build with GGML_CUDA_FA_QUANTS."
        )
    if setting.n_cpu_moe:
        found += _offload_cautions(weights, fitted, situation, measure)
    if situation.gpus > 1:
        found.append(_split_caution(fitted, situation))
    if setting.draft_model_bytes and not fitted.estimate.drafts_counted:
        found.append("Of the draft its file's size is counted, not its cache and buffers: its header is not read.")
    if setting.mmproj_bytes:
        found.append(
            f"Of the vision projector's memory {ENCODER_MIB} MiB are a guess: nobody has published what its encoder's"
            " buffers take. Drafts are made of text only. -- --no-mmproj-offload keeps it in host memory."
        )
    if setting.draft:
        found += _slower_cautions(evidence, situation)
    return tuple(found)


def _too_big(situation: Situation) -> str:
    if situation.backend == "cpu":
        return "It can be started anyway: the system will swap, and may end the engine or other programs."
    return (
        "It can be started anyway, at a risk: the engine ends for lack of memory, or on Windows the driver moves"
        " parts to host memory and tokens come several times more slowly."
    )


def _split_caution(fitted: Fitted, situation: Situation) -> str:
    told = ", ".join(f"{size / _MIB:,.0f}" for size in fitted.estimate.by_gpu)
    head = ", an MTP head with its cache and buffers too" if fitted.estimate.parts.draft_kv else ""
    uneven = fitted.required_mib <= situation.free_mib < fitted.needed_mib
    itself = " Left without --gpu-layers llama-server may share them so that all fits." if uneven else ""
    return (
        f"Of the {situation.gpus} GPUs each gets whole layers by its free memory, {told} MiB in all. The last one also"
        f" has the output{head}. -- --tensor-split shares them otherwise.{itself}"
    )


def _slower_cautions(evidence: Sequence[Measurement], situation: Situation) -> list[str]:
    found = []
    slower = next((each for each in evidence[:1] if each.speedup is not None and each.speedup < 1), None)
    if slower is not None:
        found.append(
            f"MTP was slower in the nearest run: {slower.tokens_per_second:g} t/s on the {slower.gpu},"
            f" without it {slower.baseline:g}. Measure it with --no-mtp too."
        )
    if situation.unified:
        found.append("On GPUs that share the host's memory MTP gained little or lost: measure it with --no-mtp too.")
    return found


def _host_cautions(fitted: Fitted, situation: Situation) -> list[str]:
    """What the engine takes of the host's memory at its start, and may add later."""
    host, offloads = fitted.estimate.host, fitted.setting.n_cpu_moe > 0
    later = (host.checkpoints_most + host.prompt_cache_most) // _MIB
    if situation.backend == "cpu":
        spare = situation.free_mib - fitted.required_mib
        room = part(f"{spare:,} MiB stay free") if spare >= later else part(f"only {max(spare, 0):,} MiB stay free")
        told = (
            f"While it runs it may take up to {later:,} MiB more: {host.prompt_cache_most // _MIB:,} of cached prompts"
            f" (-- --cache-ram N limits them to N MiB) and {host.checkpoints_most // _MIB:,} of context checkpoints;"
            f" {room}."
        )
        return [told]
    need, have = host_need_mib(fitted), situation.host_mib
    if have is None:
        told = f"The host should have about {need:,} MiB free for them; what it has is not known (--host-memory)."
        return [told] if offloads else []
    if have < need:
        slow = (
            "Experts would be read from the disk again and again, and tokens come very slowly. Take a smaller"
            " quantisation or model."
            if offloads
            else "The system will swap, and may end the engine."
        )
        return [" ".join((f"Host memory is short: about {need:,} MiB are needed and {have:,} are there.", slow))]
    if have < need + later:
        told = (
            f"Long use may add up to {later:,} MiB on the host (prompt cache, context checkpoints), more than is there:"
            " -- --cache-ram N limits the cache to N MiB."
        )
        return [told]
    return []


def _offload_cautions(weights: Weights, fitted: Fitted, situation: Situation, measure: Measure) -> list[str]:
    layer_bytes = weights.blocks[0].experts
    has_room = fitted.needed_mib + layer_bytes // _MIB <= situation.free_mib - situation.margin_mib
    if not fitted.setting.draft or not layer_bytes or has_room:
        return []
    cost = fitted.estimate.parts.total - measure(replace(fitted.setting, draft=0, draft_model_bytes=0)).parts.total
    layers = min(cost // layer_bytes, fitted.setting.n_cpu_moe)
    if not layers:
        return []
    told = (
        f"MTP takes {cost // _MIB:,} MiB here. Without it the experts of {layers} more"
        f" layer{'s' if layers > 1 else ''} fit on the GPU; only a measurement tells which is faster."
    )
    return [told]
