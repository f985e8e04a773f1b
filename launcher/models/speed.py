"""Expected speed of a plan: the nearest published runs, a forecast with its range, and the limit by memory bandwidth.

The forecast is the time of a pass (models.pass_time), corrected by published runs of the same model on the same GPU.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import inf, log2, prod
from typing import Literal, NamedTuple

from launcher.base.messages import Message, join_messages, mark, message
from launcher.machine.cards import Card, is_same_memory
from launcher.models.catalogue import ModelEntry, ModelFile
from launcher.models.drafters import SPEC_TYPES, Drafter, choose_drafts, find_drafter, is_drafting
from launcher.models.evidence import accepted_shares, compare_drafters, has_spilled, is_other_engine
from launcher.models.geometry import Geometry
from launcher.models.memory import KV_TYPES, DraftModel, PlanSettings, kv_bytes, split_shares
from launcher.models.pass_time import (
    EMPTY_CACHE,
    MEASURED,
    MEASURED_WITH_DRAFTS,
    CacheWork,
    generation_factors,
    hit_rate,
    host_rate,
    measure_cache,
    measure_work,
    token_rate,
)
from launcher.models.preset import PublishedRun
from launcher.models.situation import Situation
from launcher.models.weights import Weights

_FAR = 3.0
"""Distance from which on a published run does not count as near."""
_SHOWN = 3
"""The most published runs that are returned for a plan."""
_USUAL_BITS = 4
"""Bits per weight assumed for a result without a named file; most people run four bits."""
_VARIANTS = frozenset({"TI", "SUPER", "LAPTOP", "D", "XT", "XTX", "MAX", "GRE"})
"""Words that distinguish GPU models of the same number."""


def nearest_runs(
    entry: ModelEntry, quant: str, setting: PlanSettings, situation: Situation
) -> tuple[PublishedRun, ...]:
    """Return the published runs of the same model that are nearest to a plan, nearest first; () if all are far.

    Runs on this GPU model come first, then those with the plan's drafter. Near means: similar GPU memory and file size,
    experts on the host in both or in neither, and a rate with MTP for a plan with MTP, without it for one without. Of
    several runs of one source on one file and GPU only the nearest is returned.
    """
    own = setting.drafter
    scored = [
        (not _same_gpu(result, situation), own.drafts and result.spec_type != own.spec_type, distance, index, result)
        for index, result in enumerate(entry.measurements)
        if (distance := _distance(entry, result, quant, setting, situation)) < _FAR
    ]
    found: dict[tuple[str, str | None, str], PublishedRun] = {}
    for *_, result in sorted(scored, key=lambda one: one[:4]):
        found.setdefault((result.gpu, result.quant, result.source), result)
    return tuple(found.values())[:_SHOWN]


def nearest_comparison(entry: ModelEntry, setting: PlanSettings, situation: Situation) -> PublishedRun | None:
    """Return the published run, with a rate with and without MTP, whose machine and settings are nearest; or None.

    Its quantisation does not matter: whether MTP is worth its memory depends on the machine more than on the file.
    """
    near = [
        (distance, index, run)
        for index, run in enumerate(entry.measurements)
        if run.speedup is not None and (distance := _distance(entry, run, run.quant or "", setting, situation)) < _FAR
    ]
    return min(near, key=lambda one: one[:2])[2] if near else None


def nearest_drafters(
    entry: ModelEntry, situation: Situation, spec_types: Collection[str] = SPEC_TYPES
) -> dict[str, PublishedRun]:
    """Return the best run with each drafter of a model, the fastest first, where somebody compared several.

    `spec_types` are the drafters, as --spec-type calls them, of which two must be compared.

    All have all layers on the GPU and no filled context: they are those on the nearest machine. Returns none if nobody
    compared drafters on a machine like this one.
    """
    if situation.backend == "cpu":
        return {}
    runs = (
        run
        for run in entry.measurements
        if (run.spec_type in spec_types and run.gpus == situation.gpus and not run.filled)
        and not (_had_host_experts(entry, run) or has_spilled(run.note, drafts=run.drafts))
    )
    near = [
        (away, found)
        for found in compare_drafters(runs)
        if len(found) > 1 and (away := _distance_of_gpu(next(iter(found.values())), situation)) < _FAR
    ]
    return min(near, key=lambda one: one[0])[1] if near else {}


def comparable_rate(result: PublishedRun, setting: PlanSettings) -> float | None:
    """Return the tokens per second of a published result to compare with a plan: its baseline for a plan without
    drafts, or with another drafter."""
    if setting.drafter.spec_type == result.spec_type:
        return result.tokens_per_second
    return result.baseline if result.drafts else None


def _distance(
    entry: ModelEntry, result: PublishedRun, quant: str, setting: PlanSettings, situation: Situation
) -> float:
    if comparable_rate(result, setting) is None or result.trust == "low" or situation.backend == "cpu":
        return _FAR
    if (
        result.speculation not in ("", setting.drafter.spec_type)
        or is_other_engine(result.engine, result.backend)
        or has_spilled(result.note, drafts=result.drafts)
    ):
        return _FAR
    if result.gpus != situation.gpus:
        return _FAR
    if _had_host_experts(entry, result) != bool(setting.n_cpu_moe):
        return _FAR
    if result.expert_cache != bool(setting.n_cpu_moe and setting.moe_cache_mib):
        return _FAR
    distance = _distance_of_gpu(result, situation)
    their_file = entry.file(result.quant or "")
    own_file = their_file if quant == result.quant else entry.file(quant)
    own_bytes = own_file.size_bytes if own_file else None
    their_bytes = their_file.size_bytes if their_file else None
    if own_bytes is None or their_bytes is None:
        distance += 1.0
    else:
        distance += 3 * abs(log2(own_bytes / their_bytes)) + 0.3 * (own_file is not their_file)
    if result.ctx:
        distance += 0.2 * abs(log2(result.ctx / setting.context))
    if result.draft is not None and result.drafts and setting.drafter.drafts:
        distance += 0.3 * abs(result.draft - setting.draft)
    if result.kv:
        distance += 0.2 * (result.kv != setting.kv)
    return distance + (1.0 if result.filled else 0.0)


def _distance_of_gpu(result: PublishedRun, situation: Situation) -> float:
    if _same_gpu(result, situation):
        return 0.0
    if result.gpu_memory_gb is None:
        return _FAR
    return 0.5 + 2 * abs(log2(result.gpu_memory_gb / situation.nominal_gb))


def _had_host_experts(entry: ModelEntry, result: PublishedRun) -> bool:
    """Return whether experts were in host memory: as reported, else if the file is larger than the GPU's memory."""
    if result.n_cpu_moe is not None:
        return result.n_cpu_moe > 0
    if result.gpu_memory_gb is None or entry.geometry is None or not entry.geometry.experts:
        return False
    file = entry.file(result.quant or "")
    sizes = [file] if file else [each for each in entry.files if each.bits == _USUAL_BITS]
    size = max((each.size_bytes or 0 for each in sizes), default=0)
    return size > result.gpu_memory_gb * 2**30


def _same_gpu(result: PublishedRun, situation: Situation) -> bool:
    """Return whether a published GPU, such as "2x RTX 4090", is this machine's (two "NVIDIA GeForce RTX 4090").

    This machine's name must have all words of the published one and no further word of a variant; the memory must be
    about the same.
    """
    if situation.gpu_name is None or situation.unlike_gpus:
        return False
    published = re.sub(r" \(.*?\)", "", result.gpu)  # the computer's name, as in "GB10 (DGX Spark)"
    several = re.fullmatch(r"(\d)x (.+)", published)
    count, name = (int(several[1]), several[2]) if several else (1, published)
    wanted, here = (set(re.findall(r"[A-Z0-9]+", each.upper())) for each in (name, situation.gpu_name))
    if "MOBILE" in wanted:
        wanted = wanted - {"MOBILE"} | {"LAPTOP"}
    return (
        count == situation.gpus
        and wanted <= here
        and not (here - wanted) & _VARIANTS
        and (result.gpu_memory_gb is None or is_same_memory(result.gpu_memory_gb, situation.nominal_gb))
    )


def describe_run(entry: ModelEntry, result: PublishedRun) -> str:
    """Return a published run of `entry` as a sentence, with its source and its rate with the context filled."""
    where = [result.gpu]
    if result.gpu_memory_gb and not re.search(rf"\b{result.gpu_memory_gb} ?GB", result.gpu):
        where.append(f"{result.gpu_memory_gb} GB")
    how = [result.quant or message("quant unknown")]
    if result.ctx:
        how.append(message("context {tokens:,}", tokens=result.ctx))
    if result.filled:
        how.append(message("{tokens:,} tokens of it filled", tokens=result.filled))
    if result.kv:
        how.append(message("KV {kv}", kv=result.kv))
    if result.n_cpu_moe:
        how.append(message("experts of {layers} layers on the host", layers=result.n_cpu_moe))
    if result.draft is None:
        how.append(message("draft length unknown"))
    else:
        how.append(choose_drafts(find_drafter(result.spec_type), result.draft).label())
    parts = [
        message(
            "{gpu}: {rate} with {settings}",
            gpu=join_messages(*where, separator=", "),
            rate=_format_rate(result),
            settings=join_messages(*how, separator=", "),
        )
    ]
    if result.baseline:
        parts.append(message("{rate:g} t/s without MTP", rate=result.baseline))
    if result.acceptance is not None:
        high = 100 * result.acceptance_high if result.acceptance_high else None
        parts.append(message("{low:g}[ to {high:g}] % of drafts accepted", low=100 * result.acceptance, high=high))
    fullest = max(_same_run(entry, result), key=lambda each: each.filled or 0)
    if fullest.filled and fullest is not result:
        parts.append(
            message(
                "{rate}[ ({baseline:g} without MTP)] with {tokens:,} tokens in the context",
                rate=_format_rate(fullest),
                baseline=fullest.baseline or None,
                tokens=fullest.filled,
            )
        )
    return message(
        "{result}.[ {note}.] Source: {source}.",
        result=join_messages(*parts, separator="; "),
        note=result.note.rstrip(".") or None,
        source=result.source,
    )


def _format_rate(result: PublishedRun) -> Message:
    high = result.tokens_per_second_high or None
    return message("{low:g}[ to {high:g}] t/s", low=result.tokens_per_second, high=high)


def _same_run(entry: ModelEntry, result: PublishedRun) -> list[PublishedRun]:
    """Return the runs that equal `result` in all conditions but the filled context."""
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
    read = weights.output + weights.sum_rest() + int(active * weights.sum_experts())
    if not full:
        return read
    return read + kv_bytes(geometry, replace(setting, context=setting.context // setting.slots, slots=1))


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


RangeGroup = Literal["unified memory", "AMD and Intel", "NVIDIA, mixture with MTP", "NVIDIA, dense with MTP", "NVIDIA"]
RANGES: Mapping[RangeGroup, tuple[float, float]] = {
    "unified memory": (0.80, 1.22),
    "AMD and Intel": (0.74, 1.36),
    "NVIDIA, mixture with MTP": (0.80, 1.30),
    "NVIDIA, dense with MTP": (0.80, 1.22),
    "NVIDIA": (0.80, 1.20),
}
"""Shares of a forecast between which four of five published runs lie if it was made without the runs of their source
and card, by kind of machine and model; the last group is without drafts (`python -m tools.speed_accuracy`)."""
WIDE_RANGE = (0.6, 1.6)
"""The same where no run is near: experts in host memory, or a card or generation without published runs."""
FILLED = 65_536
"""Tokens in the context for which plans show a second speed: where agents' sessions get to."""


def range_group(card: Card, *, mixture: bool, drafts: bool) -> RangeGroup:
    """Return the group of forecasts that are equally uncertain, for a card and a kind of model."""
    if card.unified:
        return "unified memory"
    if not card.multiprocessors:
        return "AMD and Intel"
    if not drafts:
        return "NVIDIA"
    return "NVIDIA, mixture with MTP" if mixture else "NVIDIA, dense with MTP"


class SpeedForecast(NamedTuple):
    """The expected speed of a plan, in tokens per second, at a short context, with the range of most published runs.

    `without_mtp` is the speed without drafts, `when_filled` that with `filled` tokens in the context. `near`: runs of
    this generation of GPU are published. `most` is what memory bandwidth allows if every draft is accepted, None if
    unknown. `host_gb_s` is the rate, in 10^9 bytes per second, at which experts in host memory are read, None if there
    are none, and `host_bandwidth_gb_s` the bandwidth that it was derived from, None if it is an assumption.
    `cache_hits` is the share of them that an expert cache on the GPU is expected to have, None without one.
    """

    tokens_per_second: float
    low: float
    high: float
    without_mtp: float
    near: bool
    when_filled: float
    filled: int
    most: float | None = None
    host_gb_s: float | None = None
    cache_hits: float | None = None
    host_bandwidth_gb_s: float | None = None


def describe_forecast(forecast: SpeedForecast, drafter: Drafter) -> str:
    """Return a forecast as a clause with its range and what it assumes; `drafter` is that of the plan."""
    parts = [
        message(
            "about {rate:,.0f} tokens/s ({low:,.0f} to {high:,.0f}) at a short context",
            rate=forecast.tokens_per_second,
            low=forecast.low,
            high=forecast.high,
        )
    ]
    if drafter.drafts:
        off = message("{rate:,.0f} with MTP off", rate=forecast.without_mtp)
        parts.append(off if drafter.uses_head else message("{rate:,.0f} without drafts", rate=forecast.without_mtp))
    parts.append(
        message(
            "at {tokens} tokens about {rate:,.0f}", tokens=f"{forecast.filled // 1_024}K", rate=forecast.when_filled
        )
    )
    if forecast.host_gb_s:
        hits = None if forecast.cache_hits is None else 100 * forecast.cache_hits
        parts.append(
            message(
                "host memory is assumed to give {rate:.0f} GB/s[ of {bandwidth:.0f}][, and the cache to have "
                "{hits:.0f} % of the experts that are needed]",
                rate=forecast.host_gb_s,
                bandwidth=forecast.host_bandwidth_gb_s,
                hits=hits,
            )
        )
        parts.append(message("few such runs are published, so the range is wide"))
    elif not forecast.near:
        parts.append(message("no run on such a machine was published"))
    return join_messages(*parts, separator=mark("; "))


def forecast_speed(
    file: ModelFile,
    geometry: Geometry,
    weights: Weights,
    setting: PlanSettings,
    situation: Situation,
    *,
    filled: int = FILLED,
    family: str = "",
    draft_model: DraftModel | None = None,
) -> SpeedForecast | None:
    """Return the forecast for a plan, or None if the cards are not known or the model runs on the processor.

    `filled` is the number of tokens in the context for its second speed, if a slot can hold them. `family` is the name
    by which it is published how many drafts are accepted: if nobody did, the forecast is as if nothing were drafted.
    `draft_model` is the file that drafts, if its header was read.
    """
    cards = situation.cards
    if not cards or situation.backend == "cpu":
        return None
    held, filled = held_share(weights, setting), min(filled, setting.slot_context)
    accepted, hits = accepted_shares(setting.drafter, family), hit_rate(held)
    draft = setting.draft if accepted else 0
    work = measure_work(file, geometry, weights, setting.n_cpu_moe)
    if draft_model is not None and not setting.drafter.uses_head:
        work = work.with_draft(draft_model, setting.drafter, weights.output)

    def rate(draft: int, hits: float, cache: CacheWork = EMPTY_CACHE) -> float:
        return token_rate(
            work.with_cache(hits),
            draft,
            cards,
            gpu_shares(situation, setting),
            cache=cache,
            splits_tensors=setting.splits_tensors,
            power_limit_w=situation.power_limit_w,
            host_gb_s=host_rate(situation.host_gb_s),
            accepted=accepted,
        )

    near = not setting.n_cpu_moe and len(cards) == 1
    drafts = is_drafting(draft)
    near = near and cards[0].generation in (MEASURED_WITH_DRAFTS if drafts else MEASURED)
    near = near and (setting.drafter.uses_head or not drafts)
    group = range_group(cards[0], mixture=geometry.experts > 0, drafts=drafts)
    low, high = RANGES[group] if near else WIDE_RANGE
    found, limit = rate(draft, hits), bandwidth_limit(geometry, weights, setting, situation)
    return _cap_forecast(
        SpeedForecast(
            found,
            # A cache may hit no more often than it holds experts: one published run hardly gained (Laguna 118B, 12 GB).
            rate(draft, held) * low,
            found * high,
            rate(0, hits),
            near,
            rate(draft, hits, measure_cache(geometry, setting, filled)),
            filled,
            most=None if limit is None else limit * (1 + draft),
            host_gb_s=host_rate(situation.host_gb_s) if setting.n_cpu_moe else None,
            host_bandwidth_gb_s=situation.host_gb_s if setting.n_cpu_moe else None,
            cache_hits=hits if held else None,
        )
    )


def _cap_forecast(forecast: SpeedForecast) -> SpeedForecast:
    """Return a forecast no part of which is above what memory bandwidth allows."""
    most = inf if forecast.most is None else forecast.most
    return forecast._replace(
        tokens_per_second=min(forecast.tokens_per_second, most),
        low=min(forecast.low, most),
        high=min(forecast.high, most),
        when_filled=min(forecast.when_filled, most),
    )


def compare_with_run(
    run: PublishedRun,
    file: ModelFile,
    geometry: Geometry,
    weights: Weights,
    setting: PlanSettings,
    situation: Situation,
    *,
    family: str = "",
    draft_model: DraftModel | None = None,
) -> float | None:
    """Return the rate of a published run as a multiple of its forecast; None if it cannot be compared.

    Only a run on this GPU with similar settings can be compared. `file` and `weights` are those of the run's file.
    `setting` is that of a plan, with drafts or without; `family` and `draft_model` are as for `forecast_speed`.
    """
    cards, rate, drafter = situation.cards, comparable_rate(run, setting), setting.drafter
    drafts = drafter.drafts and drafter.spec_type == run.spec_type
    if not cards or not rate or run.expert_cache or (drafts and not is_drafting(run.draft)):
        return None
    if setting.n_cpu_moe and run.n_cpu_moe is None:
        return None
    if not _same_gpu(run, replace(situation, gpu_name=situation.gpu_name or cards[0].name)):
        return None
    accepted = accepted_shares(drafter, family) if drafts else ()
    if drafts and not accepted:
        return None
    work = measure_work(file, geometry, weights, run.n_cpu_moe or 0)
    if drafts and draft_model is not None and not drafter.uses_head:
        work = work.with_draft(draft_model, drafter, weights.output)
    forecast = token_rate(
        work,
        run.draft or 0 if drafts else 0,
        cards,
        gpu_shares(situation),
        cache=measure_cache(
            geometry, replace(setting, kv=run.kv if run.kv and run.kv in KV_TYPES else "f16"), run.filled or 0
        ),
        power_limit_w=run.power_w,
        host_gb_s=host_rate(situation.host_gb_s),
        accepted=accepted,
    )
    return rate / forecast


def correct_forecast(forecast: SpeedForecast, ratios: Sequence[float]) -> SpeedForecast:
    """Return a forecast moved half way to what runs of the same model on the same GPU reached.

    `ratios` are their rates as multiples of their own forecasts. The range then includes what they reached.
    """
    if not ratios:
        return forecast
    ratio = prod(ratios) ** (1 / len(ratios))
    reached, factor = forecast.tokens_per_second * ratio, ratio**0.5
    drafts = forecast.without_mtp != forecast.tokens_per_second
    return _cap_forecast(
        forecast._replace(
            tokens_per_second=forecast.tokens_per_second * factor,
            low=min(forecast.low * factor, reached),
            high=max(forecast.high * factor, reached),
            without_mtp=forecast.without_mtp * (1 if drafts else factor),
            when_filled=forecast.when_filled * factor,
        )
    )


def held_share(weights: Weights, setting: PlanSettings) -> float:
    """Return the share of the experts in host memory that fit into the expert cache."""
    on_host = weights.sum_experts(0, setting.n_cpu_moe)
    return min(1.0, (setting.moe_cache_mib or 0) * 2**20 / on_host) if on_host else 0.0


class ReadingForecast(NamedTuple):
    """The expected speed of reading a text, in tokens per second, with the range of most machines."""

    tokens_per_second: float
    low: float
    high: float


def describe_reading(reading: ReadingForecast) -> str:
    """Return the reading speed of a model that generates no text, as a clause with its range."""
    return message(
        "reads about {rate:,.0f} tokens/s ({low:,.0f} to {high:,.0f}); generates no text",
        rate=reading.tokens_per_second,
        low=reading.low,
        high=reading.high,
    )


def forecast_reading(weights_used: float, situation: Situation) -> ReadingForecast | None:
    """Return the reading speed of a model by the number of weights that it uses per token. None if the cards are not
    known.

    A ubatch is read by arithmetic: two operations for each weight and token, at the share of the maker's figure that
    verifying drafts reaches.
    """
    if not situation.cards or situation.backend == "cpu" or not weights_used:
        return None
    seconds = 0.0
    for card, share in zip(situation.cards, gpu_shares(situation), strict=True):
        seconds += share * 2 * weights_used / (card.tflops * 1e12 * generation_factors(card).compute)
    found = 1 / seconds
    return ReadingForecast(found, found * WIDE_RANGE[0], found * WIDE_RANGE[1])


def gpu_shares(situation: Situation, setting: PlanSettings | None = None) -> Sequence[float]:
    """Return the share of the work on each GPU.

    llama-server splits layers by free memory, and tensors equally; a tensor split that is set replaces both.
    """
    count = len(situation.cards)
    if setting is not None and setting.split_mode == "none":
        return [1.0] + [0.0] * (count - 1)
    shares: Sequence[float] = split_shares(setting.tensor_split, count) if setting else ()
    if not shares and (setting is None or not setting.splits_tensors) and len(situation.gpu_free_mib) == count:
        shares = situation.gpu_free_mib
    shares = shares or [1.0] * count
    return [share / sum(shares) for share in shares]
