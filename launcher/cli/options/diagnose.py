"""Options of `mtp-launcher diagnose`."""

import argparse

_EXIT_CODES = (range(-(2**31), 2**32), range(2**64 - 2**32, 2**64))
"""Exit codes of Windows are written with or without a sign, and with 64 bits, which some programs round."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "log",
        metavar="LOGFILE",
        nargs="?",
        help="a log of llama-server, plain or JSON lines; - for standard input (default: the last start's log)",
    )
    which.add_argument("--url", help="the log of the server at this address")
    parser.add_argument(
        "--exit-code",
        type=_parse_exit_code,
        metavar="N",
        help="the engine's exit code, if known: negative or 128 + N for signal N",
    )


def _parse_exit_code(text: str) -> int:
    try:
        code: int | None = int(text, 0)
    except ValueError:
        code = None
    if code is None or not any(code in codes for codes in _EXIT_CODES):
        raise argparse.ArgumentTypeError(f"{text} is not an exit code, such as 1, 137 or -11")
    return code
