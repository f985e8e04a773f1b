"""Sentences for users that explain a plan's choices, and warn of its costs and risks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from launcher.base.messages import (
    FaceName,
    Message,
    as_message,
    command_name,
    engine_arguments,
    join_messages,
    mark,
    message,
    plural_message,
)
from launcher.models.catalogue import ModelEntry, ModelFile
from launcher.models.drafters import MTP, NO_MTP, Drafter, find_drafter, is_drafting, usable_drafters
from launcher.models.evidence import accepted_shares
from launcher.models.fitting import (
    CONTEXTS,
    LEAST_CONTEXT,
    FitResult,
    Measure,
    Rate,
    fewest_on_host,
    host_need_mib,
)
from launcher.models.limits import training_warning
from launcher.models.memory import ENCODER_MIB, MemoryEstimate, PlanSettings
from launcher.models.preset import Preset, PublishedRun
from launcher.models.ranking import WORTH_MTP, Loss, RankedFile, WayToDraft, desktop_share_mib
from launcher.models.server_settings import name_setting
from launcher.models.situation import Situation
from launcher.models.speed import nearest_comparison, nearest_drafters
from launcher.models.weights import Weights

_MIB = 2**20
_MARKS = {
    "measured": message("from a published run on the same or a similar card"),
    "derived": message("from the memory estimate"),
    "guess": message("a guess"),
}
_NOTICEABLE = 1.03
"""Ratio of speeds, or of bits per weight, below which a difference is not worth a sentence."""
_EXPERT_CACHE_BUILD = "b11480"
"""First build of llama.cpp with an expert cache (#29887)."""
_SLOW_ON_CUDA = ("q5_1", "q5_0", "q4_1")
"""KV cache types without a vector kernel in default builds (ggml/CMakeLists.txt: GGML_CUDA_FA_QUANTS)."""


def explain_plan(
    entry: ModelEntry,
    file: ModelFile,
    weights: Weights,
    fitted: FitResult,
    preset: Preset,
    situation: Situation,
    intent: str,
    fixed: Mapping[str, int | str],
    measure: Measure,
    rate: Rate,
    ranked: RankedFile | None,
) -> tuple[str, ...]:
    """Return the reasons for a plan's settings, but not for its file. `fixed` has the settings that the user chose."""
    setting = fitted.setting
    own = preset.quant == file.quant
    found = [
        _memory_reason(fitted, situation),
        _concessions_reason(fitted, situation),
        _context_reason(fitted, entry, situation, ranked, fixed, measure),
        "" if "kv" in fixed else _kv_reason(fitted, situation, measure),
        _draft_reason(setting, entry, file, situation, rate, ranked, chosen="draft" in fixed),
        *_ways_reasons(setting, entry, ranked),
        _compare_reason(setting, entry, file, situation),
        _slots_reason(setting),
        _offload_reason(fitted, weights),
        _chosen_offload_reason(entry, fitted, situation, fixed.get("n_cpu_moe"), measure),
        "" if intent == "as-published" else _order_of_concessions(fitted, weights, situation, fixed),
        as_message(preset.note) if own and situation.backend != "cpu" else "",
    ]
    return tuple(filter(None, found))


def explain_preset(file: ModelFile, preset: Preset, intent: str, situation: Situation) -> str:
    """Return the reason for a preset's file. It names this machine's memory, which may differ from the preset's."""
    if preset.quant != file.quant:
        return message("{quant} is your choice.", quant=file.quant)
    size: str = message("any memory")
    if preset.memory_gb:
        size = f"{preset.memory_gb if intent == 'as-published' else max(1, round(situation.nominal_gb))} GB"
    basis = _MARKS[preset.mark]
    if intent == "as-published":
        return message("{quant} as it was published for {size} ({basis}).", quant=file.quant, size=size, basis=basis)
    return message("{quant} is recommended for {size} ({basis}).", quant=file.quant, size=size, basis=basis)


def explain_ranking(ranked: Sequence[RankedFile], place: int, situation: Situation, intent: str) -> tuple[str, ...]:
    """Return why a file has its place in the ranking; for the best file also how it compares with another one."""
    own, best = ranked[place], ranked[0]
    if place:
        return (
            message(
                "{quant} ranks below {best}: {why}.",
                quant=own.file.quant,
                best=_name_file(best, own),
                why=_drawback_clause(own, best, situation),
            ),
        )
    size = f"{max(1, round(situation.nominal_gb))} GB"
    first = {
        "balanced": message(
            "{quant} is the best balance of quality, context and speed in {size}.", quant=own.file.quant, size=size
        ),
        "agents": message("{quant} is the best choice for coding agents in {size}.", quant=own.file.quant, size=size),
        "long-context": message(
            "{quant} is the best choice for a long context in {size}.", quant=own.file.quant, size=size
        ),
        "best-quality": message("{quant} has the best quality that fits {size}.", quant=own.file.quant, size=size),
    }.get(intent, "")
    finer = [each for each in ranked[1:] if each.bits > _NOTICEABLE * own.bits]
    rivals = finer or ranked[1:]
    if not rivals:
        return (first,)
    rival = rivals[0]
    if rival in finer:
        second = message(
            "{quant} has more bits a weight ({bits:.2f} instead of {own:.2f}), but {why}.",
            quant=_name_file(rival, own),
            bits=rival.bits,
            own=own.bits,
            why=_drawback_clause(rival, own, situation),
        )
    else:
        second = message(
            "Next is {quant}: {why}.", quant=_name_file(rival, own), why=_drawback_clause(rival, own, situation)
        )
    return first, second


def _name_file(ranked: RankedFile, other: RankedFile) -> str:
    """Return the name of a file in a sentence on `other`: with its id if that is of another entry."""
    is_sibling = ranked.entry.id != other.entry.id
    return f"{ranked.entry.id}:{ranked.file.quant}" if is_sibling else ranked.file.quant


def _drawback_clause(worse: RankedFile, better: RankedFile, situation: Situation) -> str:
    """Return the main thing that `worse` loses against `better`, as a clause."""
    losses = {name: more - less for name, more, less in zip(Loss._fields, worse.loss, better.loss, strict=True)}
    cause = max(losses, key=lambda name: losses[name])
    if cause == "room":
        return message(
            "only {spare:,} MiB would stay free, and a desktop with its programs takes about {share:,}",
            spare=worse.spare_mib,
            share=desktop_share_mib(situation),
        )
    if cause == "context":
        return message(
            "its context would be {context:,} instead of {own:,} tokens", context=worse.context, own=better.context
        )
    if cause == "kv":
        return message("its KV cache would be {kv} instead of {own}", kv=worse.kv, own=better.kv)
    if cause == "quality":
        return message("it has {bits:.2f} bits a weight instead of {own:.2f}", bits=worse.bits, own=better.bits)
    if cause == "offload" and not better.n_cpu_moe:
        clause = plural_message(
            "the experts of {n} layer would be in host memory",
            "the experts of {n} layers would be in host memory",
            worse.n_cpu_moe,
        )
        if worse.rate and better.rate:
            return message(
                "{clause}, for about {rate:.0f} instead of {own:.0f} t/s",
                clause=clause,
                rate=worse.rate,
                own=better.rate,
            )
        return clause
    if worse.rate and better.rate and better.rate < _NOTICEABLE * worse.rate:
        return message("its size gains nothing here")
    if not worse.rate or not better.rate:  # as on a processor, whose speed is not forecast
        return message("more of it is read for each token")
    return message("about {rate:.0f} instead of {own:.0f} t/s are expected", rate=worse.rate, own=better.rate)


def describe_alternative(
    setting: PlanSettings, file: ModelFile, ranked: Sequence[RankedFile], intent: str | None
) -> str:
    """Return the sentence on what `ranked` recommends instead of a plan; "" if that is the same.

    `intent` is the intent of that ranking; None if it is the ranking for a GPU without a desktop.
    """
    if not ranked:
        return ""
    other = ranked[0]
    if (other.file.quant, other.context, other.kv) == (file.quant, setting.context, setting.kv):
        return ""
    offloaded = plural_message(
        ", the experts of {n} layer on the CPU", ", the experts of {n} layers on the CPU", other.n_cpu_moe
    )
    values: dict[str, Any] = {
        "quant": other.file.quant,
        "context": other.context,
        "kv": other.kv,
        "offloaded": offloaded if other.n_cpu_moe else None,
    }
    if intent is None:
        return message(
            "Without a desktop on the GPU, {quant} is recommended, with a context of {context:,} and KV "
            "{kv}[{offloaded}].",
            **values,
        )
    return message(
        "For the best quality, {quant} is recommended, with a context of {context:,} and KV "
        "{kv}[{offloaded}][ ({option})].",
        **values,
        option=FaceName("--intent best-quality"),
    )


def _memory_reason(fitted: FitResult, situation: Situation) -> str:
    where = message("of host memory") if situation.backend == "cpu" else message("of GPU memory")
    taken, free = fitted.estimate.required_mib, situation.free_mib
    on_host = fitted.estimate.needed_mib - taken
    if situation.unified and on_host > 0:
        where = message(
            "of the memory that GPU and host share, and {on_host:,} MiB of it for its part on the host", on_host=on_host
        )
    spare, margin = free - fitted.estimate.needed_mib, situation.margin_mib
    if situation.gpus > 1:
        spare, margin = spare // situation.gpus, margin // situation.gpus
        number, most = fitted.estimate.fullest_gpu + 1, fitted.estimate.by_gpu[fitted.estimate.fullest_gpu] / _MIB
        if spare < 0:
            on_most = message(
                "GPU {number}, the fullest, needs {most:,.0f} MiB: {missing:,} MiB are missing.",
                number=number,
                most=most,
                missing=-spare,
            )
        elif spare < margin:
            on_most = message(
                "GPU {number}, the fullest, needs {most:,.0f} MiB; {spare:,} MiB stay free, less than the "
                "margin of {margin:,} MiB.",
                number=number,
                most=most,
                spare=spare,
                margin=margin,
            )
        else:
            on_most = message(
                "GPU {number}, the fullest, needs {most:,.0f} MiB; {spare:,} MiB stay free.",
                number=number,
                most=most,
                spare=spare,
            )
        return join_messages(
            message("It needs {taken:,} of {free:,} MiB {where}.", taken=taken, free=free, where=where), on_most
        )
    if spare < 0:
        return message(
            "It needs {taken:,} of {free:,} MiB {where}: {missing:,} MiB are missing.",
            taken=taken,
            free=free,
            where=where,
            missing=-spare,
        )
    if spare < margin:
        return message(
            "It needs {taken:,} of {free:,} MiB {where}; {spare:,} MiB stay free, less than the margin of "
            "{margin:,} MiB.",
            taken=taken,
            free=free,
            where=where,
            spare=spare,
            margin=margin,
        )
    return message(
        "It needs {taken:,} of {free:,} MiB {where}; {spare:,} MiB stay free.",
        taken=taken,
        free=free,
        where=where,
        spare=spare,
    )


def _concessions_reason(fitted: FitResult, situation: Situation) -> str:
    if not fitted.given_up:
        return ""
    concessions = join_messages(*fitted.given_up, separator=", ")
    if fitted.estimate.needed_mib > situation.free_mib:
        return message("It does not fit even with {concessions}.", concessions=concessions)
    return message("Reduced to fit: {concessions}.", concessions=concessions)


def _context_reason(
    fitted: FitResult,
    entry: ModelEntry,
    situation: Situation,
    ranked: RankedFile | None,
    fixed: Mapping[str, int | str],
    measure: Measure,
) -> str:
    setting = fitted.setting
    if "context" in fixed:
        return message("A context of {context:,} tokens is your choice.", context=setting.context)
    if entry.native_context and setting.slot_context >= entry.native_context:
        if setting.streams > 1:
            return message(
                "Each slot has the full trained context of {context:,} tokens.",
                context=setting.slot_context,
            )
        return message("The context is the full trained context of {context:,} tokens.", context=setting.context)
    if setting.backend == "cpu":
        return message(
            "The context is short because a CPU processes long prompts slowly. {ctx} changes it.",
            ctx=name_setting("ctx"),
        )
    if ranked is None or fitted.estimate.needed_mib > situation.free_mib:
        return ""
    return _why_no_longer(setting, entry, situation, fixed, measure)


def _why_no_longer(
    setting: PlanSettings,
    entry: ModelEntry,
    situation: Situation,
    fixed: Mapping[str, int | str],
    measure: Measure,
) -> str:
    """Return why a plan's context is not longer, by the memory that the next longer one would leave free."""
    trained = (entry.native_context or CONTEXTS[0]) * setting.streams
    if CONTEXTS[0] <= setting.context < trained:
        return message(
            "The context is {context:,} of the {trained:,} tokens that the model was trained for: more is"
            " seldom needed, and takes memory[ ({option})].",
            context=setting.context,
            trained=trained,
            option=FaceName("--intent long-context"),
        )
    longer = min((each for each in (*CONTEXTS, trained) if each > setting.context), default=setting.context)
    spare_mib = situation.free_mib - measure(replace(setting, context=longer)).needed_bytes / _MIB
    if setting.n_cpu_moe and spare_mib < situation.margin_mib:
        return message(
            "A context longer than {context:,} tokens would move more experts to the CPU.", context=setting.context
        )
    if spare_mib >= situation.margin_mib:
        return message(
            "A context of {longer:,} tokens would fit, too, but leave a desktop and its programs less "
            "memory[ ({option})].",
            longer=longer,
            option=FaceName(f"--ctx {longer}"),
        )
    if setting.kv == "f16" and "kv" not in fixed:
        return message(
            "A context of {context:,} tokens is the longest that fits with an f16 KV cache.", context=setting.context
        )
    if spare_mib >= situation.margin_mib // 2:
        return message(
            "A context of {context:,} tokens is the longest that leaves the margin free.", context=setting.context
        )
    return message("A context of {context:,} tokens is the longest that fits.", context=setting.context)


def _kv_reason(fitted: FitResult, situation: Situation, measure: Measure) -> str:
    setting = fitted.setting
    fits = fitted.estimate.needed_mib <= situation.free_mib
    if setting.kv == "f16" and fits:
        if situation.backend == "cpu":
            return message("The KV cache stays f16: it fits.")
        return message("The KV cache stays f16: it fits, and a quantised cache slows drafting at long contexts.")
    if setting.kv == "q8_0":
        return message("A q8_0 KV cache needs about half the memory of f16, with almost no quality loss.")
    if setting.kv != "q4_0" or not fits:
        return ""
    spare_mib = situation.free_mib - measure(replace(setting, kv="q8_0")).needed_bytes / _MIB
    if spare_mib >= situation.margin_mib:
        return message(
            "The KV cache is set to {kv}; q8_0 would also fit[ ({option})].",
            kv=setting.kv,
            option=FaceName("--kv q8_0"),
        )
    if setting.n_cpu_moe:
        return message("A q4_0 KV cache leaves more GPU memory for experts.")
    return message("Only a q4_0 KV cache leaves room for this context.")


_USUAL = 0.4
"""Least share of the published runs with which a draft length is called usual."""


def _draft_reason(
    setting: PlanSettings,
    entry: ModelEntry,
    file: ModelFile,
    situation: Situation,
    rate: Rate,
    ranked: RankedFile | None,
    *,
    chosen: bool,
) -> str:
    if entry.embedding:
        return ""
    if not setting.drafter.drafts:
        if entry.drafter.source == "text":
            return message(
                "The file has no MTP head. To draft repeated text without one, add {arguments}.",
                arguments=engine_arguments("--spec-type ngram-mod"),
            )
        if not entry.can_draft(file):
            return message("This file has no MTP head.")
        if chosen:
            return message("MTP is off, as you chose.")
        if not accepted_shares(entry.drafter, entry.published_as):
            return "" if ranked and ranked.ways else _unknown_reason(entry.drafter)
        if entry.slower_with_mtp:
            return message("MTP is off. {report}", report=as_message(entry.slower_with_mtp.text))
        run = nearest_comparison(entry, replace(setting, draft=MTP.usual_length), situation)
        if run is not None and run.speedup is not None and run.speedup < 1:
            return message(
                "MTP is off: the nearest published run was slower with it, {rate:g} t/s on the {gpu} and {without:g} "
                "without.",
                rate=run.tokens_per_second,
                gpu=run.gpu,
                without=run.baseline,
            )
        with_drafts = [rate(replace(setting, draft=draft)) or 0.0 for draft in (1, MTP.usual_length)]
        if (without := rate(setting)) and max(with_drafts) < WORTH_MTP * without:
            return message("MTP is off: no gain is expected from it here.")
        return message("MTP is off: its memory is better used for the context here.")
    if chosen or setting.backend == "cpu" or not setting.drafter.uses_head:
        return ""
    runs = {
        (result.gpu, result.quant, result.source, result.draft)
        for result in entry.measurements
        if is_drafting(result.draft) and result.tokens_per_second and result.trust == "good" and not result.speculation
    }
    counts = Counter(draft for *_, draft in runs)
    usual, count = max(counts.items(), key=lambda one: one[1], default=(None, 0))
    if usual is None:
        return ""
    if setting.draft == usual and count >= _USUAL * len(runs):
        return message(
            "Draft {usual} was used in {count} of the {runs} published runs of this model.",
            usual=usual,
            count=count,
            runs=len(runs),
        )
    if setting.draft == usual or 2 * count <= len(runs):
        return ""
    return message("Most published runs of this model used draft {usual}: measure both.", usual=usual)


def _unknown_reason(*drafters: Drafter) -> str:
    """Return which drafters a plan could not compare, and what would have to be measured."""
    tune = command_name("tune", mark("Tune"))
    if len(drafters) == 1:
        return message(
            "{drafter} could draft, but no runs with it are known. To try it, add {setting}; {tune} measures how many "
            "of its drafts are accepted.",
            drafter=as_message(drafters[0].title),
            setting=name_setting("drafter", drafters[0].spec_type),
            tune=tune,
        )
    names = [message("{title} ({kind})", title=as_message(each.title), kind=each.spec_type) for each in drafters]
    return message(
        "Other ways to draft are here, but no runs with them are known: {drafters}. To try one, set {setting}; {tune} "
        "measures how many of its drafts are accepted.",
        drafters=join_messages(*names, separator=", "),
        setting=name_setting("drafter"),
        tune=tune,
    )


def _ways_reasons(setting: PlanSettings, entry: ModelEntry, ranked: RankedFile | None) -> list[str]:
    """Return what the plan's way to draft was chosen from, and which others would have to be measured first."""
    ways = ranked.ways if ranked else ()
    drafters = [way.drafter for way in ways if way.drafter.drafts and way.drafter is not setting.drafter]
    unknown = [each for each in drafters if not accepted_shares(each, entry.published_as)]
    found = [_unknown_reason(*unknown)] if unknown else []
    known = sorted(
        (way for way in ways if way.rate is not None),
        key=lambda way: (way.drafter is not setting.drafter, -(way.rate or 0.0)),
    )
    if len(known) < 2:
        return found
    expected = message(
        "Ways to draft, and the tokens/s that are expected: {rates}.",
        rates=join_messages(
            *(message("{way} about {rate:.0f}", way=_name_way(way), rate=way.rate or 0.0) for way in known),
            separator=", ",
        ),
    )
    is_memory = any((way.rate or 0.0) > WORTH_MTP * (known[0].rate or 0.0) for way in known)
    why = message("The memory of the faster one is better used for the rest here.") if is_memory else ""
    return [join_messages(expected, why), *found]


def _name_way(way: WayToDraft) -> Message:
    if not way.drafter.drafts:
        return message("no drafts")
    return message("{drafter} with draft {draft}", drafter=as_message(way.drafter.title), draft=way.draft)


def _compare_reason(setting: PlanSettings, entry: ModelEntry, file: ModelFile, situation: Situation) -> str:
    """Return what the plan's drafter was compared with, and which was faster; "" if nobody published that."""
    runs = nearest_drafters(entry, situation)
    own = runs.get(setting.drafter.spec_type)
    other = next((run for run in runs.values() if run is not own), None)
    if own is None or other is None or not own.drafts:
        return ""

    def name(run: PublishedRun) -> Message:
        return as_message(find_drafter(run.spec_type, entry.draft_kinds).title)

    compared = message(
        "{drafter} with draft {draft} gave {rate:g} t/s where {other} with draft {other_draft} gave {other_rate:g} "
        "({gpu}, {source}).",
        drafter=name(own),
        draft=own.draft or 0,
        rate=own.tokens_per_second or 0,
        other=name(other),
        other_draft=other.draft or 0,
        other_rate=other.tokens_per_second or 0,
        gpu=own.gpu,
        source=own.source,
    )
    usable = usable_drafters(head=entry.has_head(file), files=entry.draft_kinds)
    if next(iter(runs.values())) is own or other.spec_type not in usable:
        return compared
    return join_messages(compared, message("{setting} tries that.", setting=name_setting("drafter", other.spec_type)))


def _slots_reason(setting: PlanSettings) -> str:
    if setting.streams == 1:
        return ""
    return message(
        "The {slots} slots share the context: {context:,} tokens for each.",
        slots=setting.slots,
        context=setting.slot_context,
    )


def _offload_reason(fitted: FitResult, weights: Weights) -> str:
    if not fitted.setting.n_cpu_moe:
        return ""
    if not weights.sum_experts(0, fitted.setting.n_cpu_moe):
        return message(
            "The size of its experts is unknown, so {n_cpu_moe} is not in the estimate.",
            n_cpu_moe=name_setting("n_cpu_moe"),
        )
    host = fitted.estimate.host.at_start / _MIB
    return message(
        "The experts of {layers} run on the CPU and need {host:,.0f} MiB of host memory.[ To let "
        "llama-server place them itself, omit {options}.]",
        layers=plural_message("{n} layer", "{n} layers", fitted.setting.n_cpu_moe),
        host=host,
        options=FaceName("--gpu-layers and --n-cpu-moe"),
    )


def explain_expert_cache(
    uncached: PlanSettings, setting: PlanSettings, rate: Rate, *, can_use: bool
) -> tuple[str, ...]:
    """Return the reason for the expert cache of `setting`, which would be `uncached` without one; () if it has none.

    If the engine at hand has no such cache (or none is at hand), the reason names the speed of an engine that has one.
    """
    cache = setting.moe_cache_mib
    if not cache or not setting.n_cpu_moe:
        return ()
    before, after = rate(uncached), rate(setting)
    if uncached.moe_cache_mib or before is None or after is None:
        return (message("The expert cache of {cache:,} MiB is on the GPU.", cache=cache),)
    if not can_use:
        reason = message(
            "With an expert cache, which needs llama.cpp {build} or newer, {after:,.0f} instead of "
            "{before:,.0f} tokens/s are expected[ ({options})].",
            build=_EXPERT_CACHE_BUILD,
            after=after,
            before=before,
            options=FaceName(f"--n-cpu-moe {setting.n_cpu_moe} --moe-cache-mib {cache}"),
        )
    elif setting.n_cpu_moe > uncached.n_cpu_moe:
        reason = message(
            "An expert cache of {cache:,} MiB on the GPU replaces the experts of {layers} there: "
            "{after:,.0f} instead of {before:,.0f} tokens/s are expected, but long prompts may be read "
            "more slowly. It needs llama.cpp {build} or newer ({setting} turns it off).",
            build=_EXPERT_CACHE_BUILD,
            cache=cache,
            layers=plural_message("{n} layer", "{n} layers", setting.n_cpu_moe - uncached.n_cpu_moe),
            after=after,
            before=before,
            setting=name_setting("moe_cache_mib", 0),
        )
    else:
        reason = message(
            "An expert cache takes {cache:,} MiB of GPU memory: {after:,.0f} instead of {before:,.0f} "
            "tokens/s are expected. It needs llama.cpp {build} or newer ({setting} turns it off).",
            build=_EXPERT_CACHE_BUILD,
            cache=cache,
            after=after,
            before=before,
            setting=name_setting("moe_cache_mib", 0),
        )
    return (reason,)


def _chosen_offload_reason(
    entry: ModelEntry, fitted: FitResult, situation: Situation, chosen: int | str | None, measure: Measure
) -> str:
    """Return remarks on --n-cpu-moe as the user chose it."""
    count = fitted.setting.n_cpu_moe
    if chosen is None:
        return ""
    if situation.backend == "cpu":
        return message(
            "Without a GPU the whole model is in host memory: {n_cpu_moe} is ignored.",
            n_cpu_moe=name_setting("n_cpu_moe"),
        )
    if entry.geometry is not None and not entry.geometry.experts:
        return message(
            "A dense model has no routed experts: {n_cpu_moe} is ignored.", n_cpu_moe=name_setting("n_cpu_moe")
        )
    reduced = message(
        "{setting} is reduced to {count}: the model has no more layers.",
        count=count,
        setting=name_setting("n_cpu_moe", chosen),
    )
    sentence = reduced if chosen != count else ""
    least = fewest_on_host(fitted.setting, count, situation.free_mib - situation.margin_mib, measure)
    if least < count:
        if count - least == 1:
            room = message(
                "The experts of one more layer fit on the GPU: use {setting}.", setting=name_setting("n_cpu_moe", least)
            )
        else:
            room = message(
                "The experts of {count} more layers fit on the GPU: use {setting}.",
                count=count - least,
                setting=name_setting("n_cpu_moe", least),
            )
        sentence = join_messages(sentence, room)
    return sentence


def _order_of_concessions(
    fitted: FitResult, weights: Weights, situation: Situation, fixed: Mapping[str, int | str]
) -> str:
    setting = fitted.setting
    layers = weights.expert_layers(mtp=setting.drafter.uses_head) if situation.has_host_memory else 0
    more_experts = setting.n_cpu_moe < layers
    possible = [
        message("expert cache") if setting.moe_cache_mib and "moe_cache_mib" not in fixed else "",
        message("ubatch to 256") if setting.ubatch > 256 and "ubatch" not in fixed else "",
        message("KV to q8_0") if setting.kv == "f16" and "kv" not in fixed else "",
        message("context") if setting.context > LEAST_CONTEXT and "context" not in fixed else "",
        message("draft to 2") if setting.draft > 2 and setting.drafter.takes_length and "draft" not in fixed else "",
        message("KV to q4_0") if setting.kv in ("f16", "q8_0") and "kv" not in fixed else "",
        message("experts to the CPU") if more_experts and "n_cpu_moe" not in fixed else "",
    ]
    steps = [step for step in possible if step]
    if not steps or fitted.estimate.needed_mib > situation.free_mib:
        return ""
    return message("If memory runs short, reduce in this order: {left}.", left=join_messages(*steps, separator=", "))


def list_cautions(
    entry: ModelEntry,
    file: ModelFile,
    weights: Weights,
    fitted: FitResult,
    situation: Situation,
    evidence: Sequence[PublishedRun],
    limited: Collection[str],
    measure: Measure,
) -> tuple[str, ...]:
    """Return the costs and risks of a plan: missing memory and slowness first, then quality, MTP and the rest.

    `limited` has the settings that were limited to fit into host memory.
    """
    setting = fitted.setting
    found = [_too_big_caution(situation)] if fitted.estimate.needed_mib > situation.free_mib else []
    found += situation.cautions
    if situation.backend == "cpu" and not entry.embedding:
        found.append(
            message(
                "Without a GPU generation is slow, and whether MTP helps was not measured. Try {no_mtp}.", no_mtp=NO_MTP
            )
        )
    found += list_host_cautions(fitted.estimate, situation, limited)
    found += [
        message("{text} Source: {source}.", text=as_message(note.text), source=as_message(note.source))
        for note in entry.quality_notes(file.quant, setting.kv)
    ]
    if longer := training_warning(entry.native_context, setting.slot_context):
        found.append(longer)
    if setting.kv in _SLOW_ON_CUDA and setting.backend in ("cuda", "rocm"):
        found.append(
            message(
                "Default llama.cpp builds have no fast attention for a {kv} KV cache and convert it to f16 "
                "for each token, which is slow. Use q8_0 or q4_0, or a build with GGML_CUDA_FA_QUANTS.",
                kv=setting.kv,
            )
        )
    if setting.n_cpu_moe:
        found += _offload_cautions(weights, fitted, situation, measure)
    if situation.gpus > 1:
        found.append(_split_caution(fitted, situation))
        if situation.backend == "cuda" and setting.split_mode is None and not setting.n_cpu_moe:
            found.append(
                message(
                    "With {setting} the GPUs work at once: 29 to 68 % faster in published runs on pairs of NVIDIA"
                    " cards (sudoingX/qwen38-mtp, sweeps/multi-gpu.md). llama.cpp calls it experimental.",
                    setting=name_setting("split_mode", "tensor"),
                )
            )
    if setting.draft_bytes and not fitted.estimate.drafts_counted:
        found.append(
            message(
                "The estimate counts the draft's file size but not its cache and buffers[ besides {guess}], because "
                "its header is not read.",
                guess=message("the logits of its batches") if setting.drafter.reads_layers else None,
            )
        )
    if setting.draft_bytes and setting.drafter.reads_layers and not fitted.estimate.compute_exact:
        found.append(
            message(
                "How much memory {drafter} takes is an estimate, which was not compared with an engine.",
                drafter=as_message(setting.drafter.title),
            )
        )
    if setting.mmproj_bytes:
        found.append(
            message(
                "{encoder_mib} MiB of the vision projector's memory are a guess, because its buffers were "
                "never published. Only text is drafted. To keep the projector in host memory, add "
                "{arguments}.",
                encoder_mib=ENCODER_MIB,
                arguments=engine_arguments("--no-mmproj-offload"),
            )
        )
    if setting.drafter.uses_head:
        found += _slower_cautions(evidence, situation)
    return tuple(found)


def _too_big_caution(situation: Situation) -> str:
    if situation.backend == "cpu":
        return message("You can start it anyway, but the system will swap and may end the engine or other programs.")
    return message(
        "You can start it anyway, but the engine may run out of memory. On Windows the driver may move parts "
        "to host memory, which is several times slower."
    )


def _split_caution(fitted: FitResult, situation: Situation) -> str:
    shares = ", ".join(f"{size / _MIB:,.0f}" for size in fitted.estimate.by_gpu)
    if fitted.setting.used_gpus == 1:
        return message("Only the first GPU is used: the split mode is none.")
    if fitted.setting.splits_tensors:
        return _tensor_caution(fitted.setting, shares)
    head = message(", an MTP head with its cache and buffers too") if fitted.estimate.parts.draft_kv else None
    if fitted.setting.tensor_split:
        return message(
            "The layers are split over {gpus} GPUs as you asked ({shares}): {sizes} MiB. The last GPU also holds the "
            "output[{head}].",
            gpus=situation.gpus,
            shares=fitted.setting.tensor_split,
            sizes=shares,
            head=head,
        )
    shared = message(
        "The layers are split over {gpus} GPUs by free memory: {sizes} MiB. The last GPU also holds "
        "the output[{head}]. {setting} changes this.",
        gpus=situation.gpus,
        sizes=shares,
        head=head,
        setting=name_setting("tensor_split"),
    )
    if not fitted.estimate.required_mib <= situation.free_mib < fitted.estimate.needed_mib:
        return shared
    return join_messages(
        shared,
        message(
            "Without {setting} llama-server may find a split that fits.",
            setting=FaceName("--gpu-layers", mark("fixed settings")),
        ),
    )


def _tensor_caution(setting: PlanSettings, shares: str) -> str:
    """Return how tensors are shared, and what suits cards with unequal memory."""
    if setting.tensor_split:
        return message(
            "Each tensor is split over {gpus} GPUs as you asked ({shares}): {sizes} MiB.",
            gpus=setting.gpus,
            shares=setting.tensor_split,
            sizes=shares,
        )
    shared = message(
        "Each tensor is split equally over {gpus} GPUs, whatever is free on them: {sizes} MiB.",
        gpus=setting.gpus,
        sizes=shares,
    )
    free = setting.gpu_free_mib
    if not free or min(free) > 0.9 * max(free):
        return shared
    by_memory = ",".join(f"{each / 1_024:.0f}" for each in free)
    return join_messages(
        shared,
        message("{setting} shares them by free memory.", setting=name_setting("tensor_split", by_memory)),
    )


def _slower_cautions(evidence: Sequence[PublishedRun], situation: Situation) -> list[str]:
    found: list[str] = []
    slower = next((each for each in evidence[:1] if each.speedup is not None and each.speedup < 1), None)
    if slower is not None:
        found.append(
            message(
                "MTP was slower in the nearest published run: {tokens_per_second:g} t/s on the {gpu}, "
                "{baseline:g} t/s with MTP off. Measure it with {no_mtp} too.",
                tokens_per_second=slower.tokens_per_second,
                gpu=slower.gpu,
                baseline=slower.baseline,
                no_mtp=NO_MTP,
            )
        )
    if situation.unified:
        found.append(
            message(
                "On GPUs that share host memory, MTP was about as fast or slower. Measure it with {no_mtp} too.",
                no_mtp=NO_MTP,
            )
        )
    return found


def list_host_cautions(estimate: MemoryEstimate, situation: Situation, limited: Collection[str]) -> list[str]:
    """Return cautions about the host memory that the engine takes at its start, and may add later.

    `limited` has the settings that were limited to fit into host memory.
    """
    host, setting = estimate.host, estimate.setting
    offloads = setting.n_cpu_moe > 0
    later = (host.checkpoints_most + host.prompt_cache_most) // _MIB
    if situation.backend == "cpu":
        spare = situation.free_mib - estimate.required_mib
        room = (
            message("{spare:,} MiB stay free", spare=spare)
            if spare >= later
            else message("only {spare:,} MiB stay free", spare=max(spare, 0))
        )
        sentence = message(
            "While running it may need up to {later:,} MiB more host memory: {prompt_cache_most:,} MiB of"
            " cached prompts ({setting} N limits them to N MiB) and {checkpoints_most:,} MiB of context "
            "checkpoints; {room}.",
            later=later,
            prompt_cache_most=host.prompt_cache_most // _MIB,
            checkpoints_most=host.checkpoints_most // _MIB,
            room=room,
            setting=name_setting("cache_ram"),
        )
        return [sentence]
    need, have = host_need_mib(estimate), situation.host_beside_mib(estimate.required_mib)
    if have is None:
        sentence = message(
            "The experts on the CPU need about {need:,} MiB of free host memory. The free host memory is "
            "unknown[ ({option})].",
            need=need,
            option=FaceName("--host-memory"),
        )
        return [sentence] if offloads else []
    if have < need:
        slow = (
            message(
                "Experts would be read from disk again and again, which is very slow. Choose a smaller quant or model."
            )
            if offloads
            else message("The system will swap and may end the engine.")
        )
        return [
            join_messages(
                message(
                    "Not enough host memory: about {need:,} MiB are needed, {have:,} MiB are available.",
                    need=need,
                    have=have,
                ),
                slow,
            )
        ]
    if have < need + later:
        sentence = message(
            "Long use may need up to {later:,} MiB more host memory (prompt cache, context checkpoints) "
            "than is available. {setting} N limits the cache to N MiB.",
            later=later,
            setting=name_setting("cache_ram"),
        )
        return [sentence]
    if setting.cache_ram is not None or setting.ctx_checkpoints is not None:
        sentence = message(
            "Long use may need up to {later:,} MiB more host memory: {prompt_cache_most:,} MiB of cached "
            "prompts and {checkpoints_most:,} MiB of context checkpoints.",
            later=later,
            prompt_cache_most=host.prompt_cache_most // _MIB,
            checkpoints_most=host.checkpoints_most // _MIB,
        )
        return [join_messages(sentence, _limits_note(limited))]
    return []


def _limits_note(names: Collection[str]) -> str:
    match "cache_ram" in names, "ctx_checkpoints" in names:
        case True, True:
            return message("Both are limited to the free memory.")
        case True, False:
            return message("The prompt cache is limited to the free memory.")
        case False, True:
            return message("The checkpoints are limited to the free memory.")
    return ""


def _offload_cautions(weights: Weights, fitted: FitResult, situation: Situation, measure: Measure) -> list[str]:
    layer_bytes = weights.blocks[-1].experts
    has_room = fitted.estimate.needed_mib + layer_bytes // _MIB <= situation.free_mib - situation.margin_mib
    if not fitted.setting.drafter.drafts or not layer_bytes or has_room or fitted.setting.moe_cache_mib:
        return []
    cost = fitted.estimate.parts.total - measure(replace(fitted.setting, draft=0)).parts.total
    layers = min(cost // layer_bytes, fitted.setting.n_cpu_moe)
    if not layers:
        return []
    sentence = plural_message(
        "MTP needs {cost:,} MiB here. With MTP off the experts of {n} more layer fit on the GPU; only a "
        "measurement shows which is faster.",
        "MTP needs {cost:,} MiB here. With MTP off the experts of {n} more layers fit on the GPU; only a "
        "measurement shows which is faster.",
        layers,
        cost=cost // _MIB,
    )
    return [sentence]
