"""Values of the program as JSON, and back: dataclasses, named tuples, enums, paths, tuples, sets and mappings.

A class is written as an object with a key for each field. `field(metadata={"key": ...})` gives it another key, and None
leaves the field out. A class that is shown rather than kept declares a view, a table of its keys (see `JsonView`).

Reading checks each value against the type of its field. Unknown keys are ignored and missing ones take the field's
default, so that files of earlier and later versions can be read. What a version wrote in another shape is converted by
the module that owns the file, before it is read. The members of a union are tried in turn; classes of a union are told
apart by a field of type Literal, such as `verb: Literal["stop"] = "stop"`.

Messages stay messages when they are written: `add_message_data` describes them, `restore_messages` restores them.
"""

from __future__ import annotations

import collections.abc
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
_KINDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", NoneType: "null"}
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


class _Key(NamedTuple):
    """A key of a view: its name inside nested objects, and the attributes that lead to its value."""

    names: tuple[str, ...]
    path: tuple[str, ...]
    digits: int | None
    empty_is_none: bool


class JsonView:
    """A table of an object's keys in JSON, as words such as "at=place engine.name=build.name mean:3 note?".

    A word is a key and the path of attributes to its value, which may be left out if it is the key. A path ends where
    an attribute is None. A dotted key makes a nested object. The number after a colon is that of decimals, and with a
    question mark something empty becomes null.
    """

    def __init__(self, words: str) -> None:
        self.keys = tuple(map(self._parse_word, words.split()))

    @staticmethod
    def _parse_word(word: str) -> _Key:
        text, _, digits = word.partition(":")
        key, _, path = text.removesuffix("?").partition("=")
        return _Key(
            tuple(key.split(".")), tuple((path or key).split(".")), int(digits) if digits else None, text.endswith("?")
        )

    def write(self, value: object) -> dict[str, Any]:
        """Return the object with the keys of this view."""
        data: dict[str, Any] = {}
        for key in self.keys:
            found = value
            for name in key.path:
                found = None if found is None else getattr(found, name)
            inner = data
            for name in key.names[:-1]:
                inner = inner.setdefault(name, {})
            found = to_json(found or None if key.empty_is_none else found)
            inner[key.names[-1]] = found if key.digits is None else round_figures(found, key.digits)
        return data


def round_figures(data: Any, digits: int) -> Any:  # noqa: ANN401 -- JSON
    """Return a JSON value with its numbers rounded, those in lists and objects included."""
    if isinstance(data, float):
        return round(data, digits)
    if isinstance(data, list):
        return [round_figures(each, digits) for each in data]
    return {name: round_figures(each, digits) for name, each in data.items()} if isinstance(data, dict) else data


def to_json(value: Any, view: JsonView | None = None, *, sparse: bool = False) -> Any:  # noqa: ANN401 -- JSON
    """Return a value as JSON data: by `view`, else by the view of its class, else with all fields.

    `sparse` leaves out fields that have their defaults. A number that is not finite becomes None. Raises TypeError for
    a value of any other type.
    """
    if view is not None:
        return view.write(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(view := getattr(type(value), "JSON_VIEW", None), JsonView):
        return view.write(value)
    if is_dataclass(value) or hasattr(value, "_fields"):
        named = ((field, getattr(value, field.name)) for field in _fields_of(type(value)) if field.key is not None)
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
    exact, read = _reader_of(kind)
    return data if exact is not None and type(data) is exact else read(data)  # type: ignore[return-value]


class _Field(NamedTuple):
    """A field of a class: `key` is its name in JSON, None if it is not written; `exact` the type of most values."""

    name: str
    key: str | None
    has_default: bool
    default: Callable[[], Any]
    is_passed: bool
    exact: type | None
    read: _Reader


@cache
def _fields_of(kind: Any) -> tuple[_Field, ...]:  # noqa: ANN401 -- a dataclass or a named tuple
    hints = get_type_hints(kind)
    if not is_dataclass(kind):
        defaults = kind._field_defaults
        return tuple(
            _Field(name, name, name in defaults, partial(defaults.get, name), True, *_reader_of(hints[name]))
            for name in kind._fields
        )
    return tuple(
        _Field(
            field.name,
            field.metadata.get("key", field.name),
            field.default is not MISSING or field.default_factory is not MISSING,
            partial(_keep, field.default) if field.default_factory is MISSING else field.default_factory,
            field.init,
            *_reader_of(hints[field.name]),
        )
        for field in fields(kind)
    )


@cache
def _keys_of(kind: Any) -> tuple[dict[str, _Field], frozenset[str]]:  # noqa: ANN401 -- a dataclass or a named tuple
    """Return the fields by their keys in JSON, and by their own names; and the names of those that must be there."""
    found = _fields_of(kind)
    by_key = {field.name: field for field in found} | {field.key: field for field in found if field.key is not None}
    return by_key, frozenset(field.name for field in found if not field.has_default)


def _keep(value: Any) -> Any:  # noqa: ANN401 -- any value
    return value


def _read_object(kind: Any, data: Any) -> Any:  # noqa: ANN401 -- see from_json
    if not isinstance(data, Mapping):
        if isinstance(data, kind):
            return data
        raise WrongShape("should be an object")
    by_key, required = _keys_of(kind)
    values = {}
    key: Any = ""
    try:
        for key, value in data.items():
            if (field := by_key.get(key)) is not None:
                read = value if type(value) is field.exact else field.read(value)
                if field.is_passed:
                    values[field.name] = read
    except WrongShape as error:
        raise WrongShape(error.reason, (key, *error.place)) from None
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
        return likely, partial(_read_union, exacts, tuple(read for _, read in readers))
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
    raise max(errors, key=lambda error: len(error.place))


def _read_literal(values: tuple[Any, ...], value: Any) -> Any:  # noqa: ANN401 -- see from_json
    if any(value == each and type(value) is type(each) for each in values):
        return value
    raise WrongShape(f"should be {' or '.join(map(repr, values))}")


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
        raise WrongShape(error.reason, (len(found), *error.place)) from None
    return found


def _read_mapping(read_key: _Reader, read: _Reader, value: Any) -> Any:  # noqa: ANN401 -- see from_json
    if not isinstance(value, Mapping):
        raise WrongShape("should be an object")
    found = {}
    for name, each in value.items():
        try:
            found[read_key(name)] = read(each)
        except WrongShape as error:
            raise WrongShape(error.reason, (name, *error.place)) from None
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
