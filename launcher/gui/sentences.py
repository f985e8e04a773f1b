"""What the core says, in the user's language and in the window's words.

The core says it in English, with its figures filled in, as the terminal prints it. Here a sentence is taken back to
the text that it was made of, by `resources/locale/LANGUAGE/LC_MESSAGES/sentences.json`: texts of the core and what the
window says in their place, both with {names} for values and [brackets] around what may be absent. English has one, too,
for what names flags and commands of the terminal. What is not known there stays as it is.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from launcher.base.errors import LauncherError
from launcher.base.paths import shipped
from launcher.gui import words
from launcher.gui.words import tr

_VALUE = re.compile(r"\{(\w+)\}")
_MAY_BE_ABSENT = re.compile(r"\[([^\[\]]*\{\w+\}[^\[\]]*)\]")
_END = re.compile(r"(?<=[.!?:])\s+")
_LONGEST = 2_000
_LEAST_LETTERS = 8
"""A text of fewer letters of its own says too little to be known again."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """One form of a text: what stands before, between and after its values, their names, and its translation."""

    pieces: tuple[str, ...]
    names: tuple[str, ...]
    translated: str

    @property
    def letters(self) -> int:
        """How many letters of its own it has."""
        return sum(map(str.isalpha, "".join(self.pieces)))

    def of(self, said: str) -> str | None:
        """Return `said` in the other language, None when it was not made of this text."""
        values = self._values(said)
        if values is None:
            return None

        def fill(place: re.Match[str]) -> str:
            return _say_value(values[place[1]])

        present = _MAY_BE_ABSENT.sub(
            lambda part: part[1] if set(_VALUE.findall(part[1])) <= set(values) else "", self.translated
        )
        return _VALUE.sub(fill, present)

    def _values(self, said: str) -> dict[str, str] | None:
        """Return the values by their names; each ends where the next piece begins first."""
        first, *others = self.pieces
        if not said.startswith(first):
            return None
        values: dict[str, str] = {}
        done = len(first)
        for number, (name, piece) in enumerate(zip(self.names, others, strict=True), 1):
            last = number == len(others)
            at = len(said) - len(piece) if last else said.find(piece, done)
            if at < done or not said.startswith(piece, at) or values.setdefault(name, said[done:at]) != said[done:at]:
                return None
            done = at + len(piece)
        return values if done == len(said) else None


def say(said: str) -> str:
    """Return what the core said as the window says it, sentence by sentence where it is not one text as a whole."""
    return _say(words.chosen(), said) if 0 < len(said) <= _LONGEST else said


def _say_value(value: str) -> str:
    """Return a value within a sentence as the window says it; of several with commas each."""
    parts = value.split(", ")
    if len(parts) > 1 and value not in _sentences(words.chosen())[0]:
        each = [say(part) for part in parts]
        if all(now != then for now, then in zip(each, parts, strict=True)):
            return tr(", ").join(each)
    return say(value)


def say_error(error: LauncherError) -> str:
    """Return an error's title and its hint as the window says them."""
    return f"{say(error.title)} {say(error.hint)}".rstrip()


@lru_cache(maxsize=500)
def _say(language: str, said: str) -> str:
    parts, done = [], 0
    ends = [each.start() for each in _END.finditer(said)] + [len(said)]
    while done < len(said):
        for end in reversed([each for each in ends if each > done]):
            known = _known(language, said[done:end])
            if known is not None:
                break
        else:
            end = next(each for each in ends if each > done)
            known = said[done:end]
        parts.append(known)
        gap = _END.match(said, end)
        done = gap.end() if gap else end
    return " ".join(parts).replace("。 ", "。")


def _known(language: str, said: str) -> str | None:
    texts, sentences = _sentences(language)
    if said in texts:
        return texts[said]
    return next((found for each in sentences if (found := each.of(said)) is not None), None)


@lru_cache(maxsize=2)
def _sentences(language: str) -> tuple[dict[str, str], tuple[Sentence, ...]]:
    """Return the texts without values, and those with some, those with most letters first."""
    path = shipped("resources", "locale", language, "LC_MESSAGES", "sentences.json")
    read: dict[str, str] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    texts = {core.strip(): said.strip() for core, said in read.items()}
    plain = {english: said for english, said in texts.items() if not _VALUE.search(english)}
    forms = (each for english, said in texts.items() if english not in plain for each in forms_of(english, said))
    return plain, tuple(
        sorted((each for each in forms if each.letters >= _LEAST_LETTERS), key=lambda each: -each.letters)
    )


def forms_of(english: str, translated: str) -> Iterator[Sentence]:
    """Yield a text with each of its [parts] and without it."""
    part = _MAY_BE_ABSENT.search(english)
    if part is None:
        pieces = _VALUE.split(english)
        yield Sentence(tuple(pieces[::2]), tuple(pieces[1::2]), translated)
        return
    before, after = english[: part.start()], english[part.end() :]
    for within in (part[1], ""):
        yield from forms_of(f"{before}{within}{after}", translated)
