"""What the core says, said in another language."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.base.errors import LauncherError
from launcher.gui import sentences, words
from launcher.gui.sentences import say, say_error

_TEXTS = {
    "Port {port} is taken.": "Der Port {port} ist belegt.",
    "Port {port} is taken by {name}.": "Den Port {port} hat {name}.",
    "Take another port.": "Nimm einen anderen Port.",
    "The file[ {file}] is broken[: {reason}].": "Die Datei[ {file}] ist kaputt[ ({reason})].",
    "{n} file{s} of {n} were read.": "{n} von {n} Dateien gelesen.",
    "{a}: {b}.": "{b} {a}",
    "Look here.": "看这里。",
    "Look there.": "看那里。",
}


@pytest.fixture(autouse=True)
def german(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "resources" / "locale" / "de" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    (folder / "sentences.json").write_text(json.dumps(_TEXTS))
    monkeypatch.setattr(sentences, "shipped", tmp_path.joinpath)
    monkeypatch.setattr(words, "chosen", lambda: "de")
    sentences._say.cache_clear()
    sentences._sentences.cache_clear()
    yield
    sentences._say.cache_clear()
    sentences._sentences.cache_clear()


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("Port 80 is taken.", "Der Port 80 ist belegt."),
        ("Port 80 is taken by nginx.", "Den Port 80 hat nginx."),
        ("Port 80 is taken. Take another port.", "Der Port 80 ist belegt. Nimm einen anderen Port."),
        ("It rains. Take another port.", "It rains. Nimm einen anderen Port."),
        ("The file is broken.", "Die Datei ist kaputt."),
        ("The file a.gguf is broken: it ends. Early.", "Die Datei a.gguf ist kaputt (it ends. Early)."),
        ("3 files of 3 were read.", "3 von 3 Dateien gelesen."),
        ("3 files of 4 were read.", "3 files of 4 were read."),
        ("The file {x} is broken: Take another port..", "Die Datei {x} ist kaputt (Nimm einen anderen Port.)."),
        ("Too little: to be known.", "Too little: to be known."),
        ("Look here. Look there.", "看这里。看那里。"),
        ("", ""),
    ],
)
def test_a_sentence_is_known_by_the_text_it_was_made_of(said: str, wanted: str) -> None:
    assert say(said) == wanted


def test_an_error_is_its_title_and_its_hint() -> None:
    assert say_error(LauncherError("Port 1 is taken.", "Take another port.")) == (
        "Der Port 1 ist belegt. Nimm einen anderen Port."
    )
    assert say_error(LauncherError("Port 1 is taken.")) == "Der Port 1 ist belegt."


def test_a_long_text_is_no_sentence_of_ours() -> None:
    said = "Port 80 is taken by " + "x" * 3_000 + "."
    assert say(said) == said


def test_what_was_made_to_be_slow_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "chosen", lambda: "zh_CN")
    assert say("The file is broken: " * 90)


def test_english_is_as_it_was_but_for_the_terminals_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert say("Port 80 is taken. Lower --ubatch or --ctx.") == (
        "Port 80 is taken. Take a smaller ubatch or a shorter context."
    )
