"""Files for monitoring: a scrape configuration for Prometheus, and a board for Grafana."""

import json
from collections.abc import Mapping
from typing import Any

from launcher.export import quoting
from launcher.export.recipe import ExportRecipe

_KEY_FILE = "llama-api-key"
_CHOSEN = 'instance=~"$instance"'
_MODEL = f'{_CHOSEN},model=~"$model"'
_RATE = "[$__rate_interval]"
_WIDTH, _HEIGHT, _COLUMNS = 12, 8, 2
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def prometheus_config(recipe: ExportRecipe) -> str:
    """Return a scrape configuration. Without the key it names a file for it, which belongs beside prometheus.yml."""
    address = recipe.url.removeprefix("http://").removesuffix("/v1")
    if recipe.api_key is None:
        note, key = f" Its key is in {_KEY_FILE}, beside it", f"credentials_file: {_KEY_FILE}"
    else:
        note, key = "", f"credentials: {quoting.quote_yaml(recipe.api_key)}"
    lines = [
        f"# For prometheus.yml.{note}",
        "scrape_configs:",
        "  - job_name: mtp-launcher",
        "    authorization:",
        f"      {key}",
        "    static_configs:",
        f"      - targets: [{quoting.quote_yaml(address)}]",
    ]
    return "\n".join(lines) + "\n"


def grafana_board(_recipe: ExportRecipe) -> str:
    """Return a board for Grafana 10 and newer, for all servers that Prometheus scrapes. See docs/gateway.md."""
    panels = [
        _panel(
            "Requests in progress",
            "short",
            {"{{state}}": f"sum by (state) (mtp_launcher_requests_in_progress{{{_CHOSEN}}})"},
        ),
        _panel(
            "Requests per minute, by end",
            "short",
            {"{{end}}": f"60 * sum by (end) (rate(mtp_launcher_requests_total{{{_MODEL}}}{_RATE}))"},
        ),
        _panel(
            "Requests per minute, by key",
            "short",
            {"{{key}}": f"60 * sum by (key) (rate(mtp_launcher_requests_total{{{_MODEL}}}{_RATE}))"},
        ),
        _panel(
            "Time to first token",
            "s",
            {
                f"{share} % of requests": f"histogram_quantile({share / 100:g}, "
                f"sum by (le) (rate(mtp_launcher_first_token_seconds_bucket{{{_MODEL}}}{_RATE})))"
                for share in (50, 95)
            },
        ),
        _panel(
            "Tokens per second, all requests",
            "short",
            {
                "replies": _rate_of("reply_tokens"),
                "prompts, less cache": f"{_rate_of('prompt_tokens')} - {_rate_of('reused_tokens')}",
            },
        ),
        _panel(
            "Speed of the engine, tokens per second",
            "short",
            {
                "generating": _engine_speed("tokens_predicted"),
                "reading prompts": _engine_speed("prompt_tokens", "prompt"),
            },
        ),
        _panel("Draft acceptance", "percentunit", {"accepted": _share_of("accepted_tokens", "drafted_tokens")}, most=1),
        _panel(
            "Prompt from the cache",
            "percentunit",
            {
                "reused": _share_of("reused_tokens", "prompt_tokens"),
                "of it from disk": _share_of("restored_tokens", "prompt_tokens"),
            },
            most=1,
        ),
        _panel("Reading spared by the disk, per minute", "s", {"spared": f"60 * {_rate_of('spared_seconds')}"}),
        _panel(
            "Restarts that streams outlived, per minute",
            "short",
            {"requests sent on": f"60 * {_rate_of('handovers')}"},
        ),
        _panel(
            "Mean gap of a restart",
            "s",
            {"gap": _share_of("handover_gap_seconds", "handovers")},
        ),
    ]
    for number, panel in enumerate(panels):
        panel["id"] = number + 1
        row, column = divmod(number, _COLUMNS)
        panel["gridPos"] = {"h": _HEIGHT, "w": _WIDTH, "x": column * _WIDTH, "y": row * _HEIGHT}
    board = {
        "title": "MTP Launcher",
        "uid": "mtp-launcher",
        "tags": ["llama.cpp"],
        "schemaVersion": 38,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                _variable("instance", "Server", "label_values(mtp_launcher_requests_in_progress, instance)"),
                _variable("model", "Model", f"label_values(mtp_launcher_requests_total{{{_CHOSEN}}}, model)"),
            ]
        },
        "panels": panels,
    }
    return json.dumps(board, indent=2) + "\n"


def _rate_of(counter: str) -> str:
    return f"sum(rate(mtp_launcher_{counter}_total{{{_MODEL}}}{_RATE}))"


def _share_of(part: str, whole: str) -> str:
    return f"{_rate_of(part)} / {_rate_of(whole)}"


def _engine_speed(tokens: str, seconds: str = "") -> str:
    """Return a query of the engine's counters. Its gauges of speed are no use: each scrape, by anyone, resets them."""
    rates = [
        f"sum(rate(llamacpp:{name}_total{{{_CHOSEN}}}{_RATE}))" for name in (tokens, f"{seconds or tokens}_seconds")
    ]
    return " / ".join(rates)


def _panel(title: str, unit: str, curves: Mapping[str, str], *, most: float | None = None) -> dict[str, Any]:
    """Return a panel of curves, which are queries by their legends."""
    limits = {"min": 0} if most is None else {"min": 0, "max": most}
    return {
        "title": title,
        "type": "timeseries",
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": unit, **limits}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": _SOURCE, "expr": query, "legendFormat": legend}
            for number, (legend, query) in enumerate(curves.items())
        ],
    }


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
