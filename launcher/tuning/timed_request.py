"""Timed requests: makes a request of a prompt, and a run of its reply, with sensor values and disturbances."""

import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from launcher.base.errors import LauncherError
from launcher.engine.server.client import ChatRequest
from launcher.machine.host_load import HostCounterReader
from launcher.monitor.monitor import Monitor
from launcher.monitor.reply import Reply
from launcher.tuning.disturbances import RunSensors
from launcher.tuning.host_watch import HostWatch
from launcher.tuning.other_requests import OTHER_REQUESTS_SEEN, OtherRequests, ReadCounters
from launcher.tuning.records import Prompt, Run, RunSettings

IGNORE_LOAD_VARIABLE = "MTP_LAUNCHER_IGNORE_LOAD"
"""If this environment variable is set, measurements ignore what other programs use of the processor."""
_FEWEST_TOKENS = 5
"""The fewest tokens for a rate; with fewer it is meaningless."""


class RequestTimer:
    """Times requests to one server. Several may run at once.

    `monitor` provides sensor values; `engine_pid` returns the engine's process id, None if unknown; `counters` reads
    the server's counters, which reveal requests of other clients. `host_watch` judges the load of the processor, unless
    the engine is a `foreign` one, whose process is unknown, or IGNORE_LOAD_VARIABLE is set.
    """

    def __init__(
        self,
        monitor: Monitor,
        engine_pid: Callable[[], int | None],
        counters: ReadCounters,
        *,
        foreign: bool = False,
    ) -> None:
        reader, ignored = HostCounterReader(), foreign or bool(os.environ.get(IGNORE_LOAD_VARIABLE))
        self.host_watch = HostWatch(lambda: None if ignored else reader.read(engine_pid()))
        self._sensors = RunSensors(monitor, engine_pid, self.host_watch)
        self._others = OtherRequests(counters)

    async def time_request(self, prompt: Prompt, settings: RunSettings, send: Callable[[], Awaitable[Reply]]) -> Run:
        """Send a request and return its run. A LauncherError that `send` raises becomes the run's error."""
        before, began_s = self._sensors.take_snapshot(), time.monotonic()
        try:
            async with self._others.observe_request() as observed:
                began_s = time.monotonic()
                observed.reply = reply = await send()
                wall_s = time.monotonic() - began_s
        except LauncherError as error:
            return Run(prompt.name, settings, began_s, time.monotonic() - began_s, error=error.title)
        run = run_from_reply(prompt, settings, reply, began_s=began_s, wall_s=wall_s)
        run = self._sensors.add_sensor_values(run, before)
        return replace(run, spoilt=OTHER_REQUESTS_SEEN) if observed.disturbed and run.spoilt is None else run


def build_request(prompt: Prompt, *, seed: int) -> ChatRequest:
    """Return the chat request for a prompt, without the prompt cache, so that every run processes the whole prompt."""
    return ChatRequest(
        [{"role": role, "content": text} for role, text in prompt.messages],
        max_tokens=prompt.tokens,
        seed=seed,
        thinking=prompt.thinking,
        extra={"cache_prompt": False, **prompt.sampling},
    )


def run_from_reply(prompt: Prompt, settings: RunSettings, reply: Reply, *, began_s: float, wall_s: float) -> Run:
    """Return the run of a reply, with rates from the engine's timings, or by the client's clock without timings.

    Without timings, token counts are the server's `usage`, since a stream event may hold several tokens.
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
    decode_s = (reply.last_token_s or 0.0) - (reply.first_token_s or 0.0)
    return Run(
        prompt=prompt.name,
        settings=settings,
        began_s=began_s,
        wall_s=wall_s,
        prompt_tokens=reply.prompt_tokens or 0,
        reply_tokens=reply.completion_tokens or 0,
        prefill_rate=token_rate(reply.prompt_tokens, reply.first_token_s),
        decode_rate=token_rate((reply.completion_tokens or 1) - 1, decode_s),
        first_token_s=reply.first_token_s,
        acceptance=acceptance,
        clock="wall",
    )


def token_rate(tokens: int | None, seconds: float | None) -> float | None:
    """Return tokens per second. None when either is unknown or there are fewer than 5 tokens."""
    if tokens is None or tokens < _FEWEST_TOKENS or not seconds or seconds <= 0:
        return None
    return tokens / seconds
