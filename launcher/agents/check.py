"""Checks whether a server suits coding agents: tool calls, reuse of the prompt, drafts, and the agents' APIs."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from launcher.agents.agent import Agent, load_agents
from launcher.agents.late_system import find_refusal
from launcher.base.errors import LauncherError, Refused
from launcher.base.messages import FaceName, command_name, join_messages, mark, message
from launcher.base.paths import shipped_file
from launcher.engine.server.client import EngineClient

PURPOSE = "agent-check"
"""Purpose that the check's requests carry; `mtp-launcher requests` lists them under it."""
_ROOM_TOKENS = 64
"""Tokens besides the new ones that a turn may read again, because an engine's checkpoints are that far apart."""
_REPLY_TOKENS, _LAST_REPLY_TOKENS = 512, 48
_RULES = 160
"""Number of repetitions of the rule in the system prompt, which makes it as long as a small agent's: 3,500 tokens."""
_UNPARSED = ("<tool_call", "<function=", "[TOOL_CALLS]", "<|tool_call")
"""Beginnings of tool calls that the engine did not parse, so that they arrive as text."""


class CheckFault(StrEnum):
    """A reason why a server is not ready for an agent."""

    CONTEXT_TOO_SMALL = "context_too_small"
    NO_TOOL_CALL = "no_tool_call"
    TOOL_CALL_AS_TEXT = "tool_call_as_text"
    PROMPT_READ_AGAIN = "prompt_read_again"
    NO_DRAFT_ACCEPTED = "no_draft_accepted"
    API_REFUSED = "api_refused"
    TEMPLATE_REFUSES = "template_refuses"


class CheckStep(StrEnum):
    """The requests of a check: three turns of a conversation, and one to the agent's own API if it has one."""

    FIRST_PROMPT = "first_prompt"
    TOOL_RESULT = "tool_result"
    NEXT_QUESTION = "next_question"
    OWN_API = "own_api"


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """A request of the check and its result. Unknown figures are None.

    Of the `prompt_tokens` of its prompt, `reused_tokens` were in the cache; the engine read the others in
    `first_token_s` seconds. `reuse` is the share of the previous request's prompt that was not read again, 0 to 1.
    `acceptance` is the share of the drafts, 0 to 1.
    """

    step: CheckStep
    passed: bool
    result: str
    prompt_tokens: int | None = None
    reused_tokens: int | None = None
    reuse: float | None = None
    first_token_s: float | None = None
    acceptance: float | None = None


@dataclass(frozen=True, slots=True)
class CheckVerdict:
    """Whether a server suits coding agents. Figures are shares of 0 to 1, None if unknown.

    `tool_call` is whether a tool call arrived parsed. `reuse_turn2` and `reuse_turn3` are the parts of the conversation
    so far that were not read again. `acceptance` is the draft acceptance. `sentence` states the result or, after a
    failure, what failed, why, and what to do; `faults` are the kinds of failures. `seconds` is the check's duration.
    """

    ready: bool
    tool_call: bool
    reuse_turn2: float | None
    reuse_turn3: float | None
    acceptance: float | None
    sentence: str
    faults: tuple[CheckFault, ...] = ()
    requests: tuple[CheckedRequest, ...] = ()
    seconds: float = 0.0


@dataclass(slots=True)
class _Turn:
    """A reply to one request, with the engine's counts of tokens."""

    answer: dict[str, Any]
    cached: int | None = None
    read: int = 0
    generated: int = 0
    drafted: int = 0
    accepted: int = 0
    reading_s: float | None = None

    @property
    def prompt_tokens(self) -> int:
        return (self.cached or 0) + self.read


@dataclass(slots=True)
class _Findings:
    """Results of a check so far. `report` gets each request as soon as its result is known."""

    report: Callable[[CheckedRequest], object] | None = None
    faults: list[tuple[CheckFault, str]] = field(default_factory=list)
    turns: list[_Turn] = field(default_factory=list)
    requests: list[CheckedRequest] = field(default_factory=list)
    tool_call: bool = False

    def add_request(self, request: CheckedRequest) -> None:
        self.requests.append(request)
        if self.report is not None:
            self.report(request)


async def check_server(
    client: EngineClient,
    agent: Agent | None = None,
    *,
    model: str | None = None,
    context: int | None = None,
    report: Callable[[CheckedRequest], object] | None = None,
) -> CheckVerdict:
    """Return the verdict on a server, for one agent or for any. Sends three or four short requests.

    With a `context`, in tokens per slot, that is too small for the agent it sends none. `report` is called with each
    request at its end. Raises Unreachable, and Refused if the server takes no chat request at all.
    """
    if context is not None and (sentence := _explain_small_context(agent, context)):
        return CheckVerdict(False, False, None, None, None, sentence, (CheckFault.CONTEXT_TOO_SMALL,))
    client.set_purpose(PURPOSE)
    started_s = time.monotonic()
    findings, texts = _Findings(report), _load_texts()
    rules = (f"{number}. {texts['rule']}" for number in range(1, _RULES + 1))
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "\n".join((texts["system"], *rules))},
        {"role": "user", "content": texts["question"]},
    ]
    base = {"model": model, "tools": texts["tools"], "temperature": 0, "max_tokens": _REPLY_TOKENS}
    first = await _request_turn(client, {**base, "messages": messages})
    calls = first.answer.get("tool_calls") or []
    findings.tool_call = _is_right_call(calls, texts)
    if findings.tool_call or (agent is not None and not agent.calls_tools):
        findings.add_request(_describe_turn(CheckStep.FIRST_PROMPT, first))
    else:
        fault, explanation = _explain_missing_call(first.answer, calls)
        findings.faults.append((fault, explanation))
        result = message("no tool call") if fault is CheckFault.NO_TOOL_CALL else message("tool call as text")
        findings.add_request(_describe_turn(CheckStep.FIRST_PROMPT, first, fault=result))
    messages += [first.answer, *_answer_calls(calls, texts)]
    second = await _request_turn(client, {**base, "messages": messages})
    findings.add_request(_describe_later_turn(CheckStep.TOOL_RESULT, first, second))
    messages += [second.answer, *_answer_calls(second.answer.get("tool_calls") or [], texts)]
    messages.append({"role": "user", "content": texts["last_question"]})
    third = await _request_turn(client, {**base, "messages": messages, "max_tokens": _LAST_REPLY_TOKENS})
    findings.add_request(_describe_later_turn(CheckStep.NEXT_QUESTION, second, third))
    findings.turns = [first, second, third]
    for before, after in ((first, second), (second, third)):
        if _read_again(before, after):
            findings.faults.append((CheckFault.PROMPT_READ_AGAIN, await _explain_rereading(client, messages, texts)))
            break
    drafted = sum(turn.drafted for turn in findings.turns)
    accepted = sum(turn.accepted for turn in findings.turns)
    if drafted and not accepted:
        explanation = message(
            "No draft was accepted. Turn MTP off[, {command}], or tune.", command=command_name("restart --set draft=0")
        )
        findings.faults.append((CheckFault.NO_DRAFT_ACCEPTED, explanation))
    await _check_api(client, agent, model, texts, findings)
    if agent is not None and (refusal := await find_refusal(client, agent, model or message("the model"))):
        findings.faults.append((CheckFault.TEMPLATE_REFUSES, join_messages(refusal.title, refusal.hint)))
    seconds = time.monotonic() - started_s
    return _make_verdict(findings, agent, accepted / drafted if drafted else None, seconds)


def _explain_small_context(agent: Agent | None, context: int) -> str:
    """Return a sentence saying that the agent, or every agent, needs a larger context; "" if it is large enough."""
    agents = load_agents() if agent is None else (agent,)
    least = min(each.smallest_context for each in agents)
    if context >= least:
        return ""
    return join_messages(
        message("Not ready for {title}.", title=agent.title if agent else message("coding agents")),
        message(
            "A request has {context:,} tokens of context here, and at least {least:,} are needed. Start "
            "the server with more[: {command}].",
            context=context,
            least=least,
            command=command_name("restart --set ctx=N"),
        ),
    )


def _load_texts() -> Any:  # noqa: ANN401 -- the JSON of resources/agent-check.json
    """Return the texts of the check's requests."""
    return json.loads(shipped_file("resources", "agent-check.json").read_text(encoding="utf-8"))


def _describe_turn(step: CheckStep, turn: _Turn, *, fault: str | None = None) -> CheckedRequest:
    """Return a turn for the verdict; `fault` is what is wrong with it, if anything is."""
    calls = turn.answer.get("tool_calls")
    return CheckedRequest(
        step,
        passed=fault is None,
        result=fault or (message("tool call parsed") if calls else message("answered")),
        prompt_tokens=turn.prompt_tokens or None,
        reused_tokens=turn.cached,
        first_token_s=turn.reading_s,
        acceptance=turn.accepted / turn.drafted if turn.drafted else None,
    )


def _describe_later_turn(step: CheckStep, before: _Turn, after: _Turn) -> CheckedRequest:
    """Return a turn after another one for the verdict."""
    fault = message("prompt read again") if _read_again(before, after) else None
    return replace(_describe_turn(step, after, fault=fault), reuse=_reused_share(before, after))


def _make_verdict(findings: _Findings, agent: Agent | None, acceptance: float | None, seconds: float) -> CheckVerdict:
    first, second, third = findings.turns
    reuse = (_reused_share(first, second), _reused_share(second, third))
    title = agent.title if agent else message("coding agents")
    if findings.faults:
        sentence = join_messages(message("Not ready for {title}.", title=title), *(text for _, text in findings.faults))
    else:
        known = [share for share in reuse if share is not None]
        parts = [message("tool calls parsed")] if findings.tool_call else []
        if known:
            parts.append(message("{share:.0f} % of the prompt reused", share=100 * min(known)))
        if acceptance is not None:
            parts.append(message("{share:.0f} % of drafts accepted", share=100 * acceptance))
        parts = parts or [message("it answers")]
        sentence = message("Ready for {title}: {parts}.", title=title, parts=join_messages(*parts, separator=", "))
    return CheckVerdict(
        not findings.faults,
        findings.tool_call,
        *reuse,
        acceptance,
        sentence,
        tuple(fault for fault, _ in findings.faults),
        tuple(findings.requests),
        seconds,
    )


async def _request_turn(client: EngineClient, body: Mapping[str, Any]) -> _Turn:
    """Send a chat request that is not streamed, and return the reply. Raises Unreachable and Refused."""
    given = {name: value for name, value in body.items() if value is not None}
    reply = await client.request_json("/v1/chat/completions", given, unlimited=True)
    try:
        answer = {name: value for name, value in reply["choices"][0]["message"].items() if value is not None}
    except (AttributeError, IndexError, KeyError, TypeError):
        raise Refused(
            message("The server sent an invalid reply."), message("Check that the address belongs to a llama-server.")
        ) from None
    timings, usage = reply.get("timings") or {}, reply.get("usage") or {}
    if timings:
        names = ("cache_n", "prompt_n", "predicted_n", "draft_n", "draft_n_accepted")
        turn = _Turn(answer, *(int(timings.get(name) or 0) for name in names))
        turn.reading_s = None if timings.get("prompt_ms") is None else float(timings["prompt_ms"]) / 1_000
        return turn
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    read = int(usage.get("prompt_tokens") or 0) - int(cached or 0)
    return _Turn(answer, None if cached is None else int(cached), read, int(usage.get("completion_tokens") or 0))


def _is_right_call(calls: Sequence[Mapping[str, Any]], texts: Mapping[str, Any]) -> bool:
    """Return whether the first call is the requested one, with a JSON object as arguments."""
    try:
        function = calls[0]["function"]
        return function["name"] == texts["tools"][0]["function"]["name"] and isinstance(
            json.loads(function["arguments"]), dict
        )
    except (IndexError, KeyError, TypeError, ValueError):
        return False


def _answer_calls(calls: Sequence[Mapping[str, Any]], texts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages with the results of tool calls; without a call, the file as a message of the user."""
    if not calls:
        return [{"role": "user", "content": f"{texts['file_as_text']}\n{texts['file']}"}]
    return [{"role": "tool", "tool_call_id": call.get("id", ""), "content": texts["file"]} for call in calls]


def _explain_missing_call(answer: Mapping[str, Any], calls: Sequence[object]) -> tuple[CheckFault, str]:
    text = str(answer.get("content") or "")
    if calls:
        return CheckFault.NO_TOOL_CALL, message(
            "The model did not call the tool that it was asked to, or its arguments are not a JSON object."
        )
    if any(mark in text for mark in _UNPARSED):
        return CheckFault.TOOL_CALL_AS_TEXT, message(
            "The tool call came as text, so that an agent cannot run it: the engine does not know how "
            "this model writes calls. Update the engine[, {command}], or use a file with another chat "
            "template.",
            command=command_name("engine install"),
        )
    return CheckFault.NO_TOOL_CALL, message(
        "The model was asked to call a tool and answered with text. Use a model that was trained to call tools."
    )


def _read_again(before: _Turn, after: _Turn) -> bool:
    """Return whether a turn read more of its prompt than the new messages and the reply before them.

    It is no fault if that reply is read again: a client can send it back in slightly other tokens, and a model with
    recurrent layers cannot drop only those.
    """
    if after.cached is None:
        return False
    new = max(0, after.prompt_tokens - before.prompt_tokens - before.generated)
    return after.read > new + before.generated + _ROOM_TOKENS


def _reused_share(before: _Turn, after: _Turn) -> float | None:
    """Return which share of the earlier prompt a turn did not read again; None if the server does not report it."""
    if after.cached is None or not before.prompt_tokens:
        return None
    return min(1.0, after.cached / min(before.prompt_tokens, after.prompt_tokens))


async def _explain_rereading(
    client: EngineClient, messages: Sequence[Mapping[str, Any]], texts: Mapping[str, Any]
) -> str:
    """Return why the prompt was read again, as far as the chat template shows it."""
    lost = message("The prompt is read again in each turn.")
    try:
        prompts = [
            (await client.request_json("/apply-template", {"messages": messages[:end], "tools": texts["tools"]}))[
                "prompt"
            ]
            for end in (2, len(messages))
        ]
    except (LauncherError, KeyError, TypeError):
        prompts = []
    if prompts and not prompts[1].startswith(prompts[0].rstrip()):
        return join_messages(
            lost,
            message("The model's chat template rewrites earlier turns. Use a model file with another chat template."),
        )
    return join_messages(
        lost,
        message(
            "The engine went back to a checkpoint far before its end, or another client had the slot. "
            "More slots[ ({slots})] and {cache} help.",
            slots=FaceName("`--slots 2 --kv-unified`"),
            cache=FaceName("`--cache-ram`", mark("a larger prompt cache in host memory")),
        ),
    )


async def _check_api(
    client: EngineClient, agent: Agent | None, model: str | None, texts: Mapping[str, Any], findings: _Findings
) -> None:
    """Find out whether the agent's own API answers, if that is not chat completions."""
    named = {"model": model} if model else {}
    question = [{"role": "user", "content": texts["yes"]}]
    bodies: dict[str, tuple[str, dict[str, Any]]] = {
        "messages": ("/v1/messages", {"max_tokens": 16, "system": texts["brief"], "messages": question}),
        "responses": ("/v1/responses", {"max_output_tokens": 16, "instructions": texts["brief"], "input": question}),
    }
    if agent is None or agent.api not in bodies:
        return
    path, body = bodies[agent.api]
    try:
        await client.request_json(path, {**named, **body}, unlimited=True)
    except Refused as error:
        explanation = join_messages(
            message("{path} is refused: {title}", path=path, title=error.title),
            message("Update the engine[: {command}].", command=command_name("engine install")),
        )
        findings.faults.append((CheckFault.API_REFUSED, explanation))
        findings.add_request(CheckedRequest(CheckStep.OWN_API, False, message("{path} refused", path=path)))
    else:
        findings.add_request(CheckedRequest(CheckStep.OWN_API, True, message("{path} answers", path=path)))
