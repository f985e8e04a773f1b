"""Servers of earlier versions are found, shown and stopped, and these versions find ours."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from launcher.app.serving import verbs
from launcher.app.serving.running_servers import read_running_servers, stop_server
from launcher.base.control import ControlLost
from launcher.base.errors import BadOption
from launcher.base.files import make_private_folder
from launcher.base.paths import runtime_dir, state_dir
from launcher.engine.server import registry
from launcher.engine.server.entry_files import entry_file
from launcher.engine.server.registry import ServedModel, ServerEntry

PROGRAM = Path(__file__).parents[2] / "fakes" / "older_program.py"
BY_0_1_0 = {
    "url": "http://127.0.0.1:20011",
    "port": 20_011,
    "api_key": "k" * 43,
    "model": "demo",
    "engine": "built-in",
    "draft": 2,
    "engine_pid": None,
    "engine_created_s": None,
    "state": "loading",
    "settings": {"ctx": 4_096, "draft": 2},
}
"""An entry as version 0.1.0 wrote it, without the keys that have a default."""
BY_81EF5085 = BY_0_1_0 | {
    "shared": False,
    "encrypted": False,
    "embeddings": False,
    "reranking": False,
    "engine_port": 31_234,
    "command_hash": None,
    "formula_inputs": {},
    "health": [],
    "models": [{"model": "second", "state": "ready", "by_request": True, "engine": "built-in", "settings": {}}],
    "takes_models": True,
}
"""An entry as commit 81ef5085 wrote it, with a further model."""


@contextmanager
def older_program(entry: dict[str, Any]) -> Iterator["subprocess.Popen[str]"]:
    make_private_folder(state_dir())
    make_private_folder(runtime_dir())
    place = [str(entry_file(entry["port"])), str(runtime_dir() / "control-old")]
    command = [sys.executable, str(PROGRAM), *place, json.dumps(entry)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "listens\n"
            yield program
        finally:
            program.kill()


@pytest.mark.parametrize(("entry", "others"), [(BY_0_1_0, []), (BY_81EF5085, ["second"])], ids=["0.1.0", "81ef5085"])
async def test_a_server_of_an_earlier_version_is_shown_and_stopped(entry: dict[str, Any], others: list[str]) -> None:
    with older_program(entry) as program:
        (server,) = await read_running_servers()
        assert (server.state, server.percent) == ("loading", 40.0)
        first = server.entry.first
        assert (first.model, first.engine, first.draft, first.settings["ctx"]) == ("demo", "built-in", 2, 4_096)
        assert [each.model for each in server.entry.models[1:]] == others
        assert server.entry.control_address is not None
        with pytest.raises(BadOption, match="not supported") as refused:
            await verbs.ask(server.entry.control_address, verbs.ReloadKeys())
        assert refused.value.facts == {"verb": 1}
        stopped = await stop_server(None)
        assert stopped.first.model == "demo"
        assert program.wait(60) == 0
        with pytest.raises(ControlLost):
            await verbs.ask(server.entry.control_address, verbs.GetStatus())
    assert registry.list_entries() == ()


def test_an_earlier_version_reads_our_entry() -> None:
    first = ServedModel(model="demo", state="ready", engine="b1", draft=2, settings={"ctx": 512})
    other = ServedModel(model="second", state="ready", by_request=True)
    entry = ServerEntry(url="u", port=1, api_key="k", pid=2, created_s=3.0, models=(first, other), takes_models=True)
    written = json.loads(entry.model_dump_json())
    assert {name: written[name] for name in ("model", "state", "engine", "draft", "settings")} == {
        "model": "demo",
        "state": "ready",
        "engine": "b1",
        "draft": 2,
        "settings": {"ctx": 512},
    }
    assert [each["model"] for each in written["models"]] == ["second"]
    assert ServerEntry.model_validate(written) == entry
    live = entry.model_dump(mode="json", include=registry.LIVE_FIELDS)
    assert (live["model"], live["takes_models"], [each["model"] for each in live["models"]]) == (
        "demo",
        True,
        ["second"],
    )
    assert "api_key" not in live
