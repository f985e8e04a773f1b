"""`mtp-launcher chat "prompt"`: send a prompt to a running server."""

import argparse
import sys
from typing import Any

from launcher.app import settings
from launcher.app.serving.serving import request_reply
from launcher.app.settings_declared import KEEP, SYSTEM_PROMPT
from launcher.base.text import visible_reply
from launcher.cli.given_key import read_api_key
from launcher.cli.output import Note, Result, round_figure
from launcher.engine.server.client import ChatRequest, Delta


async def run(options: argparse.Namespace) -> Result:
    """Print the reply while it is generated, except with --json; return its text and figures."""
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
        kept_as="" if settings.stored_value(KEEP) else None,
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
