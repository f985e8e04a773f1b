"""Options of `mtp-launcher tune`."""

import argparse

from launcher.cli.options.machine_options import add_draft_option, add_engine_option
from launcher.cli.options.subject_options import add_chart_option, add_model_argument
from launcher.cli.quantities import parse_minutes, parse_tokens
from launcher.models.server_settings import VARIED

DEFAULT_BUDGET_MIN = 10.0
AIMS = ("speed", "answer", "task", "energy")
"""The names of Aim. It is not imported, because that would slow down --help; a test compares them."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    add_model_argument(parser)
    parser.add_argument(
        "--goal",
        choices=AIMS,
        help="tokens/s, time to the whole answer, seconds of an agent's task, or tokens per joule (default: speed)",
    )
    parser.add_argument(
        "--agent",
        metavar="NAME",
        help="with --goal task: whose tasks count: codex, opencode, ... (default: loop)",
    )
    parser.add_argument(
        "--mix",
        type=_parse_mix,
        metavar="PROMPT:REPLY",
        help="with --goal answer: prompt and reply tokens of your requests, such as 4K:300",
    )
    parser.add_argument(
        "--budget",
        type=parse_minutes,
        metavar="MIN",
        help=f"time limit in minutes (default {DEFAULT_BUDGET_MIN:.0f})",
    )
    parser.add_argument(
        "--workload",
        metavar="W",
        help="code, prose, reasoning, ..., an agent such as pi, several such as code,prose,pi, all, or a file of "
        "prompts (default: code)",
    )
    parser.add_argument(
        "--vary",
        metavar="NAME,...",
        help=f"settings to try besides the draft length: {', '.join(VARIED).replace('_', '-')}, or none (default: "
        "those likely to matter here)",
    )
    parser.add_argument(
        "--ctx", type=parse_tokens, metavar="N", help="context in tokens (default: as in its last start)"
    )
    add_engine_option(parser)
    add_draft_option(parser)
    parser.add_argument(
        "--continue",
        dest="resume",
        action="store_true",
        help="resume the model's tune, or the newest interrupted one",
    )
    parser.add_argument(
        "--when-idle",
        action="store_true",
        help="measure on the running server, only while no client uses it; streams continue across its restarts",
    )
    parser.add_argument("--url", help="with --when-idle: which server, when more than one runs")
    parser.add_argument("--apply", action="store_true", help="save the recommended settings for the model's next start")
    add_chart_option(parser)
    parser.add_argument("--yes", action="store_true", help="start without asking")
    parser.epilog = (
        "It starts the model repeatedly, with and without MTP. Ctrl-C pauses it, --continue resumes it. --continue "
        "--apply saves what the last tune recommended."
    )


def _parse_mix(text: str) -> tuple[int, int]:
    prompt, colon, reply = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError("write tokens of the prompt and of the reply, such as 4K:300")
    mix = parse_tokens(prompt), parse_tokens(reply)
    if min(mix) < 1:
        raise argparse.ArgumentTypeError("both must be at least one token")
    return mix
