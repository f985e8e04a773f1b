"""Several gateways behind LiteLLM, llama-swap or GPUStack; for GPUStack the program runs against a small server."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import yaml

from launcher.export.gateway_routers import gpustack_calls, litellm_config, llama_swap_peers
from launcher.export.served_models import GatewayModels, OfferedModel
from tests.export.conftest import NASTY

GATEWAYS = (
    GatewayModels("http://10.0.0.2:20001", "LLAMA_API_KEY_1", (OfferedModel("shared", 8_192), OfferedModel(NASTY))),
    GatewayModels(
        "https://box.local:20002", "LLAMA_API_KEY_2", (OfferedModel("shared", 32_768), OfferedModel("e", embeds=True))
    ),
)


def test_litellm_shares_a_model_of_several_gateways() -> None:
    read = yaml.safe_load(litellm_config(GATEWAYS))
    assert [each["model_name"] for each in read["model_list"]] == ["shared", NASTY, "shared", "e"]
    first, other, second, embedding = (each["litellm_params"] | each["model_info"] for each in read["model_list"])
    assert (first["api_base"], first["api_key"]) == ("http://10.0.0.2:20001/v1", "os.environ/LLAMA_API_KEY_1")
    assert (second["api_base"], second["api_key"]) == ("https://box.local:20002/v1", "os.environ/LLAMA_API_KEY_2")
    assert (first["max_input_tokens"], first["max_output_tokens"]) == (8_192, 2_048)
    assert other["model"] == f"openai/{NASTY}"
    assert "max_input_tokens" not in other
    assert embedding["mode"] == "embedding"
    assert read["general_settings"]["master_key"] == "os.environ/LITELLM_MASTER_KEY"


def test_llama_swap_has_a_selector_for_what_several_gateways_serve() -> None:
    read = yaml.safe_load(llama_swap_peers(GATEWAYS))
    assert read["peers"]["gateway-1"] == {
        "proxy": "http://10.0.0.2:20001",
        "apiKey": "${env.LLAMA_API_KEY_1}",
        "models": ["shared", NASTY],
    }
    assert read["selectors"] == {
        "shared": {"strategy": "spillover", "targets": ["gateway-1/shared", "gateway-2/shared"]}
    }
    assert "selectors" not in yaml.safe_load(llama_swap_peers(GATEWAYS[:1]))


@pytest.fixture
def gpustack() -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """A server that gives each resource an ID, as GPUStack's API does; yields its address and what it was sent."""
    received: list[tuple[str, dict[str, Any]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            if self.headers["Authorization"] != "Bearer admin":
                self.send_error(401)
                return
            received.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            body = json.dumps({"id": len(received)}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", received
    server.shutdown()
    server.server_close()


def run_program(text: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "NO_PROXY": "*", **environment},
    )


def test_gpustack_gets_providers_and_routes(gpustack: tuple[str, list[tuple[str, dict[str, Any]]]]) -> None:
    url, received = gpustack
    known = {"GPUSTACK_SERVER_URL": url, "GPUSTACK_API_KEY": "admin", "LLAMA_API_KEY_1": "one"}
    missing = run_program(gpustack_calls(GATEWAYS), **known)
    assert (missing.returncode, missing.stderr.strip()) == (1, "Set LLAMA_API_KEY_2.")
    received.clear()
    ran = run_program(gpustack_calls(GATEWAYS), **known, LLAMA_API_KEY_2="two")
    assert ran.returncode == 0, ran.stderr
    assert [path for path, _ in received] == ["/v2/model-providers"] * 2 + ["/v2/model-routes"] * 3
    providers = [body for path, body in received if path.endswith("providers")]
    assert [body["api_tokens"] for body in providers] == [[{"input": "one"}], [{"input": "two"}]]
    assert providers[0]["config"] == {"type": "openai", "openaiCustomUrl": "http://10.0.0.2:20001/v1"}
    shared, other, embedding = (body for path, body in received if path.endswith("routes"))
    assert [target["provider_id"] for target in shared["targets"]] == [1, 2]
    assert other["targets"][0]["overridden_model_name"] == NASTY
    assert other["name"].isascii()
    assert embedding["categories"] == ["embedding"]


def test_gpustack_reports_refused_requests(gpustack: tuple[str, list[tuple[str, dict[str, Any]]]]) -> None:
    keys = {"LLAMA_API_KEY_1": "one", "LLAMA_API_KEY_2": "two", "GPUSTACK_API_KEY": "wrong"}
    refused = run_program(gpustack_calls(GATEWAYS), GPUSTACK_SERVER_URL=gpustack[0], **keys)
    assert "GPUStack refused gateway-1 (401)" in refused.stderr
    gone = run_program(gpustack_calls(GATEWAYS), GPUSTACK_SERVER_URL="http://127.0.0.1:9", **keys)
    assert "GPUStack cannot be reached" in gone.stderr
