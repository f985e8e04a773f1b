"""Titles and sub-agents of an agent must not push its main conversation out of the engine's cache."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from launcher.agents.agent import Agent, load_agents
from launcher.app.serving.serving import serve
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.client import EngineClient

_RULES = 60
_LEAST_REUSE = 0.95


def make_conversation(name: str) -> list[dict[str, str]]:
    rules = "\n".join(f"{name} {number}: read a file before you change it." for number in range(_RULES))
    return [{"role": "system", "content": rules}, {"role": "user", "content": f"{name}, what is MTP?"}]


async def send_turn(client: EngineClient, messages: list[dict[str, str]]) -> dict[str, Any]:
    """Send a conversation and add the reply to it; return the engine's counts of tokens."""
    body = {"messages": messages, "max_tokens": 16, "temperature": 0}
    reply = await client.request_json("/v1/chat/completions", body, unlimited=True)
    messages += [{"role": "assistant", "content": reply["choices"][0]["message"].get("content") or ""}]
    messages += [{"role": "user", "content": "And what does it cost?"}]
    return dict(reply["timings"])


async def measure_reuse(agent: Agent, model: Path) -> float:
    """Return the share of the main prompt that its second turn reuses after the agent's other requests."""
    names = ("Title", "Explorer", "Tester")[: agent.slots - 1]
    options = ServeOptions(model, draft=0, context=16_384, slots=agent.slots, kv_unified=True, cache_ram=0)
    async with serve(options) as session:
        endpoint = session.supervisor.endpoint
        async with EngineClient(endpoint.url, endpoint.api_key) as client:
            main = make_conversation("Main")
            first = await send_turn(client, main)
            for _ in range(2):
                await asyncio.gather(*(send_turn(client, make_conversation(name)) for name in names))
            second = await send_turn(client, main)
    return float(second["cache_n"] / (first["cache_n"] + first["prompt_n"]))


@pytest.mark.thorough
@pytest.mark.parametrize("agent", [agent for agent in load_agents() if agent.slots > 1], ids=lambda agent: agent.name)
def test_other_requests_of_an_agent_do_not_evict_the_main_prompt(agent: Agent, demo_model: Path, home: Path) -> None:
    assert asyncio.run(measure_reuse(agent, demo_model)) >= _LEAST_REUSE
