"""Runs the demo: starts a server with the model that ships with the program, sends requests, and stops it."""

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

from launcher.app.planning.start_settings import make_unresolved_options
from launcher.app.planning.tuned_match import find_settings_for_launch
from launcher.app.serving.serving import serve
from launcher.base.errors import DraftsInert, EngineFailed
from launcher.base.messages import message
from launcher.base.units import process_age_s
from launcher.engine.demo import DEMO, DemoPreset, read_demo_preset
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.client import ChatRequest
from launcher.engine.server.state import Listener
from launcher.monitor.meter import Acceptance, sum_acceptance
from launcher.monitor.reply import OnDelta, Reply

_PROMPTS = (
    message("What is MTP, and what does this demo show?"),
    message("When should MTP be switched off?"),
    message("What happens to a draft that is wrong?"),
    message("How do I know what fits on my graphics card?"),
)
_MAX_TOKENS = 400


@dataclass(frozen=True, slots=True)
class DemoReport:
    """Measured values of the demo, over all its replies.

    `ready_s` is the age of the program in seconds when the server was ready. `speed_note` is shown with the speed: the
    result of a tune on this machine, else a general remark about the demo.
    """

    engine: str
    engine_version: str
    model: str
    ready_s: float
    predicted_n: int
    tokens_per_second: float | None
    acceptance: Acceptance
    text: str
    samples: int
    speed_note: str

    @property
    def excerpt(self) -> str:
        """The beginning of the text."""
        return self.text[:200]


async def run_demo(
    *,
    seconds: float | None = None,
    on_event: Listener | None = None,
    on_prompt: Callable[[str], None] | None = None,
    on_delta: OnDelta | None = None,
    on_reply: Callable[[Reply], None] | None = None,
) -> DemoReport:
    """Serve the demo model, send its prompts, and stop.

    Each prompt is sent once, or repeatedly for `seconds` (one reply at least). The `on_...` functions are called for
    the first round only. Raises DraftsInert when no draft was accepted, EngineFailed when the engine's process did not
    end.
    """
    preset = read_demo_preset()
    options = make_unresolved_options(DEMO, lambda path: ServeOptions(model=path))
    replies: list[Reply] = []
    async with serve(options, on_event=on_event) as session:
        ready_s = process_age_s()
        process, launch = session.supervisor.process, session.supervisor.launch
        if process is None or launch is None:
            raise EngineFailed(message("The engine ended as soon as it was ready."), message("See its log."))
        began_s = time.monotonic()
        for prompt in itertools.cycle(_PROMPTS):
            first_round = len(replies) < len(_PROMPTS)
            if first_round and on_prompt is not None:
                on_prompt(prompt)
            replies.append(
                await session.send_request(_build_request(prompt, preset), on_delta if first_round else None)
            )
            if first_round and on_reply is not None:
                on_reply(replies[-1])
            if seconds is None and len(replies) == len(_PROMPTS):
                break
            if seconds is not None and time.monotonic() - began_s >= seconds:
                break
    if process.identity.is_running():
        raise EngineFailed(
            message("The engine process {pid} is still running.", pid=process.identity.pid),
            message("End that process yourself."),
        )
    tuned = await asyncio.to_thread(find_settings_for_launch, launch)
    acceptance = sum_acceptance([reply.acceptance for reply in replies])
    if not acceptance.accepted:
        raise DraftsInert(message("The demo ran, but no draft was accepted."), message("Install the program again."))
    timed = [reply.timings for reply in replies if reply.timings is not None]
    milliseconds = sum(timings.predicted_ms for timings in timed)
    tokens = sum(timings.predicted_n for timings in timed)
    return DemoReport(
        engine=launch.build.name,
        engine_version=launch.build.version,
        model=launch.header.name,
        ready_s=ready_s,
        predicted_n=tokens,
        # As in the engine's timings, where the first token of a reply belongs to the prompt.
        tokens_per_second=1_000.0 * (tokens - len(timed)) / milliseconds if milliseconds else None,
        acceptance=acceptance,
        text=replies[0].text,
        samples=session.monitor.snapshot_count,
        speed_note=preset.speed_note if tuned is None else tuned.measured_line,
    )


def _build_request(prompt: str, preset: DemoPreset) -> ChatRequest:
    return ChatRequest(
        [{"role": "user", "content": prompt}],
        max_tokens=_MAX_TOKENS,
        temperature=preset.temperature,
        thinking=False,
    )
