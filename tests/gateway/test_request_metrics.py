"""The gateway's metrics, read by Prometheus' own parser."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from launcher.engine.serve_options import ServeOptions
from launcher.export.monitoring import grafana_board
from launcher.gateway.exchange import Exchange, ExchangeState
from launcher.gateway.request_log import RequestLog
from launcher.gateway.request_metrics import RequestMetrics
from tests.export.conftest import recipe_with
from tests.gateway.test_handover import serve_model

CHAT = "/v1/chat/completions"


def read_samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {(each.name, frozenset(each.labels.items())): each.value for each in samples}
    assert len(found) == len(samples)
    return found


def sample(samples: dict[tuple[str, frozenset[tuple[str, str]]], float], name: str, **labels: str) -> float | None:
    return samples.get((f"mtp_launcher_{name}", frozenset(labels.items())))


def end_exchange(log: RequestLog, key_name: str, end: str, *, first_s: float | None, reply_tokens: int | None) -> None:
    exchange = Exchange(CHAT, b"", {"stream": True}, key_name=key_name)
    log.note_exchange(exchange)
    exchange.state, exchange.end, exchange.gaps_s, exchange.handovers = ExchangeState.ENDED, end, [0.25, 0.5], 2
    exchange.first_token = None if first_s is None else exchange.started + first_s
    exchange.figures.reply_tokens = reply_tokens
    log.note_exchange(exchange)


def test_requests_are_counted_by_model_key_and_end() -> None:
    log = RequestLog(lambda: 'the "big"\\one\n')
    metrics = RequestMetrics(log)
    for first_s, tokens in ((0.0625, 10), (0.3, 20), (500.0, 30)):
        end_exchange(log, "laptop", "complete", first_s=first_s, reply_tokens=tokens)
    end_exchange(log, "laptop", "client left", first_s=None, reply_tokens=None)
    end_exchange(log, "ci", "complete", first_s=1.0, reply_tokens=1)
    log.note_exchange(Exchange(CHAT, b"", {}))
    samples = read_samples(metrics.format_text())
    who = {"model": 'the "big"\\one\n', "key": "laptop"}
    assert sample(samples, "requests_total", **who, end="complete") == 3
    assert sample(samples, "requests_total", **who, end="client left") == 1
    assert sample(samples, "reply_tokens_total", **who) == 60
    assert sample(samples, "handovers_total", **who) == 8
    assert sample(samples, "handover_gap_seconds_total", **who) == 3.0
    assert sample(samples, "first_token_seconds_bucket", **who, le="0.05") == 0
    assert sample(samples, "first_token_seconds_bucket", **who, le="0.1") == 1
    assert sample(samples, "first_token_seconds_bucket", **who, le="0.5") == 2
    assert sample(samples, "first_token_seconds_bucket", **who, le="120.0") == 2
    assert sample(samples, "first_token_seconds_bucket", **who, le="+Inf") == 3
    assert sample(samples, "first_token_seconds_count", **who) == 3
    assert sample(samples, "first_token_seconds_sum", **who) == pytest.approx(500.3625)
    assert sample(samples, "first_token_seconds_bucket", **(who | {"key": "ci"}), le="1.0") == 1
    assert sample(samples, "requests_in_progress", state="waiting") == 1
    assert sample(samples, "requests_in_progress", state="running") == 0
    metrics.close()
    end_exchange(log, "ci", "complete", first_s=1.0, reply_tokens=1)
    assert sample(read_samples(metrics.format_text()), "reply_tokens_total", **(who | {"key": "ci"})) == 1


async def test_metrics_of_engine_and_gateway_are_both_served(demo_model: Path) -> None:
    options = ServeOptions(model=demo_model, built_in=True, threads=1, context=2048, alias="demo")
    async with serve_model(options) as (session, client):
        reply = await client.post("/v1/completions", json={"prompt": "Bread", "max_tokens": 8, "ignore_eos": True})
        assert reply.status_code == 200
        response = await client.get("/metrics")
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        samples = read_samples(response.text)
        (engines,) = [value for (name, _), value in samples.items() if name == "llamacpp:tokens_predicted_total"]
        assert sample(samples, "reply_tokens_total", model="demo", key="default") == 8 <= engines
        assert sample(samples, "requests_total", model="demo", key="default", end="complete") == 1
        drafted = sample(samples, "drafted_tokens_total", model="demo", key="default")
        assert drafted is not None
        assert drafted > 0
        unknown = await client.get("/metrics", headers={"Authorization": "Bearer wrong"})
        assert unknown.status_code == 401
        assert session.supervisor.engine_pid is not None
        os.kill(session.supervisor.engine_pid, signal.SIGKILL)
        response = await client.get("/metrics")
        assert response.status_code == 200
        assert sample(read_samples(response.text), "reply_tokens_total", model="demo", key="default") == 8


def test_all_metrics_are_documented_and_those_of_the_dashboard_exist() -> None:
    metrics = RequestMetrics(RequestLog())
    result = set(re.findall(r"# TYPE (\w+)", metrics.format_text()))
    document = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text("utf-8")
    assert set(re.findall(r"^\| `(mtp_launcher_\w+)`", document, re.MULTILINE)) == result
    shown = set(re.findall(r"mtp_launcher_\w+", grafana_board(recipe_with("m"))))
    assert {name.removesuffix("_bucket") for name in shown} == result


def test_queries_of_the_dashboard_use_its_variables() -> None:
    board = json.loads(grafana_board(recipe_with("m")))
    variables = {each["name"] for each in board["templating"]["list"]}
    assert variables == {"datasource", "instance", "model"}
    places = {tuple(panel["gridPos"].values()) for panel in board["panels"]}
    assert len(places) == len(board["panels"]) == len({panel["id"] for panel in board["panels"]})
    for panel in board["panels"]:
        for target in panel["targets"]:
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            assert used <= variables
            assert used
