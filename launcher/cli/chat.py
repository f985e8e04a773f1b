"""`mtp-launcher chat "prompt"`: ask a running server."""

import argparse
import sys

from launcher.cli.output import print_json, rounded


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("prompt", help="what to ask; - reads it from standard input")
    parser.add_argument("--url", help="which server, when more than one runs")
    parser.add_argument("--system", metavar="TEXT", help="a system prompt")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="end the reply after N tokens")
    parser.add_argument("--temperature", type=float, metavar="T", help="sampling temperature")
    parser.add_argument(
        "--think", action=argparse.BooleanOptionalAction, default=None, help="let the model think first, or not"
    )


async def run(options: argparse.Namespace) -> int:
    """Print the reply as it comes, then its figures on stderr; with --json one object at the end."""
    from launcher import app
    from launcher.engine.client import ChatRequest, Delta

    prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
    messages = [{"role": "system", "content": options.system}] if options.system else []
    request = ChatRequest(
        [*messages, {"role": "user", "content": prompt}],
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        thinking=options.think,
    )

    def show(delta: Delta) -> None:
        if not options.json:
            sys.stderr.write(delta.reasoning)
            sys.stdout.write(delta.content)
            sys.stdout.flush()

    reply = await app.chat(request, url=options.url, on_delta=show)
    if options.json:
        timings, drafts = reply.timings, reply.acceptance
        print_json(
            {
                "text": reply.text,
                "reasoning": reply.reasoning,
                "finish_reason": reply.finish_reason,
                "first_token_s": rounded(reply.first_token_s, 3),
                "predicted_n": timings.predicted_n if timings else None,
                "tokens_per_second": rounded(timings.tokens_per_second if timings else None),
                "draft_n": drafts.drafted,
                "draft_n_accepted": drafts.accepted,
                "acceptance": rounded(drafts.rate, 4),
                "acceptance_by_position": [rounded(share, 4) for share in drafts.rates_by_position],
            }
        )
    else:
        print()
        print(f"\n{reply.line}", file=sys.stderr)
    return 0
