"""Splits a model's weights between GPU and host: by the tensors in its header, else by rules of its family."""

import re
from collections import defaultdict
from dataclasses import dataclass

from launcher.base.errors import GeometryUnknown
from launcher.base.messages import message
from launcher.models.catalogue import ModelEntry, ModelFile
from launcher.models.geometry import Geometry
from launcher.models.gguf import QUANTS_BY_NAME, GgufHeader, GgufModel

_MIB = 2**20
_HEADER_BYTES_PER_TOKEN = 44
"""Bytes of header per token of the vocabulary: 10.5 MiB for the 248,320 tokens of Qwen3.5 to 3.8."""
_USUAL_EMBEDDING = "Q4_K"
_EMBEDDING_BY_BITS = {1: "Q2_K", 2: "Q2_K", 3: "Q3_K", 5: "Q5_K", 6: "Q6_K", 8: "Q8_0", 16: "BF16"}
"""Type of the input embedding by llama.cpp's own quantiser (src/llama-quant.cpp); publishers may choose others."""
_REPACKED = frozenset({"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"})
"""Types that the x86 backend repacks for multiplication, as a copy of the tensor (ggml-cpu/repack.cpp)."""
_OUTPUT_FIRST = frozenset({"gemma3n", "gemma4"})
"""Architectures that create the output tensor before the tied embedding, and so load both (src/models)."""
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
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


@dataclass(frozen=True, slots=True)
class Weights:
    """Sizes of a model's tensors, in bytes.

    `embedding` is the input embedding, which stays on the host; `output` are the tensors outside the blocks that go to
    the device. `exact`: read from the header, not computed by the family's rules. `shared` bytes of `output` are the
    same memory as the embedding if the model runs on the processor.
    """

    embedding: int
    output: int
    blocks: tuple[Block, ...]
    heads: tuple[Block, ...]
    exact: bool
    shared: int = 0

    def on_device(self, n_cpu_moe: int, *, mtp: bool) -> int:
        """Return the bytes on the GPU if all layers are there, except the experts of the first `n_cpu_moe`.

        The head's tensors are loaded only with MTP (llama.cpp, src/models/qwen35moe.cpp: load_mtp).
        """
        blocks = self.blocks + (self.heads if mtp else ())
        kept = sum(block.rest for block in blocks) + sum(block.experts for block in blocks[n_cpu_moe:])
        return self.output + kept

    def on_host(self, n_cpu_moe: int, *, mtp: bool) -> int:
        """Return the bytes on the host: the input embedding and the experts that are not on the GPU."""
        blocks = self.blocks + (self.heads if mtp else ())
        return self.embedding + sum(block.experts for block in blocks[:n_cpu_moe])

    def expert_layers(self, *, mtp: bool) -> int:
        """Return the number of layers with routed experts: the most that --n-cpu-moe can move."""
        return sum(1 for block in self.blocks + (self.heads if mtp else ()) if block.experts)


def read_weights(model: GgufModel | GgufHeader, geometry: Geometry) -> Weights:
    """Return the weights by the tensors in a model's header.

    Raises GeometryUnknown if a tensor has an unknown type, or if there are fewer tensors than layers.
    """
    rest: dict[int, int] = defaultdict(int)
    experts: dict[tuple[int, str], int] = defaultdict(int)
    embedding = output = shared = 0
    tied = True
    for tensor in model.tensors:
        if tensor.n_bytes is None:
            raise GeometryUnknown(
                message(
                    "{name} stores {name_2} as {quant}, which this program does not support.",
                    name=model.name,
                    name_2=tensor.name,
                    quant=tensor.quant,
                )
            )
        block = _BLOCK.fullmatch(tensor.name)
        if block:
            index, expert = int(block[1]), _EXPERT.match(block[2])
            if expert:
                experts[index, expert[1].removesuffix("_up")] += tensor.n_bytes
            else:
                rest[index] += tensor.n_bytes
        elif tensor.name == "token_embd.weight":
            embedding = tensor.n_bytes
            shared = 0 if tensor.quant in _REPACKED or geometry.architecture in _OUTPUT_FIRST else embedding
        else:
            tied = tied and tensor.name != "output.weight"
            output += tensor.n_bytes
    if tied:  # the embedding is then copied to the device to make the logits (src/llama-model.cpp)
        output += embedding
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
    return Weights(embedding, output, trunk, heads, exact=True, shared=shared if tied else 0)


def weights_by_rules(entry: ModelEntry, file: ModelFile, geometry: Geometry) -> Weights | None:
    """Return the weights by the catalogue's rules, or None if the file's size is unknown.

    All blocks are taken to be equal: the file's size without metadata, embedding and MTP head, split evenly.
    """
    total, rules = file.size_bytes, entry.weights
    if total is None:
        return None
    header = int(rules.header_mib * _MIB) if rules else _HEADER_BYTES_PER_TOKEN * geometry.vocabulary
    embedding = _embedding_bytes(entry, file, geometry)
    device = total - header - embedding
    matrices = (int((entry.expert_layer_mib(file) or 0) * _MIB) // 3,) * 3
    heads: tuple[Block, ...] = ()
    if entry.has_head(file):
        known = entry.mtp_block_mib(file)
        head = device // (geometry.layers + 1) if known is None else int(known * _MIB)
        heads = (Block(head - sum(matrices), matrices),)
        device -= head
    device -= geometry.layers * sum(matrices)
    rest = device // (geometry.layers + 1)
    output = device - geometry.layers * rest
    return Weights(embedding, output, (Block(rest, matrices),) * geometry.layers, heads, exact=False)


def _embedding_bytes(entry: ModelEntry, file: ModelFile, geometry: Geometry) -> int:
    """Return the bytes of the input embedding: by the file's own type, else that of most files, else by the bits."""
    known = [each.token_embd_type for each in entry.files if each.token_embd_type]
    usual = next((name for name in known if known.count(name) > max(1, len(known) / 2)), None)
    wanted = file.token_embd_type or usual or _EMBEDDING_BY_BITS.get(file.bits or 0, _USUAL_EMBEDDING)
    quant = QUANTS_BY_NAME.get(wanted.upper()) or QUANTS_BY_NAME[_USUAL_EMBEDDING]
    return quant.n_bytes(geometry.vocabulary * geometry.hidden)
