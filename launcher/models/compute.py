"""The compute buffers of a server: the target's and the MTP head's, on the devices and on the host."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from launcher.models import cuda, vulkan
from launcher.models.allocation import Lives, buffer_bytes, lives
from launcher.models.blocks import ExpertBytes, Shape
from launcher.models.geometry import Geometry
from launcher.models.graphs import assistant, head, repeated, trunk
from launcher.models.schedule import schedule
from launcher.models.styles import ASSISTANT, STYLES
from launcher.models.tensors import HOST, Graph, Size

Backend = Literal["cuda", "vulkan", "rocm", "metal", "cpu"]
_Kind = Literal["trunk", "head", "assistant"]
_GRAPHS: Mapping[_Kind, Callable[[Geometry, Shape, int], Graph]] = {
    "trunk": trunk,
    "head": head,
    "assistant": assistant,
}
_PADDING = 256
"""Contexts are padded to this many cells (src/llama-context.cpp)."""
_OFFLOAD_ROWS = 32
"""Rows from which a device computes with weights of the host, a copy of them (GGML_OP_OFFLOAD_MIN_BATCH)."""
_OPTIMISE = {"cuda": cuda.optimise, "rocm": cuda.optimise, "vulkan": vulkan.optimise}
"""What a backend makes of a graph. Metal reorders too, by rules that are not played through here."""
_CHUNK = {"vulkan": 1 << 30}
"""The largest piece that a backend's buffer consists of (suballocation_block_size)."""
_COMPARED = frozenset({"cpu", "cuda", "vulkan"})
"""Backends whose buffers were compared with an engine's."""


@dataclass(frozen=True, slots=True)
class ComputeSetting:
    """What compute buffers follow from. `context` is the total over all slots, in tokens; `draft` 0 is MTP off.

    `quantised` says whether the KV cache of the target is, `wide` whether it holds floats other than F16. The host
    holds the experts of the first `cpu_expert_layers`, behind the trunk the head's; `expert_bytes` are those layers'
    matrices in bytes. The layers are spread over `devices`. With `head` off the drafts come from elsewhere: from
    another model. Of n-grams the engine takes up to 48 as a draft and keeps no snapshots: that is `draft` 0 and 49
    `outputs` a slot.
    """

    backend: Backend
    context: int
    ubatch: int
    slots: int
    draft: int
    quantised: bool
    cpu_expert_layers: int = 0
    expert_bytes: tuple[ExpertBytes, ...] = ()
    devices: int = 1
    head: bool = True
    outputs: int = 0
    wide: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of the largest batch: a ubatch, rounded up to the same number for each slot."""
        return -(-min(self.ubatch, self.context) // self.slots) * self.slots

    @property
    def rows(self) -> int:
        """Rows of logits: each slot's own and its drafts'."""
        return min(self.tokens, (self.outputs or 1 + self.draft) * self.slots)


@dataclass(frozen=True, slots=True)
class ComputeBuffers:
    """Bytes of the target's and the head's compute buffers; on the cpu backend the host's are 0 and all is in `target`.

    `staging` is what copies of the host's experts add on the devices; it is not part of the others. `by_device` has
    each device's share of the target's and of the head's, there with the copies. Not `exact` when the model's graph is
    not known or the backend was never compared with an engine, nor for experts on the host beside several devices.
    """

    target: int
    draft: int
    target_host: int = 0
    draft_host: int = 0
    staging: int = 0
    by_device: tuple[tuple[int, int], ...] = ()
    exact: bool = True


def padded_context(context: int, slots: int) -> int:
    """Return the cells of one slot: its share of `context`, padded."""
    return -(-(context // slots) // _PADDING) * _PADDING


def window_cells(geometry: Geometry, cells: int, ubatch: int) -> int:
    """Return the cells of one slot's sliding window when its context has `cells` (src/llama-kv-cache-iswa.cpp)."""
    return min(cells, -(-(geometry.window + ubatch) // _PADDING) * _PADDING) if geometry.window else 0


def supports(geometry: Geometry) -> bool:
    """Whether the graph of this model's architecture is known."""
    style = STYLES.get(geometry.architecture)
    if style is None or (geometry.experts and not style.experts):
        return False
    return style.windowed == (geometry.window_layers > 0)


@lru_cache(maxsize=4_096)
def compute_buffers(geometry: Geometry, setting: ComputeSetting) -> ComputeBuffers:
    """Return the compute buffers for `geometry` under `setting`, as the engine's own dry run reports them.

    Compared with b11549 (processor), b11669 (Vulkan) and the host code of b11434's CUDA backend. ROCm is CUDA's code;
    it and Metal were not compared.
    """
    plain = _buffers(geometry, replace(setting, cpu_expert_layers=0))
    if setting.backend == "cpu" or not setting.cpu_expert_layers or not geometry.experts:
        return plain
    if setting.devices > 1:  # with tensors placed by hand llama.cpp works on one batch at a time
        plain = _buffers(geometry, replace(setting, cpu_expert_layers=0), pipelined=False)
    offloading = _buffers(geometry, setting)
    growth = offloading.target + offloading.draft - plain.target - plain.draft
    return replace(offloading, target=plain.target, draft=plain.draft, staging=growth)


@lru_cache(maxsize=1_024)
def draft_model_buffers(draft: Geometry, target: Geometry, setting: ComputeSetting) -> ComputeBuffers:
    """Return the compute buffers of a draft in a file of its own, as `draft` and `draft_host`.

    The `setting` is the target's: the draft's context is as large, its KV cache f16. Gemma 4's assistant has none of
    its own but uses the target's.
    """
    leans = draft.architecture == ASSISTANT
    setting = replace(setting, draft=0, outputs=0, cpu_expert_layers=0)
    setting = setting if leans else replace(setting, quantised=False, wide=False)
    found = _buffers(draft, setting, target_hidden=target.hidden if leans else 0)
    by_device = tuple((0, share) for share, _ in found.by_device)
    return replace(
        found, target=0, target_host=0, draft=found.target, draft_host=found.target_host, by_device=by_device
    )


def _buffers(
    geometry: Geometry, setting: ComputeSetting, *, target_hidden: int = 0, pipelined: bool = True
) -> ComputeBuffers:
    layers, on_host = geometry.layers, setting.cpu_expert_layers
    of_trunk, of_head = setting.expert_bytes[: min(on_host, layers)], setting.expert_bytes[layers:]
    trunk_shape = Shape(
        snapshots=1 + setting.draft if setting.draft else 0,
        rotated=setting.quantised,
        # CUDA's attention needs all but F16 once more in F16 (ggml-cuda/fattn.cu: need_f16_K, need_f16_V).
        scratch=(setting.quantised or setting.wide) and setting.backend in ("cuda", "rocm"),
        devices=setting.devices,
        pipelined=pipelined and setting.devices > 1 and not on_host,
        cpu_expert_layers=layers if on_host >= layers else min(on_host, repeated(geometry)),
        expert_bytes=of_trunk if len(of_trunk) < repeated(geometry) and len(set(of_trunk)) > 1 else (),
        offload_tokens=setting.tokens >= _OFFLOAD_ROWS,
        offload_outputs=setting.rows >= _OFFLOAD_ROWS,
        target_hidden=target_hidden,
    )
    kind: _Kind = "assistant" if target_hidden else "trunk"
    target = _by_place(geometry, kind, trunk_shape, setting, setting.rows, of_trunk)
    draft: dict[int, int] = {}
    if setting.draft and setting.head and geometry.mtp_layers:
        head_shape = Shape(
            devices=setting.devices,
            pipelined=trunk_shape.pipelined,
            cpu_expert_layers=on_host if on_host > layers else 0,
            offload_tokens=trunk_shape.offload_tokens,
        )
        draft = _by_place(geometry, "head", head_shape, setting, setting.slots, of_head)
    exact = supports(geometry) and setting.backend in _COMPARED and not (on_host and setting.devices > 1)
    if setting.backend == "cpu":
        return ComputeBuffers(target[HOST], draft.get(HOST, 0), exact=exact)
    shares = tuple((target.get(device, 0), draft.get(device, 0)) for device in range(1, setting.devices + 1))
    of_target, of_draft = (sum(column) for column in zip(*shares, strict=True))
    return ComputeBuffers(of_target, of_draft, target[HOST], draft.get(HOST, 0), by_device=shares, exact=exact)


def _by_place(
    geometry: Geometry,
    kind: _Kind,
    shape: Shape,
    setting: ComputeSetting,
    rows: int,
    experts: tuple[ExpertBytes, ...],
) -> dict[int, int]:
    """Bytes of the buffer of each place, with `rows` of logits and copies of the largest of `experts`.

    Where the stand-in for unknown architectures is put in place of a known one, it gives 0.94 to 1.5 of its bytes: with
    a tenth more it is enough.
    """
    cells, slots, tokens = padded_context(setting.context, setting.slots), setting.slots, setting.tokens
    window = window_cells(geometry, cells, setting.ubatch)
    largest = (max(column) for column in zip((0, 0, 0), *experts, strict=True))
    units = Size(1, tokens, rows, slots, cells * tokens, cells * slots, window * tokens, window * slots, *largest)
    found = _sizes(geometry, kind, shape, setting.backend, units)
    return found if supports(geometry) else {place: size * 11 // 10 for place, size in found.items()}


@lru_cache(maxsize=4_096)
def _sizes(geometry: Geometry, kind: _Kind, shape: Shape, backend: Backend, units: Size) -> dict[int, int]:
    chunk = _CHUNK.get(backend)
    return {
        place: buffer_bytes(buffer, units, chunk) for place, buffer in _lives(geometry, kind, shape, backend).items()
    }


@lru_cache(maxsize=1_024)
def _lives(geometry: Geometry, kind: _Kind, shape: Shape, backend: Backend) -> dict[int, Lives]:
    """What happens in each buffer: it depends on the kind of model and options, not on context and batch."""
    graph = _GRAPHS[kind](geometry, shape, 0 if backend == "cpu" else shape.devices)
    return lives(graph, schedule(graph, _OPTIMISE.get(backend), pipelined=shape.pipelined and backend != "cpu"))
