"""The schema of catalogue files, and the validation of the user's own files against it.

It is a separate module, imported late, because it needs pydantic: importing that takes longer than reading all shipped
files, which need no validation at run time.
"""

import json
import re
import tomllib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from launcher.base.validation import BaseModel, ConfigDict, ErrorDetails, ValidationError
from launcher.models.catalogue import CatalogueProblem, ModelEntry
from launcher.models.drafters import is_drafting
from launcher.models.preset import Preset, Text

Place = tuple[str | int, ...]
"""The path to a value in a file: keys, and indexes of arrays."""

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)
_ID = re.compile(r"[a-z0-9][a-z0-9._-]*")
_HEX = re.compile(r"[0-9a-f]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPreset(Preset):
    """A preset in a file of its own, and the model it is for."""

    model: Text
    """Id of the model."""


class ModelsFile(BaseModel):
    """A file of models: those of one family in presets/, or the user's own in models/ of the config folder."""

    model_config = _STRICT

    models: tuple[ModelEntry, ...]
    """The models."""


class PresetsFile(BaseModel):
    """The user's own presets, in presets/ of the config folder."""

    model_config = _STRICT

    presets: tuple[OwnPreset, ...]
    """The presets; they come before those that ship with the program."""


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of both kinds of file (models and presets), for editors."""
    models, presets = (kind.model_json_schema() for kind in (ModelsFile, PresetsFile))
    definitions = models.pop("$defs") | presets.pop("$defs")
    definitions["OwnPreset"]["properties"] |= definitions["Preset"]["properties"]  # inherited fields lack descriptions
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "MTP Launcher catalogue",
        "oneOf": [models, presets],
        "$defs": dict(sorted(definitions.items())),
    }


def find_contradictions(model: ModelEntry) -> Iterator[tuple[Place, str]]:
    """Yield the errors in one model that the schema cannot express: the path inside its table, and the reason."""
    if not _ID.fullmatch(model.id):
        yield ("id",), "should be lower-case letters, digits, dots and dashes"
    if model.drafter.source == "file" and model.draft is None:
        yield ("draft",), f"is missing: {model.speculation} needs a draft's file"
    for index, draft in enumerate(model.drafts):
        if not draft.kinds:
            yield ("drafts", index, "speculation"), "is missing, or names what needs no file"
    if model.geometry:
        for name, reason in model.geometry.contradictions():
            yield ("geometry", name), reason
    seen = set()
    for index, file in enumerate(model.files):
        if file.quant.casefold() in seen:
            yield ("files", index, "quant"), f"{file.quant} occurs twice"
        seen.add(file.quant.casefold())
        for place, sha256 in [((), file.sha256), *((("parts", at), part.sha256) for at, part in enumerate(file.parts))]:
            if sha256 and not _HEX.fullmatch(sha256):
                yield ("files", index, *place, "sha256"), "should be lower-case hexadecimal"
        sizes = [part.size_bytes for part in file.parts]
        if sizes and None not in sizes and file.size_bytes not in {None, sum(filter(None, sizes))}:
            yield ("files", index, "size_bytes"), "is not the sum of the parts' sizes"
        if file.parts and file.parts[0].file != file.file:
            yield ("files", index, "file"), "should be the first part"
    for index, preset in enumerate(model.presets):
        for place, reason in find_preset_contradictions(preset, model):
            yield ("presets", index, *place), reason


def find_preset_contradictions(preset: Preset, model: ModelEntry) -> Iterator[tuple[Place, str]]:
    """Yield the fields of a preset that contradict its model, with the reason."""
    if model.file(preset.quant) is None:
        near = get_close_matches(preset.quant, [file.quant for file in model.files], n=1)
        yield ("quant",), f'{model.id} has no "{preset.quant}"' + (f", but {near[0]}" if near else "")
    if model.native_context and preset.ctx > model.native_context:
        yield ("ctx",), f"is more than the {model.native_context:,} tokens that {model.id} was trained for"
    if is_drafting(preset.draft) and model.speculation is None:
        yield ("draft",), f"should be 0: {model.id} cannot draft"


@dataclass(frozen=True, slots=True)
class UserFile:
    """A catalogue file of the user's while it is read. Errors found in it are appended to `problems`."""

    path: Path
    text: str
    data: dict[str, Any]
    problems: list[CatalogueProblem] = field(repr=False)

    @classmethod
    def read(cls, path: Path, problems: list[CatalogueProblem]) -> "UserFile":
        """Read and parse a file. One that cannot be read or is not TOML has empty `data` and adds one problem."""
        text, data = "", {}
        try:
            text = path.read_text("utf-8")
            # Through JSON: only in JSON mode does strict pydantic accept tables for dataclasses. Dates become text.
            data = json.loads(json.dumps(tomllib.loads(text), default=str))
        except OSError as error:
            problems.append(CatalogueProblem(path, None, "", f"cannot be read: {error.strerror or error}"))
        except UnicodeDecodeError:
            problems.append(CatalogueProblem(path, None, "", "is not UTF-8 text"))
        except RecursionError:
            problems.append(CatalogueProblem(path, None, "", "is nested too deeply"))
        except ValueError as error:
            problems.append(CatalogueProblem(path, _line_in_error(str(error), text), "", f"is not valid TOML: {error}"))
        return cls(path, text, data, problems)

    def valid_tables(self, schema: type[BaseModel], key: str) -> list[tuple[int, dict[str, Any]]]:
        """Return the valid tables of the array `key` with their indexes, and record the problems of the others."""
        if not self.data and self.problems and self.problems[-1].file == self.path:
            return []
        bad: set[object] = set()
        try:
            schema.model_validate_json(json.dumps(self.data))
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                place = detail["loc"]
                bad.add(place[1] if len(place) > 1 else None)
                self.add_problem(place, _describe_error(schema, detail))
        tables = self.data.get(key, [])
        if not isinstance(tables, list):
            return []
        return [(index, table) for index, table in enumerate(tables) if index not in bad]

    def add_problem(self, place: Place, reason: str) -> None:
        """Record a problem at `place` in this file."""
        names = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
        self.problems.append(
            CatalogueProblem(self.path, find_line(self.text, place), "".join(names).lstrip("."), reason)
        )


def find_line(text: str, place: Place) -> int | None:
    """Return the line (from 1) where the value at `place` begins, or its enclosing table if the value is missing.

    Python's tomllib reports no positions. So ever longer prefixes of the text are parsed until the value appears; that
    works for every way to write TOML.
    """
    data = tomllib.loads(text)
    while place and not _has_value(data, place):
        place = place[:-1]
    if not place:
        return None
    lines = text.split("\n")
    shortest = 1 + bisect_left(  # number of lines of the shortest prefix with the value
        range(1, len(lines) + 1), True, key=lambda count: _has_value(_parse_prefix(lines, count)[1], place)
    )
    return _parse_prefix(lines, shortest - 1)[0] + 1


def _parse_prefix(lines: Sequence[str], count: int) -> tuple[int, dict[str, Any]]:
    """Parse the longest valid prefix of the first `count` lines, closing open arrays; return its length and data."""
    for used in range(count, 0, -1):
        for closing in ("", "\n]", "\n]]"):
            try:
                return used, tomllib.loads("\n".join(lines[:used]) + closing)
            except tomllib.TOMLDecodeError:
                continue
    return 0, {}


def _has_value(data: Any, place: Place) -> bool:  # noqa: ANN401 -- any TOML value
    try:
        for part in place:
            data = data[part]
    except (KeyError, IndexError, TypeError):
        return False
    return True


def _line_in_error(message: str, text: str) -> int | None:
    if found := re.search(r"at line (\d+)", message):
        return int(found[1])
    return text.count("\n") + 1 if "end of document" in message else None


def _describe_error(schema: type[BaseModel], detail: ErrorDetails) -> str:
    kind, given = detail["type"], detail["input"]
    if kind == "missing":
        return "is missing"
    if kind in {"unexpected_keyword_argument", "extra_forbidden"}:
        near = get_close_matches(str(detail["loc"][-1]), _field_names(schema), n=1)
        return "is an unknown field" + (f"; did you mean {near[0]}?" if near else "")
    if kind == "too_short":
        return "has no entries"
    reason = re.sub(r"^(Input|String|Tuple) should", "should", detail["msg"])
    if kind == "dataclass_type":
        reason = "should be a table"
    return reason if isinstance(given, dict | list) else f"{reason}, not {json.dumps(given, ensure_ascii=False)[:60]}"


@cache
def _field_names(schema: type[BaseModel]) -> list[str]:
    schema_json = schema.model_json_schema()
    return sorted({name for table in (schema_json, *schema_json["$defs"].values()) for name in table["properties"]})
