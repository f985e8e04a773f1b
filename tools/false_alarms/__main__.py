"""Ordinary use of the demo for an hour: `python -m tools.false_alarms [--minutes N] [--seed S]`.

Chats of mixed length that grow, idle minutes, one to three streams at once, requests of another client, restarts with
other settings. The server is healthy all the time, so every finding is a false alarm.
"""

import argparse
import asyncio
import contextlib
import random
import time
from dataclasses import replace

from launcher.app.planning.start_settings import make_unresolved_options
from launcher.app.serving.serving import serve
from launcher.app.serving.session import ServerSession
from launcher.base.codec import to_json
from launcher.engine.demo import DEMO
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.client import ChatRequest, EngineClient
from launcher.engine.server.start_request import StartRequest
from launcher.monitor.health_event import FindingLevel, HealthEvent

QUESTIONS = (
    "What is MTP, and what does this demo show?",
    "When should MTP be switched off?",
    "How do I know what fits on my graphics card?",
    "What is quantisation?",
    "Why is the first token late?",
)
SLOTS = 2


class Use:
    """One user's session with the server, with pauses."""

    def __init__(self, session: ServerSession, seed: int) -> None:
        self.session = session
        self.random = random.Random(seed)
        self.replies = 0
        self.restarts = 0
        self.compared = 0
        self.too_short = 0
        self.disturbed = 0

    async def use_until(self, until_s: float, options: ServeOptions) -> None:
        """Use the server until `until_s` of the monotonic clock."""
        while time.monotonic() < until_s:
            kinds = ("chat", "burst", "stranger", "idle", "restart")
            match self.random.choices(kinds, weights=(40, 12, 12, 30, 6))[0]:
                case "chat":
                    await self.chat()
                case "burst":
                    await self.burst()
                case "stranger":
                    await self.send_foreign_requests()
                case "idle":
                    await self.idle()
                case _:
                    await self.restart(options)
        self._note_counts()

    async def chat(self, turns: int | None = None) -> None:
        """Chat for some turns, so that the context grows."""
        talk: list[dict[str, str]] = []
        for _ in range(turns or self.random.randint(1, 8)):
            talk.append({"role": "user", "content": self.random.choice(QUESTIONS)})
            temperature = self.random.choice((0.0, 0.3, 0.8, 1.0))
            tokens = self.random.choice((40, 120, 400, 800))
            reply = await self.session.send_request(ChatRequest(list(talk), max_tokens=tokens, temperature=temperature))
            talk.append({"role": "assistant", "content": reply.text})
            self.replies += 1
            await asyncio.sleep(self.random.uniform(0.2, 4.0))

    async def burst(self) -> None:
        """Send several requests at once, sometimes more than there are slots."""
        await asyncio.gather(*(self.chat(self.random.randint(1, 3)) for _ in range(self.random.randint(2, 3))))

    async def send_foreign_requests(self) -> None:
        """Send requests by another program's client."""
        endpoint = self.session.supervisor.endpoint
        async with EngineClient(endpoint.url, endpoint.api_key) as client:
            for _ in range(self.random.randint(1, 10)):
                question = [{"role": "user", "content": self.random.choice(QUESTIONS)}]
                async with client.chat(ChatRequest(question, max_tokens=self.random.choice((60, 600)))) as deltas:
                    async for _delta in deltas:
                        pass
                self.replies += 1
                await asyncio.sleep(self.random.uniform(0.0, 2.0))

    async def idle(self) -> None:
        """Send no requests for a while."""
        await asyncio.sleep(self.random.uniform(1.0, 60.0))

    async def restart(self, options: ServeOptions) -> None:
        """Change a setting."""
        self._note_counts()
        context, draft = self.random.choice((4_096, 8_192)), self.random.choice((0, 1, 2, 2, 3))
        await self.session.start(StartRequest(replace(options, context=context, draft=draft)))
        self.restarts += 1

    def _note_counts(self) -> None:
        health = self.session.monitor.health_watch.health
        if health is not None:
            self.compared += health.speed.compared
            self.too_short += health.speed.too_short
            self.disturbed += health.speed.disturbed


async def measure(minutes: float, seed: int, model: str) -> str:
    """Use `model` for `minutes`, and return the findings."""
    events: list[HealthEvent] = []

    def note(event: HealthEvent) -> None:
        events.append(event)
        what = "cleared" if event.cleared else "RAISED"
        print(f"{time.monotonic() - began_s:7.1f} s  {what}  {to_json(event.finding)}")

    began_s = time.monotonic()
    found = make_unresolved_options(model, lambda path: ServeOptions(model=path, built_in=True, slots=SLOTS, threads=1))
    options = replace(found, draft=2)
    async with serve(options, on_health=note) as session:
        use = Use(session, seed)
        with contextlib.suppress(asyncio.CancelledError):  # Ctrl-C: what was measured so far counts
            await use.use_until(began_s + 60 * minutes, options)
    raised = [event.finding for event in events if not event.cleared]
    alarms = [found for found in raised if found.level is FindingLevel.WARNING]
    codes = ", ".join(sorted({found.code.value for found in raised})) or "none"
    return (
        f"seed {seed}: {(time.monotonic() - began_s) / 60:.1f} min, {use.replies} replies, {use.restarts} restarts;"
        f" of these {use.compared} compared with others like them, {use.too_short} too short for it, {use.disturbed}"
        " made while other programs took the processor.\n"
        f"{len(alarms)} false alarms, {len(raised) - len(alarms)} pieces of information (codes: {codes})."
    )


def main() -> None:
    """Measure and print the findings."""
    parser = argparse.ArgumentParser(prog="python -m tools.false_alarms", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0, metavar="N", help="how long (default 60)")
    parser.add_argument("--seed", type=int, default=None, metavar="S", help="the same seed makes the same choices")
    parser.add_argument("--model", default=DEMO, metavar="FILE", help="another model, such as the slowed-down demo")
    chosen = parser.parse_args()
    seed = chosen.seed if chosen.seed is not None else random.SystemRandom().randrange(10**6)
    print(f"seed {seed}", flush=True)
    print(asyncio.run(measure(chosen.minutes, seed, chosen.model)))


if __name__ == "__main__":
    main()
