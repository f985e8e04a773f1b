"""Ranks the ways to run a model on a machine: its files, each with the best context, KV cache, draft length and split.

Each candidate (a file with such settings) gets a loss, and the least loss is the best, among the files of one model and
among models. It is a sum: what the model lacks to the best score, the quality lost by the quantisation, the missing
part of the context, the type of the KV cache, a low speed, experts in host memory, and too little free memory. The
weight of each term depends on the intent. Memory is approximate here (the weights by rules, the rest interpolated
between two exact estimates); a plan is then fitted exactly.

Where experts are in host memory, the speed is that with an expert cache (--moe-cache-mib) in the GPU's free memory, if
the engine has one and that is clearly faster. A plan chooses its exact size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf, log2
from types import MappingProxyType
from typing import NamedTuple

from launcher.models.catalogue import ModelEntry, ModelFile
from launcher.models.drafters import NONE, Drafter, choose_drafts, is_drafting
from launcher.models.evidence import accepted_shares
from launcher.models.file_size import expect_size, usual_bits
from launcher.models.fitting import (
    CACHE_GAIN,
    CACHE_STEP_MIB,
    CONTEXT_WITHOUT_GPU,
    CONTEXTS,
    LEAST_CONTEXT,
    SHORT_CONTEXTS,
    can_have_expert_cache,
    shorter_contexts,
)
from launcher.models.geometry import Geometry
from launcher.models.memory import ROOM_MIB, DraftModel, MemoryEstimate, PlanSettings, estimate_memory
from launcher.models.pass_time import (
    EMPTY_CACHE,
    CacheWork,
    PassWork,
    hit_rate,
    host_rate,
    measure_cache,
    measure_work,
    token_rate,
)
from launcher.models.preset import Intent, PublishedRun
from launcher.models.server_settings import Value
from launcher.models.situation import Situation, available_mib, usable_mib
from launcher.models.speed import FILLED, gpu_shares, nearest_comparison, nearest_drafters
from launcher.models.weights import Weights

_MIB = 2**20
_OTHER_TOKENS: Sequence[tuple[float, float]] = (
    (1.78, 38.4),
    (2.20, 23.1),
    (2.43, 19.4),
    (2.76, 15.6),
    (3.21, 11.4),
    (3.52, 9.0),
    (3.89, 8.4),
    (4.32, 6.1),
    (4.57, 6.0),
    (5.70, 3.5),
    (6.57, 2.5),
    (8.50, 1.2),
    (16.0, 0.0),
)
"""Bits per weight, and how many of 100 tokens differ from the original's choice. Up to 4.57 bits: Mistral-7B
(llama.cpp PR #5676 and its author's table of 2024-02-27). 5.70: Q5_K_M of Watt-Tool-8B (its publisher's log). Above
that, in proportion to the root of the KL divergence of Llama 3 8B (llama.cpp PR #6936)."""
OTHER_TOKENS_SOURCE = "llama.cpp PR #5676 and #6936"
"""The source of the figures of `other_tokens`, for readers."""
_SIMPLE = ("MXFP4", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
_SIMPLE_BITS = 0.5
"""Bits per weight to subtract from quantisations without super-blocks, which are worse than others of their size: MXFP4
was among 17 four-bit files of Qwen3.5-35B-A3B (r/LocalLLaMA 1rfds1h). The amount is our judgement."""
_ORIGINAL = ("F32", "F16", "BF16", "MXFP4")
"""Files with the original's weights, whatever their size: gpt-oss was published in MXFP4. (Others are MXFP4_MOE.)"""
_UNSEEN = 1.2
"""Other tokens in 100 below which no quality is gained: those of Q8_0."""
_BEST_SCORE, _POINT = 72.0, 0.0027
"""Score from which a model loses nothing, and the loss per cube of the points that it lacks: two models of 68 and 72
points differ little to their users, those of 58 and 62 much."""
_UNKNOWN_SCORE = 45.0
"""The score taken where none is known: less than any known one, so that nothing is recommended for answers that nobody
has compared."""
_LARGE_GB, _LARGE_SCORE = 64, 2.5
"""GPU memory in GB from which the score counts so many times as much: such machines are bought for better models."""
_QUALITY = 0.009
"""Loss per square of the number of other tokens in 100. Squared, because errors add up in an answer of many steps."""
_HALVED, _MORE_HALVED = 0.17, 1.5
"""Loss for half of the context that the intent wants, and the power of the number of halvings by which it grows: many
users notice that 40,000 tokens are short, few that 80,000 are."""
_KV_LOSS = MappingProxyType({"f32": 0.0, "f16": 0.0, "bf16": 0.0, "q8_0": 0.03})
_SMALL_KV_LOSS = 0.5
"""Loss for a KV cache of fewer than 8 bits, the last resort: long agent work fails with it (docs/models.md)."""
_USUAL_RATE, _HALF_SPEED = 60.0, 0.5
"""Tokens per second with a loss of 0, and the loss per halving of that speed."""
_ENOUGH_RATE, _FAST_RATE, _ENOUGH_GAIN = 40.0, 120.0, 0.12
"""Tokens per second above which a better file is preferred to more speed: without experts in host memory, and with them
(prompts are slow then, too); and the gain per doubling above that."""
_OFFLOADED, _DOUBLE_COPY = 0.76, 0.16
"""Loss for experts in host memory, and per doubling of the bits per weight. It stands for slower prompts (the experts
are copied to the GPU for each ubatch); slower replies are a part of the speed."""
_OFFLOAD_SHARE = 0.3
"""Share of that loss that does not count against other models: much better answers are worth slower prompts."""
_MODEL_HALF_SPEED = 0.68
"""Loss per halving of the speed against other models: below _FAST_RATE, and once more below _ENOUGH_RATE."""
_HOST_UNKNOWN, _USUAL_HOST_MIB = 0.3, available_mib(32)
"""Further loss where host memory is unknown, and the amount assumed then: that of a host with 32 GiB."""
_DOUBLE_SIZE = 0.015
"""Loss per doubling of the bits per weight: such a file takes twice as long to download and to load."""
_DESKTOP_SHARE, _LARGEST_DESKTOP_GB = 0.115, 24
"""Share of a card's memory to leave to a desktop, which takes 0.8 to 1.0 GiB for Windows alone and as much for a
browser (docs/models.md); and the size in GB from which larger cards leave no more than a card of that size."""
_MISSING_ROOM = 0.25
"""Loss per GiB of that share that would not be free."""
_USUAL_BANDWIDTH_GB_S = 400.0
"""Bandwidth assumed for an unknown GPU: that of a card of the middle class."""
_LONGEST_DRAFT = 6
_SAME_SPEED = 1.05
"""Ratio of speeds up to which the draft length nearest to the usual one is taken: that of most published settings."""
WORTH_MTP = 1.03
"""Least ratio of the speed with MTP to the one without for MTP to be on."""
_SAFER_CONTEXT = 0.6
"""A context that leaves the margin free is preferred if it has at least this share of the longest one that fits."""
_ENOUGH_CONTEXT = 131_072
"""Context in tokens beyond which a longer one gains nothing, but for the intents that want one, and for which MTP is
not turned off."""
_KV_TYPES, _LAST_KV_TYPE = ("f16", "q8_0"), "q4_0"
_HOST_ROOM_MIB, _MISSING_HOST_ROOM = 4_096, 0.1
"""Host memory to leave besides the experts for prompt cache, checkpoints and programs; loss per missing GiB."""
_LONG_CONTEXTS = (786_432, 524_288, 393_216)
"""Contexts longer than CONTEXTS, for models trained for more."""
_OFFLOADED_CONTEXTS = (131_072, 98_304, 65_536, 49_152, 40_960, LEAST_CONTEXT)
"""Contexts that are tried with experts in host memory, besides the longest."""


class IntentWeights(NamedTuple):
    """Weights of score, quality, context, speed and room for an intent, and of a KV cache of fewer than 8 bits.

    `least_context` is the least context in tokens, if that fits, and `enough_context` the one beyond which a longer one
    gains nothing. Speeds are compared with `filled` tokens in the context. `risks_margin`: a longer context may leave
    less memory free than the margin.
    """

    score: float = 1.0
    quality: float = 1.0
    context: float = 1.0
    speed: float = 1.0
    room: float = 1.0
    small_kv: float = 1.0
    least_context: int = LEAST_CONTEXT
    enough_context: float = _ENOUGH_CONTEXT
    risks_margin: bool = False
    filled: int = 0


INTENTS = MappingProxyType[Intent, IntentWeights](
    {
        "balanced": IntentWeights(),
        "agents": IntentWeights(
            score=1.5, context=2.0, speed=1.2, room=1.5, small_kv=3.0, least_context=65_536, filled=FILLED
        ),
        "best-quality": IntentWeights(score=6.0, quality=3.0, context=0.5, speed=0.5, room=0.5),
        "long-context": IntentWeights(context=10.0, enough_context=inf, risks_margin=True, filled=FILLED),
    }
)


class Loss(NamedTuple):
    """The loss of a candidate, by cause. Only `speed` can be a gain, which is below 0."""

    quality: float
    context: float
    kv: float
    speed: float
    offload: float
    room: float

    @property
    def total(self) -> float:
        """The sum, by which candidates are compared: the least is the best."""
        return self.quality + self.context + self.kv + self.speed + self.offload + self.room

    @property
    def without_gain(self) -> float:
        """The sum without a gain of speed, because no speed makes up for a file of too few bits."""
        return self.total - min(self.speed, 0.0)


class WayToDraft(NamedTuple):
    """A way to draft that a model has here, with its best draft length and the speed that it is expected to bring.

    `rate` is in tokens per second, None if nobody published how many of its drafts are accepted with this model.
    """

    drafter: Drafter
    draft: int
    rate: float | None


class RankedFile(NamedTuple):
    """A file with the best settings for it, their loss, the expected speed, and the memory that stays free.

    `drafter` is the one to use with `draft`, and `ways` are those that it was chosen from, the fastest first; () if the
    model has only one, or if the user chose.
    `order` is the loss by which it is compared with files of other models. `rate` is in tokens per second, with as many
    tokens in the context as the intent compares speeds at, and with an expert cache if `is_cached`; None if unknown.
    `spare_mib` is approximate.
    """

    entry: ModelEntry
    file: ModelFile
    bits: float
    context: int
    kv: str
    draft: int
    n_cpu_moe: int
    rate: float | None
    is_cached: bool
    spare_mib: int
    loss: Loss
    order: float
    drafter: Drafter
    ways: tuple[WayToDraft, ...] = ()

    @property
    def drafts(self) -> bool:
        """Whether anything is drafted."""
        return is_drafting(self.draft)

    def with_rate(self, rate: float) -> RankedFile:
        """Return the same where its own way brings `rate` tokens per second, and the others in proportion."""
        own = choose_drafts(self.drafter, self.draft).drafter
        ranked = next((way.rate for way in self.ways if way.drafter is own), None)
        times = rate / ranked if ranked else 1.0
        return self._replace(ways=tuple(way._replace(rate=way.rate and way.rate * times) for way in self.ways))


def other_tokens(bits: float) -> float:
    """Return how many of 100 tokens differ from the original's choice in a file with `bits` per weight."""
    if bits <= _OTHER_TOKENS[0][0]:
        return _OTHER_TOKENS[0][1]
    for (less, worse), (more, better) in pairwise(_OTHER_TOKENS):
        if bits <= more:
            return worse + (better - worse) * (bits - less) / (more - less)
    return 0.0


def expect_bits(entry: ModelEntry, file: ModelFile) -> float:
    """Return the bits per weight of a file: by its size, else by the name of its quantisation."""
    size, parameters = expect_size(entry, file), entry.parameters_b
    if size is not None and parameters:
        tables_mib = entry.weights.host_mib or 0.0 if entry.weights else 0.0  # `parameters_b` does not count them
        return (size.size_bytes - tables_mib * _MIB) * 8 / (parameters * 1e9)
    return usual_bits(file.quant)


def expect_other_tokens(entry: ModelEntry, file: ModelFile) -> float:
    """Return how many of 100 tokens are expected to differ from the original's choice in a file of a model."""
    return _other_tokens_of(file, expect_bits(entry, file))


def _other_tokens_of(file: ModelFile, bits: float) -> float:
    """Return the same for `file`, whose quantisation may be better or worse than its `bits` per weight suggest."""
    quant = file.quant.upper()
    if quant in _ORIGINAL:
        return 0.0
    return other_tokens(bits - (_SIMPLE_BITS if any(name in quant for name in _SIMPLE) else 0.0))


def desktop_share_mib(situation: Situation) -> int:
    """Return the MiB of the free memory to leave to the desktop and its programs, at least the margin.

    Memory that they use already is subtracted.
    """
    if situation.backend == "cpu":  # the programs' own memory lies there, too
        return 2 * situation.margin_mib
    if situation.headless or situation.unified:
        return situation.margin_mib
    share = _DESKTOP_SHARE * min(situation.nominal_gb / situation.gpus, _LARGEST_DESKTOP_GB) * 1_024
    taken = max(0, usable_mib(situation.nominal_gb) - situation.free_mib)
    return max(situation.margin_mib, int(share) - taken)


def lack_of_score(entry: ModelEntry) -> float:
    """Return the loss of a model for its answers, whatever its file: 0 for one with the best score."""
    score = entry.score.value if entry.score else _UNKNOWN_SCORE
    return _POINT * max(0.0, _BEST_SCORE - score) ** 3


KnownFile = tuple[ModelEntry, ModelFile, Weights]
"""A model as the file's header describes it, the file, and its weights."""


def rank_files(
    files: Sequence[KnownFile],
    situation: Situation,
    intent: Intent,
    base: PlanSettings,
    *,
    fixed: Mapping[str, Value] = MappingProxyType({}),
    draft_models: Mapping[str, DraftModel] = MappingProxyType({}),
    verified: int = 1,
    shortest_context: int = LEAST_CONTEXT,
) -> list[RankedFile]:
    """Return the best way to run each of a model's files, the best first; those that cannot fit are left out.

    `base` has the settings that are not ranked, such as ubatch and slots, and the longest context; `fixed` the ranked
    ones that the user chose. `draft_models` are the separate draft models whose headers were read, by the kind of file:
    the settings are ranked with each, unless the user chose a drafter or a draft length. The first `verified` files are
    compared with published runs: MTP is off if the nearest run was slower with it. If nothing fits with the intent's
    least context, shorter ones are tried, down to `shortest_context`.
    """
    of_intent = INTENTS.get(intent, IntentWeights())
    if situation.nominal_gb >= _LARGE_GB and situation.backend != "cpu":
        of_intent = of_intent._replace(score=_LARGE_SCORE * of_intent.score)
    contexts = _list_contexts(base, fixed, of_intent.least_context)
    rankers: dict[tuple[Geometry, Drafter], _Ranker] = {}
    with_rankers: list[tuple[ModelFile, Weights, Sequence[_Ranker]]] = []
    last: _Ranker | None = None
    for entry, file, weights in files:
        if entry.geometry is None:
            continue
        own: list[_Ranker] = []
        for drafter in _list_drafters(entry, situation, fixed):
            if last is None or entry.geometry is not last.geometry or drafter is not last.drafter:
                # Most files share it, and its hash takes long.
                last = rankers.get((entry.geometry, drafter))
            if last is None:
                model = next((draft_models[kind] for kind in drafter.files if kind in draft_models), None)
                last = _Ranker(entry, entry.geometry, situation, of_intent, base, fixed, drafter, model, contexts)
                rankers[entry.geometry, drafter] = last
            own.append(last)
        with_rankers.append((file, weights, own))

    def rank_all() -> list[RankedFile]:
        ranked = [_rank_ways(file, weights, own) for file, weights, own in with_rankers]
        return [each for each in ranked if each is not None]

    found = rank_all()
    if not found and shortest_context < of_intent.least_context:
        for ranker in rankers.values():
            ranker.contexts = _list_contexts(base, fixed, shortest_context)
        found = rank_all()
    found.sort(key=lambda each: each.loss.total)
    for place in range(min(verified, len(found))):
        while found[place].drafter.uses_head and found[place].drafts and "draft" not in fixed:
            file, weights, alike = next(each for each in with_rankers if each[0] is found[place].file)
            ranker = next(each for each in alike if each.drafter.uses_head)
            without = (
                _rank_ways(file, weights, alike, is_head_off=True) if ranker.is_slower_with_mtp(found[place]) else None
            )
            if without is None:
                break
            found[place:] = sorted([without, *found[place + 1 :]], key=lambda each: each.loss.total)
    return found


def _list_drafters(entry: ModelEntry, situation: Situation, fixed: Mapping[str, Value]) -> list[Drafter]:
    """Return the drafters to compare: the model's own, and those of files here that the engine at hand can use."""
    others: list[Drafter] = []
    if not {"draft", "chosen_drafter"} & fixed.keys():
        here = [each.drafter for each in entry.drafts if each.is_local]
        others = [each for each in here if each.spec_type in situation.spec_types]
    return [entry.drafter, *others]


def _rank_ways(
    file: ModelFile, weights: Weights, rankers: Sequence[_Ranker], *, is_head_off: bool = False
) -> RankedFile | None:
    """Return the best way to run `file` with one of several drafters, those of `rankers`; no head if that is off."""

    def rank(ranker: _Ranker) -> RankedFile | None:
        return ranker.rank_file(file, weights, (0,) if is_head_off and ranker.drafter.uses_head else None)

    if len(rankers) == 1:
        return rank(rankers[0])
    is_off = is_head_off or rankers[0].entry.slower_with_mtp is not None
    able = [each for each in rankers if each.can_draft(file) and not (is_off and each.drafter.uses_head)]
    runs = nearest_drafters(rankers[0].entry, rankers[0].situation, [each.drafter.spec_type for each in able])
    ways = [each.expect_way(file, weights, runs.get(each.drafter.spec_type)) for each in able]
    known = {way.drafter for way in ways if way.rate is not None}
    ranked = [rank(each) for each in rankers if each.drafter in known or each is rankers[0]]
    best = min(filter(None, ranked), key=lambda each: each.loss.total, default=None)
    ways.append(WayToDraft(NONE, 0, rankers[0].rate_without(file, weights)))
    return best and best._replace(ways=tuple(sorted(ways, key=lambda way: -(way.rate or 0.0))))


def _list_contexts(base: PlanSettings, fixed: Mapping[str, Value], least: int) -> Sequence[int]:
    """Return the contexts to try, the longest first, and none below `least` but the longest."""
    longest = base.context
    if "context" in fixed:
        return (longest,)
    if base.backend == "cpu":
        return (min(CONTEXT_WITHOUT_GPU, longest),)
    contexts = (longest, *shorter_contexts(_LONG_CONTEXTS + CONTEXTS + SHORT_CONTEXTS, longest))
    return [each for each in contexts if each >= min(least, longest)]


class _Candidate(NamedTuple):
    """Settings for a file that fit: `moved` layers have their experts on the host, and the MiB that stay free.

    `host_spare_mib` is infinite if no experts are on the host.
    """

    draft: int
    context: int
    kv: str
    moved: int
    spare_mib: float
    host_spare_mib: float


_LoadedWeights = tuple[bool, float, int, float]
"""The weights of a model: whether the MTP head is loaded, MiB of all weights with the experts, the number of layers
with experts that can move to host memory, and MiB of the experts of one such layer."""


@dataclass(slots=True)
class _Ranker:
    """Ranks the files of one model on one machine for one intent, with one drafter.

    `correction` is the gain of its drafts in published runs as a multiple of what is forecast.
    """

    entry: ModelEntry
    geometry: Geometry
    situation: Situation
    intent: IntentWeights
    base: PlanSettings
    fixed: Mapping[str, Value]
    drafter: Drafter
    draft_model: DraftModel | None
    contexts: Sequence[int]
    accepted: Sequence[float] = field(init=False)
    correction: float = 1.0
    shares: Sequence[float] = field(init=False)
    desktop_mib: int = field(init=False)
    host_mib: int = field(init=False)
    offloaded_contexts: Collection[int] = field(init=False)
    has_head: bool = field(init=False)
    beside_weights: dict[tuple[str, int, str], tuple[float, float, int, float]] = field(default_factory=dict)
    staging: dict[tuple[str, int], float] = field(default_factory=dict)
    context_losses: dict[int, float] = field(default_factory=dict)
    caches: dict[tuple[str, int], CacheWork] = field(default_factory=dict)

    def __post_init__(self) -> None:
        situation = self.situation
        self.shares, self.desktop_mib = gpu_shares(situation), desktop_share_mib(situation)
        self.host_mib = (_USUAL_HOST_MIB if situation.host_mib is None else situation.host_mib) - ROOM_MIB
        self.offloaded_contexts = () if "n_cpu_moe" in self.fixed else {*_OFFLOADED_CONTEXTS, self.base.context}
        self.has_head = self.geometry.mtp_layers > 0 and self.drafter.uses_head
        self.accepted = accepted_shares(self.drafter, self.entry.published_as)
        if self.drafter is not self.entry.drafter:
            self.base = replace(self.base, chosen_drafter=self.drafter.spec_type)

    def rank_file(self, file: ModelFile, weights: Weights, drafts: Sequence[int] | None = None) -> RankedFile | None:
        """Return the best way to run `file`, with one of `drafts` if given; None if it cannot fit."""
        loaded = {mtp: self._load_weights(weights, mtp=mtp) for mtp in {False, self.has_head}}
        if not any(self._may_fit(weights, each) for each in loaded.values()):
            return None
        bits = expect_bits(self.entry, file)
        best: RankedFile | None = None
        other_tokens = max(_UNSEEN, _other_tokens_of(file, bits))
        quality = self.intent.quality * _QUALITY * other_tokens**2 + _DOUBLE_SIZE * log2(bits)

        works = {0: self._measure_work(file, weights, 0)}
        rates: dict[tuple[int, int, CacheWork], float | None] = {}
        drafts = self._pick_drafts(file, weights, works[0]) if drafts is None else drafts
        for each in self._list_candidates(file, weights, loaded, drafts):
            draft, moved = each.draft, each.moved
            if best is not None and not is_drafting(draft) and self._keeps_mtp(best, moved):
                continue
            if moved not in works:
                works[moved] = self._measure_work(file, weights, moved)
            cache = self._filled_cache(each.kv, each.context)
            if (draft, moved, cache) not in rates:
                rates[draft, moved, cache] = self._forecast_rate(works[moved], draft, cache)
            rate = plain = rates[draft, moved, cache]
            if rate is not None and moved:
                rate = self._forecast_cached(file, weights, works, each, rate)
            assumed = self._assumed_rate(works[moved]) if rate is None else rate
            loss = self._compute_loss(quality, bits, each, assumed)
            if best is None or loss.total < best.loss.total:
                found = each.context, each.kv, draft, moved, rate, rate != plain, int(each.spare_mib)
                best = RankedFile(self.entry, file, bits, *found, loss, loss.total, self.drafter)
        if best is None:
            return None
        if best.rate is not None:
            # Settings of one file are compared by the full gain of speed, files by a smaller one. Giving up drafts is a
            # setting: no file is better because it leaves them no room.
            enough, gain = _FAST_RATE if best.n_cpu_moe else _ENOUGH_RATE, 1.0
            if not best.drafts and max(drafts):
                work, cache = works[best.n_cpu_moe], self._filled_cache(best.kv, best.context)
                off, on = (self._forecast_rate(work, draft, cache) for draft in (0, drafts[0]))
                gain = max(1.0, (on or 1.0) / (off or 1.0))
            speed = self._limited_speed_loss(best.rate * gain, enough) + self._speed_loss(_USUAL_RATE / gain)
            best = best._replace(loss=best.loss._replace(speed=speed))
        return best._replace(order=self._compare_models(best))

    def _compare_models(self, ranked: RankedFile) -> float:
        """Return the loss by which a file is compared with files of other models.

        Up to a fast one, speed counts fully: models differ more in it than the files of one of them.
        """
        loss, speed = ranked.loss, ranked.loss.speed
        if ranked.rate is not None:
            slower = sum(log2(max(1.0, rate / ranked.rate)) for rate in (_FAST_RATE, _ENOUGH_RATE))
            faster = log2(max(1.0, ranked.rate / _FAST_RATE))
            speed = self.intent.speed * (_MODEL_HALF_SPEED * slower - _ENOUGH_GAIN * faster)
        short = self._lost_halvings(self.base.context, min(self.intent.enough_context, CONTEXTS[0]))
        lack = self.intent.score * lack_of_score(self.entry) + short
        return loss.total - loss.speed + speed + lack - _OFFLOAD_SHARE * loss.offload

    def _forecast_cached(
        self, file: ModelFile, weights: Weights, works: dict[int, PassWork], candidate: _Candidate, plain: float
    ) -> float:
        """Return the rate with an expert cache in the memory that a candidate leaves free, if clearly above `plain`.

        As in `add_expert_cache`, the experts of the layers on the GPU stay there, or the cache takes their place.
        `works` has the work of a pass by the number of layers with their experts on the host, and is added to.
        """
        has_cache = self.situation.has_expert_cache and "moe_cache_mib" not in self.fixed
        if not has_cache or not can_have_expert_cache(self.situation, self.geometry, candidate.kv):
            return plain
        mtp = self._loads_head(candidate.draft)
        found = plain
        counts = {candidate.moved} if "n_cpu_moe" in self.fixed else {candidate.moved, weights.expert_layers(mtp=False)}
        for count in counts:
            more = count - candidate.moved
            spare_mib = candidate.spare_mib + weights.sum_experts(candidate.moved, count) / _MIB
            spare_mib -= self.situation.margin_mib
            on_host = weights.sum_experts(0, count)
            lacks_host = more > 0 and self._spare_host_mib(weights, count, mtp=mtp) < 0
            if more < 0 or lacks_host or spare_mib < CACHE_STEP_MIB or not on_host:
                continue
            hits = hit_rate(min(1.0, spare_mib * _MIB / on_host))
            if count not in works:
                works[count] = self._measure_work(file, weights, count)
            work = works[count].with_cache(hits)
            rate = self._forecast_rate(work, candidate.draft, self._filled_cache(candidate.kv, candidate.context))
            found = max(found, rate or 0.0) if (rate or 0.0) >= CACHE_GAIN * plain else found
        return found

    def _loads_head(self, draft: int) -> bool:
        return self.has_head and is_drafting(draft)

    def _keeps_mtp(self, ranked: RankedFile, moved: int) -> bool:
        """Return whether settings with MTP have enough context, so that settings without MTP need not be considered.

        Settings without MTP are considered nevertheless if they need no experts in host memory (`moved` is 0) and
        `ranked` does.
        """
        enough = ranked.context >= min(_ENOUGH_CONTEXT, self.base.context)
        return ranked.drafts and enough and (moved > 0 or not ranked.n_cpu_moe)

    def is_slower_with_mtp(self, ranked: RankedFile) -> bool:
        """Return whether the nearest published run was slower with MTP than without."""
        setting = replace(
            self.base,
            context=ranked.context,
            kv=ranked.kv,
            draft=ranked.draft,
            n_cpu_moe=ranked.n_cpu_moe,
            moe_cache_mib=CACHE_STEP_MIB if ranked.is_cached else self.base.moe_cache_mib,
        )
        run = nearest_comparison(self.entry, setting, self.situation)
        return run is not None and run.speedup is not None and run.speedup < 1

    def _pick_drafts(self, file: ModelFile, weights: Weights, work: PassWork) -> Sequence[int]:
        """Return the draft lengths to compare: off, the one with the best forecast, and 1 where experts must move."""
        if "draft" in self.fixed:
            return (self.base.draft,)
        if not self.accepted or not self.can_draft(file) or (self.drafter.uses_head and self.entry.slower_with_mtp):
            return (0,)
        rates = self._rates_by_draft(work)
        if not rates:
            return (self.drafter.usual_length,)
        best = max(rates)
        usual = self._usual_draft(rates)
        if best < rates[0] * WORTH_MTP:
            return (0,)
        must_move = self.geometry.experts and weights.on_device(0, mtp=False) > self.situation.free_mib * _MIB
        return (usual, 1, 0) if usual > 1 and must_move else (usual, 0)

    def _usual_draft(self, rates: Sequence[float]) -> int:
        """Return the draft length nearest to the usual one, of those that are about as fast as the best."""
        alike = [draft for draft, rate in enumerate(rates) if rate * _SAME_SPEED >= max(rates)]
        return min(alike, key=lambda draft: abs(draft - self.drafter.usual_length))

    def _rates_by_draft(self, work: PassWork) -> list[float]:
        """Return the expected tokens per second by draft length, from 0; [] if the cards are not known."""
        rates: list[float] = []
        cache = self._filled_cache(self.base.kv if "kv" in self.fixed else _KV_TYPES[0], self.base.context)
        for draft in range(_LONGEST_DRAFT + 1):
            rate = self._forecast_rate(work, draft, cache)
            if rate is None or (draft > 1 and rate < rates[-1]):  # longer drafts only lower the speed further
                break
            rates.append(rate)
        return rates

    def expect_way(self, file: ModelFile, weights: Weights, run: PublishedRun | None) -> WayToDraft:
        """Return what the drafter is expected to bring. `run` is its best one where somebody compared drafters."""
        self.correction, work = 1.0, self._measure_work(file, weights, 0)
        if run is not None and run.speedup and run.draft is not None:
            off, on = (self._forecast_rate(work, draft, EMPTY_CACHE) for draft in (0, run.draft))
            self.correction = run.speedup * off / on if off and on else 1.0
        rates = self._rates_by_draft(work)
        if not self.accepted or not rates:
            return WayToDraft(self.drafter, self.drafter.usual_length, None)
        draft = self._usual_draft(rates) or max(range(1, len(rates)), key=rates.__getitem__)
        return WayToDraft(self.drafter, draft, rates[draft])

    def rate_without(self, file: ModelFile, weights: Weights) -> float | None:
        """Return the expected tokens per second without drafts, None if the cards are not known."""
        return next(iter(self._rates_by_draft(self._measure_work(file, weights, 0))), None)

    def can_draft(self, file: ModelFile) -> bool:
        """Return whether a file has what the drafter needs."""
        files = [each.drafter for each in self.entry.all_drafts if each.expected_bytes is not None]
        return self.drafter.can_draft(head=self.entry.has_head(file), file=self.drafter in files)

    def _measure_work(self, file: ModelFile, weights: Weights, n_cpu_moe: int) -> PassWork:
        """Return the work of a pass, with that of the file that drafts."""
        work = measure_work(file, self.geometry, weights, n_cpu_moe)
        if self.draft_model is None or self.drafter.uses_head:  # as the head of published runs
            return work
        return work.with_draft(self.draft_model, self.drafter, weights.output)

    def _filled_cache(self, kv: str, context: int) -> CacheWork:
        """Return what is read of a KV cache with as many tokens as the intent compares speeds at."""
        key = kv, min(self.intent.filled, context)
        if key not in self.caches:
            self.caches[key] = measure_cache(self.geometry, replace(self.base, kv=kv), key[1])
        return self.caches[key]

    def _forecast_rate(self, work: PassWork, draft: int, cache: CacheWork) -> float | None:
        situation = self.situation
        if not situation.cards or situation.backend == "cpu":
            return None
        draft = draft if self.accepted else 0
        rate = token_rate(
            work,
            draft,
            situation.cards,
            self.shares,
            cache=cache,
            power_limit_w=situation.power_limit_w,
            host_gb_s=host_rate(situation.host_gb_s),
            accepted=self.accepted,
        )
        return rate * self.correction if is_drafting(draft) else rate

    def _assumed_rate(self, work: PassWork) -> float:
        """Return a rate to compare files by where the card is not known: the weights read at an assumed bandwidth."""
        on_cpu = self.situation.backend == "cpu"
        bandwidth_gb_s = self.situation.bandwidth_gb_s or (
            host_rate(self.situation.host_gb_s) if on_cpu else _USUAL_BANDWIDTH_GB_S
        )
        return bandwidth_gb_s * 1e9 / (work.gpu_bytes + work.host_bytes)

    def _load_weights(self, weights: Weights, *, mtp: bool) -> _LoadedWeights:
        if self.situation.backend == "cpu":
            own = weights.on_device(0, mtp=mtp) + weights.on_host(0, mtp=mtp) - weights.shared
        else:
            own = weights.on_device(0, mtp=mtp)
        layers = weights.expert_layers(mtp=mtp) if self.situation.has_host_memory else 0
        layer_mib = weights.blocks[-1].experts / _MIB if layers else 0.0  # of the last one: the first may have none
        return mtp, own / _MIB, layers, layer_mib

    def _may_fit(self, weights: Weights, loaded: _LoadedWeights) -> bool:
        """Return whether the weights alone would fit, on the GPU or with experts on the host."""
        mtp, own_mib, layers, layer_mib = loaded
        fitting = self.situation.free_mib - own_mib
        if fitting >= self.situation.margin_mib / 2:
            return True
        if not layer_mib or "n_cpu_moe" in self.fixed:
            return layer_mib > 0
        moved = weights.layers_for(self.situation.margin_mib / 2 - fitting)
        return moved <= layers and self._spare_host_mib(weights, moved, mtp=mtp) >= 0

    def _list_candidates(
        self, file: ModelFile, weights: Weights, loaded: Mapping[bool, _LoadedWeights], drafts: Sequence[int]
    ) -> list[_Candidate]:
        """Return the candidates that fit. The last KV cache type is tried only if nothing fits with the others.

        For each draft length and KV cache type these are: with all experts on the GPU, the best context between the
        longest that fits and the longest that leaves room for a desktop; and a few contexts with as few experts on the
        host as possible.
        """

        def with_kv(draft: int, kv: str) -> list[_Candidate]:
            return list(self._candidates_with_kv(file, weights, loaded[self._loads_head(draft)], draft, kv))

        if "kv" in self.fixed:
            return [each for draft in drafts for each in with_kv(draft, self.base.kv)]
        found: list[_Candidate] = []
        for draft in drafts:
            for kv in _KV_TYPES:
                more = with_kv(draft, kv)
                found += more
                if more and self._lacks_nothing(more[0]):
                    break
        return found or [each for draft in drafts for each in with_kv(draft, _LAST_KV_TYPE)]

    def _lacks_nothing(self, candidate: _Candidate) -> bool:
        """Return whether a candidate has the longest context, all experts on the GPU and room for a desktop."""
        has_room = candidate.spare_mib >= self.desktop_mib
        return candidate.context == self.contexts[0] and not candidate.moved and has_room

    def _candidates_with_kv(
        self, file: ModelFile, weights: Weights, loaded: _LoadedWeights, draft: int, kv: str
    ) -> Iterator[_Candidate]:
        situation, base = self.situation, self.base
        mtp, own_mib, layers, layer_mib = loaded
        least_spare = situation.margin_mib / 2
        fitting = situation.free_mib - own_mib
        fixed = min(base.n_cpu_moe, layers) if "n_cpu_moe" in self.fixed else None
        if fitting < least_spare and not layer_mib:
            return
        low, high = min(LEAST_CONTEXT, base.context), base.context
        least, most, least_bytes, host_buffers = self._beside_weights(file, weights, kv, draft, own_mib)
        per_token = (most - least) / (high - low) if high > low else 0.0
        fitting += weights.sum_experts(0, fixed or 0) / _MIB - least
        copies_mib: float | None = None
        on_gpu: list[_Candidate] = []
        for context in self.contexts:
            spare = fitting - per_token * (context - low)
            if spare >= least_spare:
                moved = fixed or 0
                host = self._spare_host_mib(weights, moved, mtp=mtp) - host_buffers if moved else inf
                on_gpu.append(_Candidate(draft, context, kv, moved, spare, host))
                if spare >= self.desktop_mib:
                    break
            if not on_gpu and layer_mib and context in self.offloaded_contexts:
                if copies_mib is None:
                    copies_mib = self._staging_share(weights, loaded, draft, kv, least_bytes) * layer_mib
                spare -= copies_mib
                moved = min(weights.layers_for(situation.margin_mib - spare), layers)
                left = spare + weights.sum_experts(0, moved, mtp=mtp) / _MIB
                host = self._spare_host_mib(weights, moved, mtp=mtp) - host_buffers
                if left >= least_spare and host >= 0:
                    yield _Candidate(draft, context, kv, moved, left, host)
        if on_gpu:
            yield self._choose_context(on_gpu)

    def _choose_context(self, candidates: Sequence[_Candidate]) -> _Candidate:
        """Return the best of candidates that differ in their context only, the longest first.

        One that leaves less than the margin is taken only if it has much more context, or for an intent that wants it.
        """
        safe = [each for each in candidates if each.spare_mib >= self.situation.margin_mib]
        if safe and not self.intent.risks_margin and safe[0].context >= _SAFER_CONTEXT * candidates[0].context:
            candidates = safe
        if len(candidates) == 1:
            return candidates[0]
        return min(candidates, key=lambda each: self._context_loss(each.context) + self._room_loss(each.spare_mib))

    def _spare_host_mib(self, weights: Weights, moved: int, *, mtp: bool) -> float:
        """Return the host memory that stays free besides the model's part there."""
        return self.host_mib - weights.on_host(moved, mtp=mtp) / _MIB

    def _beside_weights(
        self, file: ModelFile, weights: Weights, kv: str, draft: int, own_mib: float
    ) -> tuple[float, float, int, float]:
        """Return the memory besides the weights. With one GPU that has its own memory it is the same for all files.

        These are the MiB at the least and at the longest context, between which it grows nearly linearly; the bytes on
        all GPUs at the least context; and the MiB of buffers in host memory at the longest.
        """
        low, high = min(LEAST_CONTEXT, self.base.context), self.base.context
        key = kv, draft, file.quant if self.situation.gpus > 1 or self.situation.unified else ""
        if key not in self.beside_weights:
            at_least = self._estimate(weights, low, kv, draft, 0)
            at_most = self._estimate(weights, high, kv, draft, 0) if high > low else at_least
            least, most = (each.needed_bytes / _MIB - own_mib for each in (at_least, at_most))
            least_bytes = at_least.parts.total - at_least.parts.weights
            self.beside_weights[key] = least, most, least_bytes, at_most.host.compute / _MIB
        return self.beside_weights[key]

    def _staging_share(
        self, weights: Weights, loaded: _LoadedWeights, draft: int, kv: str, without_copies: int
    ) -> float:
        """Return the memory for copies of experts from the host, as a share of one layer's experts.

        `without_copies` is the bytes besides the weights at the least context with all experts on the GPU.
        """
        _, _, layers, layer_mib = loaded
        if (kv, draft) not in self.staging:
            with_copies = self._estimate(weights, min(LEAST_CONTEXT, self.base.context), kv, draft, layers).parts
            more = with_copies.total - with_copies.weights - without_copies
            self.staging[kv, draft] = max(more, 0) / _MIB / layer_mib
        return self.staging[kv, draft]

    def _estimate(self, weights: Weights, context: int, kv: str, draft: int, n_cpu_moe: int) -> MemoryEstimate:
        setting = replace(self.base, context=context, kv=kv, draft=draft, n_cpu_moe=n_cpu_moe)
        return estimate_memory(self.geometry, weights, setting, self.draft_model)

    def _compute_loss(
        self,
        quality: float,
        bits: float,
        candidate: _Candidate,
        rate: float,
    ) -> Loss:
        intent = self.intent
        offloaded = _OFFLOADED + _DOUBLE_COPY * log2(bits) + (_HOST_UNKNOWN if self.situation.host_mib is None else 0.0)
        missing_host = max(0.0, _HOST_ROOM_MIB - candidate.host_spare_mib) / 1_024
        return Loss(
            quality=quality,
            context=self._context_loss(candidate.context),
            kv=_KV_LOSS.get(candidate.kv, intent.small_kv * _SMALL_KV_LOSS),
            speed=self._speed_loss(rate),
            offload=intent.speed * offloaded + _MISSING_HOST_ROOM * missing_host if candidate.moved else 0.0,
            room=self._room_loss(candidate.spare_mib),
        )

    def _context_loss(self, context: int) -> float:
        if context not in self.context_losses:
            wanted = min(self.intent.enough_context * self.base.streams, self.base.context)
            self.context_losses[context] = self._lost_halvings(context, wanted)
        return self.context_losses[context]

    def _lost_halvings(self, context: int, wanted: float) -> float:
        halvings: float = log2(max(wanted / context, 1)) ** _MORE_HALVED
        return self.intent.context * _HALVED * halvings

    def _room_loss(self, spare_mib: float) -> float:
        return self.intent.room * _MISSING_ROOM * max(0.0, self.desktop_mib - spare_mib) / 1_024

    def _speed_loss(self, rate: float) -> float:
        """Return the loss of `rate`, in tokens per second."""
        return self.intent.speed * _HALF_SPEED * log2(_USUAL_RATE / rate)

    def _limited_speed_loss(self, rate: float, enough: float) -> float:
        """Return the loss of `rate` for comparing files or models: more speed than `enough` gains little."""
        gain = self.intent.speed * _ENOUGH_GAIN * log2(max(rate, enough) / _FAST_RATE)
        return self._speed_loss(_FAST_RATE) - gain + self._speed_loss(min(rate, enough)) - self._speed_loss(enough)
