"""Measures a server started by others: by its own timings if it reports them, else by the client's clock."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from launcher.app.serving.attach import AttachedServer, PlainRequest
from launcher.base.errors import ActionImpossible, LauncherError, Refused
from launcher.base.messages import message
from launcher.engine.server.client import ChatRequest, Delta
from launcher.monitor.monitor import Monitor
from launcher.monitor.reply import Reply
from launcher.tuning.measured_speed import MeasuredSpeed, measure_speed
from launcher.tuning.measuring_loop import OnRun
from launcher.tuning.records import Prompt, Run, RunSettings
from launcher.tuning.sized_prompts import fill_prompts
from launcher.tuning.timed_request import RequestTimer, build_request
from launcher.tuning.workloads import Workload

_MAX_CHARACTERS_PER_TOKEN = 1_000
"""Generous: the longest tokens of the usual vocabularies are about 200 spaces."""
_STANDARD_SAMPLING = ("top_p", "presence_penalty", "frequency_penalty")
"""Sampling fields that all servers accept, besides temperature and seed."""

FindDisturbance = Callable[[], Awaitable[str | None]]
"""Returns why the reply that has just ended must not be counted, None if it counts."""


class AttachedBench:
    """A Bench on a running server: it gets requests, but no settings. Belongs to the server's loop.

    `monitor` adds the machine's sensor values to each reply while it watches the server. `find_disturbance` is called
    after each good reply. `error` is the error of the last request.
    """

    def __init__(
        self,
        server: AttachedServer,
        settings: RunSettings | None = None,
        find_disturbance: FindDisturbance | None = None,
    ) -> None:
        self.server = server
        self.monitor = Monitor()
        self.error: LauncherError | None = None
        self._settings = dict(settings or {})
        self._timer = RequestTimer(
            self.monitor, lambda: server.engine_pid, server.read_counters, foreign=server.engine_pid is None
        )
        self._find_disturbance = find_disturbance
        self._requests_usage = True

    def now_s(self) -> float:
        """Return the monitor's time in seconds."""
        return time.monotonic()

    async def become(self, settings: RunSettings, *, fresh: bool = False) -> float:  # noqa: ARG002 -- nothing is started
        """See Bench. Raises ActionImpossible for settings other than the server's own."""
        if any(self._settings.get(name) != value for name, value in settings.items()):
            raise ActionImpossible(
                message("The settings of {url} cannot be changed from here.", url=self.server.features.url),
                message("Restart that server with the new settings."),
            )
        return 0.0

    async def run(self, prompt: Prompt, *, seed: int) -> Run:
        """See Bench.

        For servers other than llama-server, the prompt begins with the seed, so that it is in no prompt cache.
        """
        self.error = None

        async def send() -> Reply:
            try:
                return await self._send_request(prompt, seed)
            except LauncherError as error:
                self.error = error
                raise

        run = await self._timer.time_request(prompt, self._settings, send)
        if self._find_disturbance is None or run.error is not None or run.spoilt is not None:
            return run
        return replace(run, spoilt=await self._find_disturbance())

    async def _send_request(self, prompt: Prompt, seed: int) -> Reply:
        if self.server.features.is_llama_server:
            return await self._read_reply(build_request(prompt, seed=seed), prompt.tokens)
        plain = _plain_request(prompt, seed)
        if self._requests_usage:
            try:
                return await self._read_reply(_UsageRequest.from_request(plain), prompt.tokens)
            except Refused as error:
                if error.status not in (400, 422):
                    raise
        reply = await self._read_reply(PlainRequest.from_request(plain), prompt.tokens)
        self._requests_usage = False  # the server refused a request for token counts, and accepted one without
        return reply

    async def _read_reply(self, request: ChatRequest, tokens: int) -> Reply:
        characters_left = _MAX_CHARACTERS_PER_TOKEN * tokens

        def count_characters(delta: Delta) -> None:
            nonlocal characters_left
            characters_left -= len(delta.content) + len(delta.reasoning)
            if characters_left < 0:
                raise Refused(
                    message(
                        "{url} did not stop after the requested {tokens:,} tokens.",
                        url=self.server.features.url,
                        tokens=tokens,
                    ),
                    message("It ignores max_tokens, so it cannot be measured."),
                )

        return await self.monitor.read_reply(self.server.chat(request), count_characters)


@asynccontextmanager
async def attached_bench(
    server: AttachedServer, settings: RunSettings | None = None, find_disturbance: FindDisturbance | None = None
) -> AsyncIterator[AttachedBench]:
    """Yield a bench on a server. If the server is on this computer, its machine is monitored meanwhile."""
    bench = AttachedBench(server, settings, find_disturbance)
    if server.address.local:
        bench.monitor.watch_server(server)
    try:
        yield bench
    finally:
        await bench.monitor.end()


class _UsageRequest(PlainRequest):
    """A request with standard fields only that asks for token counts."""

    def body(self) -> dict[str, Any]:
        return PlainRequest.body(self) | {"stream_options": {"include_usage": True}}


def _plain_request(prompt: Prompt, seed: int) -> ChatRequest:
    """Return a request with standard fields only, whose first message begins with the seed."""
    messages = [{"role": role, "content": text} for role, text in prompt.messages]
    messages[0]["content"] = f"Round {seed}. {messages[0]['content']}"
    temperature = prompt.sampling.get("temperature")
    return ChatRequest(
        messages,
        max_tokens=prompt.tokens,
        temperature=None if temperature is None else float(temperature),
        seed=seed,
        extra={name: value for name, value in prompt.sampling.items() if name in _STANDARD_SAMPLING},
    )


async def measure_attached(
    bench: AttachedBench, work: Workload, *, runs: int, on_run: OnRun = lambda *_: None
) -> MeasuredSpeed:
    """Send every prompt `runs` times, after one warm-up reply that does not count.

    Raises the error of the last request if that failed.
    """
    prompts = await fill_prompts(work.prompts, bench.server)
    try:
        return await measure_speed(bench, prompts, width=0.0, least_rounds=runs, most_rounds=runs, on_run=on_run)
    finally:
        if bench.error is not None:
            raise bench.error


def unknown_reasons(measured: MeasuredSpeed) -> dict[str, str]:
    """Return the reasons for figures that are None, by their names."""
    if measured.clock == "engine":
        no_speed, no_drafts = "too few tokens were generated", "nothing was drafted"
    else:
        no_speed, no_drafts = "the server reports no token counts, or wrote too few", "the server reports no drafts"
    figures = (
        ("prefill", measured.prefill, no_speed),
        ("decode", measured.decode, no_speed),
        ("first_token", measured.first_token, "no token was generated"),
        ("acceptance", measured.acceptance, no_drafts),
    )
    return {name: reason for name, figure, reason in figures if not figure}
