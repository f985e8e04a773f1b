"""The compute buffers of a server: the target's and the MTP head's, on the device and on the host."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from launcher.models.allocation import buffer_bytes
from launcher.models.geometry import Geometry
from launcher.models.graphs import Batch, head, trunk

Backend = Literal["cuda", "vulkan", "rocm", "metal", "cpu"]
_PADDING = 256
"""Contexts are padded to this many cells (src/llama-context.cpp)."""


@dataclass(frozen=True, slots=True)
class ComputeSetting:
    """What compute buffers follow from. `context` is the total over all slots, in tokens; `draft` 0 is MTP off.

    `quantised` says whether the KV cache of the target is; `cpu_expert_layers` how many layers' experts the host holds.
    """

    backend: Backend
    context: int
    ubatch: int
    slots: int
    draft: int
    quantised: bool
    cpu_expert_layers: int = 0


@dataclass(frozen=True, slots=True)
class ComputeBuffers:
    """Bytes of the target's and the head's compute buffers; on the cpu backend the host's are 0 and all is in `target`."""

    target: int
    draft: int
    target_host: int = 0
    draft_host: int = 0


def padded_context(context: int, slots: int) -> int:
    """Return the cells of one slot: its share of `context`, padded."""
    return -(-(context // slots) // _PADDING) * _PADDING


@lru_cache(maxsize=4_096)
def compute_buffers(geometry: Geometry, setting: ComputeSetting) -> ComputeBuffers:
    """Return the compute buffers for `geometry` under `setting`, as the engine's own dry run reports them."""
    cells = padded_context(setting.context, setting.slots)
    tokens = min(setting.ubatch, setting.context)
    tokens = -(-tokens // setting.slots) * setting.slots
    snapshots = 1 + setting.draft if setting.draft else 0
    outputs = min(tokens, (1 + setting.draft) * setting.slots)
    offloaded = setting.backend != "cpu"
    widths = geometry.kv_heads * (geometry.key_length + geometry.value_length)
    scratch = 2 * widths * cells * setting.slots if setting.backend == "cuda" and setting.quantised else 0
    batch = Batch(tokens, setting.slots, cells, outputs, snapshots, setting.quantised, offloaded, scratch)
    target = buffer_bytes(trunk(geometry, batch))
    if not setting.draft:
        return ComputeBuffers(target, 0)
    batch = Batch(tokens, setting.slots, cells, setting.slots, 0, rotated=False, offloaded=offloaded)
    return ComputeBuffers(target, buffer_bytes(head(geometry, batch)))
