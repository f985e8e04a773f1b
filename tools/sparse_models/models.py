"""The models by name: a geometry, and element types that bring its bytes close to a published file's."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from .geometry import Geometry, Hybrid, Shape, Value, gemma3_12b, gemma4_31b, llama_8b, qwen3_30b, windowed

WITHOUT_HEAD = "-nomtp"
"""End of a model's name when its MTP block is left out."""
_ALWAYS_F32 = re.compile(r"ssm_conv1d|ffn_gate_inp")
_FILLER = re.compile(r"ffn_(gate|up|down)(_exps)?\.weight")
"""Fillers, the matrices that make up most of a model: those of the experts or of the feed-forward blocks."""
_QWEN_HEADER_BYTES = 10_987_000
_GEMMA_HEADER_BYTES = 15_800_000
"""Bytes of the vocabulary and the rest of the header in the published files, rounded."""


@dataclass(frozen=True, slots=True)
class Model:
    """The contents of a GGUF header: metadata, keys without the prefix; each tensor's shape and element type."""

    architecture: str
    metadata: Mapping[str, Value]
    tensors: Mapping[str, tuple[Shape, str]]

    @property
    def tensor_bytes(self) -> int:
        """The size of all tensors' data in bytes."""
        return sum(n_bytes(shape, quant) for shape, quant in self.tensors.values())

    def without_head(self) -> Model:
        """Return the same model without its MTP block, as the repositories without MTP have it."""
        kept = self.metadata["block_count"]
        if not isinstance(kept, int) or self.metadata.get("nextn_predict_layers") != 1:
            raise ValueError(f"this {self.architecture} has no MTP block")
        metadata = {key: value for key, value in self.metadata.items() if key != "nextn_predict_layers"}
        block = f"blk.{kept - 1}."
        tensors = {name: tensor for name, tensor in self.tensors.items() if not name.startswith(block)}
        return Model(self.architecture, metadata | {"block_count": kept - 1}, tensors)


@dataclass(frozen=True, slots=True)
class Types:
    """The element types of the input embedding, of the output matrix, of the fillers, and of the other matrices.

    Fillers are matrices of the feed-forward blocks. Their type is `low`; with `data_bytes` some get `high` instead,
    down projections first as quantisers do, until the size of all data is closest to `data_bytes`.
    """

    embedding: str
    output: str
    other: str
    low: str
    high: str = ""
    data_bytes: int | None = None


def n_bytes(shape: Shape, quant: str) -> int:
    """Return the size of a tensor's data in bytes. Raises ValueError when its rows do not fill their blocks."""
    per_block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[quant]]
    if shape[0] % per_block:
        raise ValueError(f"rows of {shape[0]} elements do not fill blocks of {quant}")
    return math.prod(shape) // per_block * block_bytes


def assign_types(geometry: Geometry, types: Types) -> Model:
    """Return a model with the tensors of `geometry`, each with its element type."""
    named = {"token_embd.weight": types.embedding, "output.weight": types.output}
    tensors: dict[str, tuple[Shape, str]] = {}
    fillers: list[str] = []
    for name, shape in geometry.tensors.items():
        if len(shape) == 1 or _ALWAYS_F32.search(name):
            quant = "F32"
        elif _FILLER.search(name):
            quant = types.low
            fillers.append(name)
        else:
            quant = named.get(name, types.other)
        tensors[name] = shape, quant
    model = Model(geometry.architecture, geometry.metadata, tensors)
    if types.data_bytes is not None:
        missing = types.data_bytes - model.tensor_bytes
        for name in sorted(fillers, key=lambda name: "ffn_down" not in name):  # stable: the first blocks first
            shape, _ = tensors[name]
            more = n_bytes(shape, types.high) - n_bytes(shape, types.low)
            if missing >= more / 2:
                tensors[name] = shape, types.high
                missing -= more
    return model


_QWEN36_35B = Hybrid(40, 2_048, 16, 2, 4_096, 32, 512, experts=256).geometry
_QWEN36_27B = Hybrid(64, 5_120, 24, 4, 6_144, 48, 17_408).geometry
_QWEN35_9B = Hybrid(32, 4_096, 16, 4, 4_096, 32, 12_288).geometry

Recipe = tuple[Callable[[], Geometry], Types]


def _qwen(make: Callable[[], Geometry], file_bytes: int, embedding: str, other: str, low: str, high: str) -> Recipe:
    return make, Types(embedding, "Q6_K", other, low, high, file_bytes - _QWEN_HEADER_BYTES)


_RECIPES: Mapping[str, Recipe] = {
    # Unsloth's Qwen3.6-35B-A3B-MTP-GGUF, Qwen3.8-27B-GGUF, Qwen3.6-27B-MTP-GGUF and Qwen3.5-9B-MTP-GGUF: sizes of the
    # files. Engine logs of two of them show the type of the embedding by its size: 515.31 MiB is Q8_0, 521.0 Q3_K or
    # IQ3_S.
    "qwen35moe-35b-iq3_s": _qwen(_QWEN36_35B, 15_346_432_288, "Q8_0", "Q8_0", "IQ3_XXS", "IQ3_S"),
    "qwen35moe-35b-q3_k_xl": _qwen(_QWEN36_35B, 17_227_569_440, "Q8_0", "Q8_0", "Q3_K", "Q4_K"),
    "qwen35moe-35b-iq4_xs": _qwen(_QWEN36_35B, 18_209_036_576, "Q8_0", "Q8_0", "IQ3_S", "IQ4_XS"),
    "qwen35moe-35b-q4_k_m": _qwen(_QWEN36_35B, 22_663_387_424, "Q8_0", "Q8_0", "Q4_K", "Q5_K"),
    "qwen35-27b-q4_k_s": _qwen(_QWEN36_27B, 15_358_213_024, "Q3_K", "Q4_K", "IQ4_XS", "Q4_K"),
    "qwen35-27b-q4_k_m": _qwen(_QWEN36_27B, 17_106_773_120, "Q4_K", "Q5_K", "Q4_K", "Q5_K"),
    "qwen35-9b-q4_k_m": _qwen(_QWEN35_9B, 5_868_826_976, "Q4_K", "Q5_K", "Q4_K", "Q6_K"),
    # Unsloth's gemma-4-31B-it-GGUF, and the draft file beside it.
    "gemma4-31b-iq4_xs": (
        gemma4_31b,
        Types("Q6_K", "", "IQ4_XS", "IQ3_S", "IQ4_XS", 16_372_460_480 - _GEMMA_HEADER_BYTES),
    ),
    "gemma4-31b-draft-q8_0": (lambda: gemma4_31b(draft=True), Types("Q8_0", "", "Q8_0", "Q8_0")),
    # No published file has exactly these types; they are close to Q4_K_M.
    "llama-8b-q4_k": (llama_8b, Types("Q4_K", "Q6_K", "Q4_K", "Q4_K")),
    "qwen3moe-30b-q4_k": (qwen3_30b, Types("Q4_K", "Q6_K", "Q4_K", "Q4_K")),
    "gemma3-12b-q4_k": (gemma3_12b, Types("Q6_K", "", "Q4_K", "Q4_K")),
    # No published file: the windows of their architectures with few blocks.
    **{
        f"{architecture}-8b-q4_k": (partial(windowed, architecture), Types("Q4_K", "", "Q4_K", "Q4_K"))
        for architecture in ("cohere2", "gemma2", "llama4", "smallthinker")
    },
    "exaone4-64-layers-q4_k": (partial(windowed, "exaone4"), Types("Q4_K", "", "Q4_K", "Q4_K")),
    "exaone4-30-layers-q4_k": (partial(windowed, "exaone4", block_count=30), Types("Q4_K", "", "Q4_K", "Q4_K")),
}
NAMES: tuple[str, ...] = tuple(
    name
    for recipe in _RECIPES
    for name in ((recipe, recipe + WITHOUT_HEAD) if recipe.startswith("qwen35") else (recipe,))
)
"""Every name that `model` knows."""


@cache
def model(name: str) -> Model:
    """Return the model called `name`, one of NAMES. Raises ValueError for another."""
    if name not in NAMES:
        raise ValueError(f"{name} is none of {', '.join(NAMES)}")
    if name.endswith(WITHOUT_HEAD):
        return model(name.removesuffix(WITHOUT_HEAD)).without_head()
    make, types = _RECIPES[name]
    return assign_types(make(), types)
