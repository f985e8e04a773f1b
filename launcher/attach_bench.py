"""A bench on a server that others started, by its own timings where it gives them, else by the clock on the wall."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from launcher.attach import Attached, PlainRequest
from launcher.base.errors import ActionImpossible, LauncherError, Refused
from launcher.engine.client import ChatRequest, Delta
from launcher.monitor.monitor import Monitor
from launcher.monitor.reply import Reply, read_reply
from launcher.tuning.asking import request_of, run_of
from launcher.tuning.beside import Beside
from launcher.tuning.fill import sized
from launcher.tuning.measure import Measured, OnRun, measure
from launcher.tuning.other_requests import ASKED, OtherRequests
from launcher.tuning.records import Prompt, Run, Settings
from launcher.tuning.workloads import Workload

_CHARACTERS_A_TOKEN = 1_000
"""The longest tokens of the usual vocabularies are some 200 spaces."""
_STANDARD = ("top_p", "presence_penalty", "frequency_penalty")
"""What of a prompt's sampling a server knows that is no llama-server; temperature and seed beside them."""

Spoilt = Callable[[], Awaitable[str | None]]
"""Returns why the reply that has just ended must not be counted, None if it may."""


class AttachedBench:
    """A Bench on a server that runs: it is asked, and given no settings. Belongs to the server's loop.

    `monitor`, while it watches the server, puts the machine's own figures beside each reply. `spoilt` tells after each
    reply what else is known to have spoilt it. `error` is why the last request failed.
    """

    def __init__(self, server: Attached, settings: Settings | None = None, spoilt: Spoilt | None = None) -> None:
        self.server = server
        self.monitor = Monitor()
        self.error: LauncherError | None = None
        self._settings = dict(settings or {})
        self._beside = Beside(self.monitor, lambda: server.engine_pid)
        self._others = OtherRequests(server.counters)
        self._spoilt = spoilt
        self._counts = True

    def now_s(self) -> float:
        """Return the monitor's time."""
        return time.monotonic()

    async def become(self, settings: Settings) -> float:
        """See Bench. Raises ActionImpossible for settings that are not the server's own."""
        if any(self._settings.get(name) != value for name, value in settings.items()):
            raise ActionImpossible(
                f"{self.server.offer.url} cannot be given other settings from here.", "Restart it with them."
            )
        return 0.0

    async def run(self, prompt: Prompt, *, seed: int) -> Run:
        """See Bench. What is no llama-server is asked with a beginning of each seed's own, which no cache has."""
        before, began_s = self._beside.look(), self.now_s()
        self.error = None
        try:
            async with self._others.asking() as asking:
                began_s = self.now_s()
                asking.reply = reply = await self._ask(prompt, seed)
                wall_s = self.now_s() - began_s
        except LauncherError as error:
            self.error = error
            return Run(prompt.name, self._settings, began_s, self.now_s() - began_s, error=error.title)
        run = self._beside.told(run_of(prompt, self._settings, reply, began_s=began_s, wall_s=wall_s), before)
        if run.spoilt is None and asking.disturbed:
            return replace(run, spoilt=ASKED)
        return replace(run, spoilt=run.spoilt or await self._spoilt()) if self._spoilt is not None else run

    async def _ask(self, prompt: Prompt, seed: int) -> Reply:
        if self.server.offer.is_llama_server:
            return await self._read(request_of(prompt, seed=seed), prompt.tokens)
        plain = _plain(prompt, seed)
        if self._counts:
            try:
                return await self._read(_CountedRequest.of(plain), prompt.tokens)
            except Refused as error:
                if error.status not in (400, 422):
                    raise
        reply = await self._read(PlainRequest.of(plain), prompt.tokens)
        self._counts = False  # it knows no token counts, and refuses to be asked for them
        return reply

    async def _read(self, request: ChatRequest, tokens: int) -> Reply:
        left = _CHARACTERS_A_TOKEN * tokens

        def check(delta: Delta) -> None:
            nonlocal left
            left -= len(delta.content) + len(delta.reasoning)
            if left < 0:
                raise Refused(
                    f"{self.server.offer.url} was asked for {tokens:,} tokens, and its reply does not end.",
                    "It cannot be measured: it does not keep to max_tokens.",
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
    server: Attached, settings: Settings | None = None, spoilt: Spoilt | None = None
) -> AsyncIterator[AttachedBench]:
    """Give a bench on a server; where that is on this computer, the machine is watched for as long as it lasts."""
    bench = AttachedBench(server, settings, spoilt)
    if server.address.local:
        bench.monitor.begin(server)
    try:
        yield bench
    finally:
        await bench.monitor.end()


class _CountedRequest(PlainRequest):
    """A request that every OpenAI-compatible server knows, and that asks for token counts."""

    def body(self) -> dict[str, Any]:
        return PlainRequest.body(self) | {"stream_options": {"include_usage": True}}


def _plain(prompt: Prompt, seed: int) -> ChatRequest:
    """Return what a server is asked that knows the standard's fields only."""
    (role, text), *others = prompt.messages
    temperature = prompt.sampling.get("temperature")
    return ChatRequest(
        [{"role": each, "content": words} for each, words in ((role, f"Round {seed}. {text}"), *others)],
        max_tokens=prompt.tokens,
        temperature=None if temperature is None else float(temperature),
        seed=seed,
        extra={name: value for name, value in prompt.sampling.items() if name in _STANDARD},
    )


async def measure_attached(bench: AttachedBench, work: Workload, *, runs: int, on_run: OnRun | None = None) -> Measured:
    """Ask every prompt `runs` times, after one reply that warms up and counts for nothing.

    Raises what the server raised when a request failed.
    """
    prompts = await sized(work.prompts, bench.server)
    try:
        return await measure(bench, prompts, width=0.0, minimum=runs, most=runs, on_run=on_run)
    finally:
        if bench.error is not None:
            raise bench.error


def unknown(measured: Measured) -> dict[str, str]:
    """Return why a figure is None, by its name."""
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
