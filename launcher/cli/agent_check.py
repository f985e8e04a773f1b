"""`mtp-launcher agent-check`: check whether a running server suits coding agents."""

import argparse
import asyncio

from launcher.agents.agent import find_agent
from launcher.agents.check import check_server
from launcher.app.serving.attach import AttachedServer
from launcher.base.codec import JsonView, to_json
from launcher.cli.given_key import find_api_key
from launcher.cli.layout import wrap_text
from launcher.cli.output import Result
from launcher.engine.server import registry
from launcher.engine.server.address import parse_address
from launcher.engine.server.client import EngineClient

_REQUEST = JsonView("step passed result prompt_tokens reused_tokens reuse:4 first_token_s:4 acceptance:4")
_VERDICT = JsonView(
    "ready tool_call reuse_turn2:4 reuse_turn3:4 acceptance:4 sentence faults requests seconds:2",
    requests=_REQUEST,
)


async def run(options: argparse.Namespace) -> Result:
    """Send a few requests as an agent would, and return the verdict. Exit code 1 unless the server is ready."""
    agent = find_agent(options.agent) if options.agent else None
    url = options.url or (await asyncio.to_thread(registry.find_server, None)).url
    address, key = parse_address(url), await find_api_key(url, options)
    remote = not address.local or address.url.startswith("https://")
    async with EngineClient(address.url, key, remote=remote) as client:
        # First find out what it is: a web server of another kind may answer the check's requests with anything.
        server = AttachedServer(address, key, client=client, model=options.model)
        features = await server.detect_features()
        server.require_model()
        model = features.model if features.chosen or not features.is_llama_server else None
        verdict = await check_server(client, agent, model=model, context=features.context)
    data = to_json(verdict, _VERDICT)
    return Result(data, [wrap_text(verdict.sentence)], exit_code=0 if verdict.ready else 1)
