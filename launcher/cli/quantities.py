"""Parsers for values on the command line, for argparse: numbers, 128K tokens, 16GB of memory, ctx=64K."""

import argparse
import math

from launcher.base.units import TOKEN_UNITS, parse_amount

_MIB = {"M": 1, "MB": 1, "MIB": 1, "G": 1_024, "GB": 1_024, "GIB": 1_024, "T": 2**20, "TB": 2**20, "TIB": 2**20}
"""Memory is sold in powers of two, whatever the unit is called: a 16 GB card has 16 GiB."""


def parse_number(text: str) -> float:
    """Parse a number for argparse; NaN and infinity are rejected."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f'"{text}" is not a number')
    return value


def parse_seconds(text: str) -> float:
    """Parse a number of seconds for argparse, 0 or more."""
    value = parse_number(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return value


def parse_count(text: str) -> int:
    """Parse a count for argparse, 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of 0 or more")
    return int(text)


def parse_tokens(text: str) -> int:
    """Parse a number of tokens; K stands for 1,024: 32768, 128K."""
    tokens = parse_amount(text, TOKEN_UNITS)
    if tokens is None or tokens % 1:
        raise argparse.ArgumentTypeError(f'"{text}" is not a number of tokens; write it like 32768 or 32K')
    return int(tokens)


def parse_gib(text: str) -> float:
    """Parse an amount of memory in GiB, the default unit: 16, 16GB, 16384MiB."""
    mib = parse_amount(text, _MIB | {"": 1_024})
    if mib is None:
        raise argparse.ArgumentTypeError(f'"{text}" is not an amount of memory; write it like 16 or 16GB')
    return mib / 1_024


def parse_gpu_memory(text: str) -> tuple[float, ...]:
    """Parse the memory of one GPU or several, in GiB: 24, 16GB, 24+12."""
    return tuple(parse_gib(each) for each in text.split("+"))


def parse_card_name(text: str) -> str:
    """Return the text if it names one graphics card. Raises ArgumentTypeError if it names none or several."""
    from launcher.base.errors import BadOption
    from launcher.machine.cards import find_card

    try:
        find_card(text)
    except BadOption as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def parse_mib(text: str) -> int:
    """Parse an amount of memory in whole MiB, the default unit: 15000, 15000MiB, 14.5GB."""
    mib = parse_amount(text, _MIB | {"": 1})
    if mib is None:
        raise argparse.ArgumentTypeError(f'"{text}" is not an amount of memory; write it like 15000 or 14.5GB')
    return int(mib)


def parse_rpc_workers(text: str) -> tuple[str, ...]:
    """Parse RPC workers, separated by commas: 192.168.1.20:50052,192.168.1.21:50052."""
    return tuple(word.strip() for word in text.split(","))


def parse_pair(text: str) -> tuple[str, str]:
    """Parse a setting and its value: ctx=64K."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise argparse.ArgumentTypeError(f'"{text}" is not KEY=VALUE, such as ctx=64K')
    return name.strip(), value.strip()


def parse_minutes(text: str) -> float:
    """Parse a number of minutes, above 0 and up to a day."""
    value = parse_number(text)
    if not 0 < value <= 24 * 60:
        raise argparse.ArgumentTypeError("must be a number of minutes above 0, up to a day")
    return value


def parse_int(text: str) -> int:
    """Parse a whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f'"{text}" is not a whole number') from None


def parse_rounds(text: str) -> int:
    """Parse a number of rounds, 1 to 100."""
    if not text.isdecimal() or not 1 <= int(text) <= 100:
        raise argparse.ArgumentTypeError("must be a whole number from 1 to 100")
    return int(text)
