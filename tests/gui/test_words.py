"""The window's language: chosen by option or by the system, and every text that it asks for can be translated."""

import errno
import gettext
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication, QPushButton
from pytestqt.qtbot import QtBot

from launcher.app.planning.preview import consequence_sentence
from launcher.app.settings import find_setting, parse_value
from launcher.app.settings_declared import SETTINGS, TEXT_SCALE
from launcher.base.errors import BadOption, RateLimited
from launcher.base.messages import LANGUAGES
from launcher.engine.builds.releases import ReleaseClient
from launcher.engine.server.state import ServerState
from launcher.gui import appearance, theme
from launcher.gui import translation as words
from launcher.gui.plots.quantities import PLOTS
from launcher.gui.setting_text import setting_text
from launcher.gui.window import Window
from launcher.tuning.curves import Curve, CurveAxis, CurveRatio, summarize_curve
from launcher.tuning.endurance import explain_slowdown
from launcher.tuning.records import Run
from launcher.tuning.report import describe_speedup
from launcher.tuning.statistics import Interval
from tests.conftest import ReleaseServer
from tests.gui.test_accessible import show_page
from tools.translations import make_template

_VARIABLES = ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG")


@pytest.fixture
def chinese() -> Iterator[None]:
    words.choose_language("zh_CN")
    yield
    words.choose_language("en")


@pytest.fixture
def no_language(qapp: QApplication, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """An environment that names no language, and that the C library does not see.

    Once Qt has set the locale, glibc takes texts such as os.strerror's in the language of LANGUAGE, and keeps each that
    it has looked up: tests that run later in this process would get them in Chinese.
    """
    reason = os.strerror(errno.ENOENT)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    yield monkeypatch
    words.choose_language("en")
    assert os.strerror(errno.ENOENT) == reason


@pytest.mark.parametrize(
    ("variables", "language"),
    [
        ({"LANG": "zh_CN.UTF-8"}, "zh_CN"),
        ({"LANG": "zh_CN"}, "zh_CN"),
        ({"LANG": "en_US.UTF-8", "LC_ALL": "zh_CN.UTF-8"}, "zh_CN"),
        ({"LANG": "en_US.UTF-8", "LC_MESSAGES": "zh_CN.UTF-8"}, "zh_CN"),
        ({"LANG": "en_US.UTF-8", "LANGUAGE": "zh_CN:en"}, "zh_CN"),
        ({"LANG": "de_DE.UTF-8", "LANGUAGE": "de:zh_CN"}, "zh_CN"),
        ({"LANG": "zh_CN.UTF-8", "LANGUAGE": "en_GB:zh_CN"}, "en"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LANG": "C.UTF-8"}, "en"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
    ],
)
def test_the_language_of_the_system_is_used(
    no_language: pytest.MonkeyPatch, variables: dict[str, str], language: str
) -> None:
    for name, value in variables.items():
        no_language.setenv(name, value)
    words.choose_language(None)
    assert words.chosen_language() == language
    assert words.tr("Settings") == ("设置" if language == "zh_CN" else "Settings")


def test_a_chosen_language_overrides_the_system(no_language: pytest.MonkeyPatch) -> None:
    no_language.setenv("LANG", "zh_CN.UTF-8")
    words.choose_language("en")
    assert words.tr("Settings") == "Settings"
    no_language.setenv("LANG", "en_US.UTF-8")
    words.choose_language("zh_CN")
    assert words.tr("Settings") == "设置"
    words.choose_language("xx_YY")
    assert words.tr("Settings") == "Settings"


def test_values_are_inserted_and_counts_have_one_form(chinese: None) -> None:
    assert words.tr("{count} tokens", count="4,096") == "4,096 token"
    assert [words.ntr("1 thread", "{n} threads", n) for n in (1, 2)] == ["1 个线程", "2 个线程"]
    assert words.tr("") == ""
    assert words.tr("{finding} To do: {action}.", finding="慢。", action="停").startswith("慢。建议")
    assert words.tr("No such text, {name}", name="x") == "No such text, x"


def test_a_page_and_a_button_with_the_same_english_name_have_two_names(chinese: None) -> None:
    assert [words.page_title(each) for each in ("Start", "Models")] == ["首页", "模型"]
    assert words.tr("Start") == "启动"


def test_settings_are_named_in_the_chosen_language(chinese: None) -> None:
    assert setting_text("threads", 2) == "2 个线程"
    assert setting_text("draft_sampling", "probabilistic") == words.tr("sampled drafts") != "sampled drafts"
    assert setting_text("p_min", 0.5) == "p-min 0.5"
    assert setting_text("of another version", 1) == "of another version 1"


def foreign_words(text: str) -> list[str]:
    return re.findall("[A-Za-z_]{3,}", words.render(text))


def test_what_measurements_found_is_said_in_the_chosen_language(chinese: None) -> None:
    faster, slower, same = (Interval(mean, mean - 0.05, mean + 0.05, 5) for mean in (1.4, 0.8, 1.0))
    for ratio in (faster, slower, same, Interval(1, 1, 1, 2), Interval(1.4, 0, float("inf"), 1)):
        assert foreign_words(describe_speedup(ratio)) == []
    hot = Run("code", {}, 0.0, 1.0, clock_mhz=2_000.0, temperature_c=85.0, power_w=200.0)
    cool = Run("code", {}, 0.0, 1.0, clock_mhz=2_500.0, temperature_c=60.0, power_w=300.0)
    assert set(foreign_words(explain_slowdown([cool], [hot], 0.2))) == {"GPU", "MHz"}
    for before, after in ((cool, replace(hot, clock_mhz=2_500.0)), (cool, cool), (replace(cool, power_w=None),) * 2):
        assert set(foreign_words(explain_slowdown([before], [after], 0.2))) <= {"GPU"}
    for axis in CurveAxis:
        ratios = tuple(CurveRatio("Draft 2", number, each) for number, each in enumerate((faster, slower, same), 1))
        for shown in (ratios, ratios[:1], (ratios[0], replace(ratios[0], place=9))):
            (sentence,) = summarize_curve(Curve(axis, ("no MTP", "Draft 2"), (1, 2, 3), (), shown, ()))
            assert set(foreign_words(sentence)) <= {"Draft", "MTP", "token"}


def test_messages_about_releases_are_translated(
    chinese: None, releases: ReleaseServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began_s = time.time()
    list(ReleaseClient(lambda: began_s).fetch_builds())  # keeps the reply as a file
    (kept,) = (home / "cache" / "releases").glob("*.json")
    refused = {"api": releases.api, "until_s": began_s + 4 * 3_600, "token": False}
    (kept.parent / "refused.json").write_text(json.dumps(refused))
    for age_s in (30, 600, 3 * 3_600):
        later = ReleaseClient(lambda age_s=age_s: began_s + age_s)
        list(later.fetch_builds())
        assert foreign_words(later.notes[0]) == []
    with pytest.raises(RateLimited) as limited:
        later.fetch_release("b1")
    assert foreign_words(limited.value.hint) == ["GITHUB_TOKEN", "GitHub"]


def test_the_limits_of_a_setting_and_a_suggestion_are_translated(chinese: None) -> None:
    with pytest.raises(BadOption) as refused:
        parse_value(find_setting(TEXT_SCALE), "500")
    assert "80 到 200 % 之间的整数" in words.render(refused.value.title)
    with pytest.raises(BadOption) as unknown:
        find_setting("window.themes")
    assert words.render(unknown.value.hint).startswith("你是指 window.theme ")


def test_the_cost_of_a_change_is_translated(chinese: None) -> None:
    result = consequence_sentence("ctx", 8_192, 16_384, 63)
    assert words.render(result) == "+63 MiB\N{FULLWIDTH COMMA}增加 8,192 token 上下文"


@pytest.mark.thorough
def test_every_setting_has_translatable_texts() -> None:
    known = {message.id for message in make_template()}
    names = set(LANGUAGES.values())
    for each in SETTINGS:
        result = {each.title, each.sentence, each.group, *(shown for _, shown in each.choices)} - names - {""}
        assert result <= known, each.name


class RecordingTranslations(gettext.GNUTranslations):
    """The real translations; they record the texts that are requested, and those that have no translation."""

    recorded: set[str]
    absent: set[str]

    def gettext(self, message: str) -> str:
        output = super().gettext(message)
        self.recorded.add(message)
        if message not in self._catalog:  # type: ignore[attr-defined]
            self.absent.add(message)
        return output


@pytest.fixture
def recording_translations(chinese: None) -> RecordingTranslations:
    folder = words.shipped_file("resources", "locale")
    found = gettext.find(words.DOMAIN, folder, ["zh_CN"])
    assert found is not None
    with Path(found).open("rb") as file:
        translations = RecordingTranslations(file)
    translations.recorded, translations.absent = set(), set()
    words._translations[0] = translations
    return translations


def test_every_text_of_the_pages_can_be_translated(
    recording_translations: RecordingTranslations, window: Window, qtbot: QtBot
) -> None:
    window.start_demo()
    qtbot.waitUntil(lambda: window.controller.inputs.status.state is ServerState.READY)
    with qtbot.waitSignal(window.controller.replied):
        window.controller.request_reply([{"role": "user", "content": "What is a draft?"}], {"max_tokens": 40})
    for name in window.page_names:
        show_page(window, qtbot, name)
    units = {quantity.unit for plot in PLOTS for quantity in (*plot.read_outs, *plot.curves, *plot.cursor_only)}
    assert len(recording_translations.recorded) > 200
    translatable = {
        text
        for message in make_template()
        if message.id
        for text in ((message.id,) if isinstance(message.id, str) else message.id)
    }
    assert recording_translations.absent - translatable - units - set(LANGUAGES.values()) == set()


def test_the_window_is_chinese(chinese: None, qtbot: QtBot, qapp: QApplication, home: Path) -> None:
    theme.apply_theme(qapp, theme.current())
    window = Window(remember=False, page="cockpit")
    window.resize(1_000, 640)
    try:
        with qtbot.waitSignal(window.page_shown):
            window.show()
        assert "驾驶舱" in {button.text() for button in window.findChildren(QPushButton)}
        with qtbot.waitSignal(window.shut_down):
            window.quit()
        assert window.controller.bridge.close()
    finally:
        window.deleteLater()


def test_texts_of_qt_are_translated(chinese: None, qapp: QApplication) -> None:
    try:
        appearance.choose_language(qapp, "zh_CN")
        assert QApplication.translate("QPlatformTheme", "Cancel") == "取消"
    finally:
        appearance.choose_language(qapp, "en")
    assert QApplication.translate("QPlatformTheme", "Cancel") == "Cancel"


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [(["--language", "zh_CN"], {"LANG": "en_US.UTF-8"}), ([], {"LANG": "zh_CN.UTF-8"})],
)
def test_the_program_opens_in_chinese(
    arguments: list[str], variables: dict[str, str], home: Path, tmp_path: Path
) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in _VARIABLES} | variables
    done = subprocess.run(
        [sys.executable, "-c", _SAY_TITLES, "gui", "--screenshot", str(tmp_path / "w.png"), *arguments],
        env=environment | {"QT_QPA_PLATFORM": "offscreen", "PYTHONUTF8": "1"},
        capture_output=True,
        encoding="utf-8",
        check=True,
        timeout=60,
    )
    assert "设置 日志" in done.stdout


_SAY_TITLES = """
import atexit
from launcher.entry import run
from launcher.gui import translation as words

def say():
    print(words.tr("Settings"), words.tr("Logs"))

atexit.register(say)
run()
"""
