"""Amounts as people write them on a command line, for argparse: 128K tokens, 16GB of memory."""

import argparse
import re

_AMOUNT = re.compile(r"(\d{1,12}|\d{1,3}(?:,\d{3}){1,3}|\d{0,12}\.\d{1,12})\s*([a-z]*)", re.IGNORECASE)
_TOKENS = {"": 1, "K": 2**10, "M": 2**20}
_MIB = {"M": 1, "MB": 1, "MIB": 1, "G": 1_024, "GB": 1_024, "GIB": 1_024, "T": 2**20, "TB": 2**20, "TIB": 2**20}
"""Memory is sold in powers of two, whatever it is called: a card of 16 GB has 16 GiB."""


def tokens(text: str) -> int:
    """Read a number of tokens, K for 1,024 of them: 32768, 128K."""
    found = _amount(text, _TOKENS)
    if found is None or found % 1:
        raise argparse.ArgumentTypeError(f'"{text}" is not a number of tokens; write it like 32768 or 32K')
    return int(found)


def gib(text: str) -> float:
    """Read an amount of memory as GiB, which are also meant where no unit is given: 16, 16GB, 16384MiB."""
    found = _amount(text, _MIB | {"": 1_024})
    if found is None:
        raise argparse.ArgumentTypeError(f'"{text}" is not an amount of memory; write it like 16 or 16GB')
    return found / 1_024


def mib(text: str) -> int:
    """Read an amount of memory as whole MiB, which are also meant where no unit is given: 15000, 15000MiB, 14.5GB."""
    found = _amount(text, _MIB | {"": 1})
    if found is None:
        raise argparse.ArgumentTypeError(f'"{text}" is not an amount of memory; write it like 15000 or 14.5GB')
    return int(found)


def workers(text: str) -> tuple[str, ...]:
    """Read RPC workers with commas between: 192.168.1.20:50052,192.168.1.21:50052."""
    return tuple(word.strip() for word in text.split(","))


def _amount(text: str, units: dict[str, int]) -> float | None:
    """Return the number times its unit; None when it is none. A sign is left to the range checks."""
    sign = -1 if text.strip().startswith("-") else 1
    found = _AMOUNT.fullmatch(text.strip().removeprefix("-"))
    factor = units.get(found[2].upper()) if found else None
    if found is None or factor is None:
        return None
    return sign * float(found[1].replace(",", "")) * factor
