"""Tool calls that the engine has parsed, in replies of the chat."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pytestqt.qtbot import QtBot

from launcher.app.planning.start_settings import ResolvedStart
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.client import Delta, ToolCallPart
from launcher.engine.server.state import ServerState
from launcher.gui.chat.code import CodeBlock
from launcher.gui.chat.pane import ChatPane
from launcher.gui.chat.tool_calls import ToolCallWriter
from launcher.gui.controller import Controller
from launcher.gui.labels import Label
from launcher.gui.window import Window
from tests.gui.agents_page import Script, script, write_engine
from tests.gui.chatting import in_file

pytestmark = pytest.mark.usefixtures("no_charts")
__all__ = ["script"]  # a fixture
TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}


def calls_in(pane: ChatPane) -> list[tuple[str, Any]]:
    """Return names and arguments of the tool calls that are shown."""
    blocks = [each for reply in pane.column.replies for each in reply.body.blocks if isinstance(each, CodeBlock)]
    return [(block.findChildren(Label)[0].text(), json.loads(block.code)) for block in blocks]


def test_a_call_that_the_engine_has_parsed_is_shown_and_kept(
    window: Window, wait_for: Callable[..., None], script: Script, demo_model: Path, qtbot: QtBot
) -> None:
    options = ServeOptions(model=demo_model, engine=write_engine(script), draft=0, context=4_096)
    window.controller.start(str(demo_model), start=ResolvedStart(str(demo_model), options))
    wait_for(ServerState.READY)
    chat: ChatPane = window.page("cockpit").chat
    controller = window.controller
    controller.set_sampling_value("tools", [TOOL])  # type: ignore[arg-type] -- a value that the window has no slider for
    with qtbot.waitSignal(controller.replied) as ended:
        chat.send_question("What is in the file?")
    assert ended.args is not None
    reply, footer = ended.args
    assert reply.finish_reason == "tool_calls"
    assert footer.endswith("stopped: tool call")
    called = [("tool call: read_file", {"path": "answer.py"})]
    qtbot.waitUntil(lambda: calls_in(chat) == called)
    stored = in_file(chat, qtbot, lambda kept: kept.read_conversation(chat.conversation.id or "")).messages[-1].text
    assert '{"name": "read_file", "arguments": {"path": "answer.py"}}' in stored
    first = chat.column.replies[-1]
    chat.open_conversation(chat.conversation.id or "")
    qtbot.waitUntil(lambda: chat.column.replies[-1] is not first and calls_in(chat) == called)


def test_the_parts_of_several_calls_are_put_together(idle_controller: Controller, pane: ChatPane) -> None:
    pane.send_question("Go.")
    for delta in (
        Delta("I look."),
        Delta(tool_calls=(ToolCallPart(0, "read", ""),)),
        Delta(tool_calls=(ToolCallPart(0, "", '{"path": '),)),
        Delta(tool_calls=(ToolCallPart(0, "", '"a.txt"}'), ToolCallPart(1, "stop", ""))),
        Delta("Done."),
        Delta(tool_calls=(ToolCallPart(2, "wait", '{"s": 1}'),)),
    ):
        idle_controller.deltas.emit([delta])
    pane.finish_reply("", None)
    assert calls_in(pane) == [
        ("tool call: read", {"path": "a.txt"}),
        ("tool call: stop", {}),
        ("tool call: wait", {"s": 1}),
    ]
    text = pane.messages[-1]["content"]
    assert text.startswith("I look.\n<tool_call>\n")
    assert text.endswith('{"name": "wait", "arguments": {"s": 1}}\n</tool_call>\n')


def test_deltas_without_calls_are_left_as_they_are() -> None:
    writer, deltas = ToolCallWriter(), [Delta("a"), Delta("", "thought"), Delta("b")]
    assert all(one is other for one, other in zip(writer.write_calls(deltas), deltas, strict=True))
    assert writer.end_call() == ""
