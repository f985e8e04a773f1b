"""One window in one theme and language: serves the demo, and takes pictures of each page in each size."""

import os
import platform
import sys
import tempfile
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np
from PySide6.QtCore import QCoreApplication, QElapsedTimer, QEvent, QEventLoop, QSize, Qt, QTimer
from PySide6.QtGui import QColor, QFont, QFontDatabase, QImage
from PySide6.QtWidgets import QApplication

from launcher.app.first_steps import Stage
from launcher.app.planner import MachineDescription
from launcher.base.paths import HOME_VARIABLE, MODELS_VARIABLE, models_dir
from launcher.engine.server.state import ServerState
from launcher.gui import theme
from launcher.gui import translation as words
from launcher.gui.window import Window
from launcher.machine import machine
from launcher.machine.host import Host, read_host
from tools.sparse_models.__main__ import main as sparse_models

SIZES = ((1_000, 640), (1_280, 800), (1_920, 1_080))
CHOSEN = (1_280, 800)
"""The size of those in docs/screenshots."""
_HANDOVER_SIZE = (1_440, 900)
_NOT_IN_DOCS = ("keys", "about")
_QUESTIONS = ("What is MTP, and what does this demo show?", "When should MTP be switched off?", "What is a draft?")
_MODELS = (
    "qwen35moe-35b-q3_k_xl",
    "qwen35moe-35b-iq4_xs-nomtp",
    "qwen35-27b-q4_k_m",
    "qwen35-9b-q4_k_m",
    "gemma3-12b-q4_k",
)
_CARD, _HOST_GIB = "RTX 4090", 64
"""The computer that Models plans for: one that many of its users have."""
_COLOURS, _SHADES = 256, 5
"""Colours of a picture, and of each of the theme's colours on the way to each surface: edges of lines have them."""
_LIMIT_MS = 180_000
_SETTLE_MS, _STREAMED_MS = 1_500, 300
_WATCH_MS, _PAUSE_MS = 26_000, 2_200
_UNDER_WAY_MS = 3_000
_DOCS_FONT = "Inter"
"""Font of the pictures in docs/screenshots, if it is installed: Debian without a desktop has only DejaVu Sans."""


def main() -> int:
    """Take the pictures of one theme and language."""
    folder, look, language, pages = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4].split(",")
    for_docs = "--docs" in sys.argv
    with tempfile.TemporaryDirectory(prefix="mtp-launcher-") as home:
        application = QApplication(sys.argv[:1])
        _live_in(Path(home))
        application.setStyle("Fusion")
        if for_docs and _DOCS_FONT in QFontDatabase.families():
            application.setFont(QFont(_DOCS_FONT))
        words.choose_language(language)
        theme.choose_theme(look)
        theme.apply_theme(application, theme.current())
        _put_models()
        window = Window(remember=False)
        window.resize(*CHOSEN)
        window.show()
        window.prebuild_next()
        _settle()
        name = "" if for_docs else f"-{language}"
        sizes = (CHOSEN,) if for_docs else SIZES
        start = window.page("start")
        _until(lambda: any(item.stage is Stage.DONE for item in start.steps.progress.values()))
        if "start" in pages:
            _take(window, folder, "start", f"{look}{name}", sizes)
        _serve_and_ask(window)
        for page in [each for each in window.page_names if each in pages]:
            if page == "cockpit":
                window.page(page).chat.colour_button.setChecked(True)
                window.page(page).state.request_value("draft", 3)
            if page == "tune" and for_docs:
                _tune(window)
            if page == "cockpit" and not for_docs:
                window.show_page(page)
                for layout in ("watch", "adjust"):
                    window.page(page).panes.choose_layout(layout)
                    _take(
                        window, folder, f"{page}-{layout}", f"{look}{name}", sizes, partial(_ask, window, _QUESTIONS[0])
                    )
                window.page(page).panes.choose_layout("chat")
            if page != "start" and (not for_docs or page not in _NOT_IN_DOCS):
                if page == "models":
                    window.page(page).machine = MachineDescription(gpu=_CARD, host_memory_gib=_HOST_GIB)
                window.show_page(page)
                ready = partial(_ask, window, _QUESTIONS[0]) if page == "cockpit" else None
                if page == "models":
                    _until(lambda: window.page("models").shelf is not None and window.page("models").shelf.is_complete)
                _take(window, folder, page, f"{look}{name}", sizes, ready)
        if "cockpit" in pages:
            window.show_page("cockpit")
            window.page("cockpit").panes.choose_layout("watch")
            _take(window, folder, "handover", f"{look}{name}", (_HANDOVER_SIZE,), partial(_begin_handover, window))
        done = QEventLoop()
        window.shut_down.connect(done.quit)
        QTimer.singleShot(0, window, window.quit)
        done.exec()
        return 0 if window.controller.bridge.close() else 1


def _live_in(home: Path) -> None:
    """Use an empty home with the usual folders, and hide everything that identifies this computer."""
    for name in [name for name in os.environ if name.startswith("XDG_") or name in (HOME_VARIABLE, MODELS_VARIABLE)]:
        del os.environ[name]
    os.environ["HOME"] = str(home)

    def without_names(root: Path) -> Host:
        return replace(read_host(root), cpu=None, system=platform.system(), container=None)

    vars(machine)["read_host"] = without_names


def _put_models() -> None:
    """Write sparse model files of real sizes, so that there is something to list."""
    folder = models_dir()
    folder.mkdir(parents=True)
    sparse_models([str(folder), *(word for name in _MODELS for word in ("--model", name))])


def _serve_and_ask(window: Window) -> None:
    """Serve the demo, and ask it some questions."""
    controller = window.controller
    window.start_demo()
    _until(lambda: controller.inputs.status.state is ServerState.READY)
    window.show_page("cockpit")
    asked = QElapsedTimer()
    asked.start()
    for question in cycle(_QUESTIONS):
        _ask(window, question)
        if asked.elapsed() > _WATCH_MS:
            break
        _wait(_PAUSE_MS)


def _ask(window: Window, question: str) -> None:
    """Ask a question, and wait until the reply is drawn."""
    controller = window.controller
    _until(lambda: controller.view.can_ask)
    window.page("cockpit").chat.send_question(question)
    _until(lambda: not controller.view.replying)
    _until(lambda: all(each.waiting == 0 for each in window.page("cockpit").chat.column.replies))
    _wait(_STREAMED_MS)


def _begin_handover(window: Window) -> None:
    """Apply another draft length under a reply that does not end, and wait until the engine restarts."""
    controller, page = window.controller, window.page("cockpit")
    _until(lambda: controller.view.can_ask and page.state.previewer is not None)
    controller.set_sampling_value("ignore_eos", True)
    page.chat.send_question(_QUESTIONS[1])
    page.state.request_value("draft", 3)
    _wait(_UNDER_WAY_MS)
    page.controls.changes.apply_now()
    _until(lambda: controller.inputs.status.state in (ServerState.RESTARTING, ServerState.LOADING))


def _tune(window: Window) -> None:
    """Tune the demo, for five minutes at most."""
    window.show_page("tune")
    page = window.page("tune")
    page.budget.set_value(5)
    page.measure.click()
    _until(lambda: not page.tuning.running, 5 * _LIMIT_MS)
    _until(lambda: bool(page.history.rows))


def _take(
    window: Window,
    folder: Path,
    page: str,
    suffix: str,
    sizes: tuple[tuple[int, int], ...],
    ready: Callable[[], None] | None = None,
) -> None:
    for width, height in sizes:
        window.resize(QSize(width, height))
        _settle()
        if ready is not None:
            ready()
        QCoreApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest.value)  # a busy computer is behind
        few = _quantised(window.grab().toImage())
        size = "" if len(sizes) == 1 else f"-{width}x{height}"
        path = folder / f"{page}-{suffix}{size}.png"
        if not few.save(str(path), quality=0):
            raise OSError(f"{path} could not be written")
        print(path.name, path.stat().st_size)


def _quantised(picture: QImage) -> QImage:
    """Return a picture reduced to 256 colours, those of the theme and the most frequent ones, without dithering."""
    plain = picture.convertToFormat(QImage.Format.Format_RGB32)
    pixels = np.frombuffer(plain.constBits(), np.uint32)
    colours, counts = np.unique(pixels, return_counts=True)
    often = [int(colour) for colour in colours[np.argsort(counts)[::-1]]]
    table = list(dict.fromkeys([*_own_colours(), *often]))[:_COLOURS]
    flags = Qt.ImageConversionFlag.ThresholdDither | Qt.ImageConversionFlag.AvoidDither
    return plain.convertToFormat(QImage.Format.Format_Indexed8, table, flags)


def _own_colours() -> list[int]:
    now = theme.current()
    values = [getattr(now, each.name) for each in fields(theme.Theme)]
    names = dict.fromkeys(name for value in values for name in ((value,) if isinstance(value, str) else value))
    own = [QColor(name).rgb() for name in names]
    lines = (now.rate, now.acceptance, now.power, now.ours, now.others, now.limit, now.accent, now.good, now.text)
    shades = [_mixed(line, now.card, step / _SHADES) for step in range(1, _SHADES) for line in dict.fromkeys(lines)]
    return [*own, *shades]


def _mixed(line: str, surface: str, share: float) -> int:
    over, under = QColor(line), QColor(surface)
    parts = ((over.red(), under.red()), (over.green(), under.green()), (over.blue(), under.blue()))
    return QColor(*(round(a * share + b * (1 - share)) for a, b in parts)).rgb()


def _until(done: Callable[[], bool], limit_ms: int = _LIMIT_MS) -> None:
    """Wait until a condition holds. Raises TimeoutError."""
    clock = QElapsedTimer()
    clock.start()
    while not done():
        if clock.elapsed() > limit_ms:
            raise TimeoutError("The demo did not get that far.")
        _wait(50)


def _settle() -> None:
    _wait(_SETTLE_MS)


def _wait(milliseconds: int) -> None:
    loop = QEventLoop()
    QTimer.singleShot(milliseconds, loop.quit)
    loop.exec()


if __name__ == "__main__":
    sys.exit(main())
