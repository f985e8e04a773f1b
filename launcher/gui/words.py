"""The window's words in the user's language. English is the key; what a language lacks stays English."""

import gettext
import os
from itertools import takewhile

from launcher.base.paths import shipped
from launcher.base.words import LANGUAGES as LANGUAGES
from launcher.base.words import mark as mark

DOMAIN = "mtp-launcher"

_chosen: list[gettext.NullTranslations] = [gettext.NullTranslations()]


def choose(language: str | None) -> None:
    """Take a language such as "zh_CN"; None takes the system's. One that is not there is English."""
    wanted = [language] if language else _of_the_system()
    before_english = list(takewhile(lambda each: each.partition("_")[0] not in ("en", "C", "POSIX"), wanted))
    _chosen[0] = gettext.translation(DOMAIN, shipped("resources", "locale"), before_english, fallback=True)


def chosen() -> str:
    """Return the language that is shown, such as "zh_CN"."""
    return _chosen[0].info().get("language", "en")


def tr(text: str, /, **values: object) -> str:
    """Return `text` in the user's language, its {names} filled with `values`. Not to be called at import time."""
    said = _chosen[0].gettext(text) if text else ""  # gettext keeps its header under the empty text
    return said.format(**values) if values else said


def ntr(one: str, many: str, n: int, /, **values: object) -> str:
    """Return the form that fits `n` things, filled with `n` and `values`."""
    return _chosen[0].ngettext(one, many, n).format(n=n, **values)


def _of_the_system() -> list[str]:
    """Return the languages that the environment names, in gettext's order, else Qt's."""
    variables = ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG")
    named = next((value for name in variables if (value := os.environ.get(name))), "")
    if named:
        return [each.partition(".")[0] for each in named.split(":")]
    from PySide6.QtCore import QLocale

    return [QLocale.system().name()]
