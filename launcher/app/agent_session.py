"""The server that a coding agent gets on this computer now, running or to be started, and whether it suits."""

import asyncio
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from launcher.agents.agent import Agent
from launcher.agents.check import CheckedRequest, CheckVerdict
from launcher.agents.configuration import AgentConfiguration, AgentServer, ContextTooSmall, make_configuration
from launcher.agents.late_system import TemplateRefuses, read_template
from launcher.agents.session_folder import sessions_folder
from launcher.app.coding import (
    FINE_KV_TYPES,
    check_agent_server,
    check_template,
    choose_model,
    correct_start,
    find_advised_sampling,
    find_running_server,
    list_sampling_values,
    resolve_agent_start,
    slot_context,
)
from launcher.app.planning.start_settings import ResolvedStart
from launcher.app.serving.running_servers import preview_restart
from launcher.base.errors import LauncherError, ServerNotFound, SeveralServers
from launcher.base.messages import join_messages, message, plural_message
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server import registry
from launcher.engine.server.client import EngineClient, read_sampling_defaults
from launcher.engine.server.endpoint import HOST, saved_endpoints
from launcher.engine.server.launch import api_model_name, check_model
from launcher.engine.server.listener import verified_api_key
from launcher.engine.server.registry import ServerEntry
from launcher.engine.settings import EXTRA

HIDDEN_KEY = "***"
"""Text in place of the API key in configurations that are shown."""


class NeedKind(Enum):
    """Kind of requirement that an agent has for its server, besides enough context."""

    MODEL = "model"
    PROMPT_CACHE = "prompt cache"
    KV_CACHE = "KV cache"
    SAMPLING = "sampling"
    TEMPLATE = "template"


@dataclass(frozen=True, slots=True)
class Need:
    """One need of an agent: whether the server meets it (None: unknown), and a remark."""

    kind: NeedKind
    met: bool | None
    remark: str


@dataclass(frozen=True, slots=True)
class AgentSession:
    """The server that an agent would get now. Nothing is started.

    `server` is the server that the agent would talk to, with the API key hidden. If no server runs, or the running one
    does not suit the agent, `start` starts a server that does; `problem` is why the running server does not suit.
    `context` is the context of the running server in tokens per slot, else of the start; `largest_context` is the
    longest context that fits, and `restart_s` the seconds of a restart; both None if unknown. `settings` are the server
    settings by name.
    """

    agent: Agent
    server: AgentServer
    context: int
    needs: tuple[Need, ...]
    settings: Mapping[str, object] = field(default_factory=dict)
    start: ResolvedStart | None = None
    problem: LauncherError | None = None
    largest_context: int | None = None
    restart_s: float | None = None

    @property
    def is_running(self) -> bool:
        """Whether the server runs, suitable or not."""
        return self.start is None or self.problem is not None

    @property
    def has_enough_context(self) -> bool:
        """Whether the context is what the agent needs."""
        return self.context >= self.agent.smallest_context


@dataclass(frozen=True, slots=True)
class _ServerFacts:
    """Known properties of a server that runs or would be started; None if unknown."""

    model: str
    settings: Mapping[str, object]
    template: str | None
    sampling: Mapping[str, float]
    advised: Mapping[str, float] | None
    is_corrected: bool = False


async def read_session(agent: Agent, own: tuple[str, str] | None = None, ending: Collection[int] = ()) -> AgentSession:
    """Return what an agent would get now.

    `own` are the URL and model of the caller's server, which may be started again if it does not suit; `ending` are the
    process IDs of its engine. Raises what find_running_server raises for a server of somebody else, and what
    choose_model, resolve_agent_start and correct_start raise.
    """
    problem: LauncherError | None = None
    try:
        running = await find_running_server(agent, None, own[0] if own else None, None)
        if running is not None:
            await check_template(agent, running.server)
            return await _describe_running(agent, running.server, running.entry, own[1] if own else None)
    except (ContextTooSmall, TemplateRefuses) as error:
        if own is None:
            raise
        problem = error
    except SeveralServers:  # none of them is the caller's own
        pass
    start = await resolve_agent_start(agent, own[1] if own else await choose_model(), {}, ServeOptions, ending=ending)
    start = (await correct_start(start) if agent.late_system else None) or start
    planned = await plan_server(start)
    if problem is None or own is None:
        needs = _list_needs(agent, await _read_start(start), None)
        return AgentSession(agent, planned, slot_context(start), needs, start=start)
    entry = await asyncio.to_thread(_find_entry, own[0])
    key = await asyncio.to_thread(verified_api_key, entry) if entry is not None else None
    context = problem.facts.get("context")
    unsuited = AgentServer(own[0], key or "", own[1], int(context) if isinstance(context, int) else None)
    described = await _describe_running(agent, unsuited, entry, own[1], problem)
    return replace(described, server=replace(planned, url=own[0]), start=start, problem=problem)


def _find_entry(url: str) -> ServerEntry | None:
    return next((entry for entry in registry.list_entries() if entry.url == url), None)


async def plan_server(start: ResolvedStart) -> AgentServer:
    """Return the server that a start would give an agent, with the API key hidden."""
    saved = await asyncio.to_thread(saved_endpoints)
    url = saved[0].url if saved else f"http://{HOST}:PORT"
    return AgentServer(url, HIDDEN_KEY, api_model_name(start.options), slot_context(start))


def configure_session(
    agent: Agent, server: AgentServer, program: Sequence[str], folder: Path, arguments: Sequence[str] = ()
) -> AgentConfiguration:
    """Return what the agent gets in a session with this server. Nothing is written.

    `program` are the words that start the agent, `folder` is where its files will be.
    """
    sessions = sessions_folder(agent.name)
    return make_configuration(agent, server, program=program, folder=folder, sessions=sessions, arguments=arguments)


def format_environment(configuration: AgentConfiguration) -> Iterator[str]:
    """Yield the lines of a shell that set and unset a configuration's variables: PowerShell's on Windows."""
    for name in configuration.unset:
        yield f"unset {name}" if sys.platform != "win32" else f"Remove-Item Env:{name}"
    for name, value in configuration.environment.items():
        yield f"export {name}={shlex.quote(value)}" if sys.platform != "win32" else f'$env:{name} = "{value}"'


async def check_running(
    agent: Agent, url: str, report: Callable[[CheckedRequest], object] | None = None
) -> CheckVerdict:
    """Return the verdict on a running server. Raises what find_running_server and check_server raise."""
    running = await find_running_server(agent, None, url, None)
    if running is None:
        raise ServerNotFound(message("The server is not running."), message("Start it first."))
    return await check_agent_server(agent, running.server, report)


async def _describe_running(
    agent: Agent,
    server: AgentServer,
    entry: ServerEntry | None,
    model: str | None,
    problem: LauncherError | None = None,
) -> AgentSession:
    """Return what an agent gets from a running server; `model` is its name in the catalogue or its path, if known."""
    async with EngineClient(server.url, server.api_key or None) as client:
        sampling = await read_sampling_defaults(client)
        template = await _read_server_template(client)
    settings = entry.first.settings if entry is not None else {}
    advised = await asyncio.to_thread(find_advised_sampling, model) if model else None
    facts = _ServerFacts(
        entry.first.model if entry is not None else server.model,
        settings,
        template,
        sampling.values,
        None if advised is None else list_sampling_values(advised),
    )
    preview: Mapping[str, Any] = {}
    if entry is not None:
        with suppress(LauncherError):
            preview = await preview_restart(entry.url, {})
    return AgentSession(
        agent,
        replace(server, api_key=HIDDEN_KEY),
        server.context or 0,
        _list_needs(agent, facts, problem),
        settings,
        largest_context=preview.get("largest_context"),
        restart_s=preview.get("restart_s"),
    )


async def _read_server_template(client: EngineClient) -> str | None:
    try:
        template = (await client.request_json("/props")).get("chat_template")
    except (LauncherError, AttributeError):
        return None
    return template if isinstance(template, str) else None


async def _read_start(start: ResolvedStart) -> _ServerFacts:
    options = start.options
    header = await asyncio.to_thread(check_model, replace(options, draft=0))
    advised = await asyncio.to_thread(find_advised_sampling, start.model_name)
    values = list_sampling_values(advised) if advised is not None else {}
    return _ServerFacts(
        api_model_name(options),
        {"slots": options.slots, "kv": options.kv, EXTRA: list(options.extra)},
        read_template(dict(header.metadata)),
        values,
        values if advised is not None else None,
        is_corrected=options.chat_template_file is not None,
    )


def _list_needs(agent: Agent, facts: _ServerFacts, problem: LauncherError | None) -> tuple[Need, ...]:
    return (
        _judge_model(agent, facts),
        _judge_slots(agent, facts.settings.get("slots")),
        _judge_kv(facts.settings.get("kv")),
        _judge_sampling(facts),
        _judge_template(agent, facts, problem),
    )


def _judge_model(agent: Agent, facts: _ServerFacts) -> Need:
    if not agent.calls_tools:
        return Need(NeedKind.MODEL, True, message("{model}; no tool calls needed", model=facts.model))
    if facts.template is None:
        return Need(NeedKind.MODEL, None, message("{model}; the check shows whether it calls tools", model=facts.model))
    if "tools" not in facts.template:
        return Need(NeedKind.MODEL, False, message("{model}; its chat template has no tools", model=facts.model))
    return Need(NeedKind.MODEL, True, message("{model}, made to call tools", model=facts.model))


def _judge_slots(agent: Agent, slots: object) -> Need:
    if not isinstance(slots, int):
        return Need(NeedKind.PROMPT_CACHE, None, message("number of slots unknown"))
    number = plural_message("{n} slot", "{n} slots", slots)
    if slots < agent.slots:
        remark = message("{slots}, but up to {wanted} requests at once", slots=number, wanted=agent.slots)
        return Need(NeedKind.PROMPT_CACHE, False, remark)
    if agent.slots == 1:
        return Need(NeedKind.PROMPT_CACHE, True, message("{slots}, as many as it uses", slots=number))
    return Need(NeedKind.PROMPT_CACHE, True, message("{slots}, side requests do not clear it", slots=number))


def _judge_kv(kv: object) -> Need:
    if not isinstance(kv, str):
        return Need(NeedKind.KV_CACHE, None, message("type unknown"))
    if kv in FINE_KV_TYPES:
        return Need(NeedKind.KV_CACHE, True, message("{kv}, good for tool calls", kv=kv))
    return Need(NeedKind.KV_CACHE, False, message("{kv} is coarse and may break tool calls", kv=kv))


def _judge_sampling(facts: _ServerFacts) -> Need:
    values, advised = facts.sampling, facts.advised
    shown = _describe_sampling(values)
    if advised:
        differing = {name: value for name, value in advised.items() if values.get(name) not in (None, value)}
        if differing:
            advice = _describe_sampling(advised)
            remark = message("{values}; the model's authors advise {advice}", values=shown, advice=advice)
            return Need(NeedKind.SAMPLING, False, remark)
        return Need(NeedKind.SAMPLING, True, message("{values}, from the model card", values=shown))
    if not values:
        return Need(NeedKind.SAMPLING, True, message("the engine's own"))
    return Need(NeedKind.SAMPLING, True, message("{values}, the engine's own", values=shown))


def _describe_sampling(values: Mapping[str, float]) -> str:
    temperature, top_p = values.get("temperature"), values.get("top_p")
    parts = [] if temperature is None else [message("temperature {value:.2f}", value=temperature)]
    parts += [] if top_p is None else [message("top-p {value:.2f}", value=top_p)]
    return join_messages(*parts, separator=", ")


def _judge_template(agent: Agent, facts: _ServerFacts, problem: LauncherError | None) -> Need:
    if isinstance(problem, TemplateRefuses):
        return Need(NeedKind.TEMPLATE, False, message("refuses late system messages of {title}", title=agent.title))
    if agent.late_system and facts.is_corrected:
        return Need(NeedKind.TEMPLATE, True, message("corrected for {title}", title=agent.title))
    return Need(NeedKind.TEMPLATE, True, message("takes all that {title} sends", title=agent.title))
