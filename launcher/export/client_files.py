"""Exports that are configuration files of coding agents and editors."""

import json
from collections.abc import Mapping
from typing import Any

from launcher.base.errors import BadOption
from launcher.base.messages import message
from launcher.export import quoting
from launcher.export.recipe import ExportRecipe
from launcher.export.served_models import limit_reply
from launcher.export.shell import KEY_VARIABLE

_PROVIDER = "mtp"
_TITLE = "MTP Launcher"
_SILENCE_MS = 3_600_000
"""Milliseconds without an event after which Codex gives up. It counts no comments, and a long prompt takes minutes."""


def codex_config(recipe: ExportRecipe) -> str:
    """Return a config.toml for Codex (tried with 0.169.0). Codex limits no reply."""
    quoted = quoting.quote_toml
    lines = [
        f"# For the folder that CODEX_HOME names, with the key in {KEY_VARIABLE}.",
        f"model = {quoted(recipe.name)}",
        f"model_provider = {quoted(_PROVIDER)}",
    ]
    if recipe.context is not None:
        lines += [
            f"model_context_window = {recipe.context}",
            f"model_auto_compact_token_limit = {recipe.context * 5 // 6}",
        ]
    key = f"env_key = {quoted(KEY_VARIABLE)}"
    if recipe.api_key is not None:
        lines[0] = "# For the folder that CODEX_HOME names."
        key = f"experimental_bearer_token = {quoted(recipe.api_key)}"
    lines += [
        'web_search = "disabled"',
        "check_for_update_on_startup = false",
        "",
        f"[model_providers.{_PROVIDER}]",
        f"name = {quoted(_TITLE)}",
        f"base_url = {quoted(recipe.url)}",
        key,
        'wire_api = "responses"',
        "requires_openai_auth = false",
        "supports_websockets = false",
        "request_max_retries = 10",
        "stream_max_retries = 5",
        f"stream_idle_timeout_ms = {_SILENCE_MS}",
    ]
    return "\n".join(lines) + "\n"


def opencode_config(recipe: ExportRecipe) -> str:
    """Return an opencode.json (tried with 1.18.33). Raises BadOption for a name that opencode would replace."""
    _refuse_macros(recipe.name, "opencode", "{env:", "{file:")
    model: dict[str, Any] = {"name": recipe.name, "tool_call": True, "reasoning": True}
    if recipe.context is not None:
        model["limit"] = {"context": recipe.context, "output": limit_reply(recipe.context)}
    options = {
        "baseURL": recipe.url,
        "apiKey": recipe.api_key or f"{{env:{KEY_VARIABLE}}}",
        "timeout": False,  # reading a long prompt takes minutes
        "headerTimeout": False,
    }
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": _TITLE,
        "options": options,
        "models": {recipe.name: model},
    }
    chosen = f"{_PROVIDER}/{recipe.name}"
    return _format_json(
        {
            "$schema": "https://opencode.ai/config.json",
            "provider": {_PROVIDER: provider},
            "model": chosen,
            "small_model": chosen,  # for titles, which otherwise another provider writes
            "enabled_providers": [_PROVIDER],
            "autoupdate": False,
            "share": "disabled",
        }
    )


def continue_config(recipe: ExportRecipe) -> str:
    """Return a config.yaml for Continue. Raises BadOption for a name that Continue would replace."""
    _refuse_macros(recipe.name, "Continue", "${{")
    quoted = quoting.quote_yaml
    key = quoted(recipe.api_key) if recipe.api_key else f"${{{{ secrets.{KEY_VARIABLE} }}}}"
    options: list[str] = []
    if recipe.context is not None and not recipe.embeds:
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
        f"    roles: {'[embed]' if recipe.embeds else '[chat, edit, apply]'}",
        *options,
        # Continue decides by the model's name whether it can call tools, and does not know most local ones.
        *([] if recipe.embeds else ["    capabilities: [tool_use]"]),
    ]
    return "\n".join(lines) + "\n"


def aider_config(recipe: ExportRecipe) -> str:
    """Return an .aider.conf.yml. The limits of a model are in a file of their own, which a comment of it contains."""
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
    """Return a chatLanguageModels.json for VS Code 1.122 or newer. Without the key, VS Code has to be told it."""
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
    return _format_json([{**group, "models": [model]}])


def _format_json(value: Mapping[str, Any] | list[dict[str, Any]]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _refuse_macros(name: str, program: str, *beginnings: str) -> None:
    """Raise BadOption for a name with the beginning of something that `program` replaces."""
    for beginning in beginnings:
        if beginning in name:
            raise BadOption(
                message("{word} cannot be exported: {why}.", word=name, why=f"{program} replaces {beginning}"),
                message("Use a name without {what}.", what=beginning),
            )
