"""Accessibility: names and roles for screen readers, the keyboard, text that is large or small."""

from PySide6.QtCore import Qt
from PySide6.QtGui import QAccessible
from PySide6.QtWidgets import QAbstractButton, QWidget
from pytestqt.qtbot import QtBot

from launcher.gui.window import Window
from tests.gui.walk import controls, interfaces

Role = QAccessible.Role
NAMED = {
    Role.Button, Role.CheckBox, Role.RadioButton, Role.Slider, Role.ComboBox, Role.EditableText, Role.SpinBox,
    Role.List, Role.Table, Role.Tree, Role.PageTab, Role.Link, Role.ProgressBar, Role.ButtonMenu,
}  # fmt: skip


def show_page(window: Window, qtbot: QtBot, name: str) -> QWidget:
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
        page = show_page(demo, qtbot, name)
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


def test_one_of_several_choices_is_a_radio_button(window: Window, qtbot: QtBot) -> None:
    show_page(window, qtbot, "settings")
    choices = [each for each in window.findChildren(QAbstractButton) if each.objectName() in ("page", "segment")]
    roles = {each.text(): QAccessible.queryAccessibleInterface(each).role() for each in choices}
    assert {"Cockpit", "Downloads"} <= set(roles)
    assert set(roles.values()) == {Role.RadioButton}


def test_a_page_is_shown_when_a_screen_reader_presses_its_button(window: Window, qtbot: QtBot) -> None:
    button = next(each for each in window.rail.findChildren(QAbstractButton) if each.text() == "Settings")
    action = QAccessible.queryAccessibleInterface(button).actionInterface()
    with qtbot.waitSignal(window.page_shown):
        action.doAction(action.actionNames()[0])
    assert window.page_name == "settings"
