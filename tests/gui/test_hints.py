"""Hints lead to places of the window, and to commands, that exist."""

import re
from collections.abc import Iterator

import pytest

from launcher.app.settings import find_setting
from launcher.cli.main import VERBS
from launcher.cli.options.engine import _ACTIONS
from launcher.gui.settings.page import SettingsPage
from launcher.gui.window import Window
from tools.translations import make_template

FIRST_PAGE = "settings"


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Every text that the window may show."""
    return [text for each in make_template() for text in (each.id if isinstance(each.id, tuple) else (each.id,))]


def match_texts(texts: list[str], pattern: str) -> Iterator[tuple[str, str]]:
    """Yield each text that matches, with what it names."""
    for text in texts:
        for found in re.finditer(pattern, text):
            yield text, next(filter(None, found.groups()))


def test_what_hints_call_a_part_of_settings_is_one(texts: list[str], window: Window) -> None:
    page: SettingsPage = window.page("settings")
    titles = {*page.cards, *(find_setting(name).title for name in page.rows)}
    named = list(match_texts(texts, r"under ([A-Z][\w ]*) in Settings|in Settings under ([A-Z][\w ]*)"))
    assert [each for each in named if each[1] not in titles] == []
    assert named
    words = {word.casefold() for title in titles for word in title.split()}
    things = list(match_texts(texts, r"\b(?:a|another|the) (\w+)(?: on another disk)? in Settings"))
    assert [each for each in things if each[1] not in words] == []
    assert things


def test_commands_in_texts_of_the_window_exist(texts: list[str]) -> None:
    verbs = dict(match_texts(texts, r"mtp-launcher ([a-z]+)\b"))
    assert {*verbs.values()} <= {*VERBS}
    assert {verb for _, verb in match_texts(texts, r"mtp-launcher engine ([a-z]+)\b")} <= {*_ACTIONS}
