"""Everybody can use it: names and roles for screen readers, the keyboard, text that is large or small."""

from collections.abc import Iterator

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QAccessible
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from launcher.engine.server.state import ServerState
from launcher.gui import theme
from launcher.gui.window import Window
from tests.gui.walk import clipped, controls, hidden_by_parents, interfaces

Role = QAccessible.Role
NAMED = {
    Role.Button, Role.CheckBox, Role.RadioButton, Role.Slider, Role.ComboBox, Role.EditableText, Role.SpinBox,
    Role.List, Role.Table, Role.Tree, Role.PageTab, Role.Link, Role.ProgressBar, Role.ButtonMenu,
}  # fmt: skip


def show(window: Window, qtbot: QtBot, name: str) -> QWidget:
    """Show a page and wait until it is settled."""
    if window.page_name != name:
        with qtbot.waitSignal(window.page_shown):
            window.show_page(name)
    page: QWidget = window.page(name)
    qtbot.wait(50)  # layouts settle in some turns of the loop
    return page


def test_every_control_has_a_name_and_a_role_and_is_reached_by_tab(demo: Window, qtbot: QtBot) -> None:
    demo.activateWindow()
    qtbot.waitUntil(demo.isActiveWindow)
    nameless, unreachable = [], []
    for name in demo.page_names:
        page = show(demo, qtbot, name)
        seen = 0
        for each, path in interfaces(demo):
            state, role = each.state(), each.role()
            seen += 1
            if role == Role.NoRole:
                nameless.append(f"{name}: {path} has no role")
            elif (role in NAMED or state.focusable) and not each.text(QAccessible.Text.Name).strip():
                part_of_another = (
                    path.endswith(("> QScrollBar", "> part")) or "QComboBox >" in path or "SpinBox >" in path
                )
                if not part_of_another and role not in (Role.Client, Role.Pane, Role.Window):
                    nameless.append(f"{name}: {path} ({role.name}) has no name")
        assert seen > 20
        unreachable += [
            f"{name}: {type(each).__name__} {each.accessibleName() or getattr(each, 'text', str)()!r}"
            for each in controls(page)
            if not each.focusPolicy() & Qt.FocusPolicy.TabFocus
        ]
    assert nameless == []
    assert unreachable == []


def cut_on_pages(window: Window, qtbot: QtBot) -> dict[str, list[str]]:
    """Return the texts of each page that are cut; a page may take a moment to settle."""
    cut: dict[str, list[str]] = {}
    for name in window.page_names:
        show(window, qtbot, name)
        for _ in range(40):
            cut[name] = [*clipped(window), *hidden_by_parents(window)]
            if not cut[name]:
                break
            qtbot.wait(50)
    return {name: texts for name, texts in cut.items() if texts}


@pytest.fixture(
    params=[pytest.param(80, marks=pytest.mark.thorough), pytest.param(100, marks=pytest.mark.thorough), 200]
)
def scaled(
    request: pytest.FixtureRequest,
    usual_theme: None,
    qtbot: QtBot,
    qapp: QApplication,
    home: object,
    forked_sessions: None,
) -> Iterator[Window]:
    """The window on a small screen, at a scale of the text."""
    theme.set_scale(request.param)
    theme.apply_theme(qapp, theme.current())
    window = Window(remember=False, page="cockpit")
    try:
        window.resize(1_000, 640)
        with qtbot.waitSignal(window.page_shown):
            window.show()
        yield window
        with qtbot.waitSignal(window.shut_down):
            window.quit()
        assert window.controller.bridge.close()
    finally:
        window.deleteLater()


def test_no_text_is_clipped_at_any_size_nor_while_it_serves(scaled: Window, qtbot: QtBot) -> None:
    assert cut_on_pages(scaled, qtbot) == {}
    scaled.show_page("cockpit")
    scaled.start_demo()
    qtbot.waitUntil(lambda: scaled.controller.inputs.status.state is ServerState.READY)
    with qtbot.waitSignal(scaled.controller.replied):
        scaled.controller.request_reply([{"role": "user", "content": "What is a draft?"}], {"max_tokens": 40})
    assert cut_on_pages(scaled, qtbot) == {}


def test_the_walk_finds_what_is_cut(qtbot: QtBot) -> None:
    from PySide6.QtWidgets import QLabel, QPushButton

    holder = QWidget()
    qtbot.addWidget(holder)
    label, button = QLabel("A text that is too long", holder), QPushButton("A text that is too long", holder)
    for each in (label, button):
        each.setGeometry(0, 0, 40, 12)
    holder.resize(30, 30)
    holder.show()
    assert len(clipped(holder)) == 2
    assert len(hidden_by_parents(holder)) == 2
