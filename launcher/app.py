"""The verbs that both faces call, and the only place where the parts are put together."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from launcher.base.age import process_age_s
from launcher.base.errors import DraftsInert, EngineFailed, PortBusy, ServerNotFound, Superseded
from launcher.base.identity import ProcessId
from launcher.base.paths import expanded
from launcher.base.units import percent, rate
from launcher.engine import registry
from launcher.engine.build import BUILT_IN
from launcher.engine.client import ChatRequest, Delta, EngineClient, Timings
from launcher.engine.demo import DEMO, DemoPreset, demo_preset, unpack_demo_model
from launcher.engine.launch import ServeOptions, check_model, check_options, name_of
from launcher.engine.logs import LogBook
from launcher.engine.registry import Entry, Registration
from launcher.engine.state import Event, State, Status
from launcher.engine.supervisor import Supervisor
from launcher.models.catalogue import SPECULATION, ModelEntry
from launcher.models.catalogue_load import load_catalogue
from launcher.models.library import find_companion
from launcher.models.locate import locate
from launcher.monitor.meter import Acceptance, ReplyMeter, total
from launcher.monitor.monitor import Monitor, Sampled
from launcher.planner import learn_from_load

_DEMO_PROMPTS = (
    "What is MTP, and what does this demo show?",
    "When should MTP be switched off?",
    "What happens to a draft that is wrong?",
    "How do I know what fits on my graphics card?",
)
_DEMO_MAX_TOKENS = 400
_STOP_S = 12.0
_PORTS_TRIED = 4
_END_WORDS = {"stop": "end", "length": "token limit"}


@dataclass(frozen=True, slots=True)
class Reply:
    """A finished reply, its drafts, and the seconds to its first token as its reader saw them."""

    text: str
    reasoning: str
    timings: Timings | None
    acceptance: Acceptance
    first_token_s: float | None
    finish_reason: str | None

    @property
    def line(self) -> str:
        """The line under a reply: rate, tokens, first token, acceptance, why it ended."""
        parts = []
        if self.timings is not None:
            parts += [rate(self.timings.tokens_per_second), f"{self.timings.predicted_n} tokens"]
        if self.first_token_s is not None:
            parts.append(f"first token {self.first_token_s:.2f} s")
        if self.acceptance.rate is not None:
            parts.append(f"{percent(self.acceptance.rate)} of drafts accepted (mean {self.acceptance.mean_length:.1f})")
        if self.finish_reason:
            parts.append(f"stopped: {_END_WORDS.get(self.finish_reason, self.finish_reason)}")
        return " · ".join(parts)


class Session:
    """One server for as long as a face wants one: started, restarted, asked and stopped as often as it likes.

    The address stays the same while the session lasts, unless no `port` was asked for and another program takes it.
    Belongs to one asyncio loop; the listeners are called there.
    """

    def __init__(
        self, *, port: int | None = None, on_event: "OnEvent | None" = None, on_sample: "OnSample | None" = None
    ) -> None:
        self.monitor = Monitor(on_sample)
        self._port = port
        self._may_move = port is None
        self._on_event = on_event
        self._hides_lost_port = False
        self._requests = 0
        self._supervisor: Supervisor | None = None
        self._registration: Registration | None = None

    @property
    def supervisor(self) -> Supervisor:
        """The server's supervisor. Raises ServerNotFound before the first start and after the last stop."""
        if self._supervisor is None:
            raise ServerNotFound("The server is not running.", "Start it first.")
        return self._supervisor

    async def start(self, options: ServeOptions) -> None:
        """Serve `options`, in place of what is served now. See Supervisor.become.

        A port that nobody asked for, and that another program takes before the engine does, is exchanged for another.
        """
        self._requests += 1
        request = self._requests
        check_options(options)
        await asyncio.to_thread(check_model, options)  # before a port is claimed
        for moves_left in reversed(range(_PORTS_TRIED if self._may_move else 1)):
            if request != self._requests:
                raise Superseded("A newer request to this server took the place of this one.")
            self._hides_lost_port = moves_left > 0
            try:
                await self._become(options)
            except PortBusy:
                if not moves_left:
                    raise
                self._port = None
            else:
                return

    async def _become(self, options: ServeOptions) -> None:
        supervisor = self._supervisor or self._open(options)
        self.monitor.begin(supervisor)
        try:
            await supervisor.become(options)
        except BaseException:
            await self._settle()
            raise
        await self._learn(supervisor)

    async def _learn(self, supervisor: Supervisor) -> None:
        """Let plans to come know what this load took of the GPU; nothing depends on its success."""
        launch, pid = supervisor.launch, supervisor.engine_pid
        if launch is None or pid is None or launch.build.name == BUILT_IN:
            return
        with suppress(Exception):
            await asyncio.to_thread(learn_from_load, launch, pid, supervisor.log.last())

    async def stop(self) -> None:
        """Stop the server, if one runs or is about to."""
        self._requests += 1
        if self._supervisor is not None:
            try:
                await self._supervisor.become(None)
            finally:
                await self._settle()

    async def ask(self, request: ChatRequest, on_delta: "OnDelta | None" = None) -> Reply:
        """Ask for a reply and return it whole; the monitor follows it. See Supervisor.chat for the errors."""
        meter = self.monitor.reply_started()
        began_s = time.monotonic()
        try:
            async with self.supervisor.chat(request) as deltas:
                return await _read(deltas, began_s, meter, on_delta)
        finally:
            self.monitor.reply_ended(meter)

    def _open(self, options: ServeOptions) -> Supervisor:
        endpoint, registration = registry.register(
            self._port, model=name_of(options), engine=_engine(options), draft=options.draft
        )

        def listen(event: Event) -> None:
            if isinstance(event, Status) and event.state not in (State(registration.entry.state), State.BUSY):
                launch = supervisor.launch
                registration.update(
                    state=event.state.value,
                    engine_pid=supervisor.engine_pid,
                    engine=launch.build.name if launch else _engine(options),
                    model=name_of(launch.options if launch else options),
                    draft=launch.options.draft if launch else options.draft,
                )
            lost = isinstance(event, Status) and isinstance(event.error, PortBusy) and self._hides_lost_port
            if self._on_event is not None and not lost:
                self._on_event(event)

        self._registration = registration
        self._supervisor = supervisor = Supervisor(endpoint, LogBook.for_port(endpoint.port), listen)
        self._port = endpoint.port
        return supervisor

    async def _settle(self) -> None:
        """Put everything away, unless a newer start is under way."""
        supervisor = self._supervisor
        resting = supervisor is not None and supervisor.status.state in (State.STOPPED, State.FAILED)
        if supervisor is None or supervisor.changing or not resting:
            return
        self._supervisor = None
        if self._registration is not None:
            self._registration.remove()
        supervisor.log.close()
        await self.monitor.end()


def _engine(options: ServeOptions) -> str:
    return BUILT_IN if options.engine is None else options.engine.name


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


OnEvent = Callable[[Event], None]
OnDelta = Callable[[Delta], None]
OnSample = Callable[[Sampled], None]


@asynccontextmanager
async def serve(
    options: ServeOptions,
    *,
    port: int | None = None,
    on_event: OnEvent | None = None,
    on_sample: OnSample | None = None,
) -> AsyncIterator[Session]:
    """Run a server for as long as the block lasts; leaving it, however, leaves no process.

    Raises the LauncherError that says why it could not be served.
    """
    session = Session(port=port, on_event=on_event, on_sample=on_sample)
    try:
        await session.start(options)
        yield session
    finally:
        await session.stop()


def options_for(model: str, options: Callable[[Path], ServeOptions], *, draft: int | None) -> ServeOptions:
    """Return the options for a model as the user names it: a path, ID[:QUANT], OWNER/NAME:FILE, or "demo".

    What the user leaves open for the demo comes from its preset; a model that the catalogue knows to have no MTP head
    is served without. Raises ModelMissing, also for a model that has to be pulled first, ModelUnknown or ModelBroken.
    """
    if model != DEMO:
        named = locate(model, load_catalogue())
        chosen = options(named.path if named else expanded(model))
        if named and named.entry and named.file and not named.entry.has_head(named.file):
            chosen = _with_draft_file(chosen, named.entry)
        return chosen if draft is None else replace(chosen, draft=draft)
    preset = demo_preset()
    chosen = options(unpack_demo_model())
    return replace(
        chosen,
        context=preset.context if chosen.context is None else chosen.context,
        threads=preset.threads if chosen.threads is None else chosen.threads,
        draft=preset.draft if draft is None else draft,
        alias=DEMO,
        built_in=chosen.engine is None,
    )


def _with_draft_file(options: ServeOptions, entry: ModelEntry) -> ServeOptions:
    """Return the options for a model without a head inside: with the draft that goes with it, if that is here."""
    way = SPECULATION[entry.speculation] if entry.speculation else None
    draft = find_companion(entry, entry.draft) if way and way.needs_draft_file and entry.draft else None
    if draft is None or way is None:
        return replace(options, draft=0)
    return replace(options, draft_file=draft, spec_type=way.spec_type)


async def _read(deltas: AsyncIterator[Delta], began_s: float, meter: ReplyMeter, on_delta: OnDelta | None) -> Reply:
    """Read a reply to its end. `began_s` is when it was asked for: the engine may have let it wait."""
    text, reasoning = [], []
    first_token_s: float | None = None
    finish_reason: str | None = None
    async for delta in deltas:
        if first_token_s is None and (delta.content or delta.reasoning):
            first_token_s = time.monotonic() - began_s
        text.append(delta.content)
        reasoning.append(delta.reasoning)
        if delta.timings is not None:
            meter.add(delta.timings)
        finish_reason = delta.finish_reason or finish_reason
        if on_delta is not None:
            on_delta(delta)
    return Reply("".join(text), "".join(reasoning), meter.last, meter.acceptance, first_token_s, finish_reason)


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
        for prompt in itertools.cycle(_DEMO_PROMPTS):
            first_round = len(replies) < len(_DEMO_PROMPTS)
            if first_round and on_prompt is not None:
                on_prompt(prompt)
            replies.append(await session.ask(_demo_request(prompt, preset), on_delta if first_round else None))
            if first_round and on_reply is not None:
                on_reply(replies[-1])
            if seconds is None and len(replies) == len(_DEMO_PROMPTS):
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


def _demo_request(prompt: str, preset: DemoPreset) -> ChatRequest:
    return ChatRequest(
        [{"role": "user", "content": prompt}],
        max_tokens=_DEMO_MAX_TOKENS,
        temperature=preset.temperature,
        thinking=False,
    )


async def chat(request: ChatRequest, *, url: str | None, on_delta: OnDelta | None = None) -> Reply:
    """Ask a running server of ours: the only one, or the one at `url`."""
    entry = await asyncio.to_thread(registry.find, url)
    began_s = time.monotonic()
    async with EngineClient(entry.url, entry.api_key) as client, client.chat(request) as deltas:
        return await _read(deltas, began_s, ReplyMeter(), on_delta)


@dataclass(frozen=True, slots=True)
class Running:
    """A registered server and what it is doing now."""

    entry: Entry
    state: str


async def status(url: str | None = None) -> tuple[Running, ...]:
    """Return the servers that run now, or only the one at `url`; ServerNotFound when that does not run."""
    if url is None:
        entries = await asyncio.to_thread(registry.running)
    else:
        entries = (await asyncio.to_thread(registry.find, url),)
    return tuple(await asyncio.gather(*map(_look, entries)))


async def _look(entry: Entry) -> Running:
    if entry.state != State.READY:
        return Running(entry, entry.state)
    async with EngineClient(entry.url, entry.api_key) as client:
        return Running(entry, entry.state if await client.healthy() else "not answering")


async def stop(url: str | None) -> Entry:
    """Stop the only running server, or the one at `url`, and return what it was.

    Its launcher is asked to end (on Windows it is ended, which ends the engine's job). Raises ServerNotFound,
    SeveralServers, or EngineFailed when it still runs after 12 s.
    """
    entry = await asyncio.to_thread(registry.find, url)
    engine = ProcessId.of(entry.engine_pid) if entry.engine_pid else None
    with suppress(psutil.NoSuchProcess):
        psutil.Process(entry.pid).terminate()
    deadline_s = time.monotonic() + _STOP_S
    while entry.launcher.running() or (engine is not None and engine.running()):
        if time.monotonic() > deadline_s:
            raise EngineFailed(f"The server at {entry.url} did not end within {_STOP_S:.0f} s.", "Try again.")
        await asyncio.sleep(0.05)
    registry.running()
    return entry
