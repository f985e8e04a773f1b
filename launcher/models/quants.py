"""Quantisations by name: the bits that a weight takes on average in a whole model's file."""

import re

BITS_PER_WEIGHT = {
    # Sizes of the files in presets/ over their parameters: dynamic quantisations (UD-) differ by 0.2 bits.
    "BF16": 16.0,
    "F16": 16.0,
    "Q8_K_XL": 9.2,
    "Q8_0": 8.5,
    "Q6_K_XL": 7.3,
    "Q6_K": 6.6,
    "Q5_K_XL": 5.75,
    "Q5_K_M": 5.7,
    "Q5_K_S": 5.5,
    "Q5_1": 6.0,
    "Q5_0": 5.5,
    "Q4_K_XL": 5.1,
    "Q4_K_L": 5.0,
    "Q4_K_M": 4.85,
    "Q4_K_S": 4.6,
    "Q4_1": 5.0,
    "Q4_0": 4.5,
    "IQ4_NL": 4.5,
    "IQ4_XS": 4.3,
    "MXFP4": 4.4,
    "NVFP4": 4.6,
    "Q3_K_XL": 4.0,
    "Q3_K_L": 4.1,
    "Q3_K_M": 3.9,
    "Q3_K_S": 3.5,
    "IQ3_M": 3.7,
    "IQ3_S": 3.5,
    "IQ3_XS": 3.3,
    "IQ3_XXS": 3.15,
    "Q2_K_XL": 2.95,
    "Q2_K": 2.8,
    "IQ2_M": 2.75,
    "IQ2_S": 2.6,
    "IQ2_XS": 2.45,
    "IQ2_XXS": 2.3,
    "IQ1_M": 2.0,
    "IQ1_S": 1.8,
}
_NAME = re.compile("|".join(sorted(BITS_PER_WEIGHT, key=len, reverse=True)))


def bits_per_weight(quant: str) -> float | None:
    """Return the average bits of a weight in files of this quantisation, or None if its name is not known."""
    found = _NAME.search(quant.upper())
    return BITS_PER_WEIGHT[found[0]] if found else None
