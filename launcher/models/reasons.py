"""A plan's reasons and cautions in plain words."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from launcher.models.catalogue import ModelEntry, ModelFile
from launcher.models.fitting import LEAST_CONTEXT, Fitted
from launcher.models.limits import beyond_training
from launcher.models.memory import ENCODER_MIB, Setting, estimate
from launcher.models.preset import Measurement, Preset
from launcher.models.situation import Situation
from launcher.models.weights import Weights

_MIB = 2**20
_INTENTS = {
    "balanced": "{} balances quality, context and speed in {}",
    "long-context": "{} leaves room for a long context in {}",
    "best-quality": "{} puts quality first in {}",
    "as-published": "{} as it was published for {}",
}
_MARKS = {
    "measured": "somebody ran it, or a close neighbour",
    "derived": "by the memory formula",
    "guess": "a guess",
}
_ROOM_MIB = 1_024
"""Host memory that the system needs beside what the engine puts there."""


def reasons_for(
    entry: ModelEntry,
    file: ModelFile,
    weights: Weights,
    fitted: Fitted,
    preset: Preset,
    situation: Situation,
    intent: str,
    fixed: frozenset[str],
) -> tuple[str, ...]:
    """Return why a plan is as it is, the choice of the file first."""
    setting = fitted.setting
    own = preset.quant == file.quant
    found = [
        _file_reason(file, preset, intent) if own else f"{file.quant} is your choice.",
        _memory_reason(fitted, situation),
        _given_up(fitted, situation),
        _context_reason(setting, preset, entry, "context" in fixed),
        "" if "kv" in fixed else _kv_reason(entry, weights, fitted, situation, intent),
        _draft_reason(setting, entry, file, "draft" in fixed),
        _slots_reason(setting),
        _offload_reason(entry, fitted, weights, situation, "n_cpu_moe" in fixed),
        "" if intent == "as-published" else _next_to_go(fitted, weights, situation, fixed),
        preset.note if own and situation.backend != "cpu" else "",
    ]
    return tuple(filter(None, found))


def host_need_mib(fitted: Fitted) -> int:
    """Return the host memory in MiB that a plan needs at its start, with room for the system."""
    return fitted.estimate.host.at_start // _MIB + _ROOM_MIB


def _file_reason(file: ModelFile, preset: Preset, intent: str) -> str:
    size = f"{preset.memory_gb} GB" if preset.memory_gb else "any memory"
    return f"{_INTENTS[intent].format(file.quant, size)} ({_MARKS[preset.mark]})."


def _memory_reason(fitted: Fitted, situation: Situation) -> str:
    spare = situation.free_mib - fitted.required_mib
    where = "of host memory" if situation.backend == "cpu" else "of GPU memory"
    told = f"It takes {fitted.required_mib:,} of {situation.free_mib:,} MiB {where}"
    if spare < 0:
        return f"{told}: {-spare:,} MiB are missing."
    advised = "" if spare >= situation.margin_mib else f", fewer than the {situation.margin_mib:,} that should"
    return f"{told}; {spare:,} stay free{advised}."


def _given_up(fitted: Fitted, situation: Situation) -> str:
    if not fitted.given_up:
        return ""
    told = ", ".join(fitted.given_up)
    if fitted.required_mib > situation.free_mib:
        return f"It does not fit even with {told}."
    return f"What it took to fit: {told}."


def _context_reason(setting: Setting, preset: Preset, entry: ModelEntry, chosen: bool) -> str:
    if chosen:
        return f"A context of {setting.context:,} tokens is your choice."
    if entry.native_context and setting.context >= entry.native_context:
        return f"The context is all that the model was trained for, {setting.context:,} tokens."
    if setting.backend == "cpu" and setting.context < preset.ctx:
        return "The context is short because a processor reads long prompts slowly; --ctx sets another."
    return ""


def _kv_reason(entry: ModelEntry, weights: Weights, fitted: Fitted, situation: Situation, intent: str) -> str:
    setting = fitted.setting
    fits = fitted.required_mib <= situation.free_mib
    if setting.kv == "f16" and fits:
        slow = "" if situation.backend == "cpu" else ", and a quantised one slows drafts at long contexts"
        return f"The KV cache stays f16: it fits{slow}."
    if setting.kv == "q8_0":
        return "A KV cache of q8_0 takes about half of f16's memory at almost no loss."
    if setting.kv != "q4_0" or not fits or entry.geometry is None:
        return ""
    larger = estimate(entry.geometry, weights, replace(setting, kv="q8_0")).parts.total
    spare_mib = situation.free_mib - larger / _MIB
    if spare_mib >= situation.margin_mib:
        ran = "was published with" if intent == "as-published" else "is set to"
        return f"The KV cache {ran} q4_0; q8_0 would fit as well (--kv q8_0)."
    if setting.n_cpu_moe:
        return "A KV cache of q4_0 leaves more of the GPU to experts."
    if spare_mib >= situation.margin_mib // 2:
        return (
            f"A KV cache of q8_0 would fit too, and leave {int(spare_mib):,} MiB free, fewer than should (--kv q8_0)."
        )
    return "Only a KV cache of q4_0 leaves room for this context."


def _draft_reason(setting: Setting, entry: ModelEntry, file: ModelFile, chosen: bool) -> str:
    if not setting.draft and entry.speculation == "ngram-mod":
        return "The file has no MTP head. Repeats of earlier text can be drafted without: add -- --spec-type ngram-mod."
    if not setting.draft and entry.speculation == "mtp" and not entry.has_head(file):
        return "This file has no MTP head."
    if not setting.draft:
        return "MTP is off, as you chose." if chosen else "MTP is off: its memory is better spent on the context here."
    if chosen or setting.backend == "cpu":
        return ""
    runs = {
        (result.gpu, result.quant, result.source, result.draft)
        for result in entry.measurements
        if result.draft and result.tokens_per_second and result.trust == "good"
    }
    counts = Counter(draft for *_, draft in runs)
    usual, count = max(counts.items(), key=lambda one: one[1], default=(None, 0))
    if usual is None or 2 * count <= len(runs):
        return ""
    if setting.draft == usual:
        return f"Draft {usual} was used in {count} of the {len(runs)} published runs of this model."
    return f"Most published runs of this model used draft {usual}: measure both."


def _slots_reason(setting: Setting) -> str:
    if setting.slots == 1:
        return ""
    return f"The {setting.slots} slots share the context: {setting.context // setting.slots:,} tokens for each."


def _offload_reason(entry: ModelEntry, fitted: Fitted, weights: Weights, situation: Situation, chosen: bool) -> str:
    if chosen and situation.backend == "cpu":
        return "Without a GPU all is in host memory: --n-cpu-moe is left out."
    if chosen and entry.geometry is not None and not entry.geometry.experts:
        return "A dense model has no routed experts: --n-cpu-moe is left out."
    if not fitted.setting.n_cpu_moe:
        return ""
    if not weights.blocks[0].experts:
        return "How large its experts are is not known: what --n-cpu-moe moves is not counted."
    host = fitted.estimate.host.at_start / _MIB
    return (
        f"The experts of {fitted.setting.n_cpu_moe} layers stay in host memory, which takes {host:,.0f} MiB there."
        " llama-server can also place them itself: leave --gpu-layers and --n-cpu-moe out."
    )


def _next_to_go(fitted: Fitted, weights: Weights, situation: Situation, fixed: frozenset[str]) -> str:
    setting = fitted.setting
    steps = [
        "ubatch to 256" if setting.ubatch > 256 and "ubatch" not in fixed else "",
        "KV to q8_0" if setting.kv == "f16" and "kv" not in fixed else "",
        "context" if setting.context > LEAST_CONTEXT and "context" not in fixed else "",
        "draft to 2" if setting.draft > 2 and not setting.ngrams and "draft" not in fixed else "",
        "KV to q4_0" if setting.kv in ("f16", "q8_0") and "kv" not in fixed else "",
        "experts to the host" if _can_move(setting, weights) and "n_cpu_moe" not in fixed else "",
    ]
    left = [step for step in steps if step]
    if not left or fitted.required_mib > situation.free_mib:
        return ""
    return f"Should memory be short, what gives way, in this order: {', '.join(left)}."


def _can_move(setting: Setting, weights: Weights) -> bool:
    return setting.backend != "cpu" and setting.n_cpu_moe < weights.expert_layers(mtp=setting.draft > 0)


def cautions_for(
    entry: ModelEntry,
    file: ModelFile,
    weights: Weights,
    fitted: Fitted,
    situation: Situation,
    evidence: Sequence[Measurement],
) -> tuple[str, ...]:
    """Return what a plan costs or risks: quality, host memory, MTP where it may be slower, memory that is missing."""
    setting = fitted.setting
    found = [f"{note.text} Source: {note.source}." for note in entry.quality_notes(file.quant, setting.kv)]
    if fitted.required_mib > situation.free_mib:
        found.insert(0, _too_big(situation))
    if situation.backend == "cpu":
        found.append("Without a GPU tokens come slowly, and nobody measured whether MTP helps then: try --no-mtp.")
    if longer := beyond_training(entry.native_context, setting.context):
        found.append(longer)
    if setting.n_cpu_moe:
        found += _offload_cautions(entry, weights, fitted, situation)
    if situation.gpus > 1:
        found.append(_split_caution(fitted, situation))
    if entry.speculation == "draft-model" and setting.draft:
        found.append("The draft model's own KV cache is not counted: its header is not read.")
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
    parts = fitted.estimate.parts
    last = (parts.draft_kv + parts.draft_compute) // _MIB
    head = f" The last one also holds the MTP head's {last:,} MiB of cache and buffers." if last else ""
    return (
        f"{situation.gpus} GPUs are counted together, and each gets whole layers by its free memory.{head}"
        " If one fills up first, give it less with -- --tensor-split."
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


def _offload_cautions(entry: ModelEntry, weights: Weights, fitted: Fitted, situation: Situation) -> list[str]:
    found = []
    need, have = host_need_mib(fitted), situation.host_mib
    later = (fitted.estimate.host.checkpoints_most + fitted.estimate.host.prompt_cache_most) // _MIB
    if have is None:
        found.append(
            f"The host should have about {need:,} MiB free for them; what it has is not known (--host-memory)."
        )
    elif have < need:
        found.append(
            f"Host memory is short: about {need:,} MiB are needed and {have:,} are there. Experts would be read from"
            " the disk again and again, and tokens come very slowly. Take a smaller quantisation or model."
        )
    elif have < need + later:
        found.append(
            f"Long use may add up to {later:,} MiB on the host (prompt cache, context checkpoints), more than is there:"
            " -- --cache-ram N limits the cache to N MiB."
        )
    geometry, layer_bytes = entry.geometry, weights.blocks[0].experts
    if fitted.setting.draft and geometry is not None and layer_bytes:
        without = estimate(geometry, weights, replace(fitted.setting, draft=0))
        cost = fitted.estimate.parts.total - without.parts.total
        layers = min(cost // layer_bytes, fitted.setting.n_cpu_moe)
        if layers:
            found.append(
                f"MTP takes {cost // _MIB:,} MiB here. Without it the experts of {layers} more"
                f" layer{'s' if layers > 1 else ''} fit on the GPU; only a measurement tells which is faster."
            )
    return found
