"""The time of one pass of a model on a machine, and the tokens that it yields: the arithmetic of the speed forecast.

A pass reads the active weights and the filled part of the KV cache, and takes a fixed time per layer. A pass that
verifies drafts takes longer: each drafted token costs a run of the MTP head or of a draft's file (one run for all if
that drafts them at once), arithmetic, and in a mixture of experts more experts that are read. It yields more tokens, by
the usual rate of acceptance. The factors by generation of GPU were fitted to published runs by `python -m
tools.speed_accuracy --fit` (docs/speed-forecasts.md).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from launcher.machine.cards import Card
from launcher.models.catalogue import ModelFile
from launcher.models.drafters import MTP, Drafter, is_drafting
from launcher.models.evidence import accepted_shares, tokens_per_pass
from launcher.models.file_size import usual_bits
from launcher.models.geometry import Geometry
from launcher.models.memory import KV_TYPES, DraftModel, PlanSettings, kv_bytes
from launcher.models.weights import Weights

_CODEBOOK = re.compile(r"IQ[123]")
"""Quantisations whose weights are looked up in a table: slow to decode."""
_PACKED = re.compile(r"(?<![A-Z])Q[23]_K")
"""Quantisations whose weights straddle bytes."""
_BESIDE_EXPERTS_BITS = 8.5
_USUAL_WIDTH = 4_096
_NORMED = frozenset({"gemma3", "gemma4"})
"""Architectures that normalise the input and the output of each half of a layer: more steps per layer."""


class GenerationFactors(NamedTuple):
    """Performance of a generation of GPUs: `bandwidth` and `compute` are shares of what the maker states.

    `layer_us` is the fixed time of a plain layer (attention and a dense feed-forward net, 4,096 wide) per pass, in
    microseconds.
    """

    bandwidth: float
    layer_us: float
    compute: float


GENERATIONS = {
    "ada": GenerationFactors(0.928, 55.2, 0.307),
    "ampere": GenerationFactors(0.867, 56.0, 0.233),
    "apu": GenerationFactors(0.859, 92.0, 0.126),
    "blackwell": GenerationFactors(0.909, 46.4, 0.371),
    "ga100": GenerationFactors(0.673, 98.8, 0.281),
    "gb10": GenerationFactors(0.737, 55.4, 0.264),
    "gb100": GenerationFactors(0.688, 84.6, 0.250),
    "gp100": GenerationFactors(0.772, 345.9, 0.250),
    "hopper": GenerationFactors(0.697, 78.6, 0.254),
    "pascal": GenerationFactors(0.817, 290.2, 0.250),
    "rdna3": GenerationFactors(0.845, 94.5, 0.134),
    "rdna4": GenerationFactors(0.908, 94.1, 0.176),
    "turing": GenerationFactors(0.779, 55.6, 0.250),
    "volta": GenerationFactors(0.716, 98.6, 0.350),
    "xe2": GenerationFactors(0.873, 196.3, 0.250),
}
_STAND_INS = {"rdna2": "rdna3", "cdna": "rdna3", "xe": "xe2", "orin": "ampere", "thor": "gb10"}
"""Generations without published runs, and the generation whose factors are used for them."""
MEASURED = frozenset(GENERATIONS)
"""Generations with published runs."""
MEASURED_WITH_DRAFTS = MEASURED - {"gb100", "gp100", "pascal", "turing", "xe2"}
"""Those with published runs of MTP on one card."""


class CommonFactors(NamedTuple):
    """Factors that hold for all cards.

    `codebook` and `packed` are the shares by which reading weights of IQ1 to IQ3, and of Q2_K and Q3_K, takes longer.
    As multiples of a plain half of a layer, `recurrent` is the fixed time of a half with a recurrent state, `routed`
    of one with experts, and `normed` of any half of Gemma's; it grows with the power `width` of the layers' width.
    `head` is that of the MTP head, in plain layers.

    In a mixture of experts each drafted token reads the share `more_experts` of its experts anew, and costs `routed_us`
    microseconds per layer with experts. `attention` is the share of a card's arithmetic that attention reaches on a
    quantised cache, which CUDA decodes anew for each head. To verify drafts it turns such a cache into F16 first, which
    moves `converted` times the bytes that this takes. `watts` and `watts_compute` are exponents for a power limit below
    the board's. `cache_spread` is how evenly tokens need the experts: see `hit_rate`.
    """

    codebook: float = 0.405
    packed: float = 0.117
    recurrent: float = 2.14
    routed: float = 2.22
    normed: float = 1.42
    width: float = 0.279
    head: float = 2.02
    more_experts: float = 0.769
    routed_us: float = 36
    attention: float = 0.0734
    converted: float = 2.46
    watts: float = 0.531
    watts_compute: float = 0.639
    cache_spread: float = 0.3


COMMON = CommonFactors()
_HOST_GB_S, _HOST_SHARE = 40.0, 0.6
"""The rate at which a processor reads experts where nothing is known of host memory, in 10^9 bytes per second; and the
share of the memory's bandwidth that it reaches: 0.55 to 0.75 in published runs on two channels of DDR4 and DDR5."""


def host_rate(bandwidth_gb_s: float | None) -> float:
    """Return the rate at which experts in host memory are read, in 10^9 bytes per second, by its bandwidth if known."""
    return _HOST_GB_S if bandwidth_gb_s is None else _HOST_SHARE * bandwidth_gb_s


def generation_factors(card: Card, generations: Mapping[str, GenerationFactors] = GENERATIONS) -> GenerationFactors:
    """Return the factors of a card's generation, or of the one that stands in for it."""
    return generations[_STAND_INS.get(card.generation, card.generation)]


class PassWork(NamedTuple):
    """The work of one pass of a model at an empty context: what it reads and computes, in bytes and weights.

    `gpu_bytes` are the weights read on the GPU for one token, `experts` the routed experts among them, `host_bytes` the
    experts read on the host; those found in an expert cache count as read on the GPU. `head_bytes` are read for one
    drafted token, or for all of them if they are drafted `at_once`: by the MTP head, or by the `draft_layers` of a file
    (as a number of plain ones; 0 for the head). `weights` is the number of weights used. `attention` and `recurrent`
    count the layers that have either, `dense` and `routed` those that have a feed-forward net or experts. `width` is
    that of the layers.
    `codebook`, `packed` and `normed` say whether these factors apply.
    """

    gpu_bytes: float
    experts: float
    host_bytes: float
    head_bytes: float
    weights: float
    attention: int
    recurrent: int
    dense: int
    routed: int
    width: int
    codebook: bool
    packed: bool
    normed: bool
    draft_layers: float = 0.0
    at_once: bool = False

    @property
    def mixture(self) -> bool:
        """Whether the model is a mixture of experts."""
        return self.routed > 0

    def with_cache(self, hits: float) -> "PassWork":
        """Return the work if the share `hits` of the experts in host memory is found in an expert cache."""
        found = self.host_bytes * hits
        return self._replace(
            gpu_bytes=self.gpu_bytes + found, experts=self.experts + found, host_bytes=self.host_bytes - found
        )

    def with_draft(self, draft: "DraftModel", drafter: Drafter, output: int) -> "PassWork":
        """Return the work with the drafts of a file, which reads the model's `output` matrix if it has none."""
        lacks_output = drafter.reads_layers and not draft.geometry.own_outputs
        read = draft.weights.on_device(0, mtp=False) + (output if lacks_output else 0)
        layers = draft.geometry.layers * (draft.geometry.hidden / _USUAL_WIDTH) ** COMMON.width
        return self._replace(head_bytes=read, draft_layers=layers, at_once=drafter.at_once)

    def count_layers(self, common: CommonFactors) -> float:
        """Return the layers as a number of plain ones that take the same fixed time."""
        halves = self.attention + self.recurrent * common.recurrent + self.dense + self.routed * common.routed
        wider: float = (self.width / _USUAL_WIDTH) ** common.width
        return halves / 2 * (common.normed if self.normed else 1.0) * wider

    def decoding(self, common: CommonFactors) -> float:
        """Return the time of reading the weights as a multiple of that of moving their bytes."""
        return 1 + (common.codebook if self.codebook else common.packed if self.packed else 0.0)


class CacheWork(NamedTuple):
    """The part of the KV cache that a pass reads: its bytes, and what they would be as F16, in all and for the head.

    `operations` are those of attention in a pass without drafts. `quantised` is the type of the cache.
    """

    read: float
    as_f16: float
    head_f16: float
    operations: float
    quantised: bool


EMPTY_CACHE = CacheWork(0.0, 0.0, 0.0, 0.0, quantised=False)


@cache
def _read_quant(quant: str) -> tuple[float, bool, bool]:
    """Return the usual bits per weight of a quantisation, and whether the factors `codebook` and `packed` apply."""
    name = quant.upper()
    return usual_bits(quant), _CODEBOOK.search(name) is not None, _PACKED.search(name) is not None


def measure_work(file: ModelFile, geometry: Geometry, weights: Weights, n_cpu_moe: int) -> PassWork:
    """Return the work of one pass. A quantisation of unknown name is taken to have the usual bits."""
    used = experts = host = 0.0
    if geometry.experts:
        used = geometry.experts_used / geometry.experts
        experts = weights.sum_experts(n_cpu_moe) * used
        host = weights.sum_experts(0, n_cpu_moe) * used
    bits, codebook, packed = _read_quant(file.quant)
    rest = weights.output + weights.sum_rest()
    output: float = weights.output
    if not weights.exact:  # weights by rules have the output matrix in their blocks, unless it is a copy
        output = max(output, geometry.vocabulary * geometry.hidden * bits / 8)
    head = output + sum([block.rest + block.experts * used for block in weights.heads])
    # In Nemotron-H a layer is one half alone: attention, a recurrent state, or a feed-forward net.
    nets_alone = geometry.cacheless_layers if geometry.recurrent_layers else 0
    return PassWork(
        gpu_bytes=rest + experts,
        experts=experts,
        host_bytes=host,
        head_bytes=head,
        # Beside the experts, publishers leave a mixture's weights in eight bits.
        weights=used * geometry.expert_parameters * geometry.expert_layers
        + rest * 8 / (max(bits, _BESIDE_EXPERTS_BITS) if used else bits),
        attention=geometry.layers - nets_alone - geometry.recurrent_layers,
        recurrent=geometry.recurrent_layers,
        dense=(nets_alone or geometry.layers) - geometry.expert_layers,
        routed=geometry.expert_layers,
        width=geometry.hidden,
        codebook=codebook,
        packed=packed,
        normed=geometry.architecture in _NORMED,
    )


def measure_cache(geometry: Geometry, setting: PlanSettings, filled: int) -> CacheWork:
    """Return what a pass reads of a KV cache in which one slot has `filled` tokens.

    Layers with a window read only that, those with a recurrent state nothing, and latent attention its latent.
    """
    if not filled:
        return EMPTY_CACHE
    slot = replace(setting, context=filled, slots=1)
    as_f16 = kv_bytes(geometry, replace(slot, kv="f16"))
    full_layers = max(geometry.attention_layers - geometry.window_layers, 1)
    return CacheWork(
        read=kv_bytes(geometry, slot),
        as_f16=as_f16,
        head_f16=as_f16 / full_layers,
        operations=as_f16 * geometry.heads / max(geometry.kv_heads, 1),  # two for each value and head that reads it
        quantised=KV_TYPES[setting.kv][0] > 1,
    )


def token_rate(
    work: PassWork,
    draft: int,
    cards: Sequence[Card],
    shares: Sequence[float],
    *,
    cache: CacheWork = EMPTY_CACHE,
    splits_tensors: bool = False,
    power_limit_w: float | None = None,
    host_gb_s: float = _HOST_GB_S,
    generations: Mapping[str, GenerationFactors] = GENERATIONS,
    common: CommonFactors = COMMON,
    accepted: Sequence[float] = (),
) -> float:
    """Return the tokens per second with `draft` drafted tokens in a pass, 0 for none.

    `accepted` is the share of them that is accepted, by draft length; () for MTP's.

    `shares` are the shares of the layers on each of `cards`, which work one after the other. With `splits_tensors` they
    are shares of each layer: the cards work at once, and all have the fixed time of each layer. `cache` is what is
    read of a filled context.
    """
    times: list[float] = []
    decoding, layers = work.decoding(common), work.count_layers(common)
    for card, share in zip(cards, shares, strict=True):
        factors = generation_factors(card, generations)
        rate = card.bandwidth_gb_s * 1e9 * factors.bandwidth
        layer_s = factors.layer_us * 1e-6
        power = min(1.0, power_limit_w / card.watts) if power_limit_w else 1.0
        fixed = 1.0 if splits_tensors else share
        seconds = share * decoding * work.gpu_bytes / rate + fixed * layers * layer_s
        seconds += share * _cache_seconds(cache, draft, card, rate, common)
        head = share * (work.head_bytes + cache.head_f16) / rate + fixed * (work.draft_layers or common.head) * layer_s
        experts = share * common.more_experts * work.experts / rate + fixed * work.routed * common.routed_us * 1e-6
        seconds += (min(draft, 1) if work.at_once else draft) * head + draft * experts
        verify = draft * share * 2 * work.weights / (card.tflops * 1e12 * factors.compute)
        times.append(seconds / power**common.watts + verify / power**common.watts_compute)
    host_s = work.host_bytes / (host_gb_s * 1e9) * (1 + common.more_experts * draft)
    seconds = host_s + (max(times) if splits_tensors else sum(times))
    return tokens_per_pass(accepted or accepted_shares(MTP), draft) / seconds


def _cache_seconds(cache: CacheWork, draft: int, card: Card, rate: float, common: CommonFactors) -> float:
    """Return the time of attention on the filled part of the cache, in seconds. `rate` is in bytes per second.

    Only NVIDIA's quantised caches are known to take longer than their bytes.
    """
    if not (cache.quantised and card.multiprocessors):
        return cache.read / rate
    if is_drafting(draft):
        return (cache.read + common.converted * cache.as_f16) / rate
    return max(cache.read / rate, cache.operations / (card.tflops * 1e12 * common.attention))


def hit_rate(held: float, spread: float = COMMON.cache_spread) -> float:
    """Return how often an expert is found in a cache that holds the share `held` of them.

    With `spread` 1 all experts are needed equally often. 0.3 agrees with two published runs (RTX 3060, 42 to 51 tokens
    per second, with MTP 42 to 69), if their cache had 4 to 6 GiB; in another engine it was 0.1 (kekzl/imp PR #1374).
    """
    return held / (held + spread * (1 - held))
