"""Why a plan is as it is, in plain words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from launcher.base.words import part
from launcher.models.catalogue import ModelEntry, ModelFile
from launcher.models.fitting import LEAST_CONTEXT, LEAST_UBATCH, Fitted, Measure, fewest_on_host
from launcher.models.memory import Setting
from launcher.models.preset import Preset
from launcher.models.situation import Situation
from launcher.models.weights import Weights

if TYPE_CHECKING:
    from launcher.models.plan import Plan

_MIB = 2**20
_MARKS = {
    "measured": part("somebody ran it, or a close neighbour"),
    "derived": part("by the memory formula"),
    "guess": part("a guess"),
}


def reasons_for(
    entry: ModelEntry,
    file: ModelFile,
    weights: Weights,
    fitted: Fitted,
    preset: Preset,
    situation: Situation,
    intent: str,
    fixed: Mapping[str, int | str],
    measure: Measure,
) -> tuple[str, ...]:
    """Return why a plan is as it is, the choice of the file first. `fixed` is what the user has chosen."""
    setting = fitted.setting
    own = preset.quant == file.quant
    found = [
        _file_reason(file, preset, intent) if own else f"{file.quant} is your choice.",
        _memory_reason(fitted, situation),
        _given_up(fitted, situation),
        _context_reason(setting, preset, entry, "context" in fixed),
        "" if "kv" in fixed else _kv_reason(fitted, preset, situation, "ubatch" in fixed, measure),
        _draft_reason(setting, entry, file, "draft" in fixed),
        _slots_reason(setting),
        _offload_reason(fitted, weights),
        _chosen_offload_reason(entry, fitted, situation, fixed.get("n_cpu_moe"), measure),
        "" if intent == "as-published" else _next_to_go(fitted, weights, situation, fixed),
        preset.note if own and situation.backend != "cpu" else "",
    ]
    return tuple(filter(None, found))


def _file_reason(file: ModelFile, preset: Preset, intent: str) -> str:
    size = f"{preset.memory_gb} GB" if preset.memory_gb else part("any memory")
    basis = _MARKS[preset.mark]
    return {
        "balanced": f"{file.quant} balances quality, context and speed in {size} ({basis}).",
        "long-context": f"{file.quant} leaves room for a long context in {size} ({basis}).",
        "best-quality": f"{file.quant} puts quality first in {size} ({basis}).",
        "as-published": f"{file.quant} as it was published for {size} ({basis}).",
    }[intent]


def _memory_reason(fitted: Fitted, situation: Situation) -> str:
    where = part("of host memory") if situation.backend == "cpu" else part("of GPU memory")
    taken, free = fitted.required_mib, situation.free_mib
    spare, margin = free - fitted.needed_mib, situation.margin_mib
    if situation.gpus > 1:
        spare, margin = spare // situation.gpus, margin // situation.gpus
        number, most = fitted.estimate.fullest + 1, fitted.estimate.by_gpu[fitted.estimate.fullest] / _MIB
        if spare < 0:
            on_most = (
                f"Of the GPU that it fills most, number {number}, it takes {most:,.0f} MiB: {-spare:,} MiB are missing."
            )
        elif spare < margin:
            on_most = (
                f"Of the GPU that it fills most, number {number}, it takes {most:,.0f} MiB; {spare:,} stay free,"
                f" fewer than the {margin:,} that should."
            )
        else:
            on_most = f"Of the GPU that it fills most, number {number}, it takes {most:,.0f} MiB; {spare:,} stay free."
        return " ".join((f"It takes {taken:,} of {free:,} MiB {where}.", on_most))
    if spare < 0:
        return f"It takes {taken:,} of {free:,} MiB {where}: {-spare:,} MiB are missing."
    if spare < margin:
        return (
            f"It takes {taken:,} of {free:,} MiB {where}; {spare:,} stay free, fewer than the {margin:,} that should."
        )
    return f"It takes {taken:,} of {free:,} MiB {where}; {spare:,} stay free."


def _given_up(fitted: Fitted, situation: Situation) -> str:
    if not fitted.given_up:
        return ""
    told = ", ".join(fitted.given_up)
    if fitted.needed_mib > situation.free_mib:
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


def _kv_reason(fitted: Fitted, preset: Preset, situation: Situation, ubatch_chosen: bool, measure: Measure) -> str:
    setting = fitted.setting
    fits = fitted.needed_mib <= situation.free_mib
    if setting.kv == "f16" and fits:
        if situation.backend == "cpu":
            return "The KV cache stays f16: it fits."
        return "The KV cache stays f16: it fits, and a quantised one slows drafts at long contexts."
    if setting.kv == "q8_0":
        return "A KV cache of q8_0 takes about half of f16's memory at almost no loss."
    if setting.kv != "q4_0" or not fits:
        return ""
    larger = replace(setting, kv="q8_0")
    spare_mib = situation.free_mib - measure(larger).needed / _MIB
    if spare_mib >= situation.margin_mib:
        if preset.mark == "measured":
            return f"The KV cache is {setting.kv} as it was measured; q8_0 would fit as well (--kv q8_0)."
        return f"The KV cache is set to {setting.kv}; q8_0 would fit as well (--kv q8_0)."
    if setting.n_cpu_moe:
        return "A KV cache of q4_0 leaves more of the GPU to experts."
    if spare_mib >= situation.margin_mib // 2:
        return (
            f"A KV cache of q8_0 would fit too, and leave {int(spare_mib):,} MiB free, fewer than should (--kv q8_0)."
        )
    if not ubatch_chosen and setting.ubatch > LEAST_UBATCH:
        smaller_mib = measure(replace(larger, ubatch=LEAST_UBATCH)).needed / _MIB
        if situation.free_mib - smaller_mib >= situation.margin_mib // 2:
            return f"With ubatch {LEAST_UBATCH} a KV cache of q8_0 would fit too (--kv q8_0 --ubatch {LEAST_UBATCH})."
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


def _offload_reason(fitted: Fitted, weights: Weights) -> str:
    if not fitted.setting.n_cpu_moe:
        return ""
    if not weights.blocks[0].experts:
        return "How large its experts are is not known: what --n-cpu-moe moves is not counted."
    host = fitted.estimate.host.at_start / _MIB
    return (
        f"The experts of {fitted.setting.n_cpu_moe} layers stay in host memory, which takes {host:,.0f} MiB there."
        " llama-server can also place them itself: leave --gpu-layers and --n-cpu-moe out."
    )


def _chosen_offload_reason(
    entry: ModelEntry, fitted: Fitted, situation: Situation, chosen: int | str | None, measure: Measure
) -> str:
    """What to know of a count of layers that the user has chosen."""
    count = fitted.setting.n_cpu_moe
    if chosen is None:
        return ""
    if situation.backend == "cpu":
        return "Without a GPU all is in host memory: --n-cpu-moe is left out."
    if entry.geometry is not None and not entry.geometry.experts:
        return "A dense model has no routed experts: --n-cpu-moe is left out."
    most = part(f"--n-cpu-moe {chosen} is taken as {count}: the model has no more layers.")
    told = most if chosen != count else ""
    least = fewest_on_host(fitted.setting, count, situation.free_mib - situation.margin_mib, measure)
    if least < count:
        if count - least == 1:
            room = f"There is room for the experts of one more layer on the GPU: --n-cpu-moe {least} would do."
        else:
            room = (
                f"There is room for the experts of {count - least} more layers on the GPU: --n-cpu-moe {least} would"
                " do."
            )
        told = " ".join(filter(None, (told, room)))
    return told


def _next_to_go(fitted: Fitted, weights: Weights, situation: Situation, fixed: Mapping[str, int | str]) -> str:
    setting = fitted.setting
    steps = [
        part("ubatch to 256") if setting.ubatch > 256 and "ubatch" not in fixed else "",
        part("KV to q8_0") if setting.kv == "f16" and "kv" not in fixed else "",
        part("context") if setting.context > LEAST_CONTEXT and "context" not in fixed else "",
        part("draft to 2") if setting.draft > 2 and not setting.ngrams and "draft" not in fixed else "",
        part("KV to q4_0") if setting.kv in ("f16", "q8_0") and "kv" not in fixed else "",
        part("experts to the host") if _can_move(setting, weights) and "n_cpu_moe" not in fixed else "",
    ]
    left = [step for step in steps if step]
    if not left or fitted.needed_mib > situation.free_mib:
        return ""
    return f"Should memory be short, what gives way, in this order: {', '.join(left)}."


def _can_move(setting: Setting, weights: Weights) -> bool:
    return setting.backend != "cpu" and setting.n_cpu_moe < weights.expert_layers(mtp=setting.draft > 0)


def rank_reason(first: Plan, others: Sequence[Plan]) -> str:
    """Return why a plan comes before another of the same model that leaves more free, or has a larger file."""
    same = [each for each in others if each.entry.id == first.entry.id and each.group == first.group < 2]
    roomier = next((each for each in same if each.status.value == "FITS" != first.status.value), None)
    if first.status.value == "TIGHT" and roomier and (roomier.file.size_bytes or 0) < (first.file.size_bytes or 0):
        spare = first.free_mib - first.needed_mib
        return (
            f"It comes before {roomier.file.quant}, which leaves more free, because its weights are better"
            f" and {spare:,} MiB are enough when no other program asks for much; if one does, take --quant"
            f" {roomier.file.quant}."
        )
    larger = next((each for each in same if (each.file.size_bytes or 0) > (first.file.size_bytes or 0)), None)
    if larger is None or larger.setting.n_cpu_moe > first.setting.n_cpu_moe:
        return ""
    if larger.setting.context < first.setting.context:
        return (
            f"{larger.file.quant} is larger and fits too, but with a context of {larger.setting.context:,} in place"
            f" of {first.setting.context:,}: --quant {larger.file.quant}."
        )
    return f"{larger.file.quant} is larger and fits too (--quant {larger.file.quant})."
