"""The demo: the whole chain on the model that ships with the program."""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

from launcher.app import options_for, serve
from launcher.base.age import process_age_s
from launcher.base.errors import DraftsInert, EngineFailed
from launcher.engine.client import ChatRequest
from launcher.engine.demo import DEMO, DemoPreset, demo_preset
from launcher.engine.launch import ServeOptions
from launcher.monitor.meter import Acceptance, total
from launcher.monitor.reply import OnDelta, Reply
from launcher.session import OnEvent

_PROMPTS = (
    "What is MTP, and what does this demo show?",
    "When should MTP be switched off?",
    "What happens to a draft that is wrong?",
    "How do I know what fits on my graphics card?",
)
_MAX_TOKENS = 400


@dataclass(frozen=True, slots=True)
class DemoReport:
    """What the demo measured, over all its replies."""

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


async def demo(
    *,
    seconds: float | None = None,
    on_event: OnEvent | None = None,
    on_prompt: Callable[[str], None] | None = None,
    on_delta: OnDelta | None = None,
    on_reply: Callable[[Reply], None] | None = None,
) -> DemoReport:
    """Run the whole chain on the demo model: serve, ask, stop.

    It asks each of its prompts once, or goes on asking them for `seconds` (one reply at least). The `on_...`
    functions see the first round only.

    Raises DraftsInert when no draft was accepted, EngineFailed when the engine's process did not end.
    """
    preset = demo_preset()
    options = options_for(DEMO, lambda path: ServeOptions(model=path), draft=None)
    replies: list[Reply] = []
    async with serve(options, on_event=on_event) as session:
        ready_s = process_age_s()
        process, launch = session.supervisor.process, session.supervisor.launch
        if process is None or launch is None:
            raise EngineFailed("The engine ended as soon as it was ready.", "See its log.")
        began_s = time.monotonic()
        for prompt in itertools.cycle(_PROMPTS):
            first_round = len(replies) < len(_PROMPTS)
            if first_round and on_prompt is not None:
                on_prompt(prompt)
            replies.append(await session.ask(_request(prompt, preset), on_delta if first_round else None))
            if first_round and on_reply is not None:
                on_reply(replies[-1])
            if seconds is None and len(replies) == len(_PROMPTS):
                break
            if seconds is not None and time.monotonic() - began_s >= seconds:
                break
    if process.identity.running():
        raise EngineFailed(f"The engine's process {process.identity.pid} did not end.", "End it by hand.")
    acceptance = total([reply.acceptance for reply in replies])
    if not acceptance.accepted:
        raise DraftsInert("The demo ran, but no draft was accepted.", "Install the program again.")
    timed = [reply.timings for reply in replies if reply.timings is not None]
    milliseconds = sum(timings.predicted_ms for timings in timed)
    tokens = sum(timings.predicted_n for timings in timed)
    return DemoReport(
        engine=launch.build.name,
        engine_version=launch.build.version,
        model=launch.header.name,
        ready_s=ready_s,
        predicted_n=tokens,
        # As the engine counts: the first token of a reply belongs to its prompt.
        tokens_per_second=1_000.0 * (tokens - len(timed)) / milliseconds if milliseconds else None,
        acceptance=acceptance,
        text=replies[0].text,
        samples=session.monitor.samples,
        speed_note=preset.speed_note,
    )


def _request(prompt: str, preset: DemoPreset) -> ChatRequest:
    return ChatRequest(
        [{"role": "user", "content": prompt}],
        max_tokens=_MAX_TOKENS,
        temperature=preset.temperature,
        thinking=False,
    )
