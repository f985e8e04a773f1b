"""Amounts as people write them on a command line, for argparse: 128K tokens, 16GB of memory, ctx=64K."""

import argparse

from launcher.base.amounts import TOKENS, amount
from launcher.cli.output import finite

_MIB = {"M": 1, "MB": 1, "MIB": 1, "G": 1_024, "GB": 1_024, "GIB": 1_024, "T": 2**20, "TB": 2**20, "TIB": 2**20}
"""Memory is sold in powers of two, whatever it is called: a card of 16 GB has 16 GiB."""


def tokens(text: str) -> int:
    """Read a number of tokens, K for 1,024 of them: 32768, 128K."""
    found = amount(text, TOKENS)
    if found is None or found % 1:
        raise argparse.ArgumentTypeError(f'"{text}" is not a number of tokens; write it like 32768 or 32K')
    return int(found)


def gib(text: str) -> float:
    """Read an amount of memory as GiB, which are also meant where no unit is given: 16, 16GB, 16384MiB."""
    found = amount(text, _MIB | {"": 1_024})
    if found is None:
        raise argparse.ArgumentTypeError(f'"{text}" is not an amount of memory; write it like 16 or 16GB')
    return found / 1_024


def mib(text: str) -> int:
    """Read an amount of memory as whole MiB, which are also meant where no unit is given: 15000, 15000MiB, 14.5GB."""
    found = amount(text, _MIB | {"": 1})
    if found is None:
        raise argparse.ArgumentTypeError(f'"{text}" is not an amount of memory; write it like 15000 or 14.5GB')
    return int(found)


def workers(text: str) -> tuple[str, ...]:
    """Read RPC workers with commas between: 192.168.1.20:50052,192.168.1.21:50052."""
    return tuple(word.strip() for word in text.split(","))


def pair(text: str) -> tuple[str, str]:
    """Read a setting and its value: ctx=64K."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise argparse.ArgumentTypeError(f'"{text}" is not KEY=VALUE, such as ctx=64K')
    return name.strip(), value.strip()


def minutes(text: str) -> float:
    """Read a number of minutes, up to a day of them."""
    value = finite(text)
    if not 0 < value <= 24 * 60:
        raise argparse.ArgumentTypeError("it is a number of minutes, up to a day")
    return value


def whole(text: str) -> int:
    """Read a whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f'"{text}" is not a whole number') from None
