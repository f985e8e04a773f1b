"""Messages are English texts that can be rendered in another language, in this process and in another one."""

import copy
import gettext
import json
import pickle
from typing import ClassVar

import pytest

from launcher.base.errors import LauncherError
from launcher.base.messages import (
    FaceName,
    Message,
    add_message_data,
    command_name,
    engine_arguments,
    join_messages,
    message,
    message_from_json,
    plural_message,
    restore_messages,
)


class German(gettext.NullTranslations):
    """A catalogue of a language that has two forms, and no order of words in common with English."""

    texts: ClassVar = {
        "Port {port} is taken by {name}.": "{name} hat Port {port}.",
        "Take another port.": "Nimm einen anderen Port.",
        "Context": "Kontext",
        "Models": "Modelle",
        "Lower {ctx}.": "Senke {ctx}.",
        "See {command}.": "Siehe {command}.",
        "{count:,} files of {who}: {what}": "{what} ({who}: {count:,} Dateien)",
        ", ": "; ",
    }

    def gettext(self, message: str) -> str:
        return self.texts.get(message, message)

    def ngettext(self, one: str, many: str, n: int) -> str:
        return {"{n} file": "{n} Datei", "{n} files": "{n} Dateien"}[one if n == 1 else many]


def port_taken(name: str = "nginx") -> Message:
    return message("Port {port} is taken by {name}.", port=80, name=name)


def test_a_message_is_its_english_text() -> None:
    assert port_taken() == "Port 80 is taken by nginx."
    assert f"{port_taken()} See." == "Port 80 is taken by nginx. See."
    assert json.dumps({"text": port_taken()}) == '{"text": "Port 80 is taken by nginx."}'
    assert {port_taken(): 1}["Port 80 is taken by nginx."] == 1


def test_a_message_is_rendered_with_its_facts_in_order() -> None:
    assert port_taken().render(German()) == "nginx hat Port 80."
    whole = message("{count:,} files of {who}: {what}", count=1_200, who="me", what=port_taken())
    assert whole == "1,200 files of me: Port 80 is taken by nginx."
    assert whole.render(German()) == "nginx hat Port 80. (me: 1,200 Dateien)"


def test_a_text_without_a_translation_stays_english_with_its_facts_translated() -> None:
    whole = message("It did not start: {why}", why=port_taken())
    assert whole.render(German()) == "It did not start: nginx hat Port 80."


def test_a_fact_is_never_read_as_a_template() -> None:
    file = "{port} {} {0.__class__}.gguf"
    assert port_taken(file) == f"Port 80 is taken by {file}."
    assert port_taken(file).render(German()) == f"{file} hat Port 80."


@pytest.mark.parametrize(("n", "english", "german"), [(1, "1 file", "1 Datei"), (2, "2 files", "2 Dateien")])
def test_a_count_chooses_the_plural_form(n: int, english: str, german: str) -> None:
    counted = plural_message("{n} file", "{n} files", n)
    assert counted == english
    assert counted.render(German()) == german


def test_each_face_calls_a_fact_by_its_own_name() -> None:
    text = message("Lower {ctx}.", ctx=FaceName("--ctx", "Context"))
    assert text == "Lower --ctx."
    assert text.render(gettext.NullTranslations()) == "Lower Context."
    assert text.render(German()) == "Senke Kontext."
    nested = FaceName("--ctx 512", message("{count:,} files of {who}: {what}", count=512, who="me", what="Context"))
    assert message("Lower {ctx}.", ctx=nested).render(German()) == "Senke Context (me: 512 Dateien)."
    see = message("See {command}.", command=command_name("downloads", "Models"))
    assert see == "See `mtp-launcher downloads`."
    assert see.render(German()) == "Siehe Modelle."
    assert engine_arguments("-fa off") == FaceName("`-- -fa off`", "`-fa off`")


def test_a_command_without_a_place_in_the_window_is_dropped_there() -> None:
    text = message("Stop it first[: {command}].", command=command_name("stop"))
    assert text == "Stop it first: `mtp-launcher stop`."
    assert text.render(gettext.NullTranslations()) == "Stop it first."
    either = message("[Omit {flag}.][{instead}]", flag=FaceName("--port"), instead=FaceName(None, "Close it."))
    assert either == "Omit --port."
    assert either.render(gettext.NullTranslations()) == "Close it."
    only = message("[{command} installs one.]", command=command_name("engine install"))
    assert join_messages(port_taken(), only).render(gettext.NullTranslations()) == port_taken()


def test_messages_are_joined_without_the_empty_ones() -> None:
    joined = join_messages(port_taken(), "", None, message("Take another port."))
    assert joined == "Port 80 is taken by nginx. Take another port."
    assert joined.render(German()) == "nginx hat Port 80. Nimm einen anderen Port."
    assert join_messages(port_taken(), "b", separator=", ").render(German()) == "nginx hat Port 80.; b"
    assert join_messages() == ""
    assert join_messages("", port_taken()).render(German()) == "nginx hat Port 80."


def test_an_error_is_a_message_and_can_be_a_fact_of_another() -> None:
    error = LauncherError(port_taken(), message("Take another port."), port=80)
    assert str(error) == "Port 80 is taken by nginx. Take another port."
    assert error.message.render(German()) == "nginx hat Port 80. Nimm einen anderen Port."
    quoting = message("It failed: {error}", error=error)
    assert quoting.render(German()) == "It failed: nginx hat Port 80. Nimm einen anderen Port."


@pytest.mark.parametrize(
    "original",
    [
        port_taken("{a}"),
        plural_message("{n} file", "{n} files", 2),
        message("Lower {ctx}.", ctx=FaceName("--ctx", "Context")),
        message(
            "Lower {ctx}.", ctx=FaceName("--ctx 512", message("Port {port} is taken by {name}.", port=1, name="a"))
        ),
        message("[Stop {it}: ][{instead}]", it=command_name("stop"), instead=FaceName(None, "Models")),
        join_messages(port_taken(), message("Take another port.")),
        message("{count:,} files of {who}: {what}", count=3, who="me", what=port_taken()),
        Message("somebody else's {text}"),
    ],
)
def test_a_message_survives_copies_and_json(original: Message) -> None:
    files = {"sentence": original, "more": [original, "plain"], "deep": {"why": original, "count": 3}}
    read = restore_messages(json.loads(json.dumps(add_message_data(files))))
    assert read == files
    for other in (copy.deepcopy(original), pickle.loads(pickle.dumps(original)), read["sentence"], read["deep"]["why"]):
        assert other == original
        rendered = other.render(German()) if isinstance(other, Message) else other
        assert rendered == original.render(German())


def test_message_data_adds_one_key_to_json() -> None:
    result = add_message_data({"sentence": port_taken(), "n": 1})
    assert result["sentence"] == "Port 80 is taken by nginx."
    assert set(result) == {"sentence", "n", "messages"}
    assert add_message_data({"sentence": "plain"}) == {"sentence": "plain"}


def test_a_message_kept_by_an_earlier_version_with_a_text_for_the_window_is_read() -> None:
    kept = {"message": "Port {port} is taken by {name}.", "window": "{x[0]}", "facts": {"port": 80, "name": "nginx"}}
    assert message_from_json("Port 80 is taken by nginx.", kept).render(German()) == "nginx hat Port 80."


@pytest.mark.parametrize(
    "described",
    [
        {"message": "Port {port} is free.", "facts": {"port": 80, "name": "nginx"}},
        {"message": "{port.__class__}", "facts": {"port": 80}},
        {"message": "Port {port:>999999999} is taken by {name}.", "facts": {"port": 80, "name": "nginx"}},
        {"message": "Port {port} is taken by {name}.", "facts": {}},
        {"message": "Port {port} is taken by {name}.", "facts": {"port": 80, "name": {"text": 1, "window": "nginx"}}},
        {"parts": [{"text": "a", "parts": 3}], "separator": " "},
        {"message": 1},
        ["x"],
        None,
    ],
)
def test_invalid_message_data_leaves_the_text(described: object) -> None:
    read = message_from_json("Port 80 is taken by nginx.", described)
    assert read == "Port 80 is taken by nginx."
    assert read.render(German()) == "Port 80 is taken by nginx."
