"""What the core says is found in the source, and is there in every language."""

import ast
import json
import re

import pytest
from babel.messages.catalog import Catalog

from launcher.gui.sentences import forms_of
from tools.translations import SENTENCES, TRANSLATED, json_bytes, json_path, po_path, read, untranslated
from tools.translations.sentences import _of_source, sentences

_AMEND = "run `python -m tools.translations`, translate what it names in sentences.po, and run it again"
_PLACES = re.compile(r"\{(\w+)\}")


@pytest.fixture(params=TRANSLATED)
def language(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def catalog(language: str) -> Catalog:
    return read(language, SENTENCES)


def found(source: str) -> list[str]:
    return list(_of_source(ast.parse(source)))


def test_no_sentence_is_missing(catalog: Catalog) -> None:
    wanted = {str(message.id) for message in sentences() if message.id}
    assert len(wanted) > 900
    assert not wanted - {message.id for message in catalog if message.id}, _AMEND
    assert not untranslated(catalog), _AMEND


def test_a_translation_shows_no_value_that_the_sentence_does_not_have(catalog: Catalog) -> None:
    """It may leave one out, such as the s of a plural."""
    for message in catalog:
        assert set(_PLACES.findall(str(message.string))) <= set(_PLACES.findall(str(message.id))), message.id


def test_the_windows_english_is_of_sentences_that_there_are() -> None:
    said: dict[str, str] = json.loads(json_path("en").read_text("utf-8"))
    assert len(said) > 50
    assert set(said) <= {message.id for message in sentences()}
    assert all(set(_PLACES.findall(window)) <= set(_PLACES.findall(core)) for core, window in said.items())
    assert not [window for window in said.values() if "--ctx" in window or "--draft" in window]


def test_nothing_is_a_guess(language: str, catalog: Catalog) -> None:
    assert "#, fuzzy" not in po_path(language, SENTENCES).read_text("utf-8")
    assert not catalog.obsolete


def test_what_the_program_reads_is_what_was_written(language: str, catalog: Catalog) -> None:
    assert json_path(language).read_bytes() == json_bytes(catalog), "run `python -m tools.translations`"


def test_every_sentence_is_known_again_when_it_is_filled(language: str) -> None:
    texts: dict[str, str] = json.loads(json_path(language).read_text("utf-8"))
    for english in texts:
        for form in forms_of(english, "known"):
            numbers = {name: f"<{number}>" for number, name in enumerate(form.names)}
            filled = "".join(
                f"{piece}{numbers.get(name, '')}" for piece, name in zip(form.pieces, (*form.names, ""), strict=True)
            )
            assert form.of(filled) == "known", english


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ('x = f"Port {port} is {self._reason(1)}."', ["Port {port} is {reason}."]),
        ('x = f"{a.size} of {b.size}, {a.size} again."', ["{size} of {size_2}, {size} again."]),
        ('raise E("No GPU " "was found.", f"See {path!r}.")', ["No GPU was found.", "See {path}."]),
        ('"""A docstring of many words."""\nx = "SELECT a FROM b WHERE c = 1."', []),
        ('Action(KIND, f"Set {n} layers" if n else "Set none")', ["Set {n} layers", "Set none"]),
        ('x = f"It ended. {why}"', ["It ended."]),
        ('x = f"Port {port} is {why}. {more} {hint}"', ["Port {port} is {why}."]),
        ('x = f"It ended: {why}"', []),
        ('x = ["lower case words.", "Word.", "No end"]', []),
    ],
)
def test_sentences_are_read_from_the_syntax_tree(source: str, wanted: list[str]) -> None:
    assert found(source) == wanted
