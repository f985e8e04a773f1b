"""Exports that consist of environment variables, as lines for bash or PowerShell that set them."""

from collections.abc import Mapping
from dataclasses import dataclass

from launcher.agents.agent import find_agent
from launcher.agents.configuration import fill_in
from launcher.export import quoting
from launcher.export.formats import Shell
from launcher.export.recipe import ExportRecipe, describe_agent_server
from launcher.export.shell import KEY_VARIABLE

_KEY_MISSING = "Set LLAMA_API_KEY to the API key"


@dataclass(frozen=True, slots=True)
class _Key:
    """Stands for the API key in the values of variables: its text, or None to read it from the user's shell."""

    text: str | None


def sdk_variables(recipe: ExportRecipe, *, shell: Shell) -> str:
    """Return the variables of OpenAI's and Anthropic's SDKs. They have none for the context."""
    key = _Key(recipe.api_key)
    variables: dict[str, str | _Key] = {
        "OPENAI_BASE_URL": recipe.url,
        "OPENAI_API_BASE": recipe.url,  # for older programs
        "OPENAI_API_KEY": key,
        "OPENAI_MODEL": recipe.name,
    }
    if recipe.generates_text:
        variables |= {
            "ANTHROPIC_BASE_URL": recipe.url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": key,
            "ANTHROPIC_MODEL": recipe.name,
        }
    return _format_lines(variables, shell, _limits_comment(recipe))


def claude_code_variables(recipe: ExportRecipe, *, shell: Shell) -> str:
    """Return the variables for Claude Code (tried with 2.1.330), so that it sends all its requests to this server."""
    agent = find_agent("claude")
    server = describe_agent_server(recipe)
    variables: dict[str, str | _Key] = {
        name: _Key(recipe.api_key) if text == "<key>" else str(fill_in(text, server.values))
        for name, text in agent.environment.items()
        if name in fill_in(agent.environment, server.values)
    }
    comments = [_limits_comment(recipe)]
    if agent.small is not None and recipe.context is not None and recipe.context < agent.least_context:
        short = " ".join(f"{name}={value}" for name, value in agent.small.environment.items())
        comments.append(f"{agent.title} needs more context than this. {short} gives it short prompts and 3 tools.")
    comments.append(f"Then: {agent.program}")
    return _format_lines(variables, shell, *comments, unset=agent.unset)


def webui_variables(recipe: ExportRecipe, *, shell: Shell) -> str:
    """Return the variables for Open WebUI. It has none for the context: its users set `max_tokens` by model."""
    variables: dict[str, str | _Key] = {
        "ENABLE_OLLAMA_API": "false",
        "OPENAI_API_BASE_URL": recipe.url,
        "OPENAI_API_KEY": _Key(recipe.api_key),
    }
    if recipe.generates_text:
        variables["DEFAULT_MODELS"] = recipe.name
    if recipe.embeds:
        variables |= {
            "RAG_EMBEDDING_MODEL": recipe.name,
            "RAG_EMBEDDING_ENGINE": "openai",
            "RAG_OPENAI_API_BASE_URL": recipe.url,
            "RAG_OPENAI_API_KEY": _Key(recipe.api_key),
        }
    comments = (
        _limits_comment(recipe),
        "Open WebUI keeps the settings of its first start; ENABLE_PERSISTENT_CONFIG=false makes it read these anew.",
        "Then: open-webui serve. In Docker: -e NAME for each, and --network=host, so that 127.0.0.1 is this computer.",
    )
    return _format_lines(variables, shell, *comments)


def _limits_comment(recipe: ExportRecipe) -> str:
    context = recipe.context
    if context is None:
        return "The context is unknown: the engine chooses it when it starts."
    return f"A request has {context} tokens of context, for prompt and reply."


def _format_lines(
    variables: Mapping[str, str | _Key], shell: Shell, *comments: str, unset: tuple[str, ...] = ()
) -> str:
    """Return a line for each comment and each variable; those of `unset` are removed first."""
    lines = [f"# {comment}" for comment in comments]
    if shell == "powershell":
        if any(value == _Key(None) for value in variables.values()):
            lines.append(f"if (-not $env:{KEY_VARIABLE}) {{ throw {quoting.quote_powershell(_KEY_MISSING)} }}")
        lines += [f"Remove-Item Env:{name} -ErrorAction SilentlyContinue" for name in unset]
        lines += [f"$env:{name} = {_powershell_value(value)}" for name, value in variables.items()]
    else:
        lines += [f"unset {name}" for name in unset]
        lines += [f"export {name}={_bash_value(value)}" for name, value in variables.items()]
    return "\n".join(lines) + "\n"


def _bash_value(value: str | _Key) -> str:
    if value == _Key(None):
        return f'"${{{KEY_VARIABLE}:?{_KEY_MISSING}}}"'
    return quoting.quote_bash(value if isinstance(value, str) else value.text or "")


def _powershell_value(value: str | _Key) -> str:
    if value == _Key(None):
        return f"$env:{KEY_VARIABLE}"
    return quoting.quote_powershell(value if isinstance(value, str) else value.text or "")
