"""Goes through an argument parser and its subcommands, which argparse does not offer in public."""

from __future__ import annotations

import argparse
from collections.abc import Iterator


def list_actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the options and positional arguments that the help shows."""
    return [each for each in parser._actions if each.help != argparse.SUPPRESS]  # noqa: SLF001


def iterate_parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and those of its subcommands, each before its own subcommands."""
    yield parser
    for action in list_actions(parser):
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for subparser in action.choices.values():
                yield from iterate_parsers(subparser)
