"""The window's texts and their translations: read from the source, merged into .po files, compiled to .mo files."""

import ast
import functools
import io
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from babel.messages.catalog import Catalog, Message
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

from launcher import __version__
from launcher.base.messages import LANGUAGES, PAGE_CONTEXT
from launcher.gui.translation import DOMAIN

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "launcher"
LOCALES = ROOT / "resources" / "locale"
TRANSLATED = tuple(language for language in LANGUAGES if language != "en")
TEXTS = {"tr": 1, "ntr": 2, "mark": 1, "mark_page": 1, "message": 1, "plural_message": 2}
"""The functions that take texts, with the number of their first arguments that are texts."""
_TERMINAL = SOURCE / "cli"
"""The folder whose texts stay English, because only the command line prints them."""
_FAULTS = ROOT / "resources" / "engine-faults.toml"
_DEMO = ROOT / "presets" / "demo.toml"
_WIDTH = 118


@functools.cache
def find_text_calls() -> Sequence[tuple[str, int, str, list[ast.expr]]]:
    """Return each call in the source that has a text to translate: file, line, function, and texts.

    Read from the syntax tree, because calls may also stand inside f-strings, where tokens do not show them. That takes
    seconds.
    """
    found: list[tuple[str, int, str, list[ast.expr]]] = []
    for path in sorted(SOURCE.rglob("*.py")):
        calls = [each for each in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(each, ast.Call)]
        for call in sorted(calls, key=lambda each: (each.lineno, each.col_offset)):
            if isinstance(call.func, ast.Name) and call.func.id in TEXTS and _TERMINAL not in path.parents:
                name = call.func.id
                found.append((path.relative_to(ROOT).as_posix(), call.lineno, name, call.args[: TEXTS[name]]))
    return found


def make_template() -> Catalog:
    """Return every text for users in the source and its data, with the files that contain it."""
    catalog = Catalog(project="mtp-launcher", version=__version__)
    for text, source in _of_data():
        catalog.add(text, locations=[(source.relative_to(ROOT).as_posix(), 0)])
    for file, _line, name, arguments in find_text_calls():
        texts = [each.value for each in arguments if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        if texts and len(texts) == len(arguments):
            context = PAGE_CONTEXT if name == "mark_page" else None
            catalog.add(tuple(texts) if len(texts) > 1 else texts[0], locations=[(file, 0)], context=context)
    return catalog


def _of_data() -> Iterator[tuple[str, Path]]:
    """Yield the texts of the engine's faults, of the quality of files, and of the demo's notes.

    Other models' notes are quoted from their sources.
    """
    faults = tomllib.loads(_FAULTS.read_text("utf-8"))
    for entry in (*faults["fault"], *faults["topic"]):
        labels = [action["label"] for action in entry["actions"]]
        texts = (entry.get("title"), entry.get("cause"), entry["hint"], entry.get("part"), *labels)
        yield from ((text, _FAULTS) for text in texts if text)
    for model in tomllib.loads(_DEMO.read_text("utf-8"))["models"]:
        yield from ((preset["note"], _DEMO) for preset in model["presets"])
    for path in sorted(_DEMO.parent.glob("*.toml")):
        for model in tomllib.loads(path.read_text("utf-8")).get("models", ()):
            yield from ((text, path) for note in model.get("quality", ()) for text in (note["text"], note["source"]))


def po_path(language: str) -> Path:
    """Return the file that a translator edits."""
    return LOCALES / language / "LC_MESSAGES" / f"{DOMAIN}.po"


def mo_path(language: str) -> Path:
    """Return the file that the program reads. It is made when the package is built or installed, and not committed."""
    return po_path(language).with_suffix(".mo")


def read_catalog(language: str) -> Catalog:
    """Return a language's translations; an empty catalogue where it has no file yet. Raises PoFileError."""
    path = po_path(language)
    if not path.exists():
        name = LANGUAGES[language]
        return Catalog(
            language,
            DOMAIN,
            msgid_bugs_address="",
            last_translator="",
            language_team=name,
            charset="UTF-8",
            fuzzy=False,
        )
    with path.open("rb") as file:
        return read_po(file, locale=language, domain=DOMAIN, abort_invalid=True)


def update_catalog(catalog: Catalog, source: Catalog) -> None:
    """Update the catalogue from the source. A changed text counts as a new one; nothing is guessed."""
    catalog.update(source, no_fuzzy_matching=True, update_header_comment=False, update_creation_date=False)
    catalog.obsolete.clear()
    name = LANGUAGES[catalog.locale_identifier or "en"]
    catalog.header_comment = f"# {name}: what the window shows. How to translate: docs/translating.md"
    catalog.project, catalog.version = "mtp-launcher", __version__


def po_bytes(catalog: Catalog) -> bytes:
    """Return a .po file, sorted by text and without line numbers, so that moved code does not change it."""
    buffer = io.BytesIO()
    write_po(buffer, catalog, width=_WIDTH, no_location=True, sort_output=True)
    return buffer.getvalue()


def mo_bytes(catalog: Catalog) -> bytes:
    """Return a .mo file with the translated texts."""
    buffer = io.BytesIO()
    write_mo(buffer, catalog)
    return buffer.getvalue()


def list_untranslated(catalog: Catalog) -> list[str]:
    """Return the texts that have no translation in a catalogue, or an incomplete one."""
    return [_name(message) for message in catalog if message.id and not all(_strings(message.string))]


def _strings(texts: str | Iterable[str] | None) -> Iterable[str]:
    return (texts or "",) if isinstance(texts, str | None) else texts


def _name(message: Message) -> str:
    return message.id if isinstance(message.id, str) else message.id[0]
