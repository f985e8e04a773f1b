"""No text of the window is missing in a language, and what a translator wrote can be filled with its values."""

import ast
import functools
import gettext
import io
import string
import subprocess
import sys
from pathlib import Path

import pytest
from babel.messages.catalog import Catalog

from tools.translations import (
    ROOT,
    TEXTS,
    TRANSLATED,
    asks,
    mo_bytes,
    mo_path,
    po_path,
    read,
    template,
    untranslated,
    update,
)

_AMEND = "run `python -m tools.translations`, translate what it names in the .po file, and run it again"


@pytest.fixture(params=TRANSLATED)
def language(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def catalog(language: str) -> Catalog:
    return read(language)


@functools.cache
def wanted() -> frozenset[str | tuple[str, ...]]:
    """The texts of the source, those with a plural as two. Reading them takes seconds."""
    return frozenset(message.id for message in template() if message.id)


def placeholders(text: str) -> list[tuple[str, str, str]]:
    """Each value's name, how it is converted, and its format."""
    found = string.Formatter().parse(text)
    return sorted((name, kind or "", form or "") for _, name, form, kind in found if name is not None)


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_no_text_is_missing(language: str, catalog: Catalog) -> None:
    known = {message.id for message in catalog if message.id}
    assert len(wanted()) > 500
    assert not wanted() - known, _AMEND
    assert not untranslated(catalog), _AMEND


def test_every_value_stays_in_the_sentence(catalog: Catalog) -> None:
    checked = 0
    for message in catalog:
        ids = (message.id,) if isinstance(message.id, str) else message.id
        said = (message.string,) if isinstance(message.string, str) else message.string
        for text in said if ids[-1] else ():
            assert placeholders(text) == placeholders(ids[-1]), ids[-1]
            checked += 1
    assert checked >= len(catalog)


def test_nothing_is_a_guess(language: str, catalog: Catalog) -> None:
    assert not [message.id for message in catalog if message.fuzzy]
    assert "#, fuzzy" not in po_path(language).read_text("utf-8")
    assert not catalog.obsolete


def test_what_is_compiled_is_what_was_written(language: str, catalog: Catalog) -> None:
    assert mo_path(language).read_bytes() == mo_bytes(catalog), "run `python -m tools.translations`"
    read_by_program = gettext.GNUTranslations(io.BytesIO(mo_path(language).read_bytes()))
    assert read_by_program.info()["language"] == language


def test_a_text_that_changed_is_a_new_one_and_its_old_one_goes(catalog: Catalog) -> None:
    some = min(text for text in wanted() if isinstance(text, str))
    catalog.delete(some)
    catalog.add(f"{some} as it was", "old")
    update(catalog, template())
    assert untranslated(catalog) == [some]
    assert f"{some} as it was" not in catalog


def test_all_that_is_marked_is_a_literal() -> None:
    found = list(asks())
    assert len(found) > 500
    for file, line, name, texts in found:
        assert len(texts) == TEXTS[name], f"{file}:{line}"
        fits = all(is_text(text) for text in texts)
        if name == "tr":  # of what was marked where it was declared, too
            fits = fits or isinstance(texts[0], ast.Name | ast.Attribute | ast.Subscript)
        assert fits, f"{file}:{line}: the text cannot be read from the source"


def test_a_text_inside_an_f_string_is_found() -> None:
    assert "{free:,.1f} free" in wanted()


def test_the_command_tells_what_waits_for_a_translation(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _IN_A_COPY, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    first = done.stdout.splitlines()[0]
    assert first == f"{TRANSLATED[0]}, mtp-launcher: {len(wanted())} texts, {len(wanted())} to be translated"
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
