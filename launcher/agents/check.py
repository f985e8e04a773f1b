"""Checks whether a server suits coding agents: tool calls, reuse of the prompt, drafts, and the agents' APIs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.agents.agent import Agent, load_agents
from launcher.agents.late_system import find_refusal
from launcher.base.errors import LauncherError, Refused
from launcher.base.messages import join_messages, message
from launcher.base.paths import shipped_file
from launcher.engine.server.client import EngineClient

PURPOSE = "agent-check"
"""Purpose that the check's requests carry; `mtp-launcher requests` lists them under it."""
_ROOM_TOKENS = 64
"""Tokens beside the new ones that a turn may read again, because an engine's checkpoints are that far apart."""
_REPLY_TOKENS, _LAST_REPLY_TOKENS = 512, 48
_RULES = 160
"""Number of repetitions of the rule in the system prompt, which makes it as long as a small agent's: 3,500 tokens."""
_UNPARSED = ("<tool_call", "<function=", "[TOOL_CALLS]", "<|tool_call")
"""Beginnings of tool calls that the engine did not parse, so that they arrive as text."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a server suits coding agents. Figures are shares of 0 to 1, None if unknown.

    `tool_call` is whether a tool call arrived parsed. `reuse_turn2` and `reuse_turn3` are the parts of the conversation
    so far that were not read again. `acceptance` is that of the drafts. `sentence` says all of it, or what failed, why,
    and what to do.
    """

    ready: bool
    tool_call: bool
    reuse_turn2: float | None
    reuse_turn3: float | None
    acceptance: float | None
    sentence: str


@dataclass(slots=True)
class _Turn:
    """A reply to one request, with the engine's counts of tokens."""

    answer: dict[str, Any]
    cached: int | None = None
    read: int = 0
    generated: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def prompt_tokens(self) -> int:
        return (self.cached or 0) + self.read


@dataclass(slots=True)
class _Findings:
    faults: list[str] = field(default_factory=list)
    turns: list[_Turn] = field(default_factory=list)
    tool_call: bool = False


async def check_server(
    client: EngineClient, agent: Agent | None = None, *, model: str | None = None, context: int | None = None
) -> Verdict:
    """Return the verdict on a server, for one agent or for any. Sends three or four short requests.

    With a `context`, in tokens per slot, that is too small for the agent it sends none.
    Raises Unreachable, and Refused if the server takes no chat request at all.
    """
    if context is not None and (sentence := _explain_small_context(agent, context)):
        return Verdict(False, False, None, None, None, sentence)
    client.set_purpose(PURPOSE)
    findings, texts = _Findings(), _load_texts()
    rules = (f"{number}. {texts['rule']}" for number in range(1, _RULES + 1))
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "\n".join((texts["system"], *rules))},
        {"role": "user", "content": texts["question"]},
    ]
    base = {"model": model, "tools": texts["tools"], "temperature": 0, "max_tokens": _REPLY_TOKENS}
    first = await _request_turn(client, {**base, "messages": messages})
    calls = first.answer.get("tool_calls") or []
    findings.tool_call = _is_right_call(calls, texts)
    if not findings.tool_call and (agent is None or agent.calls_tools):
        findings.faults.append(_explain_missing_call(first.answer, calls))
    messages += [first.answer, *_answer_calls(calls, texts)]
    second = await _request_turn(client, {**base, "messages": messages})
    messages += [second.answer, *_answer_calls(second.answer.get("tool_calls") or [], texts)]
    messages.append({"role": "user", "content": texts["last_question"]})
    third = await _request_turn(client, {**base, "messages": messages, "max_tokens": _LAST_REPLY_TOKENS})
    findings.turns = [first, second, third]
    for before, after in ((first, second), (second, third)):
        if _read_again(before, after):
            findings.faults.append(await _explain_rereading(client, messages, texts))
            break
    drafted = sum(turn.drafted for turn in findings.turns)
    accepted = sum(turn.accepted for turn in findings.turns)
    if drafted and not accepted:
        findings.faults.append(
            message("No draft was accepted. Turn MTP off, `mtp-launcher restart --set draft=0`, or tune.")
        )
    findings.faults += await _check_api(client, agent, model, texts)
    if agent is not None and (refusal := await find_refusal(client, agent, model or message("the model"))):
        findings.faults.append(join_messages(refusal.title, refusal.hint))
    return _make_verdict(findings, agent, accepted / drafted if drafted else None)


def _explain_small_context(agent: Agent | None, context: int) -> str:
    """Return that an agent, or each of them, needs a larger context; "" if it does not."""
    agents = load_agents() if agent is None else (agent,)
    least = min(each.smallest_context for each in agents)
    if context >= least:
        return ""
    return join_messages(
        message("Not ready for {title}.", title=agent.title if agent else message("coding agents")),
        message(
            "A request has {context:,} tokens of context here, and at least {least:,} are needed. Start the server with"
            " more: `mtp-launcher restart --set ctx=N`.",
            window="A request has {context:,} tokens of context here, and at least {least:,} are needed. Increase the"
            " context in the cockpit.",
            context=context,
            least=least,
        ),
    )


def _load_texts() -> Any:  # noqa: ANN401 -- as in resources/agent-check.json
    """Return the texts of the check's requests."""
    return json.loads(shipped_file("resources", "agent-check.json").read_text(encoding="utf-8"))


def _make_verdict(findings: _Findings, agent: Agent | None, acceptance: float | None) -> Verdict:
    first, second, third = findings.turns
    reuse = (_reused_share(first, second), _reused_share(second, third))
    title = agent.title if agent else message("coding agents")
    if findings.faults:
        sentence = join_messages(message("Not ready for {title}.", title=title), *findings.faults)
    else:
        known = [share for share in reuse if share is not None]
        parts = [message("tool calls parsed")] if findings.tool_call else []
        if known:
            parts.append(message("{share:.0f} % of the prompt reused", share=100 * min(known)))
        if acceptance is not None:
            parts.append(message("{share:.0f} % of drafts accepted", share=100 * acceptance))
        parts = parts or [message("it answers")]
        sentence = message("Ready for {title}: {parts}.", title=title, parts=join_messages(*parts, separator=", "))
    return Verdict(not findings.faults, findings.tool_call, *reuse, acceptance, sentence)


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
        return _Turn(answer, *(int(timings.get(name) or 0) for name in names))
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    read = int(usage.get("prompt_tokens") or 0) - int(cached or 0)
    return _Turn(answer, None if cached is None else int(cached), read, int(usage.get("completion_tokens") or 0))


def _is_right_call(calls: Sequence[Mapping[str, Any]], texts: Mapping[str, Any]) -> bool:
    """Return whether the calls begin with the one that was asked for, with a JSON object as arguments."""
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


def _explain_missing_call(answer: Mapping[str, Any], calls: Sequence[object]) -> str:
    text = str(answer.get("content") or "")
    if calls:
        return message("The model called another tool than it was asked to, or with arguments that are no JSON object.")
    if any(mark in text for mark in _UNPARSED):
        return message(
            "The tool call came as text, so that an agent cannot run it: the engine does not know how this model writes"
            " calls. Update the engine, `mtp-launcher engine install`, or use a file with another chat template."
        )
    return message(
        "The model was asked to call a tool and answered with text. Use a model that was trained to call tools."
    )


def _read_again(before: _Turn, after: _Turn) -> bool:
    """Return whether a turn read more of its prompt than the new messages and the reply before them.

    That reply may be read again without a fault: a client can send it back in slightly other tokens, and a model with
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
            "The engine went back to a checkpoint far before its end, or another client had the slot. More slots"
            " (`--slots 2 --kv-unified`) and `--cache-ram` help."
        ),
    )


async def _check_api(
    client: EngineClient, agent: Agent | None, model: str | None, texts: Mapping[str, Any]
) -> list[str]:
    """Return what is wrong with the agent's own API, if that is not chat completions."""
    named = {"model": model} if model else {}
    question = [{"role": "user", "content": texts["yes"]}]
    bodies: dict[str, tuple[str, dict[str, Any]]] = {
        "messages": ("/v1/messages", {"max_tokens": 16, "system": texts["brief"], "messages": question}),
        "responses": ("/v1/responses", {"max_output_tokens": 16, "instructions": texts["brief"], "input": question}),
    }
    if agent is None or agent.api not in bodies:
        return []
    path, body = bodies[agent.api]
    try:
        await client.request_json(path, {**named, **body}, unlimited=True)
    except Refused as error:
        return [
            message("{path} is refused: {title}", path=path, title=error.title),
            message("Update the engine: `mtp-launcher engine install`."),
        ]
    return []
