"""Advice for server settings whose memory does not fit: which single change, or which other model, would."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from launcher.base.messages import FaceName, message
from launcher.models.fitting import CONTEXTS, SHORT_CONTEXTS, Measure, fewest_on_host, host_need_mib, shorter_contexts
from launcher.models.memory import PlanSettings
from launcher.models.plan import Plan
from launcher.models.server_settings import Value
from launcher.models.situation import Situation
from launcher.models.smaller_model import describe_smaller

_MIB = 2**20
_SMALLER_KV = {"f32": ("q8_0", "q4_0"), "f16": ("q8_0", "q4_0"), "bf16": ("q8_0", "q4_0"), "q8_0": ("q4_0",)}


@dataclass(frozen=True, slots=True)
class FitAdvice:
    """One way to fit: a sentence, and the server settings to change by name, or `model` as ID:QUANT to take instead."""

    sentence: str
    settings: Mapping[str, Value]
    model: str | None = None


def advise_fit(
    setting: PlanSettings, situation: Situation, expert_layers: int, measure: Measure, smaller: Plan | None
) -> tuple[FitAdvice, ...]:
    """Return what would fit into the free memory: single changes of `setting` first, of context and KV cache both if no
    single one does, then the plan of a smaller model, if there is one.
    """
    room_mib = situation.free_mib - situation.margin_mib // 2

    def fits(candidate: PlanSettings) -> bool:
        return measure(candidate).needed_bytes <= room_mib * _MIB

    found = [*_change_one(setting, fits)]
    if not found:
        found = [*_change_context_and_kv(setting, fits)]
    found += _move_experts(setting, situation, expert_layers, room_mib, measure)
    if smaller is not None:
        found.append(FitAdvice(describe_smaller(smaller), {}, f"{smaller.entry.id}:{smaller.file.quant}"))
    return tuple(found)


def _change_one(setting: PlanSettings, fits: Callable[[PlanSettings], bool]) -> Iterator[FitAdvice]:
    context = _longest_context(setting, fits)
    if context is not None:
        text = message(
            "A context of {context:,} tokens fits[ ({option})].", context=context, option=FaceName(f"--ctx {context}")
        )
        yield FitAdvice(text, {"ctx": context})
    for kv in _SMALLER_KV.get(setting.kv, ()):
        if fits(replace(setting, kv=kv)):
            yield FitAdvice(
                message("A KV cache of {kv} fits[ ({option})].", kv=kv, option=FaceName(f"--kv {kv}")), {"kv": kv}
            )
            break
    if setting.drafter.drafts and fits(replace(setting, draft=0)):
        yield FitAdvice(message("It fits with MTP off[ ({option})].", option=FaceName("--no-mtp")), {"draft": 0})


def _change_context_and_kv(setting: PlanSettings, fits: Callable[[PlanSettings], bool]) -> Iterator[FitAdvice]:
    for kv in _SMALLER_KV.get(setting.kv, ()):
        context = _longest_context(replace(setting, kv=kv), fits)
        if context is not None:
            text = message(
                "A context of {context:,} tokens with a KV cache of {kv} fits[ ({options})].",
                context=context,
                kv=kv,
                options=FaceName(f"--ctx {context} --kv {kv}"),
            )
            yield FitAdvice(text, {"ctx": context, "kv": kv})
            return


def _longest_context(setting: PlanSettings, fits: Callable[[PlanSettings], bool]) -> int | None:
    shorter = shorter_contexts(CONTEXTS + SHORT_CONTEXTS, setting.context)
    return next((each for each in shorter if fits(replace(setting, context=each))), None)


def _move_experts(
    setting: PlanSettings, situation: Situation, expert_layers: int, room_mib: int, measure: Measure
) -> Iterator[FitAdvice]:
    """Yield the fewest layers whose experts must be in host memory, if that is large enough."""
    if setting.backend == "cpu" or expert_layers <= setting.n_cpu_moe:
        return
    layers = fewest_on_host(setting, expert_layers, room_mib, measure)
    estimate = measure(replace(setting, n_cpu_moe=layers))
    host_mib = situation.host_beside_mib(estimate.required_mib)
    is_enough = host_mib is None or host_mib >= host_need_mib(estimate)
    if estimate.needed_bytes <= room_mib * _MIB and is_enough:
        text = message(
            "With the experts of {layers} layers in host memory it fits[ ({option})], slower.",
            layers=layers,
            option=FaceName(f"--n-cpu-moe {layers}"),
        )
        yield FitAdvice(text, {"n_cpu_moe": layers})
