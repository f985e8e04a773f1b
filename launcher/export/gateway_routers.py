"""Exports that put several gateways behind one program: LiteLLM's proxy, llama-swap or GPUStack."""

import json
import re
from typing import Any

from launcher.agents.configuration import limit_reply
from launcher.export import quoting
from launcher.export.served_models import GatewayModels, OfferedModel, list_model_names

_LITELLM_KEY, _SWAP_KEY, _GPUSTACK_KEY = "LITELLM_MASTER_KEY", "LLAMA_SWAP_API_KEY", "GPUSTACK_API_KEY"
_REPLY_S = 3_600
"""Seconds that a reply may take."""
_COOLDOWN_S = 30
"""Seconds for which LiteLLM leaves out a gateway that has failed."""


def litellm_config(gateways: tuple[GatewayModels, ...]) -> str:
    """Return a config.yaml for LiteLLM's proxy (tried with 1.106). A model of several gateways is shared among them."""
    quoted = quoting.quote_yaml
    lines = [
        "# litellm --config FILE --host 127.0.0.1 --port 4000",
        *_describe_keys(gateways, f"{_LITELLM_KEY} is the key for clients; it begins with sk-."),
        "model_list:",
    ]
    for gateway in gateways:
        key = gateway.api_key or f"os.environ/{gateway.key_variable}"
        for model in gateway.models:
            lines += [
                f"  - model_name: {quoted(model.name)}",
                "    litellm_params:",
                f"      model: {quoted(f'openai/{model.name}')}",
                f"      api_base: {quoted(f'{gateway.url}/v1')}",
                f"      api_key: {quoted(key)}",
                "    model_info:",
                f"      mode: {'embedding' if model.embeds else 'chat'}",
                *_litellm_limits(model),
            ]
    lines += [
        "router_settings:",
        "  routing_strategy: least-busy",
        "  num_retries: 2  # each on another gateway with the model, as long as there is one",
        "  allowed_fails: 0",
        f"  cooldown_time: {_COOLDOWN_S}",
        "litellm_settings:",
        f"  request_timeout: {_REPLY_S}",
        "  telemetry: false",
        "general_settings:",
        f"  master_key: os.environ/{_LITELLM_KEY}",
    ]
    return "\n".join(lines) + "\n"


def _litellm_limits(model: OfferedModel) -> list[str]:
    if model.context is None:
        return []
    return [f"      max_input_tokens: {model.context}", f"      max_output_tokens: {limit_reply(model.context)}"]


def llama_swap_peers(gateways: tuple[GatewayModels, ...]) -> str:
    """Return a configuration for llama-swap that starts no server itself, but forwards to gateways by model.

    A model that several gateways serve has the name PEER/MODEL at each. Its plain name is a selector, which fills the
    gateways one after the other.
    """
    quoted = quoting.quote_yaml
    names = [f"gateway-{number}" for number, _ in enumerate(gateways, 1)]
    lines = [
        "# llama-swap --config FILE --listen 127.0.0.1:8080",
        *_describe_keys(gateways, f"{_SWAP_KEY} is the key for clients."),
        "apiKeys:",
        f'  - "${{env.{_SWAP_KEY}}}"',
        "models: {}",
        "peers:",
    ]
    for name, gateway in zip(names, gateways, strict=True):
        lines += [
            f"  {name}:",
            f"    proxy: {quoted(gateway.url)}",
            f"    apiKey: {quoted(gateway.api_key or f'${{env.{gateway.key_variable}}}')}",
            "    models:",
            *(f"      - {quoted(model.name)}" for model in gateway.models),
        ]
    selectors: list[str] = []
    for model_name in list_model_names(gateways):
        serving = [
            name
            for name, gateway in zip(names, gateways, strict=True)
            if any(model.name == model_name for model in gateway.models)
        ]
        if len(serving) > 1:
            selectors += [
                f"  {quoted(model_name)}:",
                "    strategy: spillover",
                "    targets:",
                *(f"      - {quoted(f'{name}/{model_name}')}" for name in serving),
            ]
    return "\n".join([*lines, *(["selectors:", *selectors] if selectors else [])]) + "\n"


_GPUSTACK_PROGRAM = '''\
"""Adds gateways to GPUStack 2.3 as providers, and a route to each of their models."""

import json
import os
import sys
import urllib.error
import urllib.request

SERVER = os.environ.get("GPUSTACK_SERVER_URL", "http://127.0.0.1")
PROVIDERS = json.loads(@PROVIDERS@)
ROUTES = json.loads(@ROUTES@)


def fill(value):
    """Return a copy of a JSON value in which each {"variable": NAME} is the value of that variable."""
    if isinstance(value, list):
        return [fill(each) for each in value]
    if isinstance(value, dict):
        if list(value) == ["variable"]:
            return os.environ.get(value["variable"]) or sys.exit(f"Set {value['variable']}.")
        return {name: fill(each) for name, each in value.items()}
    return value


def add(kind, body):
    """Create a resource and return its ID."""
    request = urllib.request.Request(
        f"{SERVER.rstrip('/')}/v2/{kind}",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {fill({'variable': '@KEY@'})}"},
    )
    try:
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)["id"]
    except urllib.error.HTTPError as error:
        sys.exit(f"GPUStack refused {body['name']} ({error.code}): {error.read().decode(errors='replace')}")
    except OSError as error:
        sys.exit(f"GPUStack cannot be reached at {SERVER}: {error}")


identifiers = {provider["name"]: add("model-providers", fill(provider)) for provider in PROVIDERS}
for route in ROUTES:
    for target in route["targets"]:
        target["provider_id"] = identifiers[target["provider_id"]]
    add("model-routes", route)
    print(route["name"])
'''


def gpustack_calls(gateways: tuple[GatewayModels, ...]) -> str:
    """Return a Python program that adds the gateways to a running GPUStack, which has no configuration file for them.

    GPUStack's names of routes begin with a letter and have no slashes or spaces, so a route may be named otherwise than
    its model.
    """
    providers = [
        {
            "name": f"gateway-{number}",
            "timeout": _REPLY_S,
            "config": {"type": "openai", "openaiCustomUrl": f"{gateway.url}/v1"},
            "api_tokens": [{"input": gateway.api_key or {"variable": gateway.key_variable}}],
            "models": [
                {"name": model.name, "category": "embedding" if model.embeds else "llm"} for model in gateway.models
            ],
        }
        for number, gateway in enumerate(gateways, 1)
    ]
    routes: dict[str, dict[str, Any]] = {}
    for number, gateway in enumerate(gateways, 1):
        for model in gateway.models:
            name = _route_name(model.name)
            route = routes.setdefault(
                name, {"name": name, "categories": ["embedding" if model.embeds else "llm"], "targets": []}
            )
            route["targets"].append(
                {"provider_id": f"gateway-{number}", "overridden_model_name": model.name, "weight": 100}
            )
    program = (
        _GPUSTACK_PROGRAM.replace("@PROVIDERS@", _quote_json(providers))
        .replace("@ROUTES@", _quote_json(list(routes.values())))
        .replace("@KEY@", _GPUSTACK_KEY)
    )
    head = (
        "# python3 FILE, with the address of GPUStack in GPUSTACK_SERVER_URL",
        *_describe_keys(gateways, f"{_GPUSTACK_KEY} is an API key of an administrator."),
    )
    return "\n".join(head) + "\n" + program


def _quote_json(value: object) -> str:
    return quoting.quote_source(json.dumps(value, ensure_ascii=False))


def _route_name(model: str) -> str:
    """Return the nearest name that GPUStack accepts (name_pattern in gpustack/schemas/model_routes.py, 2.3.0)."""
    name = re.sub(r"[^A-Za-z0-9_.:-]+", "-", model).strip("-_.:")
    return name if name[:1].isalpha() else f"model-{name}".rstrip("-")


def _describe_keys(gateways: tuple[GatewayModels, ...], first: str) -> list[str]:
    """Return a comment on the key for clients, and one for each gateway whose key is read from a variable."""
    needed = [gateway for gateway in gateways if gateway.api_key is None]
    return [
        f"# {first}",
        *(f"# {gateway.key_variable} is the key of {quoting.clean_comment(gateway.url)}." for gateway in needed),
    ]
