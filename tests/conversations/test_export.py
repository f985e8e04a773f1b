"""Conversations exported as Markdown, text and JSON, and the names of the files."""

import json
from pathlib import PurePath

import pytest

from launcher.base.errors import BadOption
from launcher.conversations.export import as_json, as_markdown, as_text, find_writer, make_file_name
from launcher.conversations.records import ChatMessage, Conversation, Role

TALK = Conversation(
    "abc", "Why: so?", "Be brief.", "A model", 1_000.0, 2_000.0,
    (
        ChatMessage("q", None, Role.USER, "Why?\n\nTell me.", versions=("q",)),
        ChatMessage(
            "r", "q", Role.ASSISTANT, "# Because\n\x1b[31m", "Hm.", 0.0,
            footer="9 t/s", figures={"n": 1}, versions=("a", "r"),
        ),
    ),
)  # fmt: skip


def test_markdown_contains_everything() -> None:
    result = as_markdown(TALK)
    assert result.startswith("# Why: so?\n\nA model · 1970-01-01 ")
    for part in ("## System prompt\n\nBe brief.", "## You\n\nWhy?\n\nTell me.", "Thought</summary>\n\nHm.", "*9 t/s*"):
        assert part in result
    assert "\x1b" in result, "control characters are kept in a file"
    assert result.endswith("*\n")


def test_text_leaves_reasoning_out() -> None:
    result = as_text(TALK)
    assert "Hm." not in result
    assert "Reply:\n# Because\n\x1b[31m\n[9 t/s]\n" in result


def test_json_can_be_read_back() -> None:
    data = json.loads(as_json(TALK))
    assert (data["title"], data["system"], data["made_by"]) == ("Why: so?", "Be brief.", "mtp-launcher")
    question, reply = data["messages"]
    assert (question["role"], question["versions"]) == ("user", 1)
    assert (reply["text"], reply["thinking"], reply["figures"]) == ("# Because\n\x1b[31m", "Hm.", {"n": 1})


@pytest.mark.parametrize(
    ("name", "write"), [("a.md", as_markdown), ("a.b.JSON", as_json), ("a.txt", as_text), ("a.markdown", as_markdown)]
)
def test_the_file_extension_chooses_the_format(name: str, write: object) -> None:
    assert find_writer(PurePath(name)) is write


@pytest.mark.parametrize("name", ["a", "a.pdf", ".md"])
def test_an_unknown_extension_is_refused(name: str) -> None:
    with pytest.raises(BadOption):
        find_writer(PurePath(name))


def test_a_file_name_is_valid_on_every_system() -> None:
    assert make_file_name(TALK, "md") == "why-so.md"
    strange = Conversation("abc", '../<>:"|?*\n', "", "", 0.0, 0.0, ())
    assert make_file_name(strange, "txt") == "conversation.txt"
