"""CUDA's pool: temporary memory that ggml's operators take while they compute, beside the engine's buffers.

Each context of an engine (target, head or draft model) has a pool on each GPU. It grows with the first prompt and keeps
its largest size. Source: `ggml_cuda_pool_alloc` in ggml/src/ggml-cuda of llama.cpp b11549. On one card, an H100, the
sum is within 4 MiB of the memory that the driver counted (presets/evidence/loads.csv); the others have a range.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from launcher.machine.cards import Card
from launcher.models.compute_buffers import Backend
from launcher.models.geometry import Geometry

_MIB = 2**20
_GRANULE = 2 * _MIB
"""Step by which the pool of virtual memory grows (cuMemGetAllocationGranularity)."""
_LOOK_AHEAD = 1.05
"""Factor by which a pool without virtual memory, as HIP's, takes more than it needs (ggml_cuda_pool_leg)."""
_TILE = 128
"""Rows and columns of the largest tile of a quantised product (mmq-config-*.cuh)."""
_FULL_WAVES = 0.9
"""Share of busy multiprocessors from which a product needs no sums of partial tiles (mmq.cuh: launch_mul_mat_q)."""
_FEWEST_ROWS = 17
"""Fewest rows with which a matrix of floats is multiplied by cuBLAS (mmf.cu: ggml_cuda_should_use_mmf)."""
_COLUMNS = 64
"""Query rows times heads in one tile of attention (fattn.cu: ggml_cuda_flash_attn_ext_mma_f16_switch_ncols1)."""
_USUAL_MULTIPROCESSORS = 82
"""Taken for a card whose number is unknown: an RTX 3090's."""
_WORKSPACE_MIB = {"hopper": 32, "gb100": 32, "blackwell": 32, "shared": 32}
"""cuBLAS's workspace by generation, 4 for all others (common.cuh: cublas_handle)."""
_WORKSPACES = 3
"""A handle takes its workspace three times: ggml's own, and two for the library's default pool. Measured as 96 MiB on
Hopper and as 12 on Ampere and Ada; on Blackwell the default pool may be smaller."""
_CUBLAS_PROVEN = frozenset({"hopper", "ga100", "ada"})
_GRAPHS_MIB = 5
"""Memory of a context's CUDA graphs and of kernels loaded with its first prompt: 4 to 6 on an H100."""
MOST_MEASURED_BYTES = 242 * _MIB
"""The largest pools of both contexts of a server that were measured."""
_STREAM_K = frozenset({"ada", "hopper", "gb100", "blackwell", "shared"})
"""Generations whose attention always splits its work by stream-k; others do so where tiles fill the card badly."""
_CONVERTING = frozenset({"volta", "rdna3"})
"""Generations that multiply some quantised matrices as F16 copies (mmq.cu: ggml_cuda_should_use_mmq)."""


class PoolBytes(NamedTuple):
    """Bytes of a pool with all that is taken with the first prompt, and the bytes between which they lie."""

    usual: int = 0
    low: int = 0
    high: int = 0

    def plus(self, other: "PoolBytes") -> "PoolBytes":
        """Return the sum of both."""
        return PoolBytes(self.usual + other.usual, self.low + other.low, self.high + other.high)


@lru_cache(maxsize=4_096)
def pool_bytes(
    geometry: Geometry,
    tokens: int,
    backend: Backend,
    card: Card | None,
    *,
    floats: bool,
    float_experts: bool = False,
    head: bool = False,
) -> PoolBytes:
    """Return the pool of one context on one GPU after a batch of `tokens`; 0 for backends without one.

    `floats` is whether a matrix of the model is stored as F32, F16 or BF16, `float_experts` whether experts are. `head`
    is the context of an MTP head.
    """
    if backend not in ("cuda", "rocm"):
        return PoolBytes()
    operators = list(_list_requests(geometry, tokens, card, floats=floats, float_experts=float_experts, head=head))
    uses_cublas = (floats or float_experts) and tokens >= _FEWEST_ROWS
    if backend == "rocm":
        pool = _sum_kept(operators)
        copy = _copy_bytes(geometry, tokens) if card is None or card.generation in _CONVERTING else 0
        return PoolBytes(pool, 0, pool + copy)
    pool = -(-max(map(sum, operators)) // _GRANULE) * _GRANULE
    generation, graphs = card.generation if card else "", _GRAPHS_MIB * _MIB
    workspace = _WORKSPACE_MIB.get(generation, 4) * _MIB if uses_cublas else 0
    largest = max(_WORKSPACE_MIB.values()) * _MIB if uses_cublas and card is None else workspace
    proven = generation in _CUBLAS_PROVEN
    copy = _copy_bytes(geometry, tokens) if generation in _CONVERTING else 0
    return PoolBytes(
        pool + _WORKSPACES * workspace + graphs,
        max(pool - 2 * _GRANULE, 0) + (_WORKSPACES if proven else 1) * workspace,
        pool + 2 * _GRANULE + _WORKSPACES * largest + 2 * graphs + copy,
    )


def _list_requests(
    geometry: Geometry, tokens: int, card: Card | None, *, floats: bool, float_experts: bool, head: bool
) -> Iterator[tuple[int, ...]]:
    """Yield what each kind of operator holds at once, in bytes, in the order in which it asks for it."""
    multiprocessors = (card.multiprocessors if card else 0) or _USUAL_MULTIPROCESSORS
    for rows, columns in _list_matrices(geometry, head=head):
        yield _quantised(tokens, rows), _partial_tiles(tokens, columns, 1, multiprocessors)
        if floats:
            yield 2 * tokens * rows, 2 * tokens * columns
    if geometry.experts:
        width, used = geometry.expert_ffn or geometry.ffn, geometry.experts_used
        places = 4 * tokens * used
        for rows, columns in ((geometry.hidden, width), (width, geometry.hidden)):
            if float_experts:
                yield 2 * places, places * rows, places * columns
            else:
                tiles = _partial_tiles(tokens, columns, geometry.experts, multiprocessors)
                yield places, places, 4 * geometry.experts, _quantised(tokens * used, rows), tiles
    yield (_attention_tiles(geometry, tokens, card, multiprocessors),)


def _list_matrices(geometry: Geometry, *, head: bool) -> Iterator[tuple[int, int]]:
    """Yield the rows that a matrix multiplies (its input's width) and its columns (its output's), but for experts."""
    hidden = geometry.hidden
    if head:
        yield 2 * hidden, hidden
    for heads, key, value in (
        (geometry.kv_heads, geometry.key_length, geometry.value_length),
        (geometry.window_kv_heads, geometry.window_key_length, geometry.window_value_length),
    ):
        if heads:
            yield hidden, geometry.heads * key
            yield geometry.heads * value, hidden
    if geometry.recurrent_layers and not head:
        yield hidden, geometry.conv_channels
        yield geometry.inner_size, hidden
    for width in (geometry.ffn if not geometry.experts or geometry.leading_dense else 0, geometry.shared_expert_ffn):
        if width:
            yield hidden, width
            yield width, hidden


def _quantised(tokens: int, rows: int) -> int:
    """Return the bytes of a batch as q8_1 in blocks of 128, rows padded to 512, with a tile of padding (mmq.cu)."""
    return (tokens * -(-rows // 512) * 512 // 128 + _TILE) * 144


def _partial_tiles(tokens: int, columns: int, matrices: int, multiprocessors: int) -> int:
    """Return the bytes for sums of partial tiles: one tile for each multiprocessor, unless tiles fill them well."""
    tiles = -(-tokens // _TILE) * -(-columns // _TILE) * matrices
    waves = -(-tiles // multiprocessors)
    if tiles >= _FULL_WAVES * waves * multiprocessors or tiles % multiprocessors == 0:
        return 0
    return multiprocessors * _TILE * min(_TILE, -(-tokens // 8) * 8) * 4


def _attention_tiles(geometry: Geometry, tokens: int, card: Card | None, multiprocessors: int) -> int:
    """Return the bytes for partial results of flash attention (fattn-common.cuh: launch_fattn, with stream-k)."""
    most = 0
    for kv_heads, key, value in (
        (geometry.kv_heads, geometry.key_length, geometry.value_length),
        (geometry.window_kv_heads, geometry.window_key_length, geometry.window_value_length),
    ):
        if not kv_heads or not value:
            continue
        shared = geometry.heads // kv_heads
        grouped = 8 if shared > 4 else 4 if shared > 2 else min(shared, 2) or 1
        tiles = -(-tokens * grouped // _COLUMNS) * -(-shared // grouped) * kv_heads
        blocks = (2 if key <= 256 else 1) * multiprocessors
        if card and card.generation not in _STREAM_K and tiles >= 0.75 * -(-tiles // blocks) * blocks:
            continue
        even = blocks // tiles * tiles
        if even >= 0.95 * blocks:
            blocks = even
        if tiles % blocks:
            most = max(most, blocks * _COLUMNS * (2 + value // 2) * 8)
    return most


def _sum_kept(operators: list[tuple[int, ...]]) -> int:
    """Return the bytes of a pool that keeps each buffer and gives the smallest sufficient one (ggml_cuda_pool_leg)."""
    free: list[int] = []
    for requests in operators:
        taken = []
        for size in filter(None, requests):
            fitting = min((each for each in free if each >= size), default=None)
            if fitting is None:
                fitting = -(-int(_LOOK_AHEAD * size) // 256) * 256
            else:
                free.remove(fitting)
            taken.append(fitting)
        free += taken
    return sum(free)


def _copy_bytes(geometry: Geometry, tokens: int) -> int:
    """Return the bytes of the largest matrix as F16, with its batch in F16."""
    return max(2 * rows * (columns + tokens) for rows, columns in _list_matrices(geometry, head=False))
