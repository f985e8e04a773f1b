"""A plan's reasons and cautions in plain words."""

from collections.abc import Sequence
from dataclasses import replace

from launcher.models.catalogue import ModelEntry, ModelFile
from launcher.models.fitting import Fitted
from launcher.models.memory import Setting, estimate
from launcher.models.preset import Measurement, Preset
from launcher.models.situation import Situation
from launcher.models.weights import Weights

_MIB = 2**20
_INTENTS = {
    "balanced": "for a balance of quality, context and speed",
    "long-context": "for a long context",
    "best-quality": "for the best quality",
    "as-published": "as it was published",
}
_ROOM_MIB = 1_024
"""Host memory that the system needs beside what the engine puts there."""


def reasons_for(
    entry: ModelEntry,
    file: ModelFile,
    fitted: Fitted,
    preset: Preset,
    situation: Situation,
    intent: str,
    fixed: frozenset[str],
) -> tuple[str, ...]:
    """Return why a plan is as it is, the choice of the file first."""
    return tuple(
        filter(
            None,
            [
                _file_reason(file, preset, situation, intent),
                _memory_reason(fitted, situation),
                *[f"Given up to fit: {what}." for what in fitted.given_up],
                _context_reason(fitted.setting, entry, "context" in fixed),
                _kv_reason(fitted.setting, "kv" in fixed),
                _draft_reason(fitted.setting, entry, "draft" in fixed),
                _offload_reason(fitted),
                _next_to_go(fitted.setting, fixed),
                preset.note if preset.quant == file.quant and situation.backend != "cpu" else "",
                *situation.notes,
            ],
        )
    )


def _file_reason(file: ModelFile, preset: Preset, situation: Situation, intent: str) -> str:
    size = f"{preset.memory_gb} GB" if preset.memory_gb else "any size"
    if preset.quant != file.quant:
        return f"{file.quant} is your choice."
    if situation.backend == "cpu":
        return f"{file.quant} is the choice {_INTENTS[intent]} where {size} are there for it."
    marks = {"measured": "somebody ran it or a close neighbour", "derived": "by the memory formula", "guess": "a guess"}
    return f"{file.quant} is the choice {_INTENTS[intent]} on GPUs of {size} ({marks[preset.mark]})."


def _memory_reason(fitted: Fitted, situation: Situation) -> str:
    spare = situation.free_mib - fitted.required_mib
    where = "of host memory" if situation.backend == "cpu" else "of GPU memory"
    told = f"It takes {fitted.required_mib:,} of {situation.free_mib:,} MiB {where}"
    if spare < 0:
        return f"{told}: {-spare:,} MiB are missing."
    advised = "" if spare >= situation.margin_mib else f", fewer than the {situation.margin_mib:,} to keep for others"
    return f"{told}; {spare:,} stay free{advised}."


def _context_reason(setting: Setting, entry: ModelEntry, chosen: bool) -> str:
    if chosen:
        return f"A context of {setting.context:,} tokens is your choice."
    if entry.native_context and setting.context >= entry.native_context:
        return f"The context is all that the model was trained for, {setting.context:,} tokens."
    return ""


def _kv_reason(setting: Setting, chosen: bool) -> str:
    if chosen:
        return ""
    return {
        "f16": "The KV cache stays f16: it fits, and a quantised one slows drafts at long contexts.",
        "q8_0": "A KV cache of q8_0 takes about half of f16's memory at almost no loss.",
        "q4_0": "Only a KV cache of q4_0 leaves room for this context.",
    }.get(setting.kv, "")


def _draft_reason(setting: Setting, entry: ModelEntry, chosen: bool) -> str:
    if not setting.draft and entry.speculation == "ngram-mod":
        return "The file has no MTP head. Repeats of earlier text can be drafted without: add -- --spec-type ngram-mod."
    if not setting.draft:
        return "MTP is off, as you chose." if chosen else "MTP is off: its memory is better spent on the context here."
    if chosen:
        return ""
    moe = entry.geometry is not None and entry.geometry.experts > 0
    kind = "mixture-of-experts" if moe else "dense"
    return f"Draft {setting.draft} is where most published runs of {kind} models of this family were fastest."


def _offload_reason(fitted: Fitted) -> str:
    if not fitted.setting.n_cpu_moe:
        return ""
    host = fitted.estimate.host.at_start / _MIB
    return (
        f"The experts of {fitted.setting.n_cpu_moe} layers stay in host memory, which takes {host:,.0f} MiB there."
        " llama-server can also place them itself: leave --gpu-layers and --n-cpu-moe out."
    )


def _next_to_go(setting: Setting, fixed: frozenset[str]) -> str:
    steps = [
        "ubatch 256" if setting.ubatch > 256 and "ubatch" not in fixed else "",
        "KV q8_0" if setting.kv == "f16" and "kv" not in fixed else "",
        "a shorter context" if setting.context > 32_768 and "context" not in fixed else "",
        "draft 2" if setting.draft > 2 and "draft" not in fixed else "",
        "KV q4_0" if setting.kv == "q8_0" and "kv" not in fixed else "",
    ]
    left = [step for step in steps if step]
    return f"Should memory be short, what goes first: {', then '.join(left)}." if left else ""


def cautions_for(
    entry: ModelEntry,
    file: ModelFile,
    weights: Weights,
    fitted: Fitted,
    situation: Situation,
    status: str,
    evidence: Sequence[Measurement],
) -> tuple[str, ...]:
    """Return what a plan costs or risks: quality, host memory, MTP where it may be slower, memory that is missing."""
    found = [f"{note.text} ({note.source})" for note in entry.quality_notes(file.quant, fitted.setting.kv)]
    if status == "TOO BIG":
        found.insert(0, _too_big(situation))
    if situation.backend == "cpu":
        found.append("Without a GPU tokens come slowly, and nobody measured whether MTP helps then: try --no-mtp.")
    if fitted.setting.n_cpu_moe:
        found += _offload_cautions(entry, weights, fitted, situation)
    if entry.speculation == "draft-model" and fitted.setting.draft:
        found.append("The draft model's own KV cache is not counted: its header is not read.")
    slower = next((each for each in evidence if each.speedup is not None and each.speedup < 1), None)
    if slower is not None and fitted.setting.draft:
        found.append(
            f"MTP was slower on the {slower.gpu}: {slower.tokens_per_second:g} t/s, without it {slower.baseline:g}."
            " Measure it with --no-mtp too."
        )
    if situation.unified and fitted.setting.draft:
        found.append("On GPUs that share the host's memory MTP gained little or lost: measure it with --no-mtp too.")
    if not fitted.estimate.exact:
        found.append("The file's header is not read yet: the weights are known by the family's rules, to about 0.2 %.")
    return tuple(found)


def _too_big(situation: Situation) -> str:
    if situation.backend == "cpu":
        return "It can be started anyway: the system will swap, and may end the engine or other programs."
    return (
        "It can be started anyway, at a risk: the engine ends for lack of memory, or on Windows the driver moves"
        " parts to host memory and tokens come several times more slowly."
    )


def _offload_cautions(entry: ModelEntry, weights: Weights, fitted: Fitted, situation: Situation) -> list[str]:
    found = []
    need = fitted.estimate.host.at_start // _MIB + _ROOM_MIB
    have = situation.host_mib
    if have is None:
        found.append(f"The host needs about {need:,} MiB free for the experts; what it has is not known.")
    elif have < need:
        found.append(
            f"Host memory is short: about {need:,} MiB are needed and {have:,} are there. The experts would be"
            " read from the disk at every token, which takes seconds."
            " A smaller quantisation or a smaller model runs well."
        )
    geometry = entry.geometry
    if fitted.setting.draft and geometry is not None and weights.blocks[0].experts:
        without = estimate(geometry, weights, replace(fitted.setting, draft=0))
        cost = fitted.estimate.parts.total - without.parts.total
        layers = cost // weights.blocks[0].experts
        if layers:
            found.append(
                f"MTP takes {cost // _MIB:,} MiB here; without it the experts of {layers} more"
                f" layer{'s' if layers > 1 else ''} fit on the GPU. Only a measurement tells which is faster:"
                " on an RTX 5080 it was 74 t/s with MTP and 97 without (prismix, b9204)."
            )
    return found
