"""Translation of the window's text. The English text is the key; missing translations stay English."""

import gettext
import os
from collections.abc import Mapping
from itertools import takewhile

from PySide6.QtCore import QLocale

from launcher.base.messages import Message, translate_name
from launcher.base.messages import mark as mark
from launcher.base.paths import shipped_file

DOMAIN = "mtp-launcher"

_translations: list[gettext.NullTranslations] = [gettext.NullTranslations()]
"""The translations in use; always one."""


def choose_language(language: str | None) -> None:
    """Choose a language such as "zh_CN", or the system's if None. Without translations for it, texts are English."""
    _translations[0] = _find_translations(language)


def chosen_language() -> str:
    """Return the current language, such as "zh_CN"."""
    return _translations[0].info().get("language", "en")


def find_language(language: str | None) -> str:
    """Return the language that `choose_language` would make the current one."""
    return _find_translations(language).info().get("language", "en")


def _find_translations(language: str | None) -> gettext.NullTranslations:
    languages = [language] if language else _system_languages()
    # A user who prefers English to Chinese gets English, which has no translations.
    before_english = list(takewhile(lambda each: each.partition("_")[0] not in ("en", "C", "POSIX"), languages))
    return gettext.translation(DOMAIN, shipped_file("resources", "locale"), before_english, fallback=True)


def find_locale() -> "QLocale":
    """Return the locale for dates and times: the system's, unless it is of another language than the window.

    An English window, too, has the system's dates: outside the United States, American dates would be misread.
    """
    system, language = QLocale(), chosen_language()
    chosen = QLocale(language)
    return system if language == "en" or system.language() == chosen.language() else chosen


def tr(text: str, /, **values: object) -> str:
    """Translate `text` and fill its {names} with `values`. Must not be called at import time."""
    translated = _translations[0].gettext(text) if text else ""  # gettext returns its header for an empty text
    return _close_up(translated.format(**_render_values(values))) if values else translated


def mark_page(title: str) -> str:
    """Mark a page's title that is also the text of a button, and is translated differently."""
    return title


def page_title(title: str) -> str:
    """Translate the title of a page."""
    return translate_name(_translations[0], title)


def ntr(one: str, many: str, n: int, /, **values: object) -> str:
    """Translate the singular or plural for `n`, filled with `n` and `values`."""
    return _translations[0].ngettext(one, many, n).format(n=n, **_render_values(values))


def render(text: str) -> str:
    """Translate a message of the core. Other text is returned unchanged."""
    return _close_up(text.render(_translations[0])) if isinstance(text, Message) else text


def join_sentences(*sentences: str) -> str:
    """Return sentences as one text; empty ones are left out."""
    return _close_up(" ".join(filter(None, sentences)))


def _close_up(text: str) -> str:
    """Return a text without spaces after Chinese full stops: the character itself is wide enough."""
    return text.replace("。 ", "。")


def _render_values(values: Mapping[str, object]) -> dict[str, object]:
    return {name: render(value) if isinstance(value, str) else value for name, value in values.items()}


def _system_languages() -> list[str]:
    """Return the environment's languages in gettext's order, else Qt's."""
    variables = ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG")
    named = next((value for name in variables if (value := os.environ.get(name))), "")
    if named:
        return [each.partition(".")[0] for each in named.split(":")]
    return [QLocale.system().name()]
