"""A bench on a server started by others: by its own timings where it gives them, else by the client's clock."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from launcher.app.attach import AttachedServer, PlainRequest
from launcher.base.errors import ActionImpossible, LauncherError, Refused
from launcher.base.messages import join_messages, message
from launcher.engine.server.client import ChatRequest, Delta
from launcher.monitor.monitor import Monitor
from launcher.monitor.reply import Reply, read_reply
from launcher.tuning.measured_speed import MeasuredSpeed, measure_speed
from launcher.tuning.measuring_loop import OnRun
from launcher.tuning.records import Prompt, Run, Settings
from launcher.tuning.sized_prompts import fill_prompts
from launcher.tuning.timed_request import RequestTimer, build_request
from launcher.tuning.workloads import Workload

_CHARACTERS_A_TOKEN = 1_000
"""Most characters per token. The longest tokens of the usual vocabularies are about 200 spaces."""
_STANDARD = ("top_p", "presence_penalty", "frequency_penalty")
"""Sampling fields of a prompt that other servers accept, beside temperature and seed."""

FindDisturbance = Callable[[], Awaitable[str | None]]
"""Returns why the reply that has just ended must not be counted, None if it counts."""


class AttachedBench:
    """A Bench on a running server: it gets requests, but no settings. Belongs to the server's loop.

    `monitor` adds the machine's sensor values to each reply while it watches the server. `spoilt` returns further
    disturbances after each reply. `error` is the error of the last request.
    """

    def __init__(
        self, server: AttachedServer, settings: Settings | None = None, spoilt: FindDisturbance | None = None
    ) -> None:
        self.server = server
        self.monitor = Monitor()
        self.error: LauncherError | None = None
        self._settings = dict(settings or {})
        self._timer = RequestTimer(self.monitor, lambda: server.engine_pid, server.counters)
        self._spoilt = spoilt
        self._counts = True

    def now_s(self) -> float:
        """Return the monitor's time in seconds."""
        return time.monotonic()

    async def become(self, settings: Settings) -> float:
        """See Bench. Raises ActionImpossible for settings other than the server's own."""
        if any(self._settings.get(name) != value for name, value in settings.items()):
            raise ActionImpossible(
                message("The settings of {url} cannot be changed from here.", url=self.server.offer.url),
                message("Restart that server with the new settings."),
            )
        return 0.0

    async def run(self, prompt: Prompt, *, seed: int) -> Run:
        """See Bench.

        Other servers than llama-server get a different beginning for each seed, so that no cache has the prompt.
        """
        self.error = None

        async def send() -> Reply:
            try:
                return await self._ask(prompt, seed)
            except LauncherError as error:
                self.error = error
                raise

        run = await self._timer.time_request(prompt, self._settings, send)
        if self._spoilt is None or run.error is not None or run.spoilt is not None:
            return run
        return replace(run, spoilt=await self._spoilt())

    async def _ask(self, prompt: Prompt, seed: int) -> Reply:
        if self.server.offer.is_llama_server:
            return await self._read(build_request(prompt, seed=seed), prompt.tokens)
        plain = _plain_request(prompt, seed)
        if self._counts:
            try:
                return await self._read(_CountedRequest.of(plain), prompt.tokens)
            except Refused as error:
                if error.status not in (400, 422):
                    raise
        reply = await self._read(PlainRequest.of(plain), prompt.tokens)
        self._counts = False  # it has no token counts, and refuses requests for them
        return reply

    async def _read(self, request: ChatRequest, tokens: int) -> Reply:
        left = _CHARACTERS_A_TOKEN * tokens

        def check(delta: Delta) -> None:
            nonlocal left
            left -= len(delta.content) + len(delta.reasoning)
            if left < 0:
                raise Refused(
                    message(
                        "{url} did not stop after the requested {tokens:,} tokens.",
                        url=self.server.offer.url,
                        tokens=tokens,
                    ),
                    message("It ignores max_tokens, so it cannot be measured."),
                )

        meter = self.monitor.reply_started()
        began_s = time.monotonic()
        try:
            async with self.server.chat(request) as deltas:
                return await read_reply(deltas, began_s, meter, check)
        finally:
            self.monitor.reply_ended(meter)


@asynccontextmanager
async def attached_bench(
    server: AttachedServer, settings: Settings | None = None, spoilt: FindDisturbance | None = None
) -> AsyncIterator[AttachedBench]:
    """Yield a bench on a server. If the server is on this computer, its machine is monitored meanwhile."""
    bench = AttachedBench(server, settings, spoilt)
    if server.address.local:
        bench.monitor.watch_server(server)
    try:
        yield bench
    finally:
        await bench.monitor.end()


class _CountedRequest(PlainRequest):
    """A request with standard fields only that asks for token counts."""

    def body(self) -> dict[str, Any]:
        return PlainRequest.body(self) | {"stream_options": {"include_usage": True}}


def _plain_request(prompt: Prompt, seed: int) -> ChatRequest:
    """Return a request with the standard's fields only."""
    (role, text), *others = prompt.messages
    temperature = prompt.sampling.get("temperature")
    return ChatRequest(
        [
            {"role": each, "content": words}
            for each, words in ((role, join_messages(message("Round {seed}.", seed=seed), text)), *others)
        ],
        max_tokens=prompt.tokens,
        temperature=None if temperature is None else float(temperature),
        seed=seed,
        extra={name: value for name, value in prompt.sampling.items() if name in _STANDARD},
    )


async def measure_attached(
    bench: AttachedBench, work: Workload, *, runs: int, on_run: OnRun = lambda *_: None
) -> MeasuredSpeed:
    """Send every prompt `runs` times, after one warm-up reply that does not count.

    Raises the server's error when a request failed.
    """
    prompts = await fill_prompts(work.prompts, bench.server)
    try:
        return await measure_speed(bench, prompts, width=0.0, minimum=runs, most=runs, on_run=on_run)
    finally:
        if bench.error is not None:
            raise bench.error


def unknown_reasons(measured: MeasuredSpeed) -> dict[str, str]:
    """Return the reasons for figures that are None, by their names."""
    timed = measured.clock == "engine"
    few = "too few tokens came" if timed else "the server tells no token counts, or wrote too few"
    drafts = "no drafts were made" if timed else "the server tells nothing of drafts"
    why = {
        "prefill": None if measured.prefill else few,
        "decode": None if measured.decode else few,
        "first_token": None if measured.first_token else "no token came",
        "acceptance": None if measured.acceptance else drafts,
    }
    return {name: words for name, words in why.items() if words}
