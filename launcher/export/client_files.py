"""Exports that are configuration files of coding agents and editors."""

import json
from typing import Any

from launcher.agents.agent import find_agent
from launcher.agents.configuration import fill_in, format_json, format_toml, limit_reply
from launcher.base.errors import BadOption
from launcher.base.messages import message
from launcher.export import quoting
from launcher.export.recipe import ExportRecipe, describe_agent_server
from launcher.export.shell import KEY_VARIABLE

_TITLE = "MTP Launcher"


def codex_config(recipe: ExportRecipe) -> str:
    """Return a config.toml for Codex."""
    values = fill_in(find_agent("codex").options["values"], describe_agent_server(recipe).values)
    comment = "# For the folder that CODEX_HOME names"
    if recipe.api_key is None:
        comment += f", with the key in {KEY_VARIABLE}"
    else:
        (name,) = (name for name in values if name.endswith(".env_key"))
        del values[name]
        values[name.replace("env_key", "experimental_bearer_token")] = recipe.api_key
    lines = [f"{name} = {format_toml(value)}" for name, value in values.items()]
    return "\n".join([f"{comment}.", *lines]) + "\n"


def opencode_config(recipe: ExportRecipe) -> str:
    """Return an opencode.json. Raises BadOption for a name that opencode would replace."""
    _refuse_macros(recipe.name, "opencode", "{env:", "{file:")
    (content,) = find_agent("opencode").files.values()
    data = fill_in(content, describe_agent_server(recipe).values)
    if recipe.api_key is not None:
        for provider in data["provider"].values():
            provider["options"]["apiKey"] = recipe.api_key
    return format_json(data)


def continue_config(recipe: ExportRecipe) -> str:
    """Return a config.yaml for Continue. Raises BadOption for a name that Continue would replace."""
    _refuse_macros(recipe.name, "Continue", "${{")
    quoted = quoting.quote_yaml
    key = quoted(recipe.api_key) if recipe.api_key else f"${{{{ secrets.{KEY_VARIABLE} }}}}"
    role = "[embed]" if recipe.embeds else "[rerank]" if recipe.ranks else "[chat, edit, apply]"
    options: list[str] = []
    if recipe.context is not None and recipe.generates_text:
        options = [
            "    defaultCompletionOptions:",
            f"      contextLength: {recipe.context}",
            f"      maxTokens: {limit_reply(recipe.context)}",
        ]
    lines = [
        "# ~/.continue/config.yaml"
        + ("" if recipe.api_key else f", with the key as {KEY_VARIABLE} in ~/.continue/.env"),
        f"name: {_TITLE}",
        "version: 1.0.0",
        "schema: v1",
        "models:",
        f"  - name: {quoted(recipe.name)}",
        "    provider: openai",
        f"    model: {quoted(recipe.name)}",
        f"    apiBase: {quoted(recipe.url)}",
        f"    apiKey: {key}",
        f"    roles: {role}",
        *options,
        # Continue decides by the model's name whether it can call tools, and does not know most local ones.
        *(["    capabilities: [tool_use]"] if recipe.generates_text else []),
    ]
    return "\n".join(lines) + "\n"


def aider_config(recipe: ExportRecipe) -> str:
    """Return an .aider.conf.yml. A comment has the content of a second file, for the limits of the model."""
    quoted = quoting.quote_yaml
    model = f"openai/{recipe.name}"
    lines = [f"# .aider.conf.yml{'' if recipe.api_key else f', with the key: OPENAI_API_KEY=${KEY_VARIABLE} aider'}"]
    if recipe.context is not None:
        limits = {
            "max_input_tokens": recipe.context,
            "max_output_tokens": limit_reply(recipe.context),
            "input_cost_per_token": 0,
            "output_cost_per_token": 0,
            "litellm_provider": "openai",
            "mode": "chat",
        }
        lines += [
            "# For a warning before the context is full, this is .aider.model.metadata.json:",
            f"# {json.dumps({model: limits})}",
        ]
    lines += [
        f"model: {quoted(model)}",
        f"weak-model: {quoted(model)}",
        f"openai-api-base: {quoted(recipe.url)}",
        *([f"openai-api-key: {quoted(recipe.api_key)}"] if recipe.api_key else []),
    ]
    if recipe.context is not None:
        lines.append(f"max-chat-history-tokens: {recipe.context // 2}")
    lines += ["show-model-warnings: false", "check-update: false", "analytics-disable: true"]
    return "\n".join(lines) + "\n"


def vscode_models(recipe: ExportRecipe) -> str:
    """Return a chatLanguageModels.json for VS Code 1.122 or newer. Without the key, the user enters it in VS Code."""
    model: dict[str, Any] = {
        "id": recipe.name,
        "name": recipe.name,
        "url": f"{recipe.url}/chat/completions",
        "toolCalling": True,
        "vision": any(flag == "--mmproj" for flag, _ in recipe.options),
    }
    if recipe.context is not None:
        reply = limit_reply(recipe.context) or 0
        model |= {"maxInputTokens": recipe.context - reply, "maxOutputTokens": reply}
    group: dict[str, Any] = {"name": _TITLE, "vendor": "customendpoint", "apiType": "chat-completions"}
    if recipe.api_key:
        group["apiKey"] = recipe.api_key
    return format_json([{**group, "models": [model]}])


def _refuse_macros(name: str, program: str, *beginnings: str) -> None:
    """Raise BadOption for a name that contains the beginning of a macro of `program`."""
    for beginning in beginnings:
        if beginning in name:
            raise BadOption(
                message("{word} cannot be exported: {why}.", word=name, why=f"{program} replaces {beginning}"),
                message("Use a name without {what}.", what=beginning),
            )
