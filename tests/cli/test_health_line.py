"""Findings as one line of text, and in `status`."""

import argparse

from launcher.base.action import Action, ActionKind
from launcher.base.codec import to_json
from launcher.cli.layout import health_line
from launcher.cli.options.status import configure
from launcher.cli.status import run
from launcher.engine.server import registry
from launcher.monitor.health_event import Finding, FindingCode, FindingLevel

SPILL = Finding(
    FindingCode.SPILL,
    "115 MiB of the GPU's memory have moved to host memory.",
    {"spilled_mib": 115.0004},
    Action(ActionKind.SMALLER_CONTEXT, "Halve the context"),
)
WAIT = Finding(FindingCode.REQUESTS_WAIT, "2 request(s) wait.", {}, None, FindingLevel.INFORMATION)


def test_a_warning_has_an_action_and_a_note_may_have_none() -> None:
    sentence = "115 MiB of the GPU's memory have moved to host memory."
    assert health_line(to_json(SPILL)) == f"Warning: {sentence} To do: Halve the context."
    assert health_line(to_json(SPILL), cleared=True) == f"Over: {sentence}"
    assert health_line(to_json(WAIT)) == "Note: 2 request(s) wait."


async def test_status_lists_the_findings() -> None:
    _, registration = registry.register_server(None, registry.ServedModel(model="m", engine="e", draft=2))
    registration.update(health=(to_json(SPILL), to_json(WAIT)))
    assert registration.wait_written(60)
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    configure(parser)
    found = await run(parser.parse_args([]))
    assert found.exit_code == 0
    lines = list(found.lines)
    assert lines[1:3] == [f"  {health_line(to_json(SPILL))}", "  Note: 2 request(s) wait."]
    (server,) = found.data
    assert server["health"][0]["evidence"] == {"spilled_mib": 115.0}
    assert server["health"][0]["action"]["kind"] == "smaller_context"
    registration.remove()
