"""Values of the program as JSON, and back: dataclasses, named tuples, enums, paths, tuples, sets and mappings.

A class is written as an object with a key for each field. `field(metadata={"key": ...})` gives it another key, and None
leaves the field out: whoever reads the object adds its value, if it has no default. A class that is shown rather than
kept declares JSON_VIEW, a table of its keys (see `JsonView`).

Reading checks each value against the type of its field. Unknown keys are ignored, and missing ones take the field's
default, as does null where the type has none, so that files of earlier and later versions can be read. What a version
wrote in another shape is converted by the module that owns the file, before it is read. The members of a union are
tried in turn; classes of a union are told apart by a field of type Literal, such as `verb: Literal["stop"] = "stop"`.

Messages stay messages when they are written: `add_message_data` describes them, `restore_messages` restores them.
"""

from __future__ import annotations

import collections.abc
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache, partial
from itertools import repeat
from pathlib import PurePath
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
_Reader = Callable[[Any], Any]
_KINDS = {
    bytes: "bytes",
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    NoneType: "null",
}
_LISTS: Mapping[Any, Callable[[Iterable[Any]], Any]] = {
    tuple: tuple,
    list: list,
    set: set,
    frozenset: frozenset,
    collections.abc.Sequence: tuple,
    collections.abc.Collection: tuple,
    collections.abc.Set: frozenset,
}


class WrongShape(ValueError):
    """JSON that does not fit its type. `place` is where: ("jobs", 3, "title")."""

    def __init__(self, reason: str, place: tuple[str | int, ...] = ()) -> None:
        super().__init__(reason, place)
        self.reason, self.place = reason, place

    def __str__(self) -> str:
        """Return the place and the reason: "jobs[3].title should be a text"."""
        names = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.place)
        return f"{''.join(names).lstrip('.') or 'it'} {self.reason}"


class _OtherTag(WrongShape):
    """A Literal with another value: in a union, data that is meant for another class."""


class _Key(NamedTuple):
    """A key of a view: its name inside nested objects, and the attributes that lead to its value."""

    names: tuple[str, ...]
    path: tuple[str, ...]
    ending: str
    digits: int | None


class JsonView:
    """A table of an object's keys in JSON, as words such as "at=place engine.name=build.name mean:3 note?".

    A word is a key and the path of attributes to its value, which may be left out if it is the key. Methods are called,
    and a path ends where an attribute is None. A dotted key makes a nested object. The number after a colon is that of
    decimals. With a question mark something empty becomes null, with a star an empty list. `inner` are views of the
    values of keys.
    """

    def __init__(self, words: str, **inner: JsonView) -> None:
        self.keys = tuple(map(self._parse_word, words.split()))
        self.inner = inner

    @staticmethod
    def _parse_word(word: str) -> _Key:
        text, _, digits = word.partition(":")
        key, _, path = text.rstrip("?*").partition("=")
        return _Key(tuple(key.split(".")), tuple((path or key).split(".")), text[-1], int(digits) if digits else None)

    def write(self, value: object) -> dict[str, Any]:
        """Return the object with the keys of this view."""
        data: dict[str, Any] = {}
        for key in self.keys:
            found = value
            for name in key.path:
                found = None if found is None else getattr(found, name)
                if callable(found):
                    found = found()
            inner = data
            for name in key.names[:-1]:
                inner = inner.setdefault(name, {})
            if not found and key.ending in "?*":
                found = [] if key.ending == "*" else None
            found = to_json(found, self.inner.get(key.names[-1]))
            inner[key.names[-1]] = found if key.digits is None else round_figures(found, key.digits)
        return data


def round_figures(data: Any, digits: int) -> Any:  # noqa: ANN401 -- JSON
    """Return a JSON value with its numbers rounded, to whole ones for 0 digits, those in lists and objects included."""
    if isinstance(data, float):
        return round(data, digits or None)
    if isinstance(data, list):
        return [round_figures(each, digits) for each in data]
    return {name: round_figures(each, digits) for name, each in data.items()} if isinstance(data, dict) else data


def to_json(value: Any, view: JsonView | None = None, *, sparse: bool = False) -> Any:  # noqa: ANN401 -- JSON
    """Return a value as JSON data: by `view` (the entries of a list), by the view of its class, or with all fields.

    `sparse` leaves out fields that have their defaults. A number that is not finite becomes None. Raises TypeError for
    a value of any other type.
    """
    if view is not None and value is not None:
        is_list = isinstance(value, list | tuple) and not hasattr(value, "_fields")
        return [view.write(each) for each in value] if is_list else view.write(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(own := getattr(type(value), "JSON_VIEW", None), JsonView):
        return own.write(value)
    kind: Any = type(value)
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        named = ((field, getattr(value, field.name)) for field in _fields_of(kind) if field.key is not None)
        return {
            field.key: to_json(inside, sparse=sparse)
            for field, inside in named
            if not (sparse and field.has_default and inside == field.default())
        }
    if isinstance(value, Mapping):
        return {to_json(name): to_json(inside, sparse=sparse) for name, inside in value.items()}
    if isinstance(value, list | tuple | collections.abc.Set):
        items = [to_json(each, sparse=sparse) for each in value]
        return sorted(items) if isinstance(value, collections.abc.Set) else items
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def from_json(kind: type[T], data: object) -> T:
    """Return JSON data as a value of the type `kind`. Raises WrongShape."""
    as_any: Any = kind
    return _reader_of(as_any)[1](data)  # type: ignore[no-any-return]


def encode_json(value: Any, *, indent: int | None = None, sparse: bool = False) -> bytes:  # noqa: ANN401 -- see to_json
    """Return a value as the text of a JSON file."""
    return json.dumps(to_json(value, sparse=sparse), indent=indent).encode()


def decode_json(kind: type[T], text: bytes | str) -> T:
    """Return the text of a JSON file as a value of the type `kind`. Raises ValueError or RecursionError."""
    return from_json(kind, json.loads(text))


def parse_object(text: str | bytes | None) -> dict[str, Any]:
    """Return the object in a JSON text; empty if the text is missing, damaged, or something else."""
    try:
        data = json.loads(text or "")
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def compact_json(value: Any) -> str:  # noqa: ANN401 -- see to_json
    """Return a value as compact JSON with sorted keys, for databases and comparisons."""
    text = json.dumps(to_json(value), ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return text.encode("utf-8", "replace").decode()  # file names may contain lone surrogates, which SQLite refuses


class _Field(NamedTuple):
    """A field of a class: `key` is its name in JSON, None if it is not written."""

    name: str
    key: str | None
    has_default: bool
    default: Callable[[], Any]


@cache
def _fields_of(kind: Any) -> tuple[_Field, ...]:  # noqa: ANN401 -- a dataclass or a named tuple
    if not is_dataclass(kind):
        defaults = kind._field_defaults
        return tuple(_Field(name, name, name in defaults, partial(defaults.get, name)) for name in kind._fields)
    return tuple(
        _Field(
            field.name,
            field.metadata.get("key", field.name),
            field.default is not MISSING or field.default_factory is not MISSING,
            partial(_keep, field.default) if field.default_factory is MISSING else field.default_factory,
        )
        for field in fields(kind)
    )


class _Slot(NamedTuple):
    """The place of a key's value in a class: `exact` is the type of most values, which are taken as they are."""

    name: str
    exact: type | None
    read: _Reader
    skips_null: bool


@cache
def _slots_of(kind: Any) -> tuple[dict[str, _Slot], frozenset[str]]:  # noqa: ANN401 -- see _fields_of
    """Return the fields by their keys and by their own names, and the names of those that must be there."""
    hints, slots = get_type_hints(kind), {}
    known = [field for field in _fields_of(kind) if field.key is not None or not field.has_default]
    for field in known:
        hint = object if field.key is None else hints[field.name]  # whoever reads it adds the value itself
        has_null = hint in (Any, object) or NoneType in get_args(hint)
        slots[field.name] = slots[field.key or field.name] = _Slot(
            field.name, *_reader_of(hint), field.has_default and not has_null
        )
    return slots, frozenset(field.name for field in known if not field.has_default)


def _keep(value: Any) -> Any:  # noqa: ANN401 -- any value
    return value


def _read_object(kind: Any, data: Any) -> Any:  # noqa: ANN401 -- see from_json
    slots, required = _slots_of(kind)
    if isinstance(data, list):  # as earlier versions wrote named tuples and rows
        data = dict(zip((field.name for field in _fields_of(kind)), data, strict=False))
    if not isinstance(data, Mapping):
        if isinstance(data, kind):
            return data
        raise WrongShape("should be an object")
    values = {}
    key: Any = ""
    try:
        for key, value in data.items():
            if (slot := slots.get(key)) is not None:
                if type(value) is slot.exact:
                    values[slot.name] = value
                elif value is not None or not slot.skips_null:
                    values[slot.name] = slot.read(value)
    except WrongShape as error:
        error.place = (key, *error.place)
        raise
    if missing := required - values.keys():
        raise WrongShape("is missing", (min(missing),))
    try:
        return kind(**values)
    except (ValueError, TypeError) as error:
        raise WrongShape(f"is invalid: {error}") from error


@cache
def _reader_of(kind: Any) -> tuple[type | None, _Reader]:  # noqa: ANN401 -- a type expression
    """Return the type whose values need no conversion, if there is one, and the function that reads other values."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind in (Any, object):
        return None, _keep
    if kind in _KINDS:
        return kind, partial(_read_plain, kind)
    if origin in (Union, UnionType):
        readers = tuple(map(_reader_of, inner))
        exacts = frozenset(exact for exact, _ in readers if exact is not None)
        likely = next((exact for exact, _ in readers if exact not in (None, NoneType)), None)
        return likely, partial(_read_union, exacts, tuple(read for exact, read in readers if exact is not NoneType))
    if origin is Literal:
        return None, partial(_read_literal, inner)
    if (origin or kind) in _LISTS:
        if origin is tuple and inner[-1] is not ...:
            return None, partial(_read_row, tuple(_reader_of(each)[1] for each in inner))
        return None, partial(_read_list, _LISTS[origin or kind], _reader_of(inner[0] if inner else Any)[1])
    if (origin or kind) in (dict, collections.abc.Mapping):
        return None, partial(_read_mapping, *(_reader_of(each)[1] for each in inner or (Any, Any)))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return None, partial(_read_enum, kind)
    if isinstance(kind, type) and issubclass(kind, PurePath):
        return None, partial(_read_path, kind)
    if isinstance(kind, type) and issubclass(kind, str):  # a message
        return kind, lambda value: kind(_read_plain(str, value))
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        return None, partial(_read_object, kind)
    raise TypeError(f"{kind} cannot be read from JSON")


def _read_plain(kind: type, value: Any) -> Any:  # noqa: ANN401 -- see from_json
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is kind or (kind is str and isinstance(value, str)):
        return value
    raise WrongShape(f"should be {_KINDS[kind]}")


def _read_union(exacts: frozenset[type], readers: tuple[_Reader, ...], value: Any) -> Any:  # noqa: ANN401 -- see from_json
    if (value is None and NoneType in exacts) or type(value) in exacts:
        return value
    errors = []
    for read in readers:
        try:
            return read(value)
        except WrongShape as error:
            errors.append(error)
    raise max(errors, key=lambda error: (not isinstance(error, _OtherTag), len(error.place)))


def _read_literal(values: tuple[Any, ...], value: Any) -> Any:  # noqa: ANN401 -- see from_json
    if any(value == each and type(value) is type(each) for each in values):
        return value
    raise _OtherTag(f"should be {' or '.join(map(repr, values))}")


def _read_list(make: Callable[[Iterable[Any]], Any], read: _Reader, value: Any) -> Any:  # noqa: ANN401 -- see from_json
    if not isinstance(value, list | tuple | set | frozenset):
        raise WrongShape("should be a list")
    return make(_read_items(repeat(read), value))


def _read_row(readers: tuple[_Reader, ...], value: Any) -> Any:  # noqa: ANN401 -- see from_json
    if not isinstance(value, list | tuple) or len(value) != len(readers):
        raise WrongShape(f"should be a list of {len(readers)}")
    return tuple(_read_items(readers, value))


def _read_items(readers: Iterable[_Reader], items: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    try:
        for read, each in zip(readers, items, strict=False):
            found.append(read(each))
    except WrongShape as error:
        error.place = (len(found), *error.place)
        raise
    return found


def _read_mapping(read_key: _Reader, read: _Reader, value: Any) -> Any:  # noqa: ANN401 -- see from_json
    if not isinstance(value, Mapping):
        raise WrongShape("should be an object")
    found = {}
    for name, each in value.items():
        try:
            found[read_key(name)] = read(each)
        except WrongShape as error:
            error.place = (name, *error.place)
            raise
    return found


def _read_enum(kind: type[Enum], value: Any) -> Any:  # noqa: ANN401 -- see from_json
    try:
        return kind(value)
    except ValueError:
        raise WrongShape(f"should be one of {', '.join(str(each.value) for each in kind)}") from None


def _read_path(kind: type[PurePath], value: Any) -> Any:  # noqa: ANN401 -- see from_json
    if not isinstance(value, str | PurePath):
        raise WrongShape("should be a path")
    return kind(value)
