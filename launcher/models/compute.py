"""The compute buffers of a server: the target's and the MTP head's, on the devices and on the host."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from launcher.models import cuda, vulkan
from launcher.models.allocation import Lives, buffer_bytes, lives
from launcher.models.blocks import Shape
from launcher.models.geometry import Geometry
from launcher.models.graphs import KNOWN, head, repeated, trunk
from launcher.models.schedule import schedule
from launcher.models.tensors import HOST, Size

Backend = Literal["cuda", "vulkan", "rocm", "metal", "cpu"]
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

    `quantised` says whether the KV cache of the target is. Of `cpu_expert_layers` the host holds the experts,
    `expert_bytes` for the gate, up and down matrices of the trunk's largest of these layers, `head_expert_bytes` for
    the head's, which count as the layers behind the trunk. The layers are spread over
    `devices`. With `head` off the drafts come from elsewhere: from another model or from n-grams.
    """

    backend: Backend
    context: int
    ubatch: int
    slots: int
    draft: int
    quantised: bool
    cpu_expert_layers: int = 0
    expert_bytes: tuple[int, int, int] = (0, 0, 0)
    head_expert_bytes: tuple[int, int, int] = (0, 0, 0)
    devices: int = 1
    head: bool = True


@dataclass(frozen=True, slots=True)
class ComputeBuffers:
    """Bytes of the target's and the head's compute buffers; on the cpu backend the host's are 0 and all is in `target`.

    `staging` is what copies of the host's experts add on the device; it is not part of the others. With several
    devices `by_device` has each one's share of the target's and of the head's. Not `exact` when the model's graph is
    not known, or the backend was never compared with an engine.
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


def supports(geometry: Geometry) -> bool:
    """Whether the graph of this model's architecture is known."""
    return geometry.architecture in KNOWN


@lru_cache(maxsize=4_096)
def compute_buffers(geometry: Geometry, setting: ComputeSetting) -> ComputeBuffers:
    """Return the compute buffers for `geometry` under `setting`, as the engine's own dry run reports them.

    Compared with b11549 (processor), b11669 (Vulkan) and the host code of b11434's CUDA backend. ROCm is CUDA's code;
    it and Metal were not compared.
    """
    plain = _buffers(geometry, replace(setting, cpu_expert_layers=0))
    if setting.backend == "cpu" or not setting.cpu_expert_layers:
        return plain
    offloading = _buffers(geometry, setting)
    growth = offloading.target + offloading.draft - plain.target - plain.draft
    return replace(offloading, target=plain.target, draft=plain.draft, staging=growth, by_device=plain.by_device)


def _buffers(geometry: Geometry, setting: ComputeSetting) -> ComputeBuffers:
    cells = padded_context(setting.context, setting.slots)
    tokens = min(setting.ubatch, setting.context)
    tokens = -(-tokens // setting.slots) * setting.slots
    outputs = min(tokens, (1 + setting.draft) * setting.slots)
    on_host, layers = setting.cpu_expert_layers, geometry.layers
    shape = Shape(
        snapshots=1 + setting.draft if setting.draft else 0,
        rotated=setting.quantised,
        scratch=setting.quantised and setting.backend in ("cuda", "rocm"),
        devices=setting.devices,
        cpu_expert_layers=on_host if on_host >= layers else min(on_host, repeated(geometry)),
        expert_bytes=setting.expert_bytes,
        offload_tokens=tokens >= _OFFLOAD_ROWS,
        offload_outputs=outputs >= _OFFLOAD_ROWS,
    )
    target = _by_place(geometry, "trunk", shape, setting, _units(cells, tokens, outputs, setting.slots))
    draft: dict[int, int] = {}
    if setting.draft and setting.head and geometry.mtp_layers:
        shape = Shape(
            devices=setting.devices,
            cpu_expert_layers=on_host if on_host > layers else 0,
            expert_bytes=setting.head_expert_bytes,
            offload_tokens=tokens >= _OFFLOAD_ROWS,
        )
        draft = _by_place(geometry, "head", shape, setting, _units(cells, tokens, setting.slots, setting.slots))
    exact = supports(geometry) and setting.backend in _COMPARED
    if setting.backend == "cpu":
        return ComputeBuffers(target[HOST], draft.get(HOST, 0), exact=exact)
    shares = tuple((target.get(device, 0), draft.get(device, 0)) for device in range(1, setting.devices + 1))
    return ComputeBuffers(
        sum(share for share, _ in shares),
        sum(share for _, share in shares),
        target[HOST],
        draft.get(HOST, 0),
        by_device=shares,
        exact=exact,
    )


def _units(cells: int, tokens: int, outputs: int, slots: int) -> Size:
    return Size(1, tokens, outputs, slots, cells * tokens, cells * slots)


def _by_place(
    geometry: Geometry, kind: Literal["trunk", "head"], shape: Shape, setting: ComputeSetting, units: Size
) -> dict[int, int]:
    buffers = _lives(geometry, kind, shape, setting.backend)
    chunk = _CHUNK.get(setting.backend)
    return {place: buffer_bytes(buffer, units, chunk) for place, buffer in buffers.items()}


@lru_cache(maxsize=1_024)
def _lives(geometry: Geometry, kind: Literal["trunk", "head"], shape: Shape, backend: Backend) -> dict[int, Lives]:
    """What happens in each buffer: it depends on the kind of model and options, not on context and batch."""
    devices = 0 if backend == "cpu" else shape.devices
    graph = (trunk if kind == "trunk" else head)(geometry, shape, devices)
    pipelined = devices > 1 and not shape.cpu_expert_layers
    return lives(graph, schedule(graph, _OPTIMISE.get(backend), pipelined=pipelined))
