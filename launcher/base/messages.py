"""Messages for users: English text that keeps its template and facts, so that it can be shown in another language.

A message is a template, which is its gettext msgid, and the facts that fill it. As a `str` it is the English text:
terminal, logs and JSON use it as it is. The window renders it in the user's language (`gui/translation.py`). In a
template {name} is a fact; a part in [brackets] is dropped if a fact in it is None or absent. Both faces word the same
facts: what they call by different names, a setting or a command, is a `FaceName`.

f-strings, `+`, `strip` and `str.join` return plain text that cannot be translated any more. Combine messages with
`message("{a}: {b}", a=..., b=...)` and `join_messages`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

_PLACEHOLDER = re.compile(r"\{[a-z]\w*(?:![rs])?(?::\+?(?:0\d)?,?(?:\.\d)?[defgx%]?)?\}|\{\{|\}\}")
"""Placeholders allowed in a template from a file: a wide or nested format could exhaust memory, and an attribute could
leak data.
"""
_OPTIONAL = re.compile(r"\[([^\[\]]*\{[^\[\]]*)\]")
_NAME = re.compile(r"\{(\w+)")
_MAX_TEMPLATE_LENGTH = 20_000
_MAX_DEPTH = 20
_MESSAGES_KEY = "messages"
PAGE_CONTEXT = "page"
"""The context, in gettext's sense, of the titles of pages that are translated differently elsewhere."""


class Translations(Protocol):
    """The part of gettext's translations that rendering needs."""

    def gettext(self, message: str, /) -> str:
        """Return the translation of a text, or the text itself."""

    def ngettext(self, one: str, many: str, n: int, /) -> str:
        """Return the translated plural form for `n` things, or the English form."""

    def pgettext(self, context: str, message: str, /) -> str:
        """Return the translation of a text in a context, or the text itself."""


@dataclass(frozen=True, slots=True)
class FaceName:
    """A fact that each face calls by a name of its own, such as --ctx in the terminal and "Context" in the window.

    `window` is an English name that is translated where it is shown. None: the face has no name for it, and drops the
    part in [brackets] that it stands in.
    """

    terminal: str | None
    window: "str | Message | None" = None


def command_name(arguments: str, place: str | None = None) -> FaceName:
    """Return the name of a command of ours: `mtp-launcher ARGUMENTS`, in the window the place that does the same."""
    return FaceName(f"`mtp-launcher {arguments}`", place)


def engine_arguments(arguments: str) -> FaceName:
    """Return the name of llama-server's arguments that are no settings: they follow a --, or go into a field."""
    return FaceName(f"`-- {arguments}`", f"`{arguments}`")


class Message(str):
    """A text for users in English, with the template and the facts that it was made from.

    Without a template it is foreign text, such as a file name, and is shown as it is. `many` is the plural template,
    chosen by the fact `n`. A joined message has `parts` and no template.
    """

    template: str = ""
    facts: Mapping[str, object] = {}
    many: str = ""
    parts: tuple[str, ...] = ()
    separator: str = ""

    def __str__(self) -> str:
        """Return the message itself, so that `str()` of it, and of an error, stays a message."""
        return self

    def render(self, translations: Translations) -> str:
        """Return the window's text in the language of `translations`, including facts that are messages or names."""
        if self.parts:
            separator = translations.gettext(self.separator) if self.separator.strip() else self.separator
            joined = separator.join(filter(None, (_render_fact(part, translations) for part in self.parts)))
            return joined.replace("。 ", "。")  # the Chinese full stop is followed by no space
        if not self.template:
            return str(self)
        if self.many:
            count = self.facts["n"]
            template = translations.ngettext(self.template, self.many, count if isinstance(count, int) else 0)
        else:
            template = translations.gettext(self.template)
        return _fill_placeholders(
            template, {name: _render_fact(fact, translations) for name, fact in self.facts.items()}
        )

    def as_json(self) -> dict[str, object]:
        """Return a JSON object from which `message_from_json` restores the message, given its English text."""
        if self.parts:
            return {"parts": [_fact_as_json(part) for part in self.parts], "separator": self.separator}
        known = {"message": self.template, "many": self.many}
        return {name: text for name, text in known.items() if text} | {
            "facts": {name: _fact_as_json(fact) for name, fact in self.facts.items()}
        }


def message(text: str, /, **facts: object) -> Message:
    """Return the message `text` with its {placeholders} filled from `facts`.

    A fact is a number, a text, a message or a `FaceName`; anything else is converted with `str`. `text` must be a
    literal: the translation tools extract it from the source.
    """
    return _make_message(text, "", facts)


def fill_template(template: str, facts: Mapping[str, object]) -> Message:
    """Return a message whose template comes from a data file, which the translation tools read as well."""
    return _make_message(template, "", facts)


def as_message(text: str) -> Message:
    """Return a text of a data file, such as a note in the catalogue, as a message.

    It is translated if the file ships with the program.
    """
    return _make_message(text.replace("{", "{{").replace("}", "}}"), "", {})


def plural_message(one: str, many: str, n: int, /, **facts: object) -> Message:
    """Return a message about `n` things, {n} in the templates: `one` for a single thing, `many` for other numbers."""
    return _make_message(one, many, {"n": n, **facts})


def join_messages(*messages: str | None, separator: str = " ") -> Message:
    """Return one message made of several; empty ones and None are left out."""
    parts = tuple(each for each in messages if each)
    if len(parts) == 1:
        return parts[0] if isinstance(parts[0], Message) else Message(parts[0])
    joined = Message(separator.join(parts))
    joined.parts, joined.separator = parts, separator
    return joined


def enumerate_texts(texts: Sequence[str]) -> str:
    """Return texts as an enumeration: "A", "A and B", or "A, B and C"."""
    if len(texts) < 2:
        return texts[0] if texts else ""
    return message("{texts} and {last}", texts=join_messages(*texts[:-1], separator=", "), last=texts[-1])


def suggest_names(near: Sequence[str]) -> Message | None:
    """Return the question whether one of the names in `near` was meant; None without names."""
    if len(near) > 1:
        return message("Did you mean {names} or {last}?", names=", ".join(near[:-1]), last=near[-1])
    return message("Did you mean {name}?", name=near[0]) if near else None


def message_from_json(text: str, data: object) -> Message:
    """Return the message `text` as described in JSON by another process or a file; plain text if that is invalid."""
    return _parse_message(text, data) or Message(text)


def add_message_data(tree: Any) -> Any:  # noqa: ANN401 -- JSON
    """Return a JSON value in which each object with messages describes them by key under "messages"."""
    if isinstance(tree, Mapping):
        descriptions = {name: data for name, value in tree.items() if (data := _describe_value(value)) is not None}
        plain = {name: add_message_data(value) for name, value in tree.items()}
        return plain | {_MESSAGES_KEY: descriptions} if descriptions else plain
    return [add_message_data(each) for each in tree] if isinstance(tree, list | tuple) else tree


def restore_messages(tree: Any) -> Any:  # noqa: ANN401 -- JSON
    """Return a JSON value with its texts restored to the messages that `add_message_data` described."""
    if isinstance(tree, list):
        return [restore_messages(each) for each in tree]
    if not isinstance(tree, dict):
        return tree
    descriptions = tree.get(_MESSAGES_KEY)
    if not isinstance(descriptions, dict):
        return {name: restore_messages(value) for name, value in tree.items()}
    return {
        name: _restore_value(value, descriptions[name]) if name in descriptions else restore_messages(value)
        for name, value in tree.items()
        if name != _MESSAGES_KEY
    }


def translate_name(translations: Translations, name: str) -> str:
    """Translate the name of a page, a button or a setting."""
    translated = translations.pgettext(PAGE_CONTEXT, name)
    return translated if translated != name else translations.gettext(name)


def _make_message(text: str, many: str, facts: Mapping[str, object]) -> Message:
    known = {name: _as_fact(value) for name, value in facts.items()}
    shown = {name: fact.terminal if isinstance(fact, FaceName) else fact for name, fact in known.items()}
    filled = Message(_fill_placeholders(many if many and known["n"] != 1 else text, shown))
    filled.template, filled.facts, filled.many = text, known, many
    return filled


def _fill_placeholders(template: str, facts: Mapping[str, object]) -> str:
    if "[" in template:
        shortened = _OPTIONAL.sub(
            lambda part: part[1] if all(facts.get(name) is not None for name in _NAME.findall(part[1])) else "",
            template,
        )
        # If an optional part at the beginning was dropped, the next word begins the sentence.
        if template.startswith("[") and not shortened.startswith(template[1]):
            shortened = shortened.lstrip()
            shortened = shortened[:1].upper() + shortened[1:]
        template = shortened
    return template.format(**facts)


def _as_fact(value: object) -> str | int | float | FaceName | None:
    if value is None or isinstance(value, str | int | float | FaceName):
        return value
    return str(value)  # str() of an error may be a message


def _render_fact(fact: object, translations: Translations) -> Any:  # noqa: ANN401 -- numbers stay numbers
    if isinstance(fact, FaceName):
        fact = fact.window
        if isinstance(fact, str) and not isinstance(fact, Message):
            return translate_name(translations, fact)
    return fact.render(translations) if isinstance(fact, Message) else fact


def _fact_as_json(fact: object) -> object:
    if isinstance(fact, FaceName):
        return {"text": fact.terminal, "window": _fact_as_json(fact.window)}
    return {"text": str(fact), **fact.as_json()} if isinstance(fact, Message) else fact


def _describe_value(value: object) -> object:
    """Return the description of a message, or of the messages in a list; None for anything else."""
    if isinstance(value, Message):
        return value.as_json() if value.template or value.parts else None
    if isinstance(value, list | tuple) and any(isinstance(each, Message) for each in value):
        return [_describe_value(each) for each in value]
    return None


def _restore_value(value: object, description: object) -> Any:  # noqa: ANN401 -- JSON
    """Return a text, or the texts in a list, as described messages."""
    if isinstance(value, str):
        return message_from_json(value, description)
    if isinstance(value, list) and isinstance(description, list) and len(value) == len(description):
        return [_restore_value(each, data) for each, data in zip(value, description, strict=True)]
    return value


def _parse_message(text: str, data: object, depth: int = 0) -> Message | None:
    """Return the described message, None if the description is invalid or does not yield `text`."""
    if not isinstance(data, dict) or depth > _MAX_DEPTH:
        return None
    match data:
        case {"parts": list(parts), "separator": str(separator)}:
            restored = join_messages(*(str(_parse_fact(part, depth)) for part in parts), separator=separator)
        case {"message": str(template), "facts": dict(facts)}:
            many = str(data.get("many", ""))
            if not (_is_harmless(template) and _is_harmless(many)):
                return None
            known = {str(name): _parse_fact(fact, depth) for name, fact in facts.items()}
            try:
                restored = _make_message(template, many, known)
            except (KeyError, IndexError, ValueError):
                return None
        case _:
            return None
    return restored if restored == text else None


def _parse_fact(fact: object, depth: int) -> object:
    if not isinstance(fact, dict):
        return fact
    text = fact.get("text")
    if "window" in fact and "message" not in fact:
        name = _parse_fact(fact["window"], depth + 1) if depth <= _MAX_DEPTH else None
        return FaceName(*(each if isinstance(each, str) else None for each in (text, name)))
    return _parse_message(str(text or ""), fact, depth + 1) or str(text or "")


def _is_harmless(template: str) -> bool:
    return len(template) <= _MAX_TEMPLATE_LENGTH and not set("{}") & set(_PLACEHOLDER.sub("", template))


# Languages, free of Qt and gettext.

LANGUAGES: Mapping[str, str] = {"en": "English", "zh_CN": "简体中文"}
"""The available languages by code, each in its own name. All but English have their texts in resources/locale."""


def mark(text: str) -> str:
    """Return `text` unchanged. Marks a literal that is translated where it is shown."""
    return text
