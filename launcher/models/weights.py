"""Splits a model's weights between GPU and host: by the tensors in its header, else by rules of its family."""

import re
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from operator import attrgetter

from launcher.base.errors import GeometryUnknown
from launcher.base.messages import message
from launcher.models.catalogue import ModelEntry, ModelFile
from launcher.models.file_size import expect_size
from launcher.models.geometry import Geometry
from launcher.models.gguf import QUANTS_BY_NAME, GgufHeader, GgufModel, Tensor

_MIB = 2**20
_HEADER_BYTES_PER_TOKEN = 44
"""Bytes of header per token of the vocabulary: 10.5 MiB for the 248,320 tokens of Qwen3.5 to 3.8."""
_USUAL_EMBEDDING = "Q4_K"
_EMBEDDING_BY_BITS = {1: "Q2_K", 2: "Q2_K", 3: "Q3_K", 5: "Q5_K", 6: "Q6_K", 8: "Q8_0", 16: "BF16"}
"""Type of the input embedding by the file's bits per weight, as llama.cpp's own quantiser chooses it
(src/llama-quant.cpp); publishers may choose others."""
_FLOAT_BITS = 16
_REPACKED = frozenset({"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"})
"""Types that the x86 backend repacks for multiplication, as a copy of the tensor (ggml-cpu/repack.cpp)."""
_OUTPUT_FIRST = frozenset({"gemma3n", "gemma4"})
"""Architectures that create the output tensor before the tied embedding, and so load both (src/models)."""
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_HOST_ONLY = frozenset({"token_embd.weight", "per_layer_token_embd.weight"})
"""Tensors of the input layer, which stay in host memory (src/llama-arch.cpp: LLM_TENSOR_LAYER_INPUT)."""
_EMBEDDING_DOUBT = 0.4
"""Share by which an input embedding of unknown type may be off: Q3_K to Q6_K around Q4_K."""
_EXPERTS_DOUBT = 0.04
"""Error of the experts' size, at most, as a share of the weights on the device, where only their number of parameters
is known: they have fewer bits per weight than the rest of a file (5 % fewer in Qwen3.6-35B-A3B)."""
_FLOATS = frozenset({"F32", "F16", "BF16"})
"""Types of matrices that CUDA multiplies by cuBLAS once a batch is large."""
_NO_PRODUCT = re.compile(r"ssm_conv1d|shortconv|rope_")
"""Tensors of several dimensions that no operator multiplies as matrices."""
_EXPERT = re.compile(r"ffn_(up|down|gate|gate_up)_(?:ch)?exps\.")
"""Tensors that --n-cpu-moe moves to the host (llama.cpp, common/common.h: LLM_FFN_EXPS_REGEX)."""


Matrices = tuple[int, int, int]
"""Bytes of the gate, up and down matrices of a layer's routed experts; a fused gate-and-up matrix counts as gate."""


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes of one layer: `matrices` of its routed experts, and `rest`."""

    rest: int
    matrices: Matrices = (0, 0, 0)

    @property
    def experts(self) -> int:
        """Bytes of the routed experts."""
        return sum(self.matrices)


_REST, _MATRICES = attrgetter("rest"), attrgetter("matrices")


@dataclass(frozen=True)
class Weights:
    """Sizes of a model's tensors, in bytes.

    `embedding` is the input embedding, which stays on the host; `output` are the tensors outside the blocks that go to
    the device. If `exact`, they were read from the header; else they follow from the family's rules, and the device's
    part may be off by the share `tolerance`. `shared` bytes of `output` are the same memory as the embedding if the
    model runs on the processor. `floats` is whether a matrix in a block is stored as F32, F16 or BF16, `float_experts`
    whether routed experts are.
    """

    embedding: int
    output: int
    blocks: tuple[Block, ...]
    heads: tuple[Block, ...]
    exact: bool
    shared: int = 0
    tolerance: float = 0.0
    floats: bool = False
    float_experts: bool = False

    @cached_property
    def _rest_sums(self) -> tuple[int, int]:
        """Bytes that are not routed experts: of the trunk's blocks, and with the heads."""
        trunk = sum(map(_REST, self.blocks))
        return trunk, trunk + sum(map(_REST, self.heads))

    @cached_property
    def _expert_sums(self) -> tuple[int, ...]:
        """Bytes of the routed experts of the first 0, 1, 2, ... blocks, where the heads come after the trunk."""
        return tuple(accumulate(map(sum, map(_MATRICES, self.blocks + self.heads)), initial=0))

    def sum_experts(self, begin: int = 0, end: int | None = None, *, mtp: bool = False) -> int:
        """Return the bytes of the routed experts of blocks `begin` to `end`; `mtp` counts the heads as blocks."""
        sums, count = self._expert_sums, len(self.blocks) + (len(self.heads) if mtp else 0)
        last = count if end is None or end > count else end
        return sums[last] - sums[begin if begin < count else count]

    def sum_rest(self, *, mtp: bool = False) -> int:
        """Return the bytes of all blocks without their routed experts; `mtp` counts the heads as blocks."""
        return self._rest_sums[mtp]

    def on_device(self, n_cpu_moe: int, *, mtp: bool) -> int:
        """Return the bytes on the GPU if all layers are there, except the experts of the first `n_cpu_moe`.

        The head's tensors are loaded only with MTP (llama.cpp, src/models/qwen35moe.cpp: load_mtp).
        """
        return self.output + self.sum_rest(mtp=mtp) + self.sum_experts(n_cpu_moe, mtp=mtp)

    def on_host(self, n_cpu_moe: int, *, mtp: bool) -> int:
        """Return the bytes on the host: the input embedding and the experts that are not on the GPU."""
        return self.embedding + self.sum_experts(0, n_cpu_moe, mtp=mtp)

    def layers_for(self, mib: float) -> int:
        """Return the least --n-cpu-moe that moves `mib` MiB of routed experts, more than all layers if none does."""
        return bisect_left(self._expert_sums, mib * _MIB)

    def expert_layers(self, *, mtp: bool) -> int:
        """Return the least --n-cpu-moe that moves all routed experts: one more than the last layer that has any."""
        count = len(self.blocks) + (len(self.heads) if mtp else 0)
        return bisect_left(self._expert_sums, self._expert_sums[count])


def read_weights(model: GgufModel | GgufHeader, geometry: Geometry) -> Weights:
    """Return the weights by the tensors in a model's header.

    Raises GeometryUnknown if a tensor has an unknown type, or if there are fewer tensors than layers.
    """
    rest: dict[int, int] = defaultdict(int)
    experts: dict[tuple[int, str], int] = defaultdict(int)
    embedding = logits = output = shared = 0
    tied = True
    floats = float_experts = False
    for tensor in model.tensors:
        if tensor.n_bytes is None:
            raise GeometryUnknown(
                message(
                    "{name} stores {tensor} as {quant}, which this program does not support.",
                    name=model.name,
                    tensor=tensor.name,
                    quant=tensor.quant,
                )
            )
        block = _BLOCK.fullmatch(tensor.name)
        if block:
            index, expert = int(block[1]), _EXPERT.match(block[2])
            if tensor.quant in _FLOATS and _is_matrix(tensor):
                floats, float_experts = floats or not expert, float_experts or bool(expert)
            if expert:
                experts[index, expert[1].removesuffix("_up")] += tensor.n_bytes
            else:
                rest[index] += tensor.n_bytes
        elif tensor.name in _HOST_ONLY:
            embedding += tensor.n_bytes
            if tensor.name == "token_embd.weight":
                logits = tensor.n_bytes
                shared = 0 if tensor.quant in _REPACKED or geometry.architecture in _OUTPUT_FIRST else logits
        else:
            tied = tied and tensor.name != "output.weight"
            output += tensor.n_bytes
    if tied:  # the embedding is then copied to the device to make the logits (src/llama-model.cpp)
        output += logits
    count = geometry.layers + geometry.mtp_layers
    if count > len(model.tensors):
        raise GeometryUnknown(
            message(
                "{name} lists {count:,} layers but has {tensors:,} tensors.",
                name=model.name,
                count=count,
                tensors=len(model.tensors),
            )
        )
    blocks = tuple(
        Block(rest[index], (experts[index, "gate"], experts[index, "up"], experts[index, "down"]))
        for index in range(count)
    )
    trunk, heads = blocks[: geometry.layers], blocks[geometry.layers :]
    return Weights(
        embedding,
        output,
        trunk,
        heads,
        exact=True,
        shared=shared if tied else 0,
        floats=floats,
        float_experts=float_experts,
    )


def _is_matrix(tensor: Tensor) -> bool:
    return min((*tensor.dimensions, 1)[:2]) > 1 and not _NO_PRODUCT.search(tensor.name)


def weights_by_rules(entry: ModelEntry, file: ModelFile, geometry: Geometry) -> Weights | None:
    """Return the weights by the catalogue's rules, or None if the size of the file is unknown.

    All blocks are taken to be equal: the file's size without metadata, embedding and MTP head, split evenly.
    """
    size, rules = expect_size(entry, file), entry.weights
    if size is None:
        return None
    sized = file if file.size_bytes == size.size_bytes else replace(file, size_bytes=size.size_bytes)
    header = _HEADER_BYTES_PER_TOKEN * geometry.vocabulary
    if rules and rules.header_mib is not None:
        header = int(rules.header_mib * _MIB)
    embedding, known_type = _embedding_bytes(entry, file, geometry)
    host_tables = _host_table_bytes(entry, size.size_bytes - header, geometry)
    device = total = max(size.size_bytes - header - embedding - host_tables, 0)
    measured = entry.expert_layer_mib(sized)
    if measured:
        experts = int(measured * _MIB)
    else:  # `parameters_b` counts the host's tables, unless the catalogue lists them
        listed_tables = host_tables if rules and rules.host_mib else 0
        experts = _experts_by_parameters(entry, size.size_bytes - header - listed_tables, geometry)
    matrices = (experts // 3,) * 3
    heads: tuple[Block, ...] = ()
    if entry.has_head(file):
        known, count = entry.mtp_block_mib(sized), max(geometry.mtp_layers, 1)
        head = device // (geometry.layers + count) if known is None else int(known * _MIB)
        # A head of known size is dense (MiMo-V2.5) unless the rules count its block among those with experts (Qwen3.6).
        routed = matrices if known is None or (rules and rules.expert_blocks) else (0, 0, 0)
        head = max(head, sum(routed))
        heads = (Block(head - sum(routed), routed),) * count
        device -= count * head
    device -= geometry.expert_layers * sum(matrices)
    rest = max(device, 0) // (geometry.layers + 1)  # the output tensors are taken to be as large as a layer's rest
    output = max(device, 0) - geometry.layers * rest
    tied = rules is not None and rules.tied_output
    tolerance = size.tolerance + (0 if measured or not experts else _EXPERTS_DOUBT)
    tolerance += 0 if known_type or not total else _EMBEDDING_DOUBT * embedding / total
    return Weights(
        embedding + host_tables,
        output + (embedding if tied else 0),
        _rule_blocks(geometry, rest, matrices),
        heads,
        exact=False,
        shared=embedding if tied and geometry.architecture not in _OUTPUT_FIRST else 0,
        tolerance=tolerance,
        # llama.cpp's quantiser leaves routers and the projections of Gemma's layers as they are (src/llama-quant.cpp).
        floats=bool(geometry.experts or geometry.per_layer_input) or (file.bits or 0) >= _FLOAT_BITS,
        float_experts=bool(geometry.experts) and (file.bits or 0) >= _FLOAT_BITS,
    )


def _host_table_bytes(entry: ModelEntry, tensor_bytes: int, geometry: Geometry) -> int:
    """Return the bytes of tables that stay in host memory besides the input embedding: listed, or by parameters."""
    if entry.weights and entry.weights.host_mib is not None:
        return int(entry.weights.host_mib * _MIB)
    per_layer = geometry.vocabulary * geometry.per_layer_input * geometry.layers
    return int(tensor_bytes * per_layer / (entry.parameters_b * 1e9)) if entry.parameters_b else 0


def _experts_by_parameters(entry: ModelEntry, tensor_bytes: int, geometry: Geometry) -> int:
    """Return the bytes of one layer's routed experts, if all parameters have the same number of bits."""
    if not geometry.experts or not entry.parameters_b:
        return 0
    return int(tensor_bytes * min(geometry.expert_parameters / (entry.parameters_b * 1e9), 1))


def _rule_blocks(geometry: Geometry, rest: int, matrices: Matrices) -> tuple[Block, ...]:
    """Return the trunk's blocks.

    Those with experts follow the leading dense ones. If more blocks are without experts, the experts' blocks are spread
    evenly.
    """
    count, routed_count = geometry.layers, geometry.expert_layers
    plain = Block(rest)
    if not routed_count:
        return (plain,) * count
    routed = Block(rest, matrices)
    if routed_count + geometry.leading_dense == count:
        return (plain,) * geometry.leading_dense + (routed,) * routed_count
    starts = [index * routed_count // count for index in range(count + 1)]
    return tuple(routed if after > before else plain for before, after in pairwise(starts))


def _embedding_bytes(entry: ModelEntry, file: ModelFile, geometry: Geometry) -> tuple[int, bool]:
    """Return the bytes of the input embedding, and whether its type is known.

    The type is the file's own, or that of most files. Without either, llama.cpp's type for a file of as many bits per
    weight is assumed.
    """
    given = file.token_embd_type
    if given is None:
        known = [each.token_embd_type for each in entry.files if each.token_embd_type]
        given = next((name for name in known if known.count(name) > max(1, len(known) / 2)), None)
    wanted = given or _EMBEDDING_BY_BITS.get(file.bits or 0, _USUAL_EMBEDDING)
    quant = QUANTS_BY_NAME.get(wanted.upper()) or QUANTS_BY_NAME[_USUAL_EMBEDDING]
    return quant.n_bytes(geometry.vocabulary * geometry.hidden), given is not None
