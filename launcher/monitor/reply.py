"""Reads a streamed reply to its end, with its timings and draft acceptance."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from launcher.base.units import format_percent, format_rate
from launcher.engine.server.client import Delta, Timings
from launcher.monitor.meter import Acceptance, ReplyMeter

_END_WORDS = {"stop": "end", "length": "token limit", "tool_calls": "tool call"}

OnDelta = Callable[[Delta], None]


@dataclass(frozen=True, slots=True)
class Reply:
    """A finished reply with its draft acceptance.

    `first_token_s` and `last_token_s` are seconds from the request to the first and the last token, as received here.
    `prompt_tokens` and `completion_tokens` are the server's final count, None if it sent none.
    """

    text: str
    reasoning: str
    timings: Timings | None
    acceptance: Acceptance
    first_token_s: float | None
    finish_reason: str | None
    last_token_s: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None

    @property
    def summary(self) -> str:
        """Line shown under a reply: rate, tokens, time to the first token, acceptance, why it ended."""
        parts = []
        if self.timings is not None:
            parts += [format_rate(self.timings.tokens_per_second), f"{self.timings.predicted_n} tokens"]
        if self.first_token_s is not None:
            parts.append(f"first token {self.first_token_s:.2f} s")
        if self.acceptance.rate is not None:
            parts.append(
                f"{format_percent(self.acceptance.rate)} of drafts accepted (mean {self.acceptance.mean_length:.1f})"
            )
        if self.finish_reason:
            parts.append(f"stopped: {_END_WORDS.get(self.finish_reason, self.finish_reason)}")
        return " · ".join(parts)


async def read_reply(
    stream: AbstractAsyncContextManager[AsyncIterator[Delta]], meter: ReplyMeter, on_delta: OnDelta | None
) -> Reply:
    """Request a reply by entering its stream, and read it to its end. Times include queueing."""
    text, reasoning = [], []
    first_token_s = last_token_s = None
    finish_reason: str | None = None
    prompt_tokens = completion_tokens = None
    began_s = time.monotonic()
    async with stream as deltas:
        async for delta in deltas:
            if delta.content or delta.reasoning:
                last_token_s = time.monotonic() - began_s
                first_token_s = last_token_s if first_token_s is None else first_token_s
            text.append(delta.content)
            reasoning.append(delta.reasoning)
            if delta.timings is not None:
                meter.add(delta.timings)
            finish_reason = delta.finish_reason or finish_reason
            if delta.completion_tokens is not None:
                prompt_tokens, completion_tokens = delta.prompt_tokens, delta.completion_tokens
            if on_delta is not None:
                on_delta(delta)
    return Reply(
        text="".join(text),
        reasoning="".join(reasoning),
        timings=meter.last,
        acceptance=meter.acceptance,
        first_token_s=first_token_s,
        finish_reason=finish_reason,
        last_token_s=last_token_s,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
    )
