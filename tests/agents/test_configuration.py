"""The configuration of each agent for a session: variables, files, command."""

import json
from pathlib import Path

import pytest

from launcher.agents.agent import Agent, find_agent, load_agents
from launcher.agents.configuration import AgentConfiguration, AgentServer, context_error, make_configuration
from launcher.base.errors import BadOption

AGENTS = load_agents()
FOLDER, SESSIONS = Path("/session"), Path("/kept")


def configure(agent: Agent, context: int = 65_536, model: str = 'my "model"') -> AgentConfiguration:
    server = AgentServer("http://127.0.0.1:31842", "secret-key", model, context)
    return make_configuration(
        agent, server, program=[agent.program], folder=FOLDER, sessions=SESSIONS, arguments=["-p", "say <key>"]
    )


def test_the_main_agents_are_known() -> None:
    assert {agent.name for agent in AGENTS} >= {"claude", "cline", "codex", "opencode", "pi", "qwen"}


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
def test_all_placeholders_are_filled_and_the_key_is_no_argument(agent: Agent) -> None:
    made = configure(agent)
    texts = [*made.environment.values(), *made.files.values(), *made.command[:-2]]
    assert not any(f"<{name}>" in text for text in texts for name in ("url", "key", "model", "context", "folder"))
    assert made.command[-2:] == ("-p", "say <key>")
    assert "secret-key" not in " ".join(made.command)
    assert any("secret-key" in text for text in texts)
    assert any("http://127.0.0.1:31842" in text for text in texts)
    assert all(FOLDER in path.parents for path in made.files)
    for text in made.files.values():
        json.loads(text)


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
def test_every_agent_but_cline_gets_the_context(agent: Agent) -> None:
    texts = [str(part) for made in (configure(agent, 65_539),) for part in (made.environment, made.files, made.command)]
    assert any("65539" in text for text in texts) == (agent.name != "cline")  # Cline has no setting for the context


def test_numbers_are_numbers_and_names_are_quoted() -> None:
    (text,) = configure(find_agent("opencode")).files.values()
    model = json.loads(text)["provider"]["mtp"]["models"]['my "model"']
    assert model["limit"] == {"context": 65_536, "output": 16_384}
    command = configure(find_agent("codex")).command
    assert 'model="my \\"model\\""' in command
    assert "model_context_window=65536" in command
    assert "model_auto_compact_token_limit=49152" in command


def test_a_small_context_shortens_the_prompt_of_claude_code() -> None:
    claude = find_agent("Claude")
    assert "CLAUDE_CODE_SIMPLE" not in configure(claude, claude.least_context).environment
    assert configure(claude, 32_768).environment["CLAUDE_CODE_SIMPLE"] == "1"
    assert claude.smallest_context < claude.least_context
    error = context_error(claude, 8_192, "Do this.")
    assert "16,384" in error.title
    assert "8,192" in error.title
    assert error.hint == "Do this."


def test_an_unknown_agent_is_refused_with_the_known_names() -> None:
    with pytest.raises(BadOption, match="opencode"):
        find_agent("copilot")
