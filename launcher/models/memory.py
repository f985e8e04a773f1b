"""The memory estimate of a model, by part: pure arithmetic on its geometry, its weights and the server settings."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from difflib import get_close_matches
from itertools import accumulate
from types import MappingProxyType
from typing import NamedTuple

from launcher.base.errors import BadOption
from launcher.base.messages import join_messages, message, suggest_names
from launcher.machine.cards import Card
from launcher.models.compute_buffers import (
    Backend,
    ComputeBuffers,
    ComputeSetting,
    draft_model_buffers,
    is_graph_known,
    padded_context,
    window_cells,
)
from launcher.models.compute_graph import ASSISTANT, attention_interval, blocks_until_repetition
from launcher.models.cuda_pool import PoolBytes, pool_bytes
from launcher.models.geometry import Geometry
from launcher.models.kept_buffers import find_compute_buffers
from launcher.models.overhead import USUAL_MIB
from launcher.models.server_settings import ROWS, ServerSettings
from launcher.models.weights import Weights

_MIB = 2**20
_F32 = 4
_BATCH = 2_048
"""Tokens of the engine's batch (--batch-size)."""
ROOM_MIB = 1_024
"""Host memory, in MiB, left to the system besides the engine's share."""
ENCODER_MIB = 500
"""Buffers of the vision encoder, in MiB: a guess, since no measurement is published."""
_ENCODER_DOUBT_MIB = 200
"""MiB by which they may be smaller and larger."""
_GUESSED_BUFFERS = (0.45, 0.3)
"""Shares by which the compute buffers of an unknown graph may be smaller and larger: on known architectures the
substitute graph, enlarged by a tenth, gives 1.03 to 1.65 times the right size; the rest is reserve."""
_GUESSED_CACHES = (0.9, 0.5)
"""Shares by which the KV cache of an unknown architecture may be smaller, where layers have windows or share a cache,
and larger, where they keep more than keys and values."""
_SIMILAR_BUFFERS = (0.15, 0.15)
"""The same for a known graph on a backend that was never compared, or split over several GPUs with host experts."""

_GPU_CACHES = tuple(row.attribute for row in ROWS.values() if row.memory == "gpu_mib")
"""Fields of server settings that set memory on the GPU directly, in MiB."""

KV_TYPES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        # Elements and bytes of a block (ggml-common.h). iq4_nl is missing: CUDA's flash attention refuses it.
        "f32": (1, 4),
        "f16": (1, 2),
        "bf16": (1, 2),
        "q8_0": (32, 34),
        "q5_1": (32, 24),
        "q5_0": (32, 22),
        "q4_1": (32, 20),
        "q4_0": (32, 18),
    }
)
_NOT_OFFERED = frozenset({"iq4_nl"})
"""KV cache types that llama.cpp accepts as an argument but then refuses: ggml-cuda/fattn.cu has no kernel for them."""


def kv_bits(kv: str) -> float:
    """Return the bits per value of a KV cache type; those of f16 for a type that only a fork has."""
    elements, block_bytes = KV_TYPES.get(kv, KV_TYPES["f16"])
    return 8 * block_bytes / elements


@dataclass(frozen=True, slots=True)
class PlanSettings(ServerSettings):
    """Server settings for a memory estimate, and facts of the machine. Settings that memory depends on are not None.

    `gpus` is the number of GPUs that the layers are split over, `gpu_free_mib` the free MiB of each (empty: all alike),
    `overheads_mib` the MiB that driver and process take on each besides the buffers (empty: what is usual), `cards`
    what is known of each (empty: nothing).
    `host_aside_mib` is the free host memory that a GPU with unified memory cannot take, None if the GPU's memory is its
    own.
    `mmproj_bytes` is the size of a vision projector on the GPU, `draft_sizes` those of the files with which the model
    may draft, each by its kind, in bytes.
    """

    context: int
    kv: str = "f16"
    draft: int = 2
    ubatch: int = 512
    slots: int = 1
    n_cpu_moe: int = 0
    _: KW_ONLY
    backend: Backend = "cuda"
    gpus: int = 1
    gpu_free_mib: tuple[int, ...] = ()
    overheads_mib: tuple[int, ...] = ()
    cards: tuple[Card, ...] = ()
    host_aside_mib: int | None = None
    mmproj_bytes: int = 0
    draft_sizes: tuple[tuple[str, int], ...] = ()

    @property
    def draft_files(self) -> tuple[str, ...]:
        """Kinds of the files beside the model's with which it may draft."""
        return tuple(kind for kind, _ in self.draft_sizes)

    @property
    def draft_bytes(self) -> int:
        """Size of the file with which it drafts, else 0."""
        return next((size for kind, size in self.draft_sizes if kind in self.drafter.files), 0)

    @property
    def used_gpus(self) -> int:
        """Number of GPUs that take part: one on the processor, and if the split mode is none."""
        return 1 if self.backend == "cpu" or self.split_mode == "none" else self.gpus

    @property
    def splits_tensors(self) -> bool:
        """Whether each tensor is split over several GPUs, which then all compute each layer."""
        return self.split_mode == "tensor" and self.used_gpus > 1

    @property
    def streams(self) -> int:
        """Number of parts of the KV cache: one per slot, or a single one if the slots share it."""
        return 1 if self.kv_unified else self.slots

    @property
    def slot_context(self) -> int:
        """Tokens that one slot can hold: its part of the context, or all of it if the slots share one KV cache."""
        return self.context // self.streams


def check_kv(kv: str, offered: Collection[str] = tuple(KV_TYPES), *, engine: str | None = None) -> None:
    """Raise BadOption unless `kv` is one of the `offered` KV cache types (those of `engine`, if it is given)."""
    usable = [each for each in offered if each not in _NOT_OFFERED]
    if kv in usable:
        return
    choose = message("Choose one of {usable}.", usable=", ".join(usable))
    if kv in _NOT_OFFERED:
        refused = message("The KV cache type {kv} cannot be used: flash attention on CUDA does not support it.", kv=kv)
        raise BadOption(refused, join_messages(message("q4_0 takes as much memory."), choose), option="--kv")
    near = get_close_matches(kv.lower(), usable, n=1)
    raise BadOption(
        message('The engine {engine} has no KV cache type "{kv}".', engine=engine, kv=kv)
        if engine
        else message('There is no KV cache type "{kv}".', kv=kv),
        join_messages(suggest_names(near), choose),
        option="--kv",
    )


class MemoryParts(NamedTuple):
    """Bytes by part: of GPU memory, or of host memory on the cpu backend.

    `staging` is the growth of the target's compute buffer for copies of experts on the host (the head's is part of
    `draft_compute`). `caches` is memory set directly by server settings, counted in full. `pool` is what CUDA's
    operators take with the first prompt; at the start it is not there yet.
    """

    weights: int
    kv: int
    recurrent: int
    draft_kv: int
    compute: int
    draft_compute: int
    staging: int
    overhead: int
    mmproj: int
    caches: int = 0
    pool: int = 0

    @property
    def total(self) -> int:
        """Sum of all parts, in bytes."""
        return sum(self)

    def as_dict(self) -> dict[str, int]:
        """Return the bytes by name of the part, in the order in which they are shown."""
        return self._asdict()


class HostParts(NamedTuple):
    """Bytes of host memory: at the start, and the most that the engine may add while it runs.

    `checkpoint` is the size of one context checkpoint of one slot.
    """

    weights: int
    compute: int
    checkpoints_most: int
    prompt_cache_most: int
    checkpoint: int = 0

    @property
    def at_start(self) -> int:
        """Bytes needed before the first request."""
        return self.weights + self.compute


class DraftModel(NamedTuple):
    """A draft model in a separate file, as read from its header."""

    geometry: Geometry
    weights: Weights


class MemoryEstimate(NamedTuple):
    """The memory estimate of a setting.

    `by_gpu` has the bytes of each GPU. `weights_exact`: the weights were read from a header. `compute_exact`: the
    compute graph is known for the backend, and the caches for the architecture. `drafts_counted`: a draft model in a
    separate file is counted with its KV cache and buffers. `low` and `high` are the bytes between which the total lies;
    both equal it if no part is a guess and there is no pool.
    """

    setting: PlanSettings
    parts: MemoryParts
    host: HostParts
    by_gpu: tuple[int, ...]
    weights_exact: bool
    compute_exact: bool
    drafts_counted: bool
    low: int
    high: int

    @property
    def needed_bytes(self) -> int:
        """Bytes that must be free on all GPUs together so that each share fits; with one GPU the total.

        With unified memory, these include what the host's part takes of the memory that the GPU could have.
        """
        aside_mib = self.setting.host_aside_mib
        of_host = 0 if aside_mib is None else max(0, self.host.at_start + (ROOM_MIB - aside_mib) * _MIB)
        if len(self.by_gpu) == 1:
            return self.by_gpu[0] + of_host
        free = _free_bytes(self.setting, len(self.by_gpu))
        most = max(need - have for need, have in zip(self.by_gpu, free, strict=True))
        return sum(free) + len(free) * most + of_host

    @property
    def required_mib(self) -> int:
        """Memory that it takes, in MiB, rounded up."""
        return -(-self.parts.total // _MIB)

    @property
    def needed_mib(self) -> int:
        """Memory that must be free, in MiB, rounded up: more than it takes if several GPUs have unequal shares, or if
        the host's part needs some of unified memory.
        """
        return -(-self.needed_bytes // _MIB)

    @property
    def fullest_gpu(self) -> int:
        """Index of the GPU with the least memory left, from 0."""
        free = _free_bytes(self.setting, len(self.by_gpu))
        return max(range(len(free)), key=lambda gpu: self.by_gpu[gpu] - free[gpu])

    @property
    def exact(self) -> bool:
        """Whether no part is a guess."""
        return self.weights_exact and self.compute_exact


def _free_bytes(setting: PlanSettings, gpus: int) -> tuple[int, ...]:
    """Return the free bytes of each GPU, or 0 for each if that is unknown: then only the fullest GPU matters."""
    known = setting.gpu_free_mib if len(setting.gpu_free_mib) == gpus else ()
    return tuple(free * _MIB for free in known) or (0,) * gpus


def estimate_memory(
    geometry: Geometry, weights: Weights, setting: PlanSettings, draft: DraftModel | None = None
) -> MemoryEstimate:
    """Estimate the memory of `setting`, with flash attention on and all layers on the GPUs.

    `draft` is the separate draft model if its header was read; otherwise its file size counts as its weights, and of
    its KV cache and buffers only logits. Raises BadOption for an unknown KV cache type.
    """
    if setting.kv not in KV_TYPES:
        check_kv(setting.kv)
    drafter = setting.drafter
    mtp = drafter.uses_head and geometry.mtp_layers > 0
    with_states = drafter.source == "file" and drafter.keeps_states and not drafter.uses_head
    extracts: tuple[int, ...] = ()
    if draft is not None and setting.draft_bytes and drafter.reads_layers:
        extracts = draft.geometry.target_layers
    on_cpu = setting.backend == "cpu"
    gpus = setting.used_gpus
    host_expert_layers = min(setting.n_cpu_moe, len(weights.blocks) + len(weights.heads))
    device_weights = weights.on_device(host_expert_layers, mtp=mtp)
    host_weights = weights.on_host(host_expert_layers, mtp=mtp)
    expert_bytes = tuple(block.matrices for block in (weights.blocks + weights.heads)[:host_expert_layers])
    counted_layers, enough = host_expert_layers, blocks_until_repetition(geometry)
    if enough < host_expert_layers < geometry.layers:  # further layers do not change the sizes of buffers
        counted_layers, expert_bytes = enough, (tuple(map(max, zip(*expert_bytes, strict=True))),) * enough
    compute_setting = ComputeSetting(
        backend=setting.backend,
        context=setting.context,
        ubatch=setting.ubatch,
        slots=setting.slots,
        draft=setting.draft if mtp or with_states else 0,
        quantised=KV_TYPES[setting.kv][0] > 1,
        wide=setting.kv in ("bf16", "f32"),
        cpu_expert_layers=0 if on_cpu else counted_layers,
        expert_bytes=expert_bytes,
        devices=1 if setting.splits_tensors else gpus,
        head=mtp,
        outputs=drafter.count_outputs(setting.draft),
        extracts=extracts,
        unified=bool(setting.kv_unified),
    )
    compute = find_compute_buffers(geometry, compute_setting)
    draft_model = draft if setting.draft_bytes else None
    draft_buffers = draft_model_buffers(draft_model.geometry, geometry, compute_setting) if draft_model else None
    if draft_model is None and setting.draft_bytes and drafter.reads_layers:  # its largest buffers: logits, twice
        logits = _F32 * compute_setting.tokens * geometry.vocabulary
        draft_buffers = ComputeBuffers(0, 2 * logits, 0, 0 if on_cpu else logits, exact=False)
    head_staging = 0
    if compute.staging:  # the target's compute buffer may shrink, where copies replace larger results
        head_staging = min(sum(share for _, share in compute.by_device) - compute.draft, compute.staging)
    # The engine keeps what a drafter reads for each token of a batch (src/llama-context.cpp: output_reserve).
    read_inputs = len(extracts) * geometry.hidden * _F32 * min(max(_BATCH, setting.ubatch), setting.context)
    checkpoint = recurrent_bytes(geometry, slots=1, draft=0)
    overheads = overhead_bytes(setting, gpus)
    pools = _pools(geometry, weights, setting, compute_setting.tokens, gpus, draft_model, mtp=mtp)
    graphs = gpus if setting.splits_tensors else 1  # each GPU then computes all layers, with buffers as for one GPU
    parts = MemoryParts(
        weights=device_weights
        + (host_weights - weights.shared if on_cpu else 0)
        + _draft_weights(draft_model, setting, on_cpu),
        kv=kv_bytes(geometry, setting),
        recurrent=recurrent_bytes(
            geometry,
            slots=setting.slots,
            draft=setting.draft if drafter.keeps_states and (mtp or setting.draft_bytes) else 0,
        ),
        draft_kv=(draft_kv_bytes(geometry, setting) if mtp else 0)
        + (_draft_model_kv_bytes(draft_model.geometry, setting) if draft_model else 0),
        compute=graphs * compute.target,
        draft_compute=graphs * (compute.draft + head_staging + (draft_buffers.draft if draft_buffers else 0)),
        staging=graphs * (compute.staging - head_staging),
        overhead=sum(overheads) + (read_inputs if on_cpu else 0),
        mmproj=setting.mmproj_bytes + (ENCODER_MIB * _MIB if setting.mmproj_bytes else 0),
        caches=0 if on_cpu else sum((getattr(setting, name) or 0) * _MIB for name in _GPU_CACHES),
        pool=sum(pool.usual for pool in pools),
    )
    host_parts = HostParts(
        weights=0 if on_cpu else host_weights,
        compute=compute.target_host
        + compute.draft_host
        + (draft_buffers.draft_host if draft_buffers else 0)
        + (0 if on_cpu else read_inputs),
        checkpoints_most=effective_value("ctx_checkpoints", setting.ctx_checkpoints) * setting.slots * checkpoint,
        prompt_cache_most=effective_value("cache_ram", setting.cache_ram) * _MIB,
        checkpoint=checkpoint,
    )
    target_known = compute.exact and setting.split_mode in (None, "layer") and geometry.cache_known
    target_known = target_known and (bool(extracts) or not drafter.reads_layers)
    buffers_known = target_known and (draft_buffers.exact if draft_buffers else not setting.draft_bytes)
    caches_known = draft_model is None or draft_model.geometry.cache_known
    buffers_known = buffers_known and caches_known and not _has_unusual_draft(setting)
    if setting.splits_tensors:
        by_gpu = _split_tensors(setting, parts, pools)
    elif gpus > 1:
        by_gpu = _split_layers(geometry, weights, setting, parts, pools, compute, host_expert_layers)
    else:  # only the first GPU is used, and others stay empty
        by_gpu = (parts.total, *(0,) * (setting.gpus - 1 if setting.split_mode == "none" else 0))
    is_similar = is_graph_known(draft_model.geometry) if draft_model else draft_buffers is None
    doubted = [] if target_known else [(parts.compute, is_graph_known(geometry))]
    doubted += [] if buffers_known else [(parts.draft_compute, is_similar and is_graph_known(geometry))]
    low, high = _range_of_total(geometry, parts, weights, pools, doubted, draft_known=caches_known)
    return MemoryEstimate(
        setting,
        parts,
        host_parts,
        by_gpu,
        weights.exact,
        buffers_known,
        drafts_counted=draft_model is not None,
        low=low,
        high=high,
    )


def overhead_bytes(setting: PlanSettings, gpus: int) -> list[int]:
    """Return the bytes on each of the first `gpus` devices that driver and process take besides the buffers."""
    known = setting.overheads_mib[:gpus] if setting.backend != "cpu" and len(setting.overheads_mib) >= gpus else ()
    return [mib * _MIB for mib in known or (USUAL_MIB[setting.backend],) * gpus]


def _pools(
    geometry: Geometry,
    weights: Weights,
    setting: PlanSettings,
    tokens: int,
    gpus: int,
    draft: DraftModel | None,
    *,
    mtp: bool,
) -> list[PoolBytes]:
    """Return the pools on each GPU: one of the target on each, one of the head or draft model on the last."""
    cards = (*setting.cards, *(None,) * gpus)[:gpus]
    kinds = {"floats": weights.floats, "float_experts": weights.float_experts}
    pools = [pool_bytes(geometry, tokens, setting.backend, card, **kinds) for card in cards]
    if mtp:
        drafting = pool_bytes(geometry, tokens, setting.backend, cards[gpus - 1], **kinds, head=True)
    elif draft is not None:
        own = {"floats": draft.weights.floats, "float_experts": draft.weights.float_experts}
        drafting = pool_bytes(draft.geometry, tokens, setting.backend, cards[gpus - 1], **own)
    else:
        return pools
    return [*pools[:-1], pools[-1].plus(drafting)]


def _split_tensors(setting: PlanSettings, parts: MemoryParts, pools: Sequence[PoolBytes]) -> tuple[int, ...]:
    """Return the bytes of each of several GPUs that share each tensor: equally, unless shares are given.

    Weights and caches are shared; compute buffers are on each GPU as if it were alone. On three pairs of cards, one of
    them with 16 and 24 GB, this is within 1.6 % of published figures.
    """
    gpus = setting.gpus
    shares = split_shares(setting.tensor_split, gpus) or (1,) * gpus
    shared = parts.weights + parts.kv + parts.recurrent + parts.draft_kv
    buffers = (parts.compute + parts.draft_compute + parts.staging) // gpus
    others = [
        shared * share // sum(shares) + buffers + overhead + pool.usual
        for share, overhead, pool in zip(shares[1:], overhead_bytes(setting, gpus)[1:], pools[1:], strict=True)
    ]
    return (parts.total - sum(others), *others)


def _split_layers(
    geometry: Geometry,
    weights: Weights,
    setting: PlanSettings,
    parts: MemoryParts,
    pools: Sequence[PoolBytes],
    compute: ComputeBuffers,
    host_expert_layers: int,
) -> tuple[int, ...]:
    """Return the bytes of each of several GPUs that share the layers."""
    gpus, caches = setting.gpus, _layer_caches(geometry, setting, parts)
    blocks = [
        block.rest + (0 if index < host_expert_layers else block.experts) + cache
        for index, (block, cache) in enumerate(zip(weights.blocks, caches, strict=True))
    ]
    overheads = overhead_bytes(setting, gpus)
    buffers = [
        overhead + pool.usual + share
        for overhead, pool, (share, _) in zip(overheads, pools, compute.by_device, strict=True)
    ]
    buffers[0] += parts.caches  # llama.cpp keeps them on the first GPU
    free = split_shares(setting.tensor_split, gpus) or setting.gpu_free_mib
    free = free if len(free) == gpus else (1,) * gpus
    return split_by_gpu(blocks, geometry.mtp_layers, buffers, free, parts.total)


def _range_of_total(
    geometry: Geometry,
    parts: MemoryParts,
    weights: Weights,
    pools: Sequence[PoolBytes],
    doubted: Sequence[tuple[int, bool]],
    *,
    draft_known: bool,
) -> tuple[int, int]:
    """Return the bytes between which the total lies, given how exactly its parts are known.

    `doubted` has the bytes of compute buffers that were not compared, each with whether their graph is known,
    `draft_known` is whether the caches of a draft model are.
    """
    below = above = int(parts.weights * weights.tolerance) + (_ENCODER_DOUBT_MIB * _MIB if parts.mmproj else 0)
    for size, is_known in doubted:
        shares = _SIMILAR_BUFFERS if is_known else _GUESSED_BUFFERS
        below += int(size * shares[0])
        above += int(size * shares[1])
    guessed = parts.draft_kv if geometry.cache_known else parts.kv + parts.draft_kv
    if not (geometry.cache_known and draft_known):
        below += int(guessed * _GUESSED_CACHES[0])
        above += int(guessed * _GUESSED_CACHES[1])
    below += sum(pool.usual - pool.low for pool in pools)
    above += sum(pool.high - pool.usual for pool in pools)
    return max(parts.total - below, 0), parts.total + above


def effective_value(name: str, value: int | None) -> int:
    """Return the value of a numeric server setting, with llama-server's default for None."""
    return int(ROWS[name].usual or 0) if value is None else value


def split_shares(tensor_split: str | None, gpus: int) -> tuple[int, ...]:
    """Return the shares of a tensor split as whole numbers, () if it does not name one for each GPU."""
    shares = tuple(round(float(share) * 1_000) for share in (tensor_split or "").split(",") if share)
    return shares if len(shares) == gpus else ()


def kv_bytes(geometry: Geometry, setting: PlanSettings) -> int:
    """Return the bytes of the target's KV cache: keys and values of each cell in each attention layer.

    Source: src/llama-kv-cache.cpp; a slot's cells are padded to a multiple of 256 (src/llama-context.cpp). Layers with
    a sliding window only have the cells of that window, those with latent attention no values
    (src/llama-kv-cache.cpp: has_v). Indexers have keys of the same type (src/llama-kv-cache-dsa.cpp).
    """
    layers, (full, sliding) = geometry.attention_layers - geometry.window_layers, _kv_of_layer(geometry, setting)
    return layers * full + geometry.window_layers * sliding + _indexer_bytes(geometry, setting)


def _indexer_bytes(geometry: Geometry, setting: PlanSettings) -> int:
    if not geometry.indexer_layers:
        return 0
    per_block, block_bytes = KV_TYPES[setting.kv]
    cells = setting.streams * padded_context(setting.context, setting.streams)
    return geometry.indexer_layers * cells * (geometry.indexer_length // per_block * block_bytes)


def _kv_of_layer(geometry: Geometry, setting: PlanSettings) -> tuple[int, int]:
    """Return the bytes of one layer's KV cache for all slots: of a layer with full attention, and of a windowed one."""
    per_block, block_bytes = KV_TYPES[setting.kv]

    def cell_bytes(heads: int, key_length: int, value_length: int) -> int:
        return (heads * key_length // per_block + heads * value_length // per_block) * block_bytes

    streams = setting.streams
    cells = padded_context(setting.context, streams)
    full = cell_bytes(geometry.kv_heads, geometry.key_length, 0 if geometry.latent_attention else geometry.value_length)
    if not geometry.window:
        return streams * cells * full, 0
    window = window_cells(geometry, cells, setting.ubatch, setting.slots // streams)
    sliding = cell_bytes(geometry.window_kv_heads, geometry.window_key_length, geometry.window_value_length)
    return streams * cells * full, streams * window * sliding


def _layer_caches(geometry: Geometry, setting: PlanSettings, parts: MemoryParts) -> list[int]:
    """Return the bytes of the KV cache or recurrent state of each trunk layer."""
    full, sliding = _kv_of_layer(geometry, setting)
    other = sliding if geometry.window_layers else parts.recurrent // max(geometry.recurrent_layers, 1)
    interval, cached_layers = attention_interval(geometry), geometry.layers - geometry.cacheless_layers
    full += _indexer_bytes(geometry, setting) // max(geometry.attention_layers, 1)
    return [other if (layer + 1) % interval else full for layer in range(cached_layers)] + [
        0
    ] * geometry.cacheless_layers


def recurrent_bytes(geometry: Geometry, *, slots: int, draft: int) -> int:
    """Return the bytes of the recurrent states: convolution and delta state in f32, 1 + `draft` copies per slot.

    Source: src/llama-memory-recurrent.cpp, n_rows = mem_size * (1 + n_rs_seq), where n_rs_seq is the draft length.
    """
    if not geometry.state_size:
        return 0
    return geometry.recurrent_layers * (geometry.conv_state + geometry.delta_state) * _F32 * slots * (1 + draft)


def draft_kv_bytes(geometry: Geometry, setting: PlanSettings) -> int:
    """Return the bytes of the MTP head's KV cache: as many cells as the target's, in a type of its own.

    Source: common/speculative.cpp; --spec-draft-type-k and -v default to f16.
    """
    width = geometry.kv_heads * (geometry.key_length + (0 if geometry.latent_attention else geometry.value_length))
    cells = padded_context(setting.context, setting.streams) * setting.streams
    elements, block_bytes = KV_TYPES[setting.draft_kv or "f16"]
    return geometry.mtp_layers * cells * width * block_bytes // elements


def _draft_model_kv_bytes(draft: Geometry, setting: PlanSettings) -> int:
    """Return the bytes of a separate draft model's KV cache; 0 for Gemma 4's assistant, which reads its target's."""
    return 0 if draft.architecture == ASSISTANT else kv_bytes(draft, replace(setting, kv=setting.draft_kv or "f16"))


def _has_unusual_draft(setting: PlanSettings) -> bool:
    """Return whether a drafter's cache, batch or place is another than the formula was compared with."""
    rows = (row for row in ROWS.values() if row.memory and setting.drafter.takes_setting(row.drafting))
    return any(row.value_in(setting) not in (None, row.usual) for row in rows if row.name.startswith("draft_"))


def _draft_weights(draft: DraftModel | None, setting: PlanSettings, on_cpu: bool) -> int:
    """Return the bytes of a separate draft model's weights; its file size if its header was not read."""
    if draft is None:
        return setting.draft_bytes
    weights = draft.weights
    return weights.on_device(0, mtp=False) + (weights.on_host(0, mtp=False) - weights.shared if on_cpu else 0)


def split_layers(count: int, free: Sequence[int]) -> tuple[int, ...]:
    """Return how many of `count` layers each GPU gets: in order, in proportion to `free`.

    The output counts as one more layer. Source: src/llama-model.cpp, load_tensors: upper_bound over the sums.
    """
    sums = list(accumulate(free if sum(free) else [1] * len(free)))
    owners = Counter(bisect_right(sums, layer * sums[-1] / (count + 1)) for layer in range(count))
    return tuple(owners[gpu] for gpu in range(len(free)))


def split_by_gpu(
    blocks: Sequence[int], heads: int, buffers: Sequence[int], free: Sequence[int], total: int
) -> tuple[int, ...]:
    """Return the share of each GPU in `total`, in bytes, as llama.cpp splits the layers.

    `blocks` has the bytes of each trunk layer with its cache, `heads` is the number of MTP layers after them, `buffers`
    has the other bytes on each GPU, `free` the weights of the split. The last GPU has the rest: output, heads, drafts.
    """
    begin, first = 0, []
    for count, other_bytes in list(zip(split_layers(len(blocks) + heads, free), buffers, strict=True))[:-1]:
        first.append(sum(blocks[begin : begin + count]) + other_bytes)
        begin += count
    return (*first, total - sum(first))
