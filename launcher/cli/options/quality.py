"""Options of `mtp-launcher quality`."""

import argparse
from pathlib import Path

from launcher.cli.options.machine_options import add_engine_option
from launcher.cli.options.subject_options import add_model_argument, add_start_options
from launcher.cli.quantities import parse_count, parse_int, parse_tokens

_DEFAULT_TOKENS, _DEFAULT_FILL = 400, 2_000
"""Those of tuning.quality, which is not imported, because that would slow down --help; a test compares them."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    add_model_argument(parser)
    parser.add_argument(
        "--kv",
        type=_parse_kv_types,
        metavar="TYPE,...",
        default=(),
        help="KV cache types to judge (default: its own, q8_0)",
    )
    parser.add_argument(
        "--draft",
        type=parse_int,
        metavar="N",
        help="draft length of MTP, 0: without MTP (default: as it was served last)",
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="FILE",
        help="the reference (default: the largest file of the model that is here)",
    )
    parser.add_argument(
        "--tokens",
        type=parse_count,
        default=_DEFAULT_TOKENS,
        metavar="N",
        help=f"positions of the text to compare (default {_DEFAULT_TOKENS})",
    )
    parser.add_argument(
        "--fill",
        type=parse_tokens,
        default=_DEFAULT_FILL,
        metavar="N",
        help=f"tokens of context before the text (default {_DEFAULT_FILL:,})",
    )
    parser.add_argument(
        "--needle",
        type=parse_tokens,
        metavar="N",
        help="tokens around the hidden fact (default: as many as the context holds, up to 32,000)",
    )
    add_start_options(parser, "draft", "kv")
    add_engine_option(parser)
    parser.epilog = (
        "It serves the reference with KV f16 and MTP off, and then each of the settings, and compares the probabilities"
        " of the next token over a fixed text. The limit is a KL divergence of 0.05, or the same most likely token at"
        " 95 % of the positions. Exit code 1 if any of them is beyond it."
    )


def _parse_kv_types(text: str) -> tuple[str, ...]:
    from launcher.models.memory import KV_TYPES

    names = tuple(dict.fromkeys(word.strip().lower() for word in text.split(",")))
    if wrong := [name for name in names if name not in KV_TYPES]:
        raise argparse.ArgumentTypeError(f'"{wrong[0]}" is not one of {", ".join(KV_TYPES)}')
    return names
