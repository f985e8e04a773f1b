"""Options of `mtp-launcher chat`."""

import argparse
import sys

from launcher.cli.options.key_options import add_key_options
from launcher.cli.quantities import parse_int, parse_number

_FROM_PIPE = "\0"
"""Stands for no prompt: no argument can be this."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument(
        "prompt",
        nargs="?",
        default=_FROM_PIPE,
        type=_parse_prompt,
        help="what to ask; - reads it from standard input, as happens without it if that is a pipe or file",
    )
    parser.add_argument("--url", help="the server's address, if more than one runs, or if it is another program's")
    add_key_options(parser)
    parser.add_argument("--system", type=_parse_text, metavar="TEXT", help="a system prompt")
    parser.add_argument("--max-tokens", type=parse_int, metavar="N", help="end the reply after N tokens")
    parser.add_argument("--temperature", type=parse_number, metavar="T", help="sampling temperature")
    parser.add_argument(
        "--think", action=argparse.BooleanOptionalAction, default=None, help="let the model think first, or not"
    )


def _parse_prompt(text: str) -> str:
    """Return the prompt. Standard input is read here, before the loop runs, so that Ctrl-C can end it."""
    if text == _FROM_PIPE and sys.stdin is not None and sys.stdin.isatty():
        raise argparse.ArgumentTypeError("what to ask is missing")
    if text not in ("-", _FROM_PIPE):
        return _parse_text(text)
    if sys.stdin is None:
        raise argparse.ArgumentTypeError("standard input is closed")
    try:
        return _parse_text(sys.stdin.read())
    except UnicodeDecodeError as error:
        raise argparse.ArgumentTypeError(f"standard input is not text: {error}") from error


def _parse_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError("must be UTF-8 text") from error
    if not text.strip():
        raise argparse.ArgumentTypeError("must not be empty")
    return text
