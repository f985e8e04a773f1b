"""The verdict on a server: a scripted one with each fault, and the real engine with the demo."""

import asyncio
from pathlib import Path

import pytest

from launcher import __version__
from launcher.agents.agent import find_agent
from launcher.agents.check import CheckFault, CheckVerdict, check_server
from launcher.app.serving.serving import serve
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.client import EngineClient
from tests.agents.scripted import scripted_server
from tests.cli.in_process import run


def check(url: str, agent: str | None = None) -> CheckVerdict:
    async def ask() -> CheckVerdict:
        async with EngineClient(url, None) as client:
            return await check_server(client, find_agent(agent) if agent else None)

    return asyncio.run(ask())


def test_a_server_that_passes_every_check_is_ready() -> None:
    with scripted_server() as url:
        verdict = check(url, "claude")
    assert verdict.ready
    assert verdict.tool_call
    assert verdict.reuse_turn2 is not None
    assert verdict.reuse_turn2 > 0.9
    assert verdict.acceptance == pytest.approx(0.7)
    assert verdict.sentence.startswith("Ready for Claude Code: tool calls parsed, ")
    assert verdict.sentence.endswith(" % of the prompt reused, 70 % of drafts accepted.")
    assert verdict.faults == ()
    assert verdict.seconds > 0
    *turns, own = verdict.requests
    assert [each.step for each in turns] == ["first_prompt", "tool_result", "next_question"]
    assert (own.step, own.result, own.prompt_tokens) == ("own_api", "/v1/messages answers", None)
    assert [each.first_token_s for each in turns] == [0.1, 0.1, 0.1]
    first, second, _ = turns
    assert first.reused_tokens == 0
    assert second.reused_tokens == first.prompt_tokens  # the whole prompt of the first request


def test_each_request_is_reported_as_soon_as_its_result_is_known() -> None:
    seen: list[str] = []

    async def ask(url: str) -> CheckVerdict:
        async with EngineClient(url, None) as client:
            return await check_server(client, report=lambda request: seen.append(request.result))

    with scripted_server("text-call", "forgets") as url:
        verdict = asyncio.run(ask(url))
    assert seen == ["tool call as text", "prompt read again", "prompt read again"]
    assert verdict.faults == (CheckFault.TOOL_CALL_AS_TEXT, CheckFault.PROMPT_READ_AGAIN)
    assert [each.passed for each in verdict.requests] == [False, False, False]


@pytest.mark.parametrize(
    ("fault", "agent", "words"),
    [
        ("text-call", "opencode", "came as text"),
        ("no-call", None, "answered with text"),
        ("forgets", "pi", "read again in each turn"),
        ("refuses=/v1/messages", "claude", "/v1/messages is refused"),
        ("refuses=/v1/responses", "codex", "/v1/responses is refused"),
        ("refuses-late", "codex", "refuses the late system messages of Codex"),
    ],
)
def test_each_fault_is_reported_with_its_fix(fault: str, agent: str | None, words: str) -> None:
    with scripted_server(fault) as url:
        verdict = check(url, agent)
    assert not verdict.ready
    assert words in verdict.sentence
    assert verdict.tool_call == (fault not in ("text-call", "no-call"))


@pytest.mark.parametrize(("agent", "least"), [("qwen", "40,960"), (None, "16,384")])
def test_a_context_that_is_too_small_fails_the_check(home: Path, agent: str | None, least: str) -> None:
    with scripted_server(context=8_192) as url:
        checked = run("agent-check", "--url", url, *(("--agent", agent) if agent else ()))
    assert checked.returncode == 1
    output = " ".join(checked.stdout.split())
    assert f"A request has 8,192 tokens of context here, and at least {least} are needed." in output
    assert output.startswith("Not ready for Qwen Code." if agent else "Not ready for coding agents.")


def test_the_demo_reuses_its_prompt_and_calls_no_tool(demo_model: Path, home: Path) -> None:
    async def ask() -> tuple[CheckVerdict, set[str]]:
        async with serve(ServeOptions(demo_model, context=16_384)) as session:
            endpoint = session.supervisor.endpoint
            async with EngineClient(endpoint.url, endpoint.api_key) as client:
                verdict = await check_server(client)
            return verdict, {record.user_agent for record in session.request_log.records}

    verdict, senders = asyncio.run(ask())
    # By this sender, the command `requests` tells requests of the check from those of agents.
    assert senders == {f"agent-check (mtp-launcher/{__version__})"}
    assert not verdict.ready
    assert not verdict.tool_call
    assert "answered with text" in verdict.sentence
    assert "read again" not in verdict.sentence
    assert verdict.reuse_turn2 is not None
    assert verdict.reuse_turn2 > 0.95
    assert verdict.reuse_turn3 is not None
    assert verdict.reuse_turn3 > 0.95
    assert verdict.acceptance is not None
    assert verdict.acceptance > 0.5
