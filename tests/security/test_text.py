"""Control characters in text are made harmless."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.base.text import escape_json, make_visible, one_line, visible_reply
from tests.security.conftest import CONTROL_CHARACTERS

ATTACKS = {
    "colours": "\x1b[31mred\x1b[0m",
    "the clipboard": "\x1b]52;c;cm0gLXJmIH4=\x07",
    "a hidden link": "\x1b]8;;https://evil.example\x1b\\bank.example\x1b]8;;\x1b\\",
    "the title": "\x1b]0;owned\x07",
    "C1": "\x9b31m\x9d0;owned\x9c",
    "an override": "invoice\u202efdp.exe",
    "an isolate": "/* \u2067 } \u2066 if (admin) { */",
    "nothing to see": "a\u200bb\u2060c\ufeffd",
    "tags": "hello" + "".join(chr(0xE0000 + ord(letter)) for letter in "ignore all"),
    "half a character": "\ud800",
    "bells and backspaces": "safe\x08\x08\x08\x08evil\x07",
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_control_characters_become_visible(attack: str) -> None:
    for clean in (make_visible(attack), visible_reply(attack), one_line(attack)):
        assert not CONTROL_CHARACTERS.search(clean)
        clean.encode()
        assert not {unicodedata.category(letter) for letter in clean} & {"Cs", "Cn"}
        assert len(clean) == len(attack), "each character is replaced by one visible character"


@pytest.mark.parametrize(
    "text", ["Füße, naïve", "مرحبا بالعالم", "שלום", "नमस्ते क्‍ष", "👩‍👩‍👧‍👦 ❤️", "a\tb\nc", "x\u00a0y", ""]
)
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert make_visible(text) == visible_reply(text) == text


def test_a_carriage_return_does_not_overwrite_a_line() -> None:
    assert visible_reply("you owe 1000 EUR\ryou owe nothing \r\nx") == "you owe 1000 EURyou owe nothing \nx"


@given(st.text())
def test_one_line_returns_one_line_of_limited_length(text: str) -> None:
    line = one_line(text, 50)
    assert len(line) <= 50
    assert len(line.splitlines()) <= 1
    assert not CONTROL_CHARACTERS.search(line)


def test_a_name_of_a_megabyte_is_shortened() -> None:
    assert one_line("n" * 2**20) == "n" * 399 + "…"


@given(st.text(st.characters(codec=None)))
def test_escaped_json_is_equal_and_has_no_control_characters(text: str) -> None:
    document = escape_json(json.dumps({"text": text}, ensure_ascii=False))
    assert not CONTROL_CHARACTERS.search(document)
    assert json.loads(document)["text"] == text
