"""The texts that can be translated are found in the source, and translations can be filled with their values."""

import ast
import functools
import gettext
import io
import re
import string
import subprocess
import sys
from pathlib import Path

import pytest
from babel.messages.catalog import Catalog

from launcher.models.server_settings import ROWS
from tools.translations import (
    ROOT,
    TEXTS,
    TRANSLATED,
    find_text_calls,
    list_untranslated,
    make_template,
    mo_bytes,
    po_path,
    read_catalog,
    update_catalog,
)


@pytest.fixture(params=TRANSLATED)
def language(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def catalog(language: str) -> Catalog:
    return read_catalog(language)


@functools.cache
def extract_texts() -> Catalog:
    """The texts of the source, which take seconds to be read."""
    return make_template()


@functools.cache
def source_texts() -> frozenset[str | tuple[str, ...]]:
    """The texts of the source. A text with a plural is a tuple of both."""
    return frozenset(message.id for message in extract_texts() if message.id)


ONLY_IN_A_TERMINAL = ("engine", "history share", "preset")
"""Commands of which the window has no like, so that its texts name them as they are."""


def names_of_the_terminal(text: str) -> list[str]:
    """The options of server settings, and the commands, that a text quotes although the window has its own name."""
    commands = re.findall(r"mtp-launcher ((?!--)[a-z].*)", text)
    return [
        *(each for each in re.findall(r"--[a-z][\w-]*", text) if each in {row.option for row in ROWS.values()}),
        *(each for each in commands if not each.startswith(ONLY_IN_A_TERMINAL)),
    ]


def placeholders(text: str) -> list[tuple[str, str, str]]:
    """Each value's name, how it is converted, and its format."""
    found = string.Formatter().parse(text)
    return sorted((name, kind or "", form or "") for _, name, form, kind in found if name is not None)


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_translations_belong_to_existing_texts(catalog: Catalog) -> None:
    """A new text may be without a translation, but a translation of a text that no longer exists is dead."""
    update_catalog(catalog, extract_texts())
    done = [message for message in catalog if message.id and message.string and all(message.string)]
    assert len(source_texts()) > 1_000
    assert len(done) > 0.9 * len(source_texts())


def test_every_placeholder_is_in_the_translation(catalog: Catalog) -> None:
    """A translation of a core text may leave a fact out, such as a count that the other language does not need."""
    checked = 0
    for message in catalog:
        ids = (message.id,) if isinstance(message.id, str) else message.id
        result = (message.string,) if isinstance(message.string, str) else message.string
        for text in result if ids[-1] else ():
            assert not text or set(placeholders(text)) <= set(placeholders(ids[-1])), ids[-1]
            checked += 1
    assert checked >= len(catalog)


def test_no_translation_is_marked_as_a_guess(language: str, catalog: Catalog) -> None:
    assert not [message.id for message in catalog if message.fuzzy]
    assert "#, fuzzy" not in po_path(language).read_text("utf-8")
    assert not catalog.obsolete


def test_compiled_translations_are_read(language: str, catalog: Catalog) -> None:
    read_by_program = gettext.GNUTranslations(io.BytesIO(mo_bytes(catalog)))
    assert read_by_program.info()["language"] == language
    assert read_by_program.gettext("Settings") != "Settings"


def test_a_changed_text_is_new_and_its_old_translation_is_removed(catalog: Catalog) -> None:
    some = min(text for text in source_texts() if isinstance(text, str))
    catalog.delete(some)
    catalog.add(f"{some} as it was", "old")
    update_catalog(catalog, extract_texts())
    assert some in list_untranslated(catalog)
    assert f"{some} as it was" not in catalog


def test_every_marked_text_is_a_literal() -> None:
    assert len(find_text_calls()) > 500
    for file, line, name, texts in find_text_calls():
        assert len(texts) == TEXTS[name], f"{file}:{line}"
        fits = all(is_text(text) for text in texts)
        if name == "tr":  # `tr` also translates texts that were marked where they are declared
            fits = fits or isinstance(texts[0], ast.Name | ast.Attribute | ast.Subscript)
        assert fits, f"{file}:{line}: the text cannot be read from the source"


def test_a_text_inside_an_f_string_is_found() -> None:
    assert "waited {time} for clients" in source_texts()


def test_the_command_lists_missing_translations(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _IN_A_COPY, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert first == f"{TRANSLATED[0]}: {len(extract_texts())} texts, {len(extract_texts())} without a translation"
    assert (tmp_path / TRANSLATED[0] / "LC_MESSAGES" / "mtp-launcher.po").exists()
    assert (tmp_path / TRANSLATED[0] / "LC_MESSAGES" / "mtp-launcher.mo").exists()


_IN_A_COPY = """
import sys
from pathlib import Path
import tools.translations
tools.translations.LOCALES = Path(sys.argv[1])
from tools.translations.__main__ import main
sys.exit(main())
"""


def test_no_sentence_names_a_setting_or_command_as_the_terminal_does() -> None:  # a `FaceName` does, in either face
    found = [
        text
        for message in extract_texts()
        if not any(file.startswith("launcher/gui/") for file, _ in message.locations)
        for text in (message.id if isinstance(message.id, tuple) else (message.id,))
        if names_of_the_terminal(re.sub(r" Flags?: --.*", "", text))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Lower --ctx.", ["--ctx"]),
        ("See `mtp-launcher logs`.", ["logs`."]),
        ("`mtp-launcher engine list` lists all engines.", []),
        ("Start it with --no-warmup.", []),
    ],
)
def test_a_name_of_the_terminal_is_found(text: str, names: list[str]) -> None:
    assert names_of_the_terminal(text) == names
