"""Serves a coding agent: finds a running server that suits it, or the settings of a new one."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from launcher.agents.agent import Agent
from launcher.agents.check import CheckedRequest, CheckVerdict, check_server
from launcher.agents.configuration import AgentServer, ContextTooSmall, context_error
from launcher.agents.late_system import (
    correct_template,
    find_refusal,
    read_template,
    template_file,
)
from launcher.app.planning.planner import MachineDescription, downloaded_file, read_situation
from launcher.app.planning.start_settings import ResolvedStart, resolve_start
from launcher.app.serving.attach import AttachedServer
from launcher.app.serving.running_servers import preview_restart
from launcher.base.errors import LauncherError, ModelMissing, Refused, SeveralServers
from launcher.base.files import make_private_folder, write_atomically
from launcher.base.messages import FaceName, command_name, join_messages, mark, message
from launcher.base.paths import state_dir
from launcher.engine.demo import DEMO
from launcher.engine.serve_options import FALLBACK_CONTEXT, ServeOptions
from launcher.engine.server import registry
from launcher.engine.server.address import parse_address
from launcher.engine.server.client import EngineClient
from launcher.engine.server.last_start import load_last_model
from launcher.engine.server.launch import check_model
from launcher.engine.server.listener import verified_api_key
from launcher.engine.server.registry import ServerEntry
from launcher.models.catalogue_load import load_catalogue
from launcher.models.limits import no_text_error
from launcher.models.locate import select_model
from launcher.models.plan import PlanCriteria, Status, make_plans
from launcher.models.preset import Sampling
from launcher.models.server_settings import Value
from launcher.models.smaller_model import describe_smaller, find_smaller

FINE_KV_TYPES = ("f16", "bf16", "q8_0")
"""KV cache types for agents: coarser ones break tool calls."""
_FLAGS: Mapping[str, str] = {
    "temperature": "--temp",
    "top_p": "--top-p",
    "top_k": "--top-k",
    "min_p": "--min-p",
    "presence_penalty": "--presence-penalty",
}


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A running server for an agent. `entry` is its registry entry, None for a server of another program."""

    server: AgentServer
    entry: ServerEntry | None


async def find_running_server(
    agent: Agent, model: str | None, url: str | None, api_key: str | None
) -> RunningServer | None:
    """Return the server at `url`, else the running one of this user that serves `model` (None: any).

    Return None if there is none. Raises ContextTooSmall if it does not suit the agent, SeveralServers,
    ModelWritesNoText, and what AttachedServer.detect_features and listener.verified_api_key raise.
    """
    entry = await asyncio.to_thread(_find_entry, model, url)
    if entry is None and url is None:
        return None
    if entry is not None:
        if entry.first.embeddings:
            raise no_text_error(entry.first.model, is_reranker=entry.first.reranking)
        api_key = api_key or await asyncio.to_thread(verified_api_key, entry)
    attached = AttachedServer(parse_address(entry.url if entry else url or ""), api_key)
    try:
        features = await attached.detect_features()
        attached.require_model()
    finally:
        await attached.close()
    if features.context is None or features.model is None:
        raise Refused(
            message("{url} does not say how long its context is.", url=features.url),
            message("Name a server of llama.cpp or of this program."),
        )
    if features.context < agent.smallest_context:
        raise context_error(agent, features.context, await _describe_larger_context(entry, agent) if entry else "")
    return RunningServer(AgentServer(features.url, api_key or "", features.model, features.context), entry)


def _find_entry(model: str | None, url: str | None) -> ServerEntry | None:
    """Return the registry entry of a running server; see find_running_server."""
    entries = registry.list_entries()
    if url is not None:
        wanted = parse_address(url).registry_url
        return next((entry for entry in entries if entry.url == wanted), None)
    if model is not None:
        names = {model, Path(model).stem}
        entries = tuple(entry for entry in entries if entry.first.model in names)
    else:
        entries = tuple(entry for entry in entries if not entry.first.embeddings) or entries
    if len(entries) > 1:
        raise SeveralServers(
            message(
                "{count} servers are running: {names}.",
                count=len(entries),
                names=", ".join(entry.url for entry in entries),
            ),
            message("Choose one with --url."),
        )
    return entries[0] if entries else None


async def _describe_larger_context(entry: ServerEntry, agent: Agent) -> str:
    """Return how a running server gets a context that suits the agent."""
    changes = {"ctx": str(agent.least_context), "kv": "q8_0"}
    with suppress(LauncherError):
        for names in (("ctx",), ("ctx", "kv")):
            chosen = {name: changes[name] for name in names}
            if (await preview_restart(entry.url, chosen)).get("status") in ("FITS", "TIGHT"):
                words = " ".join(f"--set {name}={value}" for name, value in chosen.items())
                return message(
                    "{command} gives it enough.", command=command_name(f"restart {words}", mark("A longer context"))
                )
    return message(
        "Stop it, and {command} chooses a model that fits.",
        command=command_name(f"code {agent.name}", mark("the next start of the agent")),
    )


async def choose_model() -> str:
    """Return the model that was served last, else the best one for agents that is on this machine.

    Raises ModelMissing if there is none.
    """
    last = await asyncio.to_thread(load_last_model)
    if last is not None:
        with suppress(LauncherError):
            if last == DEMO or await asyncio.to_thread(_generates_text, last):
                return last
    situation = await read_situation(MachineDescription())
    plans = await asyncio.to_thread(make_plans, load_catalogue(), situation, PlanCriteria(intent="agents"))
    for plan in plans:
        if plan.status is not Status.TOO_BIG and downloaded_file(plan) is not None:
            return f"{plan.entry.id}:{plan.file.quant}"
    raise ModelMissing(
        message("There is no model on this machine yet."),
        message(
            "{command} downloads and serves the one that suits this machine[; then run this in another "
            "terminal. {demo} is a small one to try this without a download].",
            command=command_name("up --intent agents", mark("Start")),
            demo=FaceName("`--model demo`"),
        ),
    )


def _generates_text(model: str) -> bool:
    path = select_model(model, load_catalogue()).path
    return path is not None and not check_model(ServeOptions(path, draft=0)).is_embedding


async def check_template(agent: Agent, server: AgentServer) -> None:
    """Raise TemplateRefuses if a running server's chat template refuses what the agent sends."""
    async with EngineClient(server.url, server.api_key or None) as client:
        refusal = await find_refusal(client, agent, server.model)
    if refusal is not None:
        raise refusal


async def check_agent_server(
    agent: Agent, server: AgentServer, report: Callable[[CheckedRequest], object] | None = None
) -> CheckVerdict:
    """Return the verdict on a server. `report` and the errors are those of check_server."""
    async with EngineClient(server.url, server.api_key or None) as client:
        return await check_server(client, agent, model=server.model, report=report)


async def resolve_agent_start(
    agent: Agent,
    model: str,
    asked: Mapping[str, Value],
    make_options: Callable[[Path], ServeOptions],
    *,
    ending: Collection[int] = (),
) -> ResolvedStart:
    """Return the start of a model for an agent: enough context, a KV cache of at least 8 bits, slots, sampling.

    `asked` are settings that the user gave, `ending` the process IDs of engines that the start replaces.
    Raises ContextTooSmall if the model with the agent's context does not fit, ModelWritesNoText, and what resolve_start
    raises.
    """
    for_slots: dict[str, Value] = {"slots": agent.slots, "kv_unified": True} if agent.slots > 1 else {}
    larger: dict[str, Value] = {"ctx": agent.least_context}
    smaller_cache: dict[str, Value] = {**larger, "kv": "q8_0"}
    usable: list[tuple[int, ResolvedStart]] = []
    context = 0
    for settings in (for_slots, for_slots | larger, for_slots | smaller_cache, larger, smaller_cache):
        start = await resolve_start(model, {**settings, **asked}, make_options, intent="agents", ending=ending)
        start = replace(start, chosen=None)  # so that the agent's settings are not kept for the model's next start
        if start.options.embeddings:
            raise no_text_error(start.options.model.name, is_reranker=start.options.reranking)
        if not _fits_with_fine_kv(start, asked):
            continue
        tokens = slot_context(start)
        if "ctx" not in asked:  # beyond its trained context a model writes nonsense
            tokens = int(min(tokens, await asyncio.to_thread(_read_trained_context, start.options)))
        if tokens >= agent.least_context:
            return _with_sampling(start, model)
        context = max(context, tokens)
        usable.append((tokens, start))
    for tokens, start in usable:
        if tokens >= agent.smallest_context:
            return _with_sampling(start, model)
    if limiting := await _find_limiting_settings(agent, model, asked, make_options, ending):
        raise context_error(agent, context, limiting)
    hint, suggested = await _describe_alternative(agent)
    raise context_error(agent, context, hint, suggested=suggested)


async def _find_limiting_settings(
    agent: Agent,
    model: str,
    asked: Mapping[str, Value],
    make_options: Callable[[Path], ServeOptions],
    ending: Collection[int],
) -> str:
    """Return the hint to leave out the user's settings, if there is enough context without them; else ""."""
    blamed = [name for name in ("ctx", "slots") if name in asked]
    if not blamed:
        return ""
    others = {name: value for name, value in asked.items() if name not in blamed}
    with suppress(ContextTooSmall):
        start = await resolve_agent_start(agent, model, others, make_options, ending=ending)
        return message(
            "Leave out {options}: without that, a request has {context:,} tokens of context.",
            context=slot_context(start),
            options=FaceName(" ".join(f"--{name} {asked[name]}" for name in blamed), mark("your own settings")),
        )
    return ""


def _read_trained_context(options: ServeOptions) -> float:
    return check_model(replace(options, draft=0)).trained_context or inf


def _fits_with_fine_kv(start: ResolvedStart, asked: Mapping[str, Value]) -> bool:
    """Return whether a start fits, with a KV cache of at least 8 bits unless the user asked for another."""
    if start.plan is None:
        return True
    return start.plan.status is not Status.TOO_BIG and (start.plan.setting.kv in FINE_KV_TYPES or "kv" in asked)


def slot_context(start: ResolvedStart) -> int:
    """Return the tokens of context that a request has in the server that would be started."""
    options = start.options
    context = options.context or FALLBACK_CONTEXT
    return context if options.kv_unified else context // max(1, options.slots)


async def _describe_alternative(agent: Agent) -> tuple[str, str | None]:
    """Return which model of the catalogue has enough context on this machine, in words and as ID:QUANT."""
    situation = await read_situation(MachineDescription())
    criteria = PlanCriteria(intent="agents", context=agent.least_context, kv="q8_0")
    found = await asyncio.to_thread(find_smaller, load_catalogue(), situation, criteria)
    if found is None or found.setting.slot_context < agent.smallest_context:
        return message("No model of the catalogue has so much context on this machine."), None
    name = f"{found.entry.id}:{found.file.quant}"
    command = message("{command} downloads and serves it.", command=command_name(f"up {name}", mark("Start")))
    return join_messages(describe_smaller(found), command), name


def _with_sampling(start: ResolvedStart, model: str) -> ResolvedStart:
    """Return the start with the sampling that the model's authors advise: agents send none."""
    values = list_sampling_values(find_advised_sampling(model) or Sampling())
    words = [word for name, value in values.items() for word in (_FLAGS[name], str(value))]
    added = [word for word in words if word not in start.options.extra]
    return replace(start, options=replace(start.options, extra=(*added, *start.options.extra)))


def find_advised_sampling(model: str) -> Sampling | None:
    """Return the sampling that the model's authors advise for agents; None if there is no advice."""
    with suppress(LauncherError):
        advice = select_model(model, load_catalogue()).entry.sampling
        return (advice.thinking or advice.no_thinking) if advice else None
    return None


def list_sampling_values(sampling: Sampling) -> dict[str, float]:
    """Return the values of a sampling by their request parameter."""
    values = {name: getattr(sampling, name) for name in _FLAGS}
    return {name: value for name, value in values.items() if value is not None}


async def correct_start(start: ResolvedStart) -> ResolvedStart | None:
    """Return the start with a chat template that accepts late system messages; None if the model's own needs no change.

    Raises what check_model and explain_os_error raise.
    """
    options = start.options
    if options.chat_template_file is not None:
        return None
    header = await asyncio.to_thread(check_model, replace(options, draft=0))
    template = read_template(dict(header.metadata))
    corrected = correct_template(template) if template else None
    if corrected is None:
        return None
    folder = state_dir() / "templates"
    path = template_file(folder, options.model)
    await asyncio.to_thread(make_private_folder, folder)
    await asyncio.to_thread(write_atomically, path, corrected.encode(), mode=0o600)
    return replace(start, options=replace(options, chat_template_file=path))
