"""Amounts as people write them: 128K tokens, 16GB of memory."""

import re
from collections.abc import Mapping

TOKENS = {"": 1, "K": 2**10, "M": 2**20}
"""The units of a number of tokens, for `amount`."""
_AMOUNT = re.compile(r"(\d{1,12}|\d{1,3}(?:,\d{3}){1,3}|\d{0,12}\.\d{1,12})\s*([a-z]*)", re.IGNORECASE | re.ASCII)


def amount(text: str, units: Mapping[str, int]) -> float | None:
    """Return the number times its unit, one of `units` in capitals; None when it is none.

    A sign is left to the range checks.
    """
    sign = -1 if text.strip().startswith("-") else 1
    found = _AMOUNT.fullmatch(text.strip().removeprefix("-"))
    factor = units.get(found[2].upper()) if found else None
    if found is None or factor is None:
        return None
    return sign * float(found[1].replace(",", "")) * factor
