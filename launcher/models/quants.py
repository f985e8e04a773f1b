"""The element types of tensors: how many bytes a row takes."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quant:
    """An element type: `per_block` elements are kept together in `block_bytes` bytes."""

    name: str
    per_block: int
    block_bytes: int

    def n_bytes(self, elements: int) -> int:
        """Return the size in bytes of `elements` elements, which fill their blocks."""
        return elements // self.per_block * self.block_bytes


QUANTS: Mapping[int, Quant] = {
    # By ggml's number of the type. Sources: enum ggml_type in ggml.h, block layouts in ggml-common.h (build 11434).
    0: Quant("F32", 1, 4),
    1: Quant("F16", 1, 2),
    2: Quant("Q4_0", 32, 18),
    3: Quant("Q4_1", 32, 20),
    6: Quant("Q5_0", 32, 22),
    7: Quant("Q5_1", 32, 24),
    8: Quant("Q8_0", 32, 34),
    9: Quant("Q8_1", 32, 36),
    10: Quant("Q2_K", 256, 84),
    11: Quant("Q3_K", 256, 110),
    12: Quant("Q4_K", 256, 144),
    13: Quant("Q5_K", 256, 176),
    14: Quant("Q6_K", 256, 210),
    15: Quant("Q8_K", 256, 292),
    16: Quant("IQ2_XXS", 256, 66),
    17: Quant("IQ2_XS", 256, 74),
    18: Quant("IQ3_XXS", 256, 98),
    19: Quant("IQ1_S", 256, 50),
    20: Quant("IQ4_NL", 32, 18),
    21: Quant("IQ3_S", 256, 110),
    22: Quant("IQ2_S", 256, 82),
    23: Quant("IQ4_XS", 256, 136),
    24: Quant("I8", 1, 1),
    25: Quant("I16", 1, 2),
    26: Quant("I32", 1, 4),
    27: Quant("I64", 1, 8),
    28: Quant("F64", 1, 8),
    29: Quant("IQ1_M", 256, 56),
    30: Quant("BF16", 1, 2),
    34: Quant("TQ1_0", 256, 54),
    35: Quant("TQ2_0", 256, 66),
    39: Quant("MXFP4", 32, 17),
    40: Quant("NVFP4", 64, 36),
    41: Quant("Q1_0", 128, 18),
    42: Quant("Q2_0", 64, 18),
}

QUANTS_BY_NAME: Mapping[str, Quant] = {quant.name: quant for quant in QUANTS.values()}
