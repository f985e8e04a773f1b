"""From a prompt to a request, and from its reply to a run: the same for every server that is measured."""

from launcher.engine.client import ChatRequest
from launcher.monitor.reply import Reply
from launcher.tuning.records import Prompt, Run, Settings

_FEWEST = 5
"""A rate over fewer tokens than this means nothing."""


def request_of(prompt: Prompt, *, seed: int) -> ChatRequest:
    """Return what a llama-server is asked: nothing is taken from its cache of prompts, so that each run reads alike."""
    return ChatRequest(
        [{"role": role, "content": text} for role, text in prompt.messages],
        max_tokens=prompt.tokens,
        seed=seed,
        thinking=prompt.thinking,
        extra={"cache_prompt": False, **prompt.sampling},
    )


def run_of(prompt: Prompt, settings: Settings, reply: Reply, *, began_s: float, wall_s: float) -> Run:
    """Return what a reply says of speed, by the engine's timings where it gives them, else by the reader's clock.

    An event is not a token: without timings tokens are counted by the server's `usage`, and unknown without that.
    """
    acceptance = reply.acceptance if reply.acceptance.drafted else None
    timings = reply.timings
    if timings is not None:
        return Run(
            prompt=prompt.name,
            settings=settings,
            began_s=began_s,
            wall_s=wall_s,
            prompt_tokens=timings.prompt_n,
            cached_tokens=timings.cache_n,
            reply_tokens=timings.predicted_n,
            prefill_rate=_over(timings.prompt_n, timings.prompt_ms / 1_000),
            decode_rate=timings.tokens_per_second,
            first_token_s=reply.first_token_s,
            acceptance=acceptance,
        )
    writing_s = (reply.last_token_s or 0.0) - (reply.first_token_s or 0.0)
    return Run(
        prompt=prompt.name,
        settings=settings,
        began_s=began_s,
        wall_s=wall_s,
        prompt_tokens=reply.prompt_tokens or 0,
        reply_tokens=reply.completion_tokens or 0,
        prefill_rate=_over(reply.prompt_tokens, reply.first_token_s),
        decode_rate=_over((reply.completion_tokens or 1) - 1, writing_s),
        first_token_s=reply.first_token_s,
        acceptance=acceptance,
        clock="wall",
    )


def _over(tokens: int | None, seconds: float | None) -> float | None:
    """Return tokens a second, None when either is unknown or there are too few of them."""
    return tokens / seconds if tokens is not None and tokens >= _FEWEST and seconds else None
