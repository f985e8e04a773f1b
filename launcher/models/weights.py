"""Where a model's weights go: tensor by tensor from its header, or by a family's rules until that is read."""

import re
from collections import defaultdict
from dataclasses import dataclass

from launcher.base.errors import GeometryUnknown
from launcher.models.catalogue import ModelEntry, ModelFile
from launcher.models.geometry import Geometry
from launcher.models.gguf_header import GgufHeader, GgufModel
from launcher.models.quants import QUANTS_BY_NAME

_MIB = 2**20
_HEADER_BYTES_PER_TOKEN = 44
"""Of metadata, nearly all of it vocabulary: 10.5 MiB for the 248,320 tokens of Qwen3.5 to 3.8."""
_USUAL_EMBEDDING = "Q4_K"
_EMBEDDING_BY_BITS = {1: "Q2_K", 2: "Q2_K", 3: "Q3_K", 5: "Q5_K", 6: "Q6_K", 8: "Q8_0", 16: "BF16"}
"""What llama.cpp's own quantiser gives the input embedding (src/llama-quant.cpp); publishers differ."""
_REPACKED = frozenset({"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"})
"""What an x86 processor's backend keeps in another order to multiply by (ggml-cpu/repack.cpp)."""
_OUTPUT_FIRST = frozenset({"gemma3n", "gemma4"})
"""Models that ask for their output before the embedding it is made of, and so get both (src/models)."""
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_EXPERT = re.compile(r"ffn_(up|down|gate|gate_up)_(?:ch)?exps\.")
"""What --n-cpu-moe moves (llama.cpp, common/common.h: LLM_FFN_EXPS_REGEX)."""


Matrices = tuple[int, int, int]
"""Bytes of a layer's routed experts: of the gate, up and down matrices; of the first two in one they are the gate's."""


@dataclass(frozen=True, slots=True)
class Block:
    """One layer's bytes: its routed experts' matrices, and all else."""

    rest: int
    matrices: Matrices = (0, 0, 0)

    @property
    def experts(self) -> int:
        """Bytes of its routed experts."""
        return sum(self.matrices)


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's tensors in bytes.

    `embedding` is the input embedding, which stays on the host; `output` is what lies beside the blocks and goes to the
    device with them. `exact` when the header was read, else the family's rules stand in. `shared` bytes of `output` are
    the embedding itself where both lie in a processor's memory.
    """

    embedding: int
    output: int
    blocks: tuple[Block, ...]
    heads: tuple[Block, ...]
    exact: bool
    shared: int = 0

    def on_device(self, n_cpu_moe: int, *, mtp: bool) -> int:
        """Bytes on the GPU with all layers there but the experts of the first `n_cpu_moe`.

        The head's tensors are loaded with MTP only (llama.cpp, src/models/qwen35moe.cpp: load_mtp).
        """
        blocks = self.blocks + (self.heads if mtp else ())
        kept = sum(block.rest for block in blocks) + sum(block.experts for block in blocks[n_cpu_moe:])
        return self.output + kept

    def on_host(self, n_cpu_moe: int, *, mtp: bool) -> int:
        """Bytes on the host: the input embedding and the experts that are not on the GPU."""
        blocks = self.blocks + (self.heads if mtp else ())
        return self.embedding + sum(block.experts for block in blocks[:n_cpu_moe])

    def expert_layers(self, *, mtp: bool) -> int:
        """How many layers have routed experts: the most that --n-cpu-moe can move."""
        return sum(1 for block in self.blocks + (self.heads if mtp else ()) if block.experts)


def weights_of(model: GgufModel | GgufHeader, geometry: Geometry) -> Weights:
    """Return the weights as the header states them.

    Raises GeometryUnknown when a tensor's type is not known, or there are fewer tensors than layers.
    """
    rest: dict[int, int] = defaultdict(int)
    experts: dict[tuple[int, str], int] = defaultdict(int)
    embedding = output = shared = 0
    tied = True
    for tensor in model.tensors:
        if tensor.n_bytes is None:
            raise GeometryUnknown(f"{model.name} holds {tensor.name} as {tensor.quant}, which is not known here.")
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
        raise GeometryUnknown(f"{model.name} names {count:,} layers and has {len(model.tensors):,} tensors.")
    blocks = tuple(
        Block(rest[index], (experts[index, "gate"], experts[index, "up"], experts[index, "down"]))
        for index in range(count)
    )
    trunk, heads = blocks[: geometry.layers], blocks[geometry.layers :]
    return Weights(embedding, output, trunk, heads, exact=True, shared=shared if tied else 0)


def weights_by_rules(entry: ModelEntry, file: ModelFile, geometry: Geometry) -> Weights | None:
    """Return the weights as the catalogue's rules put them, or None while the file's size is unknown.

    All blocks are taken as equal: together they are the file, less its metadata, the embedding and the head.
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
    """By the file's own type, else the one that most known files of the family have, else by the name's bits."""
    known = [each.token_embd_type for each in entry.files if each.token_embd_type]
    usual = next((name for name in known if known.count(name) > max(1, len(known) / 2)), None)
    wanted = file.token_embd_type or usual or _EMBEDDING_BY_BITS.get(file.bits or 0, _USUAL_EMBEDDING)
    quant = QUANTS_BY_NAME.get(wanted.upper()) or QUANTS_BY_NAME[_USUAL_EMBEDDING]
    return quant.n_bytes(geometry.vocabulary * geometry.hidden)
