"""One timed request: a prompt becomes a request, its reply a run with sensor values and the disturbances meanwhile."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from launcher.base.errors import LauncherError
from launcher.engine.server.client import ChatRequest
from launcher.monitor.monitor import Monitor
from launcher.monitor.reply import Reply
from launcher.tuning.disturbances import RunSensors
from launcher.tuning.other_requests import OTHERS_ASKED, OtherRequests, ReadCounters
from launcher.tuning.records import Prompt, Run, Settings

_FEWEST = 5
"""Least tokens for a rate; over fewer it is meaningless."""


class RequestTimer:
    """Times requests to one server, which may be several at once.

    `monitor` gives sensor values; `engine_pid` returns the engine's process id, None if unknown; `counters` reads the
    server's counters, which show requests of others.
    """

    def __init__(self, monitor: Monitor, engine_pid: Callable[[], int | None], counters: ReadCounters) -> None:
        self._sensors = RunSensors(monitor, engine_pid)
        self._others = OtherRequests(counters)

    async def time_request(self, prompt: Prompt, settings: Settings, send: Callable[[], Awaitable[Reply]]) -> Run:
        """Send a request and return its run. A LauncherError that `send` raises becomes the run's error."""
        before, began_s = self._sensors.take_snapshot(), time.monotonic()
        try:
            async with self._others.observe() as observed:
                began_s = time.monotonic()
                observed.reply = reply = await send()
                wall_s = time.monotonic() - began_s
        except LauncherError as error:
            return Run(prompt.name, settings, began_s, time.monotonic() - began_s, error=error.title)
        run = run_from_reply(prompt, settings, reply, began_s=began_s, wall_s=wall_s)
        run = self._sensors.add_sensor_values(run, before)
        return replace(run, spoilt=OTHERS_ASKED) if observed.disturbed and run.spoilt is None else run


def build_request(prompt: Prompt, *, seed: int) -> ChatRequest:
    """Return the chat request for a llama-server. The prompt cache is off, so that every run reads the whole prompt."""
    return ChatRequest(
        [{"role": role, "content": text} for role, text in prompt.messages],
        max_tokens=prompt.tokens,
        seed=seed,
        thinking=prompt.thinking,
        extra={"cache_prompt": False, **prompt.sampling},
    )


def run_from_reply(prompt: Prompt, settings: Settings, reply: Reply, *, began_s: float, wall_s: float) -> Run:
    """Return the run of a reply, with the engine's timings where it reports them, else by the client's clock.

    A stream event is not a token: without timings, tokens are counted by the server's `usage`, and are unknown without
    it.
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
            prefill_rate=token_rate(timings.prompt_n, timings.prompt_ms / 1_000),
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
        prefill_rate=token_rate(reply.prompt_tokens, reply.first_token_s),
        decode_rate=token_rate((reply.completion_tokens or 1) - 1, writing_s),
        first_token_s=reply.first_token_s,
        acceptance=acceptance,
        clock="wall",
    )


def token_rate(tokens: int | None, seconds: float | None) -> float | None:
    """Return tokens per second. None when either is unknown or there are fewer than 5 tokens."""
    return tokens / seconds if tokens is not None and tokens >= _FEWEST and seconds and seconds > 0 else None
