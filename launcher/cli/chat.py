"""`mtp-launcher chat "prompt"`: send a prompt to a running server."""

import argparse
import sys
from typing import Any

from launcher.base.text import visible_reply
from launcher.cli.key_options import add_key_options, read_api_key
from launcher.cli.output import Note, Result, round_figure
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


async def run(options: argparse.Namespace) -> Result:
    """Print the reply while it is generated, except with --json; return its text and figures."""
    from launcher.app import settings
    from launcher.app.serving.serving import request_reply
    from launcher.app.settings_declared import SYSTEM_PROMPT
    from launcher.engine.server.client import ChatRequest, Delta

    system = options.system or str(settings.stored_value(SYSTEM_PROMPT)).strip()
    messages = [{"role": "system", "content": system}] if system else []
    given = {"max_tokens": options.max_tokens, "temperature": options.temperature, "thinking": options.think}
    sampling: dict[str, Any] = settings.chat_sampling() | {
        name: value for name, value in given.items() if value is not None
    }
    request = ChatRequest(
        [*messages, {"role": "user", "content": options.prompt}],
        max_tokens=sampling.pop("max_tokens", None),
        temperature=sampling.pop("temperature", None),
        thinking=sampling.pop("thinking", None),
        extra=sampling,
    )

    def print_delta(delta: Delta) -> None:
        if not options.json:
            sys.stderr.write(visible_reply(delta.reasoning) if sys.stderr.isatty() else delta.reasoning)
            sys.stdout.write(visible_reply(delta.content) if sys.stdout.isatty() else delta.content)
            sys.stdout.flush()

    key = read_api_key(options.url, options)
    reply = await request_reply(request, url=options.url, api_key=key, on_delta=print_delta)
    timings, drafts = reply.timings, reply.acceptance
    data = {
        "text": reply.text,
        "reasoning": reply.reasoning,
        "finish_reason": reply.finish_reason,
        "first_token_s": round_figure(reply.first_token_s, 3),
        "predicted_n": timings.predicted_n if timings else None,
        "tokens_per_second": round_figure(timings.tokens_per_second if timings else None),
        "draft_n": drafts.drafted,
        "draft_n_accepted": drafts.accepted,
        "acceptance": round_figure(drafts.rate, 4),
        "acceptance_by_position": [round_figure(share, 4) for share in drafts.rates_by_position],
    }
    return Result(data, ["", Note(f"\n{reply.summary}")])
