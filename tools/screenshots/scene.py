"""The content of the pictures: a home without traces of this computer, model files, the demo and its replies."""

import os
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from PySide6.QtWidgets import QApplication

from launcher.base.paths import HOME_VARIABLE, MODELS_VARIABLE, models_dir
from launcher.engine.server.state import ServerState
from launcher.gui import theme, translation
from launcher.gui.window import Window
from launcher.machine import machine
from launcher.machine.host import Host, read_host
from tools.screenshots.picture import wait_ms, wait_until
from tools.sparse_models.__main__ import main as sparse_models

QUESTIONS = ("What is MTP, and what does this demo show?", "When should MTP be switched off?", "What is a draft?")
_MODELS = (
    "qwen35moe-35b-q3_k_xl",
    "llama-8b-q4_k",
    "qwen35-27b-q4_k_m",
    "qwen35-9b-q4_k_m",
    "gemma3-12b-q4_k",
)
_STREAMED_MS, _UNDER_WAY_MS = 300, 3_000


def use_empty_home(home: Path) -> None:
    """Use an empty home with the usual folders, and hide everything that identifies this computer."""
    for name in [name for name in os.environ if name.startswith("XDG_") or name in (HOME_VARIABLE, MODELS_VARIABLE)]:
        del os.environ[name]
    os.environ["HOME"] = str(home)

    def without_names(root: Path) -> Host:
        return replace(read_host(root), cpu=None, system=platform.system(), container=None)

    vars(machine)["read_host"] = without_names


def choose_look(application: QApplication, name: str, language: str) -> None:
    """Use a theme and a language."""
    application.setStyle("Fusion")
    translation.choose_language(language)
    theme.choose_theme(name)
    theme.apply_theme(application, theme.current())


def write_models() -> None:
    """Write sparse model files of real sizes, so that there is something to list."""
    folder = models_dir()
    folder.mkdir(parents=True, exist_ok=True)
    sparse_models([str(folder), *(word for name in _MODELS for word in ("--model", name))])


def serve_demo(window: Window) -> None:
    """Serve the demo."""
    window.start_demo()
    wait_until(lambda: window.controller.inputs.status.state is ServerState.READY)


def ask_question(window: Window, question: str) -> None:
    """Ask a question, and wait until the reply is drawn."""
    controller = window.controller
    wait_until(lambda: controller.view.can_ask)
    window.page("cockpit").chat.send_question(question)
    wait_until(lambda: not controller.view.replying)
    wait_until(lambda: all(each.waiting == 0 for each in window.page("cockpit").chat.column.replies))
    wait_ms(_STREAMED_MS)


def show_handover(window: Window, take: Callable[[], None]) -> None:
    """Apply another draft length under a reply that does not end, and call `take` while the engine restarts.

    It is called as soon as the window shows that. To look for it now and then would not do: a window that was busy
    meanwhile learns of all states at once, and goes from one to the last without a pause.
    """
    controller, page = window.controller, window.page("cockpit")
    wait_until(lambda: controller.view.can_ask and page.state.previewer is not None)
    page.state.revert_changes()
    running = page.state.previewer.basis.plan_settings.draft
    controller.set_sampling_value("ignore_eos", True)
    page.chat.send_question(QUESTIONS[1])
    page.state.request_value("draft", 2 if running == 3 else 3)
    wait_ms(_UNDER_WAY_MS)
    taken: list[bool] = []

    def take_once() -> None:
        if not taken and controller.inputs.status.state in (ServerState.RESTARTING, ServerState.LOADING):
            taken.append(True)
            take()

    controller.view_changed.connect(take_once)
    page.controls.changes.apply_now()
    wait_until(lambda: bool(taken))
    controller.view_changed.disconnect(take_once)


def close_window(window: Window) -> int:
    """Close the window and its server. Return an exit code."""
    ended: list[bool] = []
    window.shut_down.connect(lambda: ended.append(True))
    window.quit()
    wait_until(lambda: bool(ended))
    return 0 if window.controller.bridge.close() else 1
