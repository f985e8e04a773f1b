"""The memory that a model takes, by part: pure arithmetic from its geometry, its weights and the settings."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType

from launcher.base.errors import BadOption
from launcher.models.compute import (
    Backend,
    ComputeSetting,
    compute_buffers,
    draft_model_buffers,
    padded_context,
    window_cells,
)
from launcher.models.geometry import Geometry
from launcher.models.graphs import interval
from launcher.models.split import by_gpu
from launcher.models.styles import ASSISTANT
from launcher.models.weights import Weights

_MIB = 2**20
_F32 = 4
ENCODER_MIB = 500
"""Buffers of the vision encoder: a guess between 300 and 700 MiB, nobody has published a measurement."""
_CHECKPOINTS = 32
"""Context checkpoints that a slot keeps in host memory (--ctx-checkpoints, common/arg.cpp)."""
_PROMPT_CACHE_MIB = 8_192
"""The most that cached prompts take of host memory (--cache-ram)."""

_NGRAM_OUTPUTS = 49
"""Rows of logits of a slot that drafts repeats: a token and the 48 that follow (--spec-ngram-mod-n-min)."""

KV_TYPES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        # Elements and bytes of a block (ggml-common.h). iq4_nl is left out: CUDA's flash attention refuses it.
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
OVERHEAD_MIB: Mapping[str, int] = MappingProxyType(
    {
        # What a process holds on the device beside llama.cpp's buffers. CUDA: 284 MiB on an L4, 331 on an A30 (peaks
        # of qiip's logs, b10964, less the sum of the buffers). Of Vulkan and ROCm one GPU each lets it be inferred: 200
        # (Radeon R9700) and 600 to 670 with whatever else was there (RX 7900 XTX); CUDA's stands in (docs/accuracy.md).
        # On the processor: 249 MB resident before any weights are read, measured here.
        "cuda": 330,
        "rocm": 330,
        "vulkan": 330,
        "metal": 330,
        "cpu": 240,
    }
)


@dataclass(frozen=True, slots=True)
class Setting:
    """How a model is run, as far as memory follows from it.

    `context` is the total of all slots, in tokens, `kv` the type of keys and values alike, `draft` the draft length (0
    is off), `n_cpu_moe` how many layers' routed experts stay on the host, `gpus` over how many GPUs the layers are
    split, `gpu_free_mib` what each of these has free (alike where it is empty), `mmproj_bytes` a vision projector's
    file on the GPU, `draft_model_bytes` a draft that lies in a file of its own. With `ngrams` drafts are repeats of
    earlier text: `draft` then only says that there are some.
    """

    context: int
    kv: str = "f16"
    draft: int = 2
    ubatch: int = 512
    slots: int = 1
    n_cpu_moe: int = 0
    backend: Backend = "cuda"
    gpus: int = 1
    gpu_free_mib: tuple[int, ...] = ()
    mmproj_bytes: int = 0
    draft_model_bytes: int = 0
    ngrams: bool = False

    def check(self) -> None:
        """Raise BadOption for a value that no engine takes."""
        if self.kv not in KV_TYPES:
            raise BadOption(f"There is no KV cache type {self.kv!r}.", f"Choose one of {', '.join(KV_TYPES)}.")


@dataclass(frozen=True, slots=True)
class Parts:
    """Bytes by part, of the GPU's memory (of the host's on the cpu backend).

    `staging` is what copies of the host's experts add to the target's compute buffer; those of the head's are in
    `draft_compute`.
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

    @property
    def total(self) -> int:
        """Their sum."""
        return sum(self.as_dict().values())

    def as_dict(self) -> dict[str, int]:
        """Return the parts by name, in the order of the table."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True)
class HostParts:
    """Bytes of host memory: at the start, and what the engine may add while it runs."""

    weights: int
    compute: int
    checkpoints_most: int
    prompt_cache_most: int

    @property
    def at_start(self) -> int:
        """What is needed before the first request."""
        return self.weights + self.compute


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A draft in a file of its own, as its header states it."""

    geometry: Geometry
    weights: Weights


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a setting takes, `by_gpu` in bytes of each.

    `weights_exact` when the weights were read from a header, `compute_exact` when the graph is known for the backend,
    `drafts_counted` when a draft in a file of its own is counted with its cache and buffers.
    """

    setting: Setting
    parts: Parts
    host: HostParts
    by_gpu: tuple[int, ...]
    weights_exact: bool
    compute_exact: bool
    drafts_counted: bool

    @property
    def needed(self) -> int:
        """Bytes that all GPUs together must have free so that each has its share: of one GPU the total."""
        free = _free_bytes(self.setting, len(self.by_gpu))
        return sum(free) + len(free) * max(need - have for need, have in zip(self.by_gpu, free, strict=True))

    @property
    def fullest(self) -> int:
        """Which GPU, from 0, has the least left."""
        free = _free_bytes(self.setting, len(self.by_gpu))
        return max(range(len(free)), key=lambda gpu: self.by_gpu[gpu] - free[gpu])

    @property
    def exact(self) -> bool:
        """Whether no part of it is a guess."""
        return self.weights_exact and self.compute_exact


def _free_bytes(setting: Setting, gpus: int) -> tuple[int, ...]:
    """What each GPU has free; 0 of each where they are alike: then only the fullest matters."""
    known = setting.gpu_free_mib if len(setting.gpu_free_mib) == gpus else ()
    return tuple(free * _MIB for free in known) or (0,) * gpus


def estimate(geometry: Geometry, weights: Weights, setting: Setting, draft: DraftModel | None = None) -> Estimate:
    """Return the memory that `setting` takes of all GPUs together, with flash attention on and all layers on them.

    `draft` is the draft in a file of its own where its header is known; else its file's size stands for its weights,
    and its cache and buffers are not counted. Raises BadOption for a KV cache type that does not exist.
    """
    setting.check()
    mtp = setting.draft > 0 and geometry.mtp_layers > 0 and not setting.ngrams
    on_cpu = setting.backend == "cpu"
    gpus = 1 if on_cpu else setting.gpus
    moved = min(setting.n_cpu_moe, len(weights.blocks) + len(weights.heads))
    device, host = weights.on_device(moved, mtp=mtp), weights.on_host(moved, mtp=mtp)
    asked = ComputeSetting(
        backend=setting.backend,
        context=setting.context,
        ubatch=setting.ubatch,
        slots=setting.slots,
        draft=setting.draft if mtp else 0,
        quantised=KV_TYPES[setting.kv][0] > 1,
        wide=setting.kv in ("bf16", "f32"),
        cpu_expert_layers=0 if on_cpu else moved,
        expert_bytes=tuple(block.matrices for block in (weights.blocks + weights.heads)[:moved]),
        devices=gpus,
        outputs=_NGRAM_OUTPUTS if setting.ngrams and setting.draft else 0,
    )
    compute = compute_buffers(geometry, asked)
    beside = draft if setting.draft_model_bytes else None
    of_draft = draft_model_buffers(beside.geometry, geometry, asked) if beside else None
    head = sum(share for _, share in compute.by_device) - compute.draft if compute.staging else 0
    checkpoint = recurrent_bytes(geometry, slots=1, draft=0)
    parts = Parts(
        weights=device + (host - weights.shared if on_cpu else 0) + _draft_weights(beside, setting, on_cpu),
        kv=kv_bytes(geometry, setting),
        recurrent=recurrent_bytes(geometry, slots=setting.slots, draft=setting.draft if mtp else 0),
        draft_kv=(draft_kv_bytes(geometry, setting) if mtp else 0)
        + (_own_kv(beside.geometry, setting) if beside else 0),
        compute=compute.target,
        draft_compute=compute.draft + head + (of_draft.draft if of_draft else 0),
        staging=compute.staging - head,
        overhead=gpus * OVERHEAD_MIB[setting.backend] * _MIB,
        mmproj=setting.mmproj_bytes + (ENCODER_MIB * _MIB if setting.mmproj_bytes else 0),
    )
    host_parts = HostParts(
        weights=0 if on_cpu else host,
        compute=compute.target_host + compute.draft_host + (of_draft.draft_host if of_draft else 0),
        checkpoints_most=_CHECKPOINTS * setting.slots * checkpoint,
        prompt_cache_most=_PROMPT_CACHE_MIB * _MIB,
    )
    buffers_known = compute.exact and (of_draft.exact if of_draft else not setting.draft_model_bytes)
    blocks = [
        block.rest + (0 if at < moved else block.experts) + cache
        for at, (block, cache) in enumerate(zip(weights.blocks, _caches(geometry, setting, parts), strict=True))
    ]
    buffers = [parts.overhead // gpus + share for share, _ in compute.by_device] if gpus > 1 else [0]
    free = setting.gpu_free_mib if len(setting.gpu_free_mib) == gpus else (1,) * gpus
    shares = by_gpu(blocks, geometry.mtp_layers, buffers, free, parts.total)
    return Estimate(
        setting, parts, host_parts, shares, weights.exact, buffers_known, drafts_counted=of_draft is not None
    )


def kv_bytes(geometry: Geometry, setting: Setting) -> int:
    """Return the bytes of the target's KV cache: each layer of attention, each cell, keys and values.

    Source: src/llama-kv-cache.cpp; a slot's cells are padded to 256 (src/llama-context.cpp). Layers with a sliding
    window hold its cells only.
    """
    layers, (whole, sliding) = geometry.attention_layers - geometry.window_layers, _kv_of_layer(geometry, setting)
    return layers * whole + geometry.window_layers * sliding


def _kv_of_layer(geometry: Geometry, setting: Setting) -> tuple[int, int]:
    """Bytes of one layer's KV cache for all slots: without a sliding window, and with one."""
    per_block, block_bytes = KV_TYPES[setting.kv]

    def cell(heads: int, key_length: int, value_length: int) -> int:
        return sum(heads * length // per_block * block_bytes for length in (key_length, value_length))

    cells = padded_context(setting.context, setting.slots)
    window = window_cells(geometry, cells, setting.ubatch)
    whole = cell(geometry.kv_heads, geometry.key_length, geometry.value_length)
    sliding = cell(geometry.window_kv_heads, geometry.window_key_length, geometry.window_value_length)
    return setting.slots * cells * whole, setting.slots * window * sliding


def _caches(geometry: Geometry, setting: Setting, parts: Parts) -> list[int]:
    """Bytes of each trunk layer's KV cache or recurrent state."""
    whole, sliding = _kv_of_layer(geometry, setting)
    other = sliding if geometry.window_layers else parts.recurrent // max(geometry.recurrent_layers, 1)
    every = interval(geometry)
    return [other if (layer + 1) % every else whole for layer in range(geometry.layers)]


def recurrent_bytes(geometry: Geometry, *, slots: int, draft: int) -> int:
    """Return the bytes of the recurrent states: convolution and delta state in f32, 1 + `draft` copies a slot.

    Source: src/llama-memory-recurrent.cpp, n_rows = mem_size * (1 + n_rs_seq), where n_rs_seq is the draft length.
    """
    if not geometry.state_size:
        return 0
    return geometry.recurrent_layers * (geometry.conv_state + geometry.delta_state) * _F32 * slots * (1 + draft)


def draft_kv_bytes(geometry: Geometry, setting: Setting) -> int:
    """Return the bytes of the MTP head's own KV cache: as many cells as the target's, always f16 as we start it.

    Source: common/speculative.cpp; --spec-draft-type-k and -v default to f16.
    """
    width = geometry.kv_heads * (geometry.key_length + geometry.value_length)
    cells = padded_context(setting.context, setting.slots) * setting.slots
    return geometry.mtp_layers * cells * width * KV_TYPES["f16"][1]


def _own_kv(draft: Geometry, setting: Setting) -> int:
    """Bytes of the KV cache of a draft in a file of its own; Gemma 4's uses its target's."""
    return 0 if draft.architecture == ASSISTANT else kv_bytes(draft, replace(setting, kv="f16"))


def _draft_weights(draft: DraftModel | None, setting: Setting, on_cpu: bool) -> int:
    """Bytes of such a draft beside the target; all its file while its header is not known."""
    if draft is None or on_cpu:
        return setting.draft_model_bytes
    return draft.weights.on_device(0, mtp=False)
