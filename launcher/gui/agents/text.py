"""Texts of the Agents page: the verdict, agents, needs and checks in the user's words."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from launcher.agents.configuration import ContextTooSmall
from launcher.base.errors import LauncherError, ModelMissing
from launcher.gui.agents.control import Activity
from launcher.gui.labels import UNKNOWN
from launcher.gui.late import agent_checks
from launcher.gui.translation import join_sentences, ntr, render, tr

if TYPE_CHECKING:
    from launcher.agents.agent import Agent
    from launcher.agents.check import CheckVerdict
    from launcher.agents.configuration import AgentConfiguration
    from launcher.app.agent_session import AgentSession
    from launcher.gui.agents.control import AgentControl, CheckRecord

NODE_PAGE = "https://nodejs.org"
_SENTENCE = re.compile(r"(?<=[:：])\s*|(?<=\.)\s+|(?<=。)")  # noqa: RUF001 -- the Chinese colon
"""End of the first words of a verdict: "Ready for opencode:", "Not ready for opencode."."""
_FRESH_S, _MINUTE_S, _HOUR_S = 60, 60, 3_600
_THOUSAND = 1_024


class Fix(Enum):
    """Action of the button of a verdict."""

    CHECK = "check"
    RESTART = "restart"
    MORE_SLOTS = "more slots"
    NO_DRAFTS = "no drafts"
    PLANS = "plans"
    SUGGESTED_PLAN = "suggested plan"
    SEARCH_AGAIN = "search again"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class VerdictView:
    """The verdict card: colour role, glyph ("" for none), caption, the sentence in two parts, and a button.

    `command` is a command to run in a terminal, or the address of a page to read; a button copies it.
    """

    meaning: str
    glyph: str
    caption: str
    title: str
    text: str = ""
    fix: Fix | None = None
    button: str = ""
    command: str = ""
    is_dim: bool = False


def describe_verdict(control: AgentControl) -> VerdictView:
    """Return what the verdict card shows now."""
    agent = control.agent
    if agent is None:
        return VerdictView("secondary", "", "", tr("Looking for coding agents ..."))
    if not control.is_installed:
        return _describe_missing(agent, has_npm=control.found is None or control.found.has_npm)
    if control.is_busy:
        return _describe_activity(control, agent)
    if control.failure is not None:
        return _describe_error(control.failure, agent)
    if control.is_loading:
        text = tr("The server can be checked when its model is loaded.")
        return VerdictView("accent", "dashed", tr("Server"), control.controller.view.state_text, text)
    if control.reading_error is not None:
        return _describe_error(control.reading_error, agent)
    session = control.session
    # A fresh check counts more than what was read, which may be older.
    if control.record is not None and control.is_record_fresh:
        return _describe_record(control.record, agent, session)
    if session is not None and session.problem is not None:
        return _describe_unsuited(session, session.problem)
    if control.record is not None:
        return _describe_stale(control.record, is_running=session is not None and session.is_running)
    if session is None:
        return VerdictView("secondary", "", tr("Verdict"), tr("Reading the server's settings ..."))
    return _describe_unchecked(session)


def _describe_missing(agent: Agent, *, has_npm: bool) -> VerdictView:
    title = tr("{title} is not installed", title=agent.title)
    button = tr("Look again")
    if agent.install.startswith("see "):
        text = ""
        if agent.licence == "proprietary":
            text = tr("It is proprietary, so this program never downloads it.")
        text = join_sentences(text, tr("This page says how to install it:"))
        return VerdictView(
            "secondary", "", "", title, text, Fix.SEARCH_AGAIN, button, agent.install.removeprefix("see ")
        )
    needed = ""
    if agent.install.startswith("npm ") and not has_npm:
        needed = tr("npm is missing: it comes with Node.js, {page}.", page=NODE_PAGE)
    text = join_sentences(needed, tr("Run this in a terminal, then come back:"))
    return VerdictView("secondary", "", "", title, text, Fix.SEARCH_AGAIN, button, agent.install)


def _describe_activity(control: AgentControl, agent: Agent) -> VerdictView:
    session, caption, title = control.session, tr("Verdict"), ""
    match control.activity:
        case Activity.PREPARING:
            title = tr("Preparing a server for {title} ...", title=agent.title)
        case Activity.OPENING:
            title = tr("Opening {title} in a terminal ...", title=agent.title)
        case Activity.CHECKING:
            title = tr("Checking the server for {title} ...", title=agent.title)
            text = tr("Request {number} of {count}", number=len(control.requests) + 1, count=count_requests(agent))
            if len(control.requests) == count_requests(agent):
                text = tr("Asking about the chat template")
            return VerdictView("accent", "dashed", caption, title, text, Fix.CANCEL, tr("Cancel"))
        case _:
            title = tr("Loading the model ...")
            text = control.controller.view.state_text
            if session is not None and session.start is not None:
                model, context = session.server.model, session.server.context or 0
                title = tr("Loading {model} with {context:,} tokens of context ...", model=model, context=context)
            return VerdictView("accent", "dashed", caption, title, text, Fix.CANCEL, tr("Cancel"))
    return VerdictView("accent", "dashed", caption, title)


def _describe_error(error: LauncherError, agent: Agent) -> VerdictView:
    suggested = error.facts.get("suggested")
    fix, button, command = Fix.CHECK, tr("Try again"), ""
    text = render(error.hint or "")
    if suggested:
        fix, button = Fix.SUGGESTED_PLAN, tr("Show its plan")
    elif isinstance(error, ModelMissing | ContextTooSmall):
        fix, button = Fix.PLANS, tr("Show plans for agents")
    elif error.code == "terminal_missing":
        text = tr("Run this in a terminal, in the folder of your project:")
        command = f"mtp-launcher code {agent.name}"
    return VerdictView("bad", "cross", tr("Verdict"), render(error.title), text, fix, button, command)


def _describe_unsuited(session: AgentSession, problem: LauncherError) -> VerdictView:
    seconds = ""
    if session.restart_s is not None:
        seconds = tr(", about {seconds:.0f} s", seconds=max(1.0, session.restart_s))
    if isinstance(problem, ContextTooSmall):
        tokens = session.server.context or 0
        text = tr(
            "A request has {context:,} tokens of context; {title} needs at least {least:,}.",
            context=session.context,
            title=session.agent.title,
            least=session.agent.smallest_context,
        )
        button = tr("Raise the context to {context}{seconds}", context=format_whole_thousands(tokens), seconds=seconds)
    else:
        text = render(problem.title)
        button = tr("Restart with a corrected template{seconds}", seconds=seconds)
    title = tr("Not ready for {title}.", title=session.agent.title)
    return VerdictView("bad", "cross", tr("Verdict"), title, text, Fix.RESTART, button)


def _describe_record(record: CheckRecord, agent: Agent, session: AgentSession | None) -> VerdictView:
    verdict = record.verdict
    caption = tr(
        "Verdict · {requests} in {seconds:.1f} s · {age}",
        requests=ntr("1 request", "{n} requests", len(verdict.requests)),
        seconds=verdict.seconds,
        age=format_age(record.checked_at),
    )
    title, text = split_sentence(render(verdict.sentence))
    if verdict.ready:
        return VerdictView("good", "tick", caption, title, text)
    fix, button = _find_fix(verdict, agent, session)
    return VerdictView("bad", "cross", caption, title, text, fix, button)


def _find_fix(verdict: CheckVerdict, agent: Agent, session: AgentSession | None) -> tuple[Fix, str]:
    """Return the fix of the first fault that can be fixed here, and the text of its button."""
    slots = session.settings.get("slots") if session is not None else None
    for fault in verdict.faults:
        if fault is agent_checks.CheckFault.PROMPT_READ_AGAIN and isinstance(slots, int) and slots < agent.slots:
            return Fix.MORE_SLOTS, ntr("Use 1 slot", "Use {n} slots", agent.slots)
        if fault is agent_checks.CheckFault.NO_DRAFT_ACCEPTED and slots is not None:
            return Fix.NO_DRAFTS, tr("Turn MTP off")
        if fault is agent_checks.CheckFault.TEMPLATE_REFUSES:
            return Fix.RESTART, tr("Restart with a corrected template{seconds}", seconds="")
        if fault in (agent_checks.CheckFault.NO_TOOL_CALL, agent_checks.CheckFault.TOOL_CALL_AS_TEXT):
            return Fix.PLANS, tr("Show plans for agents")
    return Fix.CHECK, tr("Check again")


def _describe_stale(record: CheckRecord, *, is_running: bool) -> VerdictView:
    reason = tr("the server settings have changed since") if is_running else tr("the server has stopped since")
    caption = tr("Verdict · {age} · {reason}", age=format_age(record.checked_at), reason=reason)
    title, text = split_sentence(render(record.verdict.sentence))
    return VerdictView("attention", "half", caption, title, text, Fix.CHECK, tr("Check again"), is_dim=True)


def _describe_unchecked(session: AgentSession) -> VerdictView:
    agent = session.agent
    if session.start is None:
        text = ntr(
            "The check sends 1 short request.",
            "The check sends {n} short requests, which takes some seconds.",
            count_requests(agent),
        )
        return VerdictView("secondary", "ring", tr("Verdict"), tr("Not checked yet"), text, Fix.CHECK, tr("Check"))
    text = tr(
        "Start {title} loads {model} with {context:,} tokens of context, opens a terminal and checks the server.",
        title=agent.title,
        model=session.server.model,
        context=session.server.context or 0,
    )
    return VerdictView("secondary", "ring", tr("Verdict"), tr("No model is loaded"), text)


def count_requests(agent: Agent) -> int:
    """Return how many requests a check takes: three turns, and one to the agent's own API if it has one."""
    return 3 if agent.api == "chat" else 4


def split_sentence(sentence: str) -> tuple[str, str]:
    """Return the first words of a verdict, and the rest."""
    first, *rest = _SENTENCE.split(sentence, maxsplit=1)
    return first, "".join(rest)


def format_age(checked_at: float) -> str:
    """Return how long ago a check was; `checked_at` in seconds since the epoch."""
    age_s = max(0.0, time.time() - checked_at)
    if age_s < _FRESH_S:
        return tr("just now")
    if age_s < _HOUR_S:
        return ntr("1 minute ago", "{n} minutes ago", int(age_s) // _MINUTE_S)
    return ntr("1 hour ago", "{n} hours ago", int(age_s) // _HOUR_S)


def format_whole_thousands(tokens: int) -> str:
    """Return a number of tokens in short, such as 32K."""
    return f"{tokens // _THOUSAND}K" if tokens >= _THOUSAND else str(tokens)


def describe_agent(control: AgentControl, agent: Agent) -> str:
    """Return the second line of an agent in the list: version and need, or that it is not installed."""
    if control.found is None or agent not in control.found.installed:
        return tr("not installed · show how")
    need = tr("needs {context}", context=format_whole_thousands(agent.least_context))
    version = control.versions.get(agent.name)
    return f"{version} · {need}" if version else need


def describe_version(control: AgentControl, agent: Agent) -> str:
    """Return a remark on a version that was not tried; "" if there is none."""
    version = control.versions.get(agent.name)
    if version is None or version in agent.versions:
        return ""
    return tr(
        "Version {version} was not tried with this program; {tried} was.",
        version=version,
        tried=", ".join(agent.versions),
    )


def describe_context(session: AgentSession) -> str:
    """Return the context and how it compares with the need."""
    tokens, least = session.context, session.agent.least_context
    if tokens < session.agent.smallest_context:
        return tr("{tokens:,} tokens, too few", tokens=tokens)
    if tokens < least:
        return tr("{tokens:,} tokens, with fewer tools", tokens=tokens)
    times = tokens / least
    if times < 2:
        return tr("{tokens:,} tokens, enough", tokens=tokens)
    return tr("{tokens:,} tokens, {times:.0f} times what it needs", tokens=tokens, times=times)


def need_name(kind: str) -> str:
    """Return the name of a need, by the value of its kind."""
    names: Mapping[str, Callable[[], str]] = {
        "model": lambda: tr("Model"),
        "prompt cache": lambda: tr("Prompt cache"),
        "KV cache": lambda: tr("KV cache"),
        "sampling": lambda: tr("Sampling"),
        "template": lambda: tr("Chat template"),
    }
    return names[kind]()


def step_name(step: str) -> tuple[str, str]:
    """Return the name of a request of the check, and a note."""
    names: Mapping[str, Callable[[], tuple[str, str]]] = {
        "first_prompt": lambda: (tr("Turn {number}", number=1), tr("first prompt")),
        "tool_result": lambda: (tr("Turn {number}", number=2), tr("after the tool")),
        "next_question": lambda: (tr("Turn {number}", number=3), tr("next question")),
        "own_api": lambda: (tr("API"), tr("the agent's own")),
    }
    return names[step]()


def format_share(share: float | None) -> str:
    """Return a share of 0 to 1 in per cent."""
    return UNKNOWN if share is None else f"{100 * share:.0f} %"


def format_summary(configuration: AgentConfiguration) -> str:
    """Return the variables and the values in the files as TOML, with shortened names."""
    lines = [_format_pair(name, value) for name, value in configuration.environment.items()]
    lines += [f"# {name} is not passed on" for name in configuration.unset]
    for path, text in configuration.files.items():
        try:
            leaves = dict(_list_leaves(json.loads(text)))
        except ValueError:
            continue
        lines += ["", tr("# {file}, in short", file=path.name)]
        names = _shorten_names([path for path in leaves if not path[-1].startswith("$")])
        width = max(map(len, names.values()), default=0)
        lines += [_format_pair(name.ljust(width), leaves[path]) for path, name in names.items()]
    return "\n".join(lines)


def _format_pair(name: str, value: object) -> str:
    return f"{name} = {json.dumps(value, ensure_ascii=False)}"


def _list_leaves(data: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    if isinstance(data, dict) and data:
        for name, value in data.items():
            yield from _list_leaves(value, (*path, str(name)))
    elif path:
        yield path, data


def _shorten_names(paths: list[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """Return the shortest end of each path that no other path has."""
    short = {}
    for path in paths:
        length = 1
        while length < len(path) and sum(other[-length:] == path[-length:] for other in paths) > 1:
            length += 1
        short[path] = ".".join(path[-length:])
    return short
