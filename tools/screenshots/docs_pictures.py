"""Takes the pictures of docs/screenshots in one theme: shows the demo in one window, page by page."""

import sys
import tempfile
from functools import partial
from itertools import cycle
from pathlib import Path

from PySide6.QtCore import QElapsedTimer
from PySide6.QtGui import QFont, QFontDatabase
from PySide6.QtWidgets import QApplication

from launcher.app.first.first_steps import StepStage
from launcher.app.planning.planner import MachineDescription
from launcher.gui.application import collect_garbage_in_this_thread
from launcher.gui.window import Window
from tools.screenshots import scene
from tools.screenshots.picture import SETTLE_MS, resize_window, take_picture, wait_ms, wait_until

_SIZE, _HANDOVER_SIZE = (1_280, 800), (1_440, 900)
_LEFT_OUT = ("keys", "about")
_CARD, _HOST_GIB = "RTX 4090", 64
"""The computer for which the page Models plans: one that many users have."""
_TUNE_MS = 900_000
_WATCH_MS, _PAUSE_MS = 26_000, 2_200
_FONT = "Inter"
"""Font of the pictures, if it is installed: Debian without a desktop has only DejaVu Sans."""


def main() -> int:
    """Take the pictures of one theme."""
    folder, look, pages = Path(sys.argv[1]), sys.argv[2], sys.argv[3].split(",")
    with tempfile.TemporaryDirectory(prefix="mtp-launcher-") as home:
        application = QApplication(sys.argv[:1])
        collect_garbage_in_this_thread(application)
        scene.use_empty_home(Path(home))
        if _FONT in QFontDatabase.families():
            application.setFont(QFont(_FONT))
        scene.choose_look(application, look, "en")
        scene.write_models()
        window = Window(remember=False)
        window.resize(*_SIZE)
        window.show()
        window.prebuild_next()
        wait_ms(SETTLE_MS)
        start = window.page("start")
        wait_until(lambda: any(item.stage is StepStage.DONE for item in start.steps.progress.values()))
        if "start" in pages:
            _save(window, folder, "start", look)
        scene.serve_demo(window)
        window.show_page("cockpit")
        _ask_questions(window)
        for page in [each for each in window.page_names if each in pages and each not in ("start", *_LEFT_OUT)]:
            _show_page(window, page)
            _save(window, folder, page, look)
        if "cockpit" in pages:
            window.show_page("cockpit")
            window.page("cockpit").panes.choose_layout("watch")
            resize_window(window, *_HANDOVER_SIZE)
            wait_ms(SETTLE_MS)
            picture = folder / f"handover-{look}.png"
            scene.show_handover(window, lambda: take_picture(window, picture, reduced=True))
        return scene.close_window(window)


def _ask_questions(window: Window) -> None:
    """Ask the demo some questions, so that the plots have something to show."""
    asked = QElapsedTimer()
    asked.start()
    for question in cycle(scene.QUESTIONS):
        scene.ask_question(window, question)
        if asked.elapsed() > _WATCH_MS:
            break
        wait_ms(_PAUSE_MS)


def _show_page(window: Window, name: str) -> None:
    """Show a page with content."""
    page = window.page(name)
    if name == "models":
        page.machine = MachineDescription(gpu=_CARD, host_memory_gib=_HOST_GIB)
    window.show_page(name)
    if name == "cockpit":
        page.chat.colour_button.setChecked(True)
        page.state.request_value("draft", 3)
        page.panes.choose_layout("chat")
        wait_ms(SETTLE_MS)
        scene.ask_question(window, scene.QUESTIONS[0])
    elif name == "models":
        wait_until(lambda: page.shelf is not None and page.shelf.is_complete)
    elif name == "agents":
        wait_until(lambda: page.control.found is not None and page.control.session is not None)
    elif name == "tune":
        page.budget.set_value(5)
        page.measure.click()
        wait_until(partial(_is_tuned, page), _TUNE_MS)


def _is_tuned(page: object) -> bool:
    return not page.tuning.running and bool(page.history.rows)  # type: ignore[attr-defined]


def _save(window: Window, folder: Path, page: str, look: str) -> None:
    resize_window(window, *_SIZE)
    wait_ms(SETTLE_MS)
    take_picture(window, folder / f"{page}-{look}.png", reduced=True)


if __name__ == "__main__":
    sys.exit(main())
