"""What the faces need of languages without Qt or gettext: which there are, and the mark of a text to translate."""

from collections.abc import Mapping

LANGUAGES: Mapping[str, str] = {"en": "English", "zh_CN": "简体中文"}
"""What can be chosen, each by its own name. All but English have their texts in resources/locale."""


def part(text: str) -> str:
    """Return `text` as it is: marks a part that sentences of the core are put together with, to be translated alone."""
    return text


def mark(text: str) -> str:
    """Return `text` as it is: marks what is declared in English here, and translated where it is shown."""
    return text
