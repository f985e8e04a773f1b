"""Estimates the size of a model file that nobody has listed, from its quantisation and the model's parameters."""

from functools import cache
from types import MappingProxyType
from typing import NamedTuple

from launcher.models.catalogue import ModelEntry, ModelFile, bits_by_name

_ROUNDED = 0.02
"""Share by which a rounded size, such as "about 4.30 GB", may be off."""
_USUAL_BITS = 4.85
"""Bits per weight taken for a quantisation whose name says nothing."""
_PREFIXES = ("UD", "AD", "XL")
"""Prefixes of publishers' own recipes."""
_BITS_PER_WEIGHT = MappingProxyType(
    {
        # Least, usual and most bits per parameter in the 407 files of 18 repositories of models above 8B that are
        # listed with a BF16 file (hub metadata of 2026-08-22); those of gpt-oss, which keep MXFP4 in every
        # quantisation, and of Muse Glimmer are left out. A publisher's own recipe ("UD-") moves within the range.
        "Q1_0": (1.90, 2.03, 2.05),
        "IQ1_S": (1.80, 2.26, 2.30),
        "IQ1_M": (1.94, 2.32, 2.45),
        "IQ2_XXS": (2.12, 2.49, 3.09),
        "IQ2_M": (2.48, 2.72, 3.25),
        "Q2_K_L": (2.91, 2.94, 3.07),
        "Q2_K_XL": (2.66, 3.01, 3.67),
        "IQ3_XXS": (2.83, 3.19, 3.58),
        "IQ3_S": (2.95, 3.15, 3.52),
        "Q3_K_S": (3.32, 3.47, 3.85),
        "Q3_K_M": (3.58, 3.82, 4.17),
        "Q3_K_XL": (3.55, 3.85, 4.51),
        "IQ4_XS": (3.83, 4.20, 4.61),
        "IQ4_NL": (3.91, 4.43, 4.79),
        "Q4_0": (4.36, 4.55, 5.10),
        "Q4_K_S": (4.38, 4.60, 5.13),
        "Q4_K_M": (4.61, 4.93, 5.28),
        "Q4_K_XL": (4.60, 4.96, 5.32),
        "MXFP4_MOE": (4.79, 4.82, 5.15),
        "Q5_K_S": (5.31, 5.58, 5.87),
        "Q5_K_M": (5.45, 5.87, 6.59),
        "Q5_K_XL": (5.57, 5.96, 6.61),
        "Q6_K_XL": (6.82, 7.26, 7.82),
        "Q8_0": (8.50, 8.50, 8.76),
        "Q8_K_XL": (8.51, 9.17, 11.59),
        "F16": (16.00, 16.00, 16.10),
        "BF16": (16.00, 16.00, 16.10),
        # Of the plain Q6_K none is listed: all its tensors have 6.56 bits, up to 7 % more with a larger output.
        "Q6_K": (6.50, 6.57, 7.05),
    }
)


class ExpectedSize(NamedTuple):
    """The expected size of a file in bytes. `tolerance` is the share by which it may be off, 0.0 for a listed size."""

    size_bytes: int
    tolerance: float = 0.0


def expect_size(entry: ModelEntry, file: ModelFile) -> ExpectedSize | None:
    """Return the size of a file: listed, else rounded, else by parameters and bits per weight; None if unknown."""
    if file.size_bytes is not None:
        return ExpectedSize(file.size_bytes)
    if file.about_bytes is not None:
        return ExpectedSize(file.about_bytes, _ROUNDED)
    bits = bits_per_weight(file.quant)
    if bits is None or entry.parameters_b is None:
        return None
    least, usual, most = bits
    size = entry.parameters_b * 1e9 * usual / 8
    return ExpectedSize(int(size), max(most - usual, usual - least) / usual)


@cache
def bits_per_weight(quant: str) -> tuple[float, float, float] | None:
    """Return the least, usual and most bits per parameter of a quantisation; None if its name says nothing."""
    name = quant.upper()
    publisher, dash, rest = name.partition("-")
    if dash and publisher in _PREFIXES:
        name = rest
    if name in _BITS_PER_WEIGHT:
        return _BITS_PER_WEIGHT[name]
    bits = bits_by_name(quant)
    return None if bits is None else (bits, bits + 0.6, bits + 1.4)


def usual_bits(quant: str) -> float:
    """Return the usual bits per weight of a quantisation, by its name."""
    bits = bits_per_weight(quant)
    return bits[1] if bits else _USUAL_BITS
