"""The cockpit on the real engine: sliders, applied settings, notices, layouts and the list of requests."""

import asyncio
import re
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QPushButton
from pytestqt.qtbot import QtBot

from launcher.app.settings import open_vault
from launcher.base.action import Action, ActionKind
from launcher.base.errors import EngineFailed
from launcher.base.paths import models_dir
from launcher.conversations.store import Conversations
from launcher.engine.demo import unpack_demo_model
from launcher.engine.server.last_start import save_last_model
from launcher.engine.server.state import ServerState
from launcher.gui.cockpit.page import CockpitPage
from launcher.gui.cockpit.panes import HidePaneButton
from launcher.gui.labels import UNKNOWN, ElidedLabel, Label
from launcher.gui.viewmodel import ViewModel
from launcher.gui.window import Window
from launcher.models.drafters import MTP, DraftChoice
from launcher.monitor.health_event import Finding, FindingCode
from launcher.tuning.history_environment import Environment
from launcher.tuning.tuned_settings import Evidence, TunedSettings, save_tuned_settings
from tests.app.planning.test_preview import describe_server
from tests.app.planning.test_tuned_match import local_environment, save_tuned
from tests.gateway.test_vault import keep, make_state
from tests.gui.test_load_beside import select_file

Wait = Callable[..., None]


@pytest.fixture
def page(demo: Window, qtbot: QtBot) -> CockpitPage:
    """The cockpit over the running demo, its sliders ready."""
    page: CockpitPage = demo.page("cockpit")
    page.panes.choose_layout("adjust")
    qtbot.waitUntil(lambda: page.state.previewer is not None)
    return page


def find_button(page: CockpitPage, text: str) -> QPushButton:
    (found,) = [each for each in page.findChildren(QPushButton) if each.text() == text and each.isVisible()]
    return found


@pytest.mark.thorough
def test_checks_that_leave_the_server_unchanged(page: CockpitPage, qtbot: QtBot, demo: Window, tmp_path: Path) -> None:
    """The checks share a window and a server, which take more than a second to start."""
    check_that_the_sliders_show_the_settings_of_the_server(page)
    check_that_moving_a_slider_changes_the_preview_only(page, qtbot, demo)
    check_that_a_finding_is_shown_with_its_button_until_it_ends(page, demo)
    check_that_an_exported_picture_can_be_found(page, qtbot, tmp_path)
    check_that_the_copy_panel_never_shows_the_text_of_another_kind(page, qtbot)
    check_that_a_text_to_copy_is_shown_before_it_is_copied(page, qtbot, demo)
    check_that_advanced_lists_every_flag_and_edits_the_extra_arguments(page, qtbot)
    check_that_a_value_between_two_slider_steps_is_shown_exactly(page)
    check_that_the_missing_memory_is_shown_on_a_small_gpu(page)


def check_that_the_sliders_show_the_settings_of_the_server(page: CockpitPage) -> None:
    fields = page.controls.restart.fields
    draft = DraftChoice(MTP, 2)
    expected = {
        "ctx": 8_192,
        "draft": draft,
        "kv": "f16",
        "ubatch": 512,
        "n_cpu_moe": 0,
        "moe_cache_mib": 0,
        "slots": 1,
    }
    assert {name: fields[name].value for name in expected} == expected
    assert not fields["n_cpu_moe"].isVisible()  # on the processor all experts are in host memory already
    assert fields["ctx"].slider.mark == fields["ctx"].slider.maximum()
    assert not page.controls.changes.isVisible()
    assert page.controls.sampling.fields["temperature"].value == 0.8
    parts = page.memory.bar.accessibleName().partition("other programs")[0]
    needed = sum(int(each) for each in re.findall(r"(\d+) MiB", parts))
    assert page.memory._place.full_text == f"host memory · {needed} MiB needed"
    assert page.note.text().startswith("The demo shows each step, not a speed-up")
    assert page.note.heightForWidth(page.note.width()) <= page.note.height()


def test_the_result_of_a_tune_is_shown_in_place_of_the_usual_note(window: Window, wait_for: Wait, qtbot: QtBot) -> None:
    model = unpack_demo_model()
    tuned = save_tuned(asyncio.run(local_environment(model)), model)
    window.start_demo()
    wait_for(ServerState.READY)
    window.resize(1440, 900)
    page: CockpitPage = window.page("cockpit")
    sentence = str(tuned.measured_line)
    qtbot.waitUntil(lambda: page.live.note.text() == sentence and page.live.note.isVisible())
    page.panes.choose_layout("watch")
    assert page.note.text() == sentence
    assert page.note.isVisible()


def check_that_moving_a_slider_changes_the_preview_only(page: CockpitPage, qtbot: QtBot, demo: Window) -> None:
    session = demo.controller.session
    assert session is not None
    engine = session.supervisor.engine_pid
    bar = page.memory.bar.accessibleName()
    draft = page.controls.restart.fields["draft"]
    draft.slider.setFocus()
    qtbot.keyClick(draft.slider, Qt.Key.Key_Right)
    page.controls.restart.fields["ctx"].slider.setValue(12)
    qtbot.waitUntil(page.controls.changes.isVisible)
    assert draft.value == DraftChoice(MTP, 3)
    assert "was MTP 2" in draft.slider.accessibleDescription()
    preview = page.state.preview
    assert preview is not None
    assert [change.name for change in preview.changes] == ["draft", "ctx"]
    assert not page.controls.changes.drain_choice.isVisible(), "no reply is running that could end first"
    assert page.memory.bar.accessibleName() != bar
    assert session.supervisor.engine_pid == engine
    qtbot.mouseClick(page.controls.changes.revert_button, Qt.MouseButton.LeftButton)
    assert not page.controls.changes.isVisible()
    assert (draft.value, page.controls.restart.fields["ctx"].value) == (DraftChoice(MTP, 2), 8_192)


def test_a_typed_context_between_two_steps_is_what_the_engine_gets(
    page: CockpitPage, qtbot: QtBot, demo: Window, wait_for: Wait
) -> None:
    field = page.controls.restart.fields["ctx"]
    assert field.typed is not None
    for text, reason in (
        ("much", "Context cannot be much. It is a number of tokens, such as 32768 or 32K."),
        ("auto", "Context cannot be auto. It is a number of tokens, such as 32768 or 32K."),
        ("5", "Context cannot be 5. It goes from 256 to 16777216 tokens."),
    ):
        field.typed.selectAll()
        qtbot.keyClicks(field.typed, text)
        qtbot.keyClick(field.typed, Qt.Key.Key_Return)
        assert reason in [each.text() for each in field.findChildren(Label) if each.isVisible()]
        assert (field.value, page.state.requested) == (8_192, {})
    field.typed.selectAll()
    qtbot.keyClicks(field.typed, "10000")
    with qtbot.waitSignal(demo.controller.applied) as reply:
        page.controls.apply_now()  # by Ctrl+Return, while it is being typed
    assert reply.args == [None]
    wait_for(ServerState.READY)
    launch = demo.controller.launch
    assert launch is not None
    assert launch.options.context == 10_000
    qtbot.waitUntil(lambda: page.state.change_count == 0)
    assert (field.value, field.typed.text()) == (10_000, "10,000")


def test_the_draft_length_is_changed_and_applied(page: CockpitPage, qtbot: QtBot, demo: Window, wait_for: Wait) -> None:
    page.controls.restart.fields["draft"].slider.setValue(3)
    qtbot.waitUntil(page.controls.changes.isVisible)
    with qtbot.waitSignal(demo.controller.applied) as reply:
        qtbot.mouseClick(page.controls.changes.apply_button, Qt.MouseButton.LeftButton)
        assert page.state.applying
        assert not page.controls.restart.isEnabled()
    assert reply.args == [None]
    wait_for(ServerState.READY)
    qtbot.waitUntil(lambda: page.state.change_count == 0)
    assert "draft 3" in demo.controller.view.settings
    assert page.controls.restart.fields["draft"].value == DraftChoice(MTP, 3)
    assert page.controls.restart.isEnabled()
    assert demo.focusWidget() is page.controls.restart.fields["draft"].slider, "the slider that was moved last"
    previewer = page.state.previewer
    assert previewer is not None
    assert previewer.basis.load is not None


def test_the_sliders_work_again_after_a_stop_and_a_start(
    page: CockpitPage, qtbot: QtBot, demo: Window, wait_for: Wait
) -> None:
    page.controls.mode.button("advanced").click()
    fields = page.controls.restart.fields
    values = {name: field.value for name, field in fields.items()}
    visible = {name for name, field in fields.items() if field.isVisible()}
    demo.controller.stop()
    wait_for(ServerState.STOPPED)
    qtbot.waitUntil(lambda: fields["ctx"].value is None)
    assert {name for name, field in fields.items() if field.isVisible()} == visible
    demo.controller.start()
    wait_for(ServerState.READY)
    qtbot.waitUntil(lambda: page.state.preview is not None)
    assert {name: field.value for name, field in fields.items()} == values
    assert fields["ctx"].typed is not None
    assert fields["ctx"].typed.text() == "8,192"
    page.controls.mode.button("simple").click()


def test_the_focus_goes_from_stop_to_start(page: CockpitPage, qtbot: QtBot, demo: Window, wait_for: Wait) -> None:
    buttons = page.head.findChildren(QPushButton)
    stop, start = (next(each for each in buttons if each.text() == name) for name in ("Stop", "Start"))
    stop.setFocus()
    qtbot.keyClick(stop, Qt.Key.Key_Space)
    wait_for(ServerState.STOPPED)
    qtbot.waitUntil(lambda: demo.focusWidget() is start)
    qtbot.keyClick(start, Qt.Key.Key_Space)
    wait_for(ServerState.READY)


def test_settings_that_fail_are_undone_and_the_reason_is_shown(
    page: CockpitPage, qtbot: QtBot, demo: Window, wait_for: Wait
) -> None:
    page.state.request_value("extra", "--no-such-flag")
    with qtbot.waitSignal(demo.controller.applied) as reply:
        qtbot.waitUntil(lambda: page.state.change_count == 1)
        page.state.apply_changes(0.0)
    assert reply.args is not None
    assert "--no-such-flag" in str(reply.args[0])
    wait_for(ServerState.READY)
    assert page.notices.problem_banner.isVisible()
    assert "--no-such-flag" in page.notices.problem_banner.text.text()
    assert demo.controller.view.can_ask
    assert page.state.requested["extra"] == "--no-such-flag"  # kept, so that the user can correct it
    page.notices.problem_banner.close_button.click()
    assert not page.notices.isVisible()


@pytest.mark.thorough
def test_the_button_of_a_failed_change_starts_without_the_flag_and_drops_the_change(
    page: CockpitPage, qtbot: QtBot, demo: Window, wait_for: Wait
) -> None:
    page.controls.mode.changed.emit("advanced")
    page.state.request_value("extra", "--bogus-flag 7")
    qtbot.waitUntil(lambda: page.state.change_count == 1)
    with qtbot.waitSignal(demo.controller.applied):
        page.state.apply_changes(0.0)
    wait_for(ServerState.READY)
    qtbot.waitUntil(lambda: bool(page.notices.problem_banner.buttons))
    button = page.notices.problem_banner.buttons[0]
    assert button.text() == "Start without --bogus-flag"
    with qtbot.waitSignal(demo.controller.launched):
        qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    wait_for(ServerState.READY)
    assert not page.state.requested
    assert not page.controls.changes.isVisible()
    assert not page.notices.problem_banner.isVisible()
    page.state.refresh_memory()
    assert page.state.extra == ()


@pytest.mark.thorough
def test_a_failed_start_has_a_button_that_starts_without_the_flag(
    window: Window, wait_for: Wait, qtbot: QtBot, demo_model: Path
) -> None:
    from launcher.app.planning.start_settings import ResolvedStart
    from launcher.engine.serve_options import ServeOptions

    options = ServeOptions(model=demo_model, built_in=True, context=1_024, threads=1, extra=("--no-such-flag",))
    window.controller.start(str(demo_model), start=ResolvedStart(str(demo_model), options))
    wait_for(ServerState.FAILED)
    page = window.page("cockpit")
    (button,) = page.notices.problem_banner.buttons
    assert "--no-such-flag" in button.text()
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: not page.notices.isVisible())
    assert not window.rail.isAncestorOf(window.focusWidget()), "the focus stays on the page"
    wait_for(ServerState.READY)
    assert not page.notices.isVisible()


def test_sampling_applies_to_the_next_reply_without_a_restart(page: CockpitPage, qtbot: QtBot, demo: Window) -> None:
    session = demo.controller.session
    assert session is not None
    engine = session.supervisor.engine_pid
    assert demo.controller.sampling == {}
    page.controls.sampling.fields["max_tokens"].slider.setValue(0)
    page.controls.sampling.fields["temperature"].slider.setValue(0)
    assert demo.controller.sampling == {"max_tokens": 64, "temperature": 0.0}
    with qtbot.waitSignal(demo.controller.replied) as response:
        demo.controller.request_reply([{"role": "user", "content": "What is a draft?"}])
    assert response.args is not None
    reply = response.args[0]
    assert reply.timings.predicted_n == 64
    assert session.supervisor.engine_pid == engine
    assert page.state.change_count == 0


def check_that_a_value_between_two_slider_steps_is_shown_exactly(page: CockpitPage) -> None:
    from launcher.engine.server.client import SamplingDefaults

    page.state.defaults = SamplingDefaults({"temperature": 0.63, "max_tokens": -1}, thinks=False)
    page.state.sampling_changed.emit()
    fields = page.controls.sampling.fields
    assert (fields["temperature"].value, fields["max_tokens"].value) == (0.63, -1)
    assert fields["temperature"].slider.accessibleDescription().startswith("0.63")
    assert not page.controls.sampling.thinking.isEnabled()
    page.controls.sampling.fields["temperature"].slider.setValue(0)
    assert "server default: 0.63" in fields["temperature"].slider.accessibleDescription()


def check_that_advanced_lists_every_flag_and_edits_the_extra_arguments(page: CockpitPage, qtbot: QtBot) -> None:
    page.controls.mode.button("advanced").click()
    advanced = page.controls.advanced
    qtbot.waitUntil(lambda: advanced.flag_list.count() > 20)
    assert advanced.flag_list.viewport().height() == 10 * advanced.flag_list.sizeHintForRow(0), "no row is cut"
    advanced.search.setText("prompt cache")
    assert [advanced.flag_list.item(row).text() for row in range(advanced.flag_list.count())] == [
        "--cache-ram",
        "--cache-idle-slots",
    ]
    advanced.flag_list.setCurrentRow(0)
    assert any("host memory" in label.text() for label in advanced.findChildren(Label))
    advanced.value_field.setText("64")
    advanced.value_field.editingFinished.emit()
    qtbot.waitUntil(lambda: page.state.change_count == 1)
    assert advanced.extra_field.text() == "--cache-ram 64"
    assert advanced.flag_list.item(0).text() == "--cache-ram 64"
    advanced.extra_field.setText("--port 1")
    advanced.extra_field.textEdited.emit("--port 1")
    qtbot.waitUntil(lambda: page.state.problem is not None)
    assert any("the launcher sets it" in label.text() for label in advanced.findChildren(Label))
    assert not page.controls.changes.apply_button.isEnabled()
    page.controls.mode.button("simple").click()
    assert not advanced.isVisible()
    assert page.state.requested["extra"] == "--port 1"
    page.state.revert_changes()
    page.controls.mode.button("advanced").click()
    assert advanced.extra_field.text() == ""
    page.controls.mode.button("simple").click()


def check_that_the_missing_memory_is_shown_on_a_small_gpu(page: CockpitPage) -> None:
    from launcher.app.planning.preview import Previewer

    page.state.previewer = Previewer(replace(describe_server(free_mib=18_000), total_mib=19_000, others_mib=1_000))
    page.state.previewer_changed.emit()
    page.state.request_value("kv", "f16")
    page.state._update_preview()
    assert page.memory.badge.text() == "TOO BIG"
    assert "MiB of GPU memory are missing" in page.controls.changes._problem.text()
    missing = page.controls.changes._problem.text().partition(" ")[0]
    assert f"{missing} MiB too much for 19,000 MiB" in page.memory.bar.accessibleName()
    page.controls.mode.button("advanced").click()
    assert page.controls.restart.fields["n_cpu_moe"].isVisible()
    page.controls.mode.button("simple").click()
    assert "restart about 9 s" in page.controls.changes._title.text()


def check_that_a_text_to_copy_is_shown_before_it_is_copied(page: CockpitPage, qtbot: QtBot, demo: Window) -> None:
    clipboard = QGuiApplication.clipboard()
    panel = page.copy_panel
    panel.show_kind("curl")
    qtbot.waitUntil(panel.copy_button.isEnabled)
    text = panel.text.toPlainText()
    assert demo.controller.view.address in text
    session = demo.controller.session
    assert session is not None
    key = session.supervisor.endpoint.api_key
    assert key not in text
    panel.with_key.setChecked(True)
    qtbot.waitUntil(lambda: key in panel.text.toPlainText())
    qtbot.mouseClick(panel.copy_button, Qt.MouseButton.LeftButton)
    assert clipboard.text() == panel.text.toPlainText()
    panel.copy_address()
    assert clipboard.text() == f"http://{demo.controller.view.address}/v1"
    panel.copy_key()
    qtbot.waitUntil(lambda: clipboard.text() == key)
    assert key not in page.notices.done_banner.text.text()


def check_that_a_finding_is_shown_with_its_button_until_it_ends(page: CockpitPage, demo: Window) -> None:
    action = Action(ActionKind.SHORTER_DRAFT, "Draft 1 token", {"draft": 1})
    finding = Finding(FindingCode.ACCEPTANCE_LOW, "Few drafts are accepted.", {"share": 0.2}, action)
    demo.controller.health_changed.emit((finding,))
    (banner,) = page.notices.findings.values()
    assert banner.isVisible()
    (button,) = banner.buttons
    assert button.text() == "Draft 1 token"
    demo.controller.health_changed.emit(())
    assert not page.notices.isVisible()
    demo.controller.health_changed.emit((finding,))
    next(iter(page.notices.findings.values())).close_button.click()
    demo.controller.health_changed.emit((finding,))
    assert not page.notices.isVisible()
    by_hand = Action(ActionKind.PLUG_IN, "Plug in the charger")
    demo.controller.health_changed.emit((Finding(FindingCode.THROTTLED_POWER, "On battery.", {}, by_hand),))
    (banner,) = page.notices.findings.values()
    assert (banner.text.text(), banner.buttons) == ("On battery. To do: Plug in the charger.", [])
    demo.controller.health_changed.emit(())


def check_that_an_exported_picture_can_be_found(page: CockpitPage, qtbot: QtBot, folder: Path) -> None:
    with qtbot.waitSignal(page.plots.exported) as written:
        page.plots.export_png(folder)
    assert written.args is not None
    banner = page.notices.done_banner
    assert banner.text.text() == f"Saved: {written.args[0]}"
    assert [button.text() for button in banner.buttons] == ["Show in folder"]
    banner.close_button.click()
    assert not banner.isVisible()
    for leave in (page.switches.button("watch").click, page.on_hidden):
        page.notices.show_done("Base URL copied.")
        leave()
        assert not page.notices.isVisible(), "it has been read"
    page.panes.choose_layout("adjust")


@pytest.mark.thorough
def test_an_error_that_no_restart_fixes_has_a_button_to_the_page_that_does(
    window: Window, page: CockpitPage, qtbot: QtBot
) -> None:
    error = EngineFailed("The model does not fit.", "Take another one.")
    error.attach_actions(
        [Action(ActionKind.REPORT, "Report it"), Action(ActionKind.OTHER_MODEL, "Choose another model")]
    )
    page.notices.show_applied(error)
    # No button to report the problem, because no program for that is installed.
    (button,) = page.notices.problem_banner.buttons
    with qtbot.waitSignal(window.controller.page_requested) as requested:
        qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    assert requested.args == ["start"]


def visible_panes(page: CockpitPage) -> set[str]:
    return {name for name in ("sliders", "chats", "plots", "chat", "live") if page.panes.is_shown(name)}


def test_each_layout_has_its_panes_and_remembers_what_was_changed(
    page: CockpitPage, qtbot: QtBot, demo: Window
) -> None:
    demo.resize(1440, 900)
    seen = {}
    for name, key in (("watch", "1"), ("adjust", "2"), ("chat", "3")):
        qtbot.keyClick(demo, key, Qt.KeyboardModifier.AltModifier)
        assert page.switches.value == name
        seen[name] = visible_panes(page), page.memory.isVisible(), page.requests.isVisible()
    assert seen == {
        "watch": ({"sliders", "plots"}, False, True),
        "adjust": ({"sliders", "plots"}, True, False),
        "chat": ({"chats", "chat", "live"}, False, False),
    }
    assert (page.chat.chats_column.width(), page.live.width()) == (208, 184)
    (hide,) = page.chat.findChildren(HidePaneButton)
    assert not hide.isVisible(), "the chat is what this layout is for"
    (hide_live,) = page.live.findChildren(HidePaneButton)
    qtbot.mouseClick(hide_live, Qt.MouseButton.LeftButton)
    assert visible_panes(page) == {"chats", "chat"}
    page.switches.button("watch").click()
    qtbot.mouseClick(page.tabs["chat"], Qt.MouseButton.LeftButton)
    assert visible_panes(page) == {"sliders", "plots", "chat"}
    qtbot.mouseClick(hide, Qt.MouseButton.LeftButton)
    assert visible_panes(page) == {"sliders", "plots"}
    page.switches.button("chat").click()
    assert visible_panes(page) == {"chats", "chat"}, "the layout is remembered"
    qtbot.mouseClick(page.tabs["live"], Qt.MouseButton.LeftButton)
    assert visible_panes(page) == {"chats", "chat", "live"}
    again = CockpitPage(demo.controller)
    while again.build_next_part():
        pass
    again.setParent(demo)
    assert again.note.text() == page.note.text() != ""  # even though the note was set before this page existed
    assert again.panes.layout_name == "chat"
    page.panes.reset_layout()
    demo.resize(940, 560)
    assert visible_panes(page) == {"chat"}, "a pane without room is hidden"
    assert [name for name, tab in page.tabs.items() if tab.isVisible()] == ["live"]
    qtbot.mouseClick(page.tabs["live"], Qt.MouseButton.LeftButton)
    assert visible_panes(page) == {"chat", "live"}
    demo.resize(1440, 900)
    assert visible_panes(page) == {"chats", "chat", "live"}
    page.panes.reset_layout()
    demo.resize(1920, 1080)
    assert visible_panes(page) == {"chats", "plots", "chat", "live"}, "there is room for the plots, too"


def test_the_focus_stays_where_it_is_in_another_layout_or_goes_to_the_page(page: CockpitPage, demo: Window) -> None:
    slider = page.controls.restart.fields["ctx"].slider
    slider.setFocus()
    page._choose_layout("watch")
    assert demo.focusWidget() is slider
    page._choose_layout("chat")
    assert demo.focusWidget() is page.chat.prompt
    page._choose_layout("watch")
    assert demo.focusWidget() is page, "not the first button of a pane"


@pytest.mark.parametrize("by_key", [False, True])
def test_the_layout_chat_puts_the_focus_into_the_prompt(
    page: CockpitPage, qtbot: QtBot, demo: Window, by_key: bool
) -> None:
    demo.activateWindow()
    qtbot.waitUntil(demo.isActiveWindow)
    page.switches.button("watch").setFocus()
    assert not page.chat.prompt.hasFocus()
    if by_key:
        qtbot.keyClick(demo, "3", Qt.KeyboardModifier.AltModifier)
    else:
        qtbot.mouseClick(page.switches.button("chat"), Qt.MouseButton.LeftButton)
    assert page.chat.prompt.hasFocus()


def test_an_unfinished_page_takes_any_size(window: Window, qtbot: QtBot) -> None:
    page = CockpitPage(window.controller)
    page.setParent(window)
    page.show()  # an exception in what Qt calls would fail the test
    is_left = True
    for width in (1_400, 900, 1_300, 940, 1_200, 960):
        page.resize(width, 640)
        page.grab()
        is_left = is_left and page.build_next_part()
    assert not is_left


def test_requests_of_all_clients_are_listed_as_they_go_on(page: CockpitPage, qtbot: QtBot, demo: Window) -> None:
    demo.resize(1440, 900)
    page.panes.choose_layout("watch")
    rows = page.requests.rows
    demo.controller.set_sampling_value("ignore_eos", True)
    demo.controller.set_sampling_value("max_tokens", 100_000)
    demo.controller.request_reply([{"role": "user", "content": "Go on for ever."}])
    qtbot.waitUntil(lambda: [each["end"] for each in rows.rows] == [None])
    demo.controller.stop_reply()
    qtbot.waitUntil(lambda: [each["end"] for each in rows.rows] == ["client left"])
    demo.controller.set_sampling_value("ignore_eos", False)
    page.chat.send_question("What is a draft?")
    qtbot.waitUntil(lambda: [each["end"] for each in rows.rows] == ["complete", "client left"])
    record = rows.rows[0]
    table = page.requests.table
    shown_cells = {
        rows.headerData(at, Qt.Orientation.Horizontal): rows.data(rows.index(0, at)) for at in range(rows.columnCount())
    }
    assert shown_cells["Prompt, tokens"] == f"{record['prompt_tokens']:,}"
    assert shown_cells["State"] == "ended"
    cells = {column.title: rows.cell_at(rows.index(0, at)) for at, column in enumerate(rows.columns)}
    assert (cells["Who"].text, cells["Who"].tile) == ("Chat", "Ch")
    assert cells["Reused"].share == record["reused_tokens"] / record["prompt_tokens"]
    assert float(shown_cells["Tokens/s"].replace(",", "")) == pytest.approx(record["tokens_per_second"], abs=0.06)
    table.selectRow(0)
    assert table.height() >= table.row_height * 5, "four rows and the head"
    demo.resize(1000, 640)
    assert not table.isVisible()
    assert page.requests.isVisible(), "the summary stays"
    assert page.plots.height() > 350, "the plots get the rest of the height"
    qtbot.mouseClick(page.requests.all_button, Qt.MouseButton.LeftButton)
    assert table.isVisible()
    assert table.height() >= table.row_height * 10
    assert not page.plots.isVisible()
    qtbot.waitUntil(lambda: table.horizontalScrollBar().maximum() == 0)
    qtbot.mouseClick(page.requests.all_button, Qt.MouseButton.LeftButton)
    assert page.plots.isVisible()
    demo.resize(1440, 900)
    texts = [label.full_text for label in page.requests.findChildren(ElidedLabel) if label.isVisible()]
    assert any(f"{record['reply_tokens']} tokens written" in text for text in texts)


def test_what_is_kept_and_what_came_from_disk_is_seen_without_a_click(
    page: CockpitPage, qtbot: QtBot, demo: Window, tmp_path: Path
) -> None:
    demo.resize(1440, 900)
    page.panes.choose_layout("watch")
    launch = demo.controller.launch
    assert launch is not None

    def read_labels() -> str:
        return "\n".join(each.full_text for each in page.requests.findChildren(ElidedLabel) if each.isVisible())

    assert "Kept" not in read_labels()
    with closing(open_vault()) as vault:
        keep(vault, tmp_path, make_state("mine", kind=launch.state_key))
        keep(vault, tmp_path, make_state("other", b"y" * 20_000, kind="another engine"))
    demo.controller.launched.emit(launch)
    qtbot.waitUntil(lambda: "Kept on disk: 1 conversation, 100 tokens, 0 MB. No request yet." in read_labels())
    page.chat.send_question("What is a draft?")
    rows = page.requests.rows
    qtbot.waitUntil(lambda: [each["end"] for each in rows.rows] == ["complete"])
    restored = {"restored_tokens": 30_112, "restored_s": 0.9, "spared_s": 14.2}
    page.requests.feed.records[0].update(restored)  # type: ignore[attr-defined]
    page.requests.show_records()
    assert "1 request · 30,112 tokens from disk in 0.9 s instead of about 14 s · " in read_labels()
    assert "Kept" not in read_labels()
    cells = {column.title: rows.cell_at(rows.index(0, at)) for at, column in enumerate(rows.columns)}
    assert cells["State"].text == "ended, from disk"
    assert cells["Reused"].tip == cells["State"].tip == "30,112 tokens from disk in 0.9 s instead of about 14 s"


def test_why_a_request_failed_is_shown(page: CockpitPage, qtbot: QtBot, demo: Window) -> None:
    demo.resize(1440, 900)
    page.panes.choose_layout("watch")
    rows = page.requests.rows
    demo.controller.request_reply([{"content": "What is a draft?"}])
    qtbot.waitUntil(lambda: [each["end"] for each in rows.rows] == ["error"])
    at = next(at for at, column in enumerate(rows.columns) if column.title == "State")
    cell = rows.cell_at(rows.index(0, at))
    assert cell.text == "failed (500)"
    assert "Failed to parse messages: Missing 'role' in message" in cell.tip
    page.requests.table.selectRow(0)
    texts = [label.full_text for label in page.requests.findChildren(ElidedLabel) if label.isVisible()]
    assert any("Update the client, or correct its settings." in text for text in texts)


def test_simple_has_three_settings_and_advanced_all(page: CockpitPage) -> None:
    fields = page.controls.restart.fields | page.controls.sampling.fields

    def list_visible_fields() -> set[str]:
        return {name for name, field in fields.items() if field.isVisible()}

    page.controls.mode.button("simple").click()
    assert list_visible_fields() == {"ctx", "draft"}
    assert page.controls.sampling.thinking.isVisible()
    page.controls.mode.button("advanced").click()
    assert list_visible_fields() >= {"ctx", "draft", "kv", "slots", "ubatch", "temperature", "top_k", "max_tokens"}
    page.controls.mode.button("simple").click()


def test_a_value_that_is_not_known_yet_is_a_dash(window: Window) -> None:
    page = window.page("cockpit")
    for field in page.controls.sampling.fields.values():
        assert UNKNOWN in {label.text() for label in field.findChildren(Label)}


def test_without_a_server_the_welcome_is_alone_until_a_saved_chat_is_opened(window: Window, qtbot: QtBot) -> None:
    page: CockpitPage = window.page("cockpit")
    window.resize(1440, 900)
    for layout in ("watch", "adjust", "chat"):
        page.panes.choose_layout(layout)
        assert visible_panes(page) == {"plots"}
        assert page.welcome.isVisible()
        assert not page.requests.isVisible()
    page.chat.store.enqueue_change(_save_chat)
    page.on_shown()
    qtbot.waitUntil(lambda: visible_panes(page) == {"chats", "plots"})
    page.chat.open_conversation("saved")
    qtbot.waitUntil(lambda: visible_panes(page) == {"chats", "chat"})
    assert not page.welcome.isVisible()
    page.chat.start_conversation()
    assert visible_panes(page) == {"chats", "plots"}


def _save_chat(conversations: Conversations) -> None:
    conversations.create_conversation("Drafts", id="saved")
    conversations.add_question("saved", None, "What is a draft?")


def test_the_last_model_is_offered_before_the_demo(window: Window, qtbot: QtBot, wait_for: Wait) -> None:
    page: CockpitPage = window.page("cockpit")
    assert [each.text() for each in page.welcome.buttons] == ["Start the demo", "Open a model ..."]
    model = unpack_demo_model()
    save_last_model(str(model.with_name("gone.gguf")))
    page.welcome.request_last_model()
    save_last_model(str(model))
    page.welcome.request_last_model()
    qtbot.waitUntil(lambda: len(page.welcome.buttons) == 3)
    first, demo, _open = page.welcome.buttons
    assert (first.text(), demo.text()) == (f"Start {model.stem}", "Start the demo")
    assert first.objectName() == "primary"
    assert model.stem in page.welcome.text.text()
    assert window.chip.accessibleName() == f"Server: Stopped, {model.stem}"
    qtbot.mouseClick(first, Qt.MouseButton.LeftButton)
    wait_for(ServerState.READY)
    assert window.controller.served_name == str(model)


def test_a_model_that_did_not_start_is_offered_again_and_not_the_one_before(window: Window, qtbot: QtBot) -> None:
    page: CockpitPage = window.page("cockpit")
    save_last_model(str(unpack_demo_model()))
    page.welcome.request_last_model()
    qtbot.waitUntil(lambda: len(page.welcome.buttons) == 3)
    (inputs,) = window.controller.findChildren(ViewModel)
    inputs.update(model="big.gguf", problem=EngineFailed("The engine ended.", ""))
    assert page.welcome.text.text() == "big.gguf did not start. The reason is above."
    qtbot.waitUntil(page.welcome.buttons[0].isVisible)
    primary = [each for each in page.findChildren(QPushButton) if each.objectName() == "primary" and each.isVisible()]
    assert [each.text() for each in primary] == ["Start it again"]
    inputs.update(problem=None)
    assert page.welcome.text.text() == "big.gguf was stopped before it was ready."


def test_the_result_of_a_tune_is_shown_at_the_draft_slider(page: CockpitPage, qtbot: QtBot, demo: Window) -> None:
    launch = demo.controller.launch
    assert launch is not None
    field = page.controls.restart.fields["draft"]
    qtbot.waitUntil(lambda: field._hint == "by the MTP head in the model's file")
    evidence = Evidence(mtp="on", tokens_per_second=306.4, speedup=2.32, environment=Environment.for_launch(launch))
    tuned = TunedSettings(settings={"draft": 4}, evidence=evidence, verified_by=("1",))
    save_tuned_settings(tuned)
    page.state.restart_server({}, 0.0)
    line = "Measured here: draft {draft}, 306 t/s (2.3 times as fast as with MTP off)."
    qtbot.waitUntil(lambda: field._hint == line.format(draft=4), timeout=60_000)
    save_tuned_settings(tuned.model_copy(update={"settings": {"draft": 5}}))
    demo.controller.tuned_saved.emit()
    line = line.format(draft=5)
    qtbot.waitUntil(lambda: field._hint == line, timeout=20_000)
    assert page.state.tuned is not None
    page.state.request_value("draft", 5)
    qtbot.waitUntil(lambda: page.state.change_count == 1)
    assert line in page.controls.stops._describe(None)


def test_a_change_that_was_not_applied_does_not_go_over_to_another_model(
    page: CockpitPage, qtbot: QtBot, demo: Window
) -> None:
    launch = demo.controller.launch
    assert launch is not None
    page.state.request_value("draft", 5)
    qtbot.waitUntil(lambda: page.state.change_count == 1)
    demo.controller.launched.emit(replace(launch, context=launch.context // 2))
    assert page.state.requested == {"draft": 5}, "the same model, started again"
    other = replace(launch.options, model=launch.options.model.with_name("other.gguf"))
    demo.controller.launched.emit(replace(launch, options=other))
    assert not page.state.requested


@pytest.mark.parametrize("way", ["key", "mouse"])
def test_a_slider_that_was_moved_is_back_after_a_switch_to_another_model(
    page: CockpitPage, qtbot: QtBot, demo: Window, demo_model: Path, way: str
) -> None:
    models_dir().mkdir(parents=True, exist_ok=True)
    second = Path(shutil.copy(demo_model, models_dir() / "second.gguf"))
    slider = page.controls.restart.fields["draft"].slider
    if way == "mouse":
        qtbot.mouseClick(slider, Qt.MouseButton.LeftButton, pos=QPoint(slider.width() - 8, slider.height() // 2))
    else:
        slider.setFocus()
        qtbot.keyClick(slider, Qt.Key.Key_Right)
    qtbot.waitUntil(lambda: page.controls.changes.isVisible())
    start = select_file(demo, second, qtbot).details.start
    qtbot.waitUntil(start.isEnabled)
    if way == "mouse":
        qtbot.mouseClick(start, Qt.MouseButton.LeftButton)
    else:
        start.setFocus()
        qtbot.keyClick(start, Qt.Key.Key_Space)
    state = page.state
    qtbot.waitUntil(lambda: state.previewer is not None and state.previewer.basis.options.model == second)
    assert (state.requested, state.change_count) == ({}, 0)
    assert not page.controls.changes.isVisible()
    assert demo.page_name == "cockpit"


def test_without_a_server_there_is_nothing_to_change(window: Window) -> None:
    page = window.page("cockpit")
    page.state.request_value("draft", 3)
    page.state.apply_changes(0.0)
    assert (page.state.requested, page.state.preview, page.state.applying) == ({}, None, False)
    assert not page.panes.is_shown("sliders")
    page.notices.show_applied(EngineFailed("It did not start.", ""))
    assert "It did not start." in page.notices.problem_banner.text.text()


def check_that_the_copy_panel_never_shows_the_text_of_another_kind(page: CockpitPage, qtbot: QtBot) -> None:
    panel, seen = page.copy_panel, list[str]()
    panel.text.textChanged.connect(lambda: seen.append(panel.text.toPlainText()))
    panel.show_kind("systemd")
    panel.show_kind("curl")
    qtbot.waitUntil(panel.copy_button.isEnabled)
    assert "curl" in panel.text.toPlainText()
    assert not any("[Unit]" in text for text in seen)


@pytest.mark.thorough
def test_a_failed_change_is_shown_until_the_next_start(
    page: CockpitPage, qtbot: QtBot, demo: Window, wait_for: Wait
) -> None:
    with qtbot.waitSignal(demo.controller.applied):
        demo.controller.apply_settings({"extra": "--no-such-flag"}, drain_s=0.0)
    wait_for(ServerState.READY)
    assert page.notices.problem_banner.isVisible()
    demo.controller.stop()
    wait_for(ServerState.STOPPED)
    demo.controller.start()
    wait_for(ServerState.READY)
    qtbot.waitUntil(lambda: not page.notices.problem_banner.isVisible())
