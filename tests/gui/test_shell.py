"""The window around the pages: rail, keys, list of keys, About, what is remembered."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QGuiApplication, QKeySequence, QShortcut
from PySide6.QtWidgets import QLabel, QPushButton, QStackedWidget
from pytestqt.qtbot import QtBot

from launcher.cli.options import gui as options
from launcher.engine.server.registry import ServedModel, register_server
from launcher.gui import theme
from launcher.gui.application import acquire_instance_lock, warn_about_folders
from launcher.gui.keys import SHORTCUTS
from launcher.gui.labels import ElidedLabel
from launcher.gui.pages import PAGES
from launcher.gui.rail import Rail
from launcher.gui.single import SingleInstance
from launcher.gui.window import PageContainer, Window
from launcher.machine.gpu import Gpu
from launcher.machine.gpus import DetectedGpus

RAIL = [spec for spec in PAGES if spec.in_rail]


def press_key(window: Window, qtbot: QtBot, key: str) -> None:
    combination = QKeySequence(key)[0]
    qtbot.keyClick(window, combination.key(), combination.keyboardModifiers())


@pytest.fixture
def active_window(window: Window, qtbot: QtBot) -> Window:
    """The window with the focus, for shortcuts."""
    window.activateWindow()
    qtbot.waitUntil(window.isActiveWindow)
    return window


def test_every_page_is_reached_by_its_key_and_by_its_button(active_window: Window, qtbot: QtBot) -> None:
    buttons = {each.text(): each for each in active_window.rail.findChildren(QPushButton)}
    there = [spec for spec in RAIL if spec.name in active_window.page_names]
    for spec in there:
        press_key(active_window, qtbot, spec.key)
        assert active_window.page_name == spec.name
        assert buttons[spec.title].isChecked()
        assert active_window.page(spec.name).isVisible()
    for spec in there:
        qtbot.mouseClick(buttons[spec.title], Qt.MouseButton.LeftButton)
        assert active_window.page_name == spec.name


def test_the_list_of_keys_opens_and_closes_and_is_complete(active_window: Window, qtbot: QtBot) -> None:
    press_key(active_window, qtbot, "F1")
    assert active_window.page_name == "keys"
    assert not any(each.isChecked() for each in active_window.rail.findChildren(QPushButton))
    press_key(active_window, qtbot, "F1")
    assert active_window.page_name == "cockpit"
    press_key(active_window, qtbot, "F1")
    press_key(active_window, qtbot, "Esc")
    assert active_window.page_name == "cockpit"
    press_key(active_window, qtbot, "Esc")
    assert active_window.page_name == "cockpit", "a page of the rail stays"
    for name in active_window.page_names:
        active_window.page(name)
    listed = {QKeySequence(key).toString() for group in SHORTCUTS for key, _ in group.keys}
    missing = {each.key().toString() for each in active_window.findChildren(QShortcut)} - listed
    assert missing == set()


def test_about_shows_versions_and_its_report_has_no_secrets(window: Window, qtbot: QtBot, home: Path) -> None:
    window.show_page("about")
    page = window.page("about")
    copy = next(each for each in page.findChildren(QPushButton) if each.text() == "Copy report")
    qtbot.waitUntil(copy.isEnabled)
    qtbot.mouseClick(copy, Qt.MouseButton.LeftButton)
    report = QGuiApplication.clipboard().text()
    assert [line.split(":")[0] for line in report.splitlines()[:5]] == [
        "MTP Launcher", "Python", "Qt", "System", "Built-in engine",
    ]  # fmt: skip
    assert str(home) not in report
    assert str(Path.home()) not in report
    shown = [each.text() for each in page.findChildren(QLabel)]
    assert all(line.partition(": ")[2] in shown for line in report.splitlines())


def test_the_window_geometry_is_restored(qtbot: QtBot, home: Path) -> None:
    first = Window()
    first.resize(first.minimumWidth(), 555)
    first.show()
    first.show_page("keys")
    first.show_page("cockpit")
    with qtbot.waitSignal(first.shut_down):
        first.close()
    second = Window()
    assert second.height() == 555
    assert second.page_name == "cockpit"
    for window in (first, second):
        assert window.controller.bridge.close()
        window.deleteLater()


def test_pages_are_built_ahead_of_time_or_when_they_are_first_shown(window: Window, qtbot: QtBot) -> None:
    container = window.findChild(PageContainer)
    assert container is not None
    stack = container.findChild(QStackedWidget)
    assert stack is not None
    assert stack.count() == 1

    def are_all_built() -> bool:
        window.prebuild_next()
        return stack.count() == len(RAIL)

    qtbot.waitUntil(are_all_built)
    assert window.page_name == "cockpit"
    assert "launcher.gui.settings.page" in sys.modules
    window.show_page("about")
    assert stack.count() == len(RAIL) + 1


@pytest.mark.parametrize("served_before", [False, True])
def test_little_is_imported_before_start_can_be_used(home: Path, *, served_before: bool) -> None:
    if served_before:
        _, registration = register_server(None, ServedModel(model="model", engine="built-in", draft=0))
        registration.remove()
    code = (
        "import sys\n"
        "from PySide6.QtWidgets import QApplication\n"
        "from launcher.gui.start import queries\n"
        "from launcher.gui.window import Window\n"
        "def tell(*names):\n"
        "    print(*(name for name in names if name in sys.modules), sep=',', flush=True)\n"
        "queries.PAINT_S = 3_600  # what is asked for once the plans are painted imports more\n"
        "application = QApplication([])\n"
        "window = Window(remember=False)\n"
        "tell('asyncio', 'PySide6.QtNetwork', 'PySide6.QtDBus')\n"
        "window.page('start').flow.planned.connect(lambda _: tell('pydantic', 'httpx', 'numpy', 'pyqtgraph'))\n"
        "window.page('start').flow.planned.connect(window.quit)\n"
        "window.controller.closed.connect(application.quit)\n"
        "window.show()\n"
        "application.exec()\n"
    )
    environment = os.environ | {"QT_QPA_PLATFORM": "offscreen"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert result.stdout == "\n\n", result.stderr


def test_a_second_start_waits_for_a_starting_window_but_not_for_a_hanging_one(qtbot: QtBot, home: Path) -> None:
    code = (
        "from PySide6.QtCore import QCoreApplication\n"
        "from launcher.gui import single\n"
        "app = QCoreApplication([])\n"
        "single._ANSWER_MS = 0\n"
        "single.QThread.msleep = lambda _ms: print('waits', flush=True)\n"
        "second = single.SingleInstance()\n"
        "print(second.raise_first_window(None, demo=True))\n"
    )
    first, requests = SingleInstance(), []
    assert first.is_first

    def start_second_process() -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)

    with start_second_process() as starts:
        assert starts.stdout is not None
        assert starts.stdout.readline() == "waits\n"
        first.listen(lambda file, demo: requests.append((file, demo)))
        qtbot.waitUntil(lambda: starts.poll() is not None)
        assert starts.stdout.read().split()[-1] == "True"
    assert requests == [(None, True)]
    assert first._server is not None
    first._server.newConnection.disconnect()
    os.utime(home / "state" / "window.lock", (0, 0))
    with start_second_process() as starts:
        qtbot.waitUntil(lambda: starts.poll() is not None)
        assert starts.stdout is not None
        assert starts.stdout.read().split() == ["False"]


def test_the_option_for_pages_knows_all_pages() -> None:
    assert [spec.name for spec in RAIL] == list(options.PAGES)


def test_an_elided_text_is_complete_in_its_tooltip(qtbot: QtBot) -> None:
    label = ElidedLabel("A name that is rather long for the place that it has")
    qtbot.addWidget(label)
    label.resize(100, 20)
    label.show()
    assert label.text().endswith("…")
    assert "rather long for the place" in label.toolTip()
    assert label.accessibleName() == label.full_text
    label.resize(900, 20)
    assert label.text() == label.full_text


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ((("NVIDIA GeForce RTX 4090", 24_564, False),), "RTX 4090 · 24 GB"),
        ((("NVIDIA H100 80GB HBM3", 81_559, False),) * 2, "2 × H100 80GB HBM3 · 80 GB"),  # noqa: RUF001
        ((("AMD Radeon RX 7900 XTX", None, False), ("Intel(R) Arc(TM) A770", 16_225, False)),
         "Radeon RX 7900 XTX\nArc(TM) A770 · 16 GB"),
        ((("NVIDIA GB10", 122_502, True),), "GB10"),
        ((), "no GPU"),
    ],
)  # fmt: skip
def test_the_navigation_names_the_gpus(
    qtbot: QtBot, gpus: tuple[tuple[str, int | None, bool], ...], expected: str
) -> None:
    rail = Rail(RAIL)
    qtbot.addWidget(rail)
    found = [
        Gpu("other", at, name, str(at), memory_bytes=mib and mib * 2**20, unified=unified)
        for at, (name, mib, unified) in enumerate(gpus)
    ]
    rail.show_gpus(DetectedGpus(tuple(found), {"nvidia": "No NVIDIA driver is installed."}, (), ()))
    assert rail._gpus.text() == expected
    assert all(name in rail._gpus.toolTip() for name, _, _ in gpus)


def test_gpus_are_searched_when_the_window_is_idle(window: Window, qtbot: QtBot) -> None:
    assert window.rail._gpus.text() == "Looking for GPUs ..."
    window.prebuild_next()
    qtbot.waitUntil(lambda: window.rail._gpus.text() != "Looking for GPUs ...")
    assert window.rail._gpus.text()


def test_without_a_state_folder_the_window_opens(home: Path) -> None:
    assert acquire_instance_lock() is not None
    shutil.rmtree(home / "state")
    home.joinpath("state").write_text("what should be a folder is a file")
    assert acquire_instance_lock() is None


def test_an_unwritable_folder_is_reported(window: Window, qtbot: QtBot, home: Path) -> None:
    home.mkdir(parents=True, exist_ok=True)
    home.joinpath("config").write_text("what should be a folder is a file")
    page = window.page(window.page_name)
    top = page.mapTo(window, QPoint()).y()
    warn_about_folders(window)
    qtbot.waitUntil(window.notice.isVisible)
    assert f"{home / 'config'} cannot be written" in window.notice.text.text()
    assert "are lost when this program ends" in window.notice.text.text()
    area, side, gap = window.notice.parentWidget(), theme.px(theme.GAP_XL), theme.px(theme.GAP_L)
    qtbot.waitUntil(lambda: window.notice.geometry() == area.rect().adjusted(side, gap, -side, 0))  # as a page is
    window.notice.clear()
    qtbot.waitUntil(lambda: page.mapTo(window, QPoint()).y() == top)  # no gap is left where the notice was


@pytest.mark.parametrize(
    ("version", "shown"),
    [
        ("xllamacpp 2026.10.11549", "2026.10.11549"),
        ("0.7.0 (build 11669, commit Debian)", "0.7.0"),
        ("b11669", "b11669"),
    ],
)
def test_the_rail_shows_an_engines_version_in_short(qtbot: QtBot, version: str, shown: str) -> None:
    rail = Rail(())
    qtbot.addWidget(rail)
    rail.show_engine("an engine", version)
    assert f"an engine\n{shown}" in [each.text() for each in rail.findChildren(QLabel)]
