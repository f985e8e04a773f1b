"""The codec of values to and from JSON."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import pytest

from launcher.base.codec import JsonView, WrongShape, from_json, to_json
from launcher.base.messages import Message, add_message_data, message, restore_messages


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Point(NamedTuple):
    x: int
    y: float = 0.0


@dataclass(frozen=True, slots=True)
class Stop:
    force: bool = False
    verb: Literal["stop"] = "stop"


@dataclass(frozen=True, slots=True)
class Load:
    model: Path
    verb: Literal["load"] = "load"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    name: str
    colour: Colour = Colour.RED
    points: tuple[Point, ...] = ()
    pair: tuple[int, str] = (0, "")
    place: Path | None = None
    tags: frozenset[str] = frozenset()
    sizes: Mapping[Colour, int] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    wish: str = field(default="run", metadata={"key": "wanted"})
    header: object = field(default=None, metadata={"key": None})
    verb: Stop | Load | None = None
    figure: int | float | str = 0


FULL = Shape(
    name="a",
    colour=Colour.BLUE,
    points=(Point(1, 2.5), Point(3)),
    pair=(4, "b"),
    place=Path("c", "d"),
    tags=frozenset({"z", "y"}),
    sizes={Colour.RED: 5},
    about={"e": [1, None]},
    wish="stop",
    verb=Load(Path("f")),
    figure=6.5,
)


def rewrite(value: object) -> object:
    data: object = json.loads(json.dumps(to_json(value)))
    return data


def test_a_value_survives_json() -> None:
    assert from_json(Shape, rewrite(FULL)) == FULL
    assert from_json(Shape, rewrite(Shape(name="a"))) == Shape(name="a")


def test_keys_are_the_fields_or_what_they_declare() -> None:
    data = to_json(FULL)
    assert data["wanted"] == "stop"
    assert "wish" not in data
    assert "header" not in data
    assert data["points"] == [{"x": 1, "y": 2.5}, {"x": 3, "y": 0.0}]
    assert data["tags"] == ["y", "z"]


def test_a_former_key_is_the_name_of_the_field() -> None:
    assert from_json(Shape, {"name": "a", "wish": "stop"}).wish == "stop"


def test_sparse_data_leaves_defaults_out_also_inside() -> None:
    assert to_json(Shape(name="a", points=(Point(1),)), sparse=True) == {"name": "a", "points": [{"x": 1}]}


def test_unknown_keys_are_ignored() -> None:
    assert from_json(Stop, {"force": True, "since": 3}) == Stop(force=True)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ({}, "name is missing"),
        ({"name": 1}, "name should be a text"),
        ({"name": "a", "points": [{"x": 1}, {"x": True}]}, "points[1].x should be a whole number"),
        ({"name": "a", "points": "12"}, "points should be a list"),
        ({"name": "a", "pair": [1]}, "pair should be a list of 2"),
        ({"name": "a", "colour": "green"}, "colour should be one of red, blue"),
        ({"name": "a", "sizes": {"red": "x"}}, "sizes.red should be a whole number"),
        ({"name": "a", "verb": {"verb": "load", "model": 3}}, "verb.model should be a path"),
        ({"name": "a", "verb": {"verb": "run"}}, "verb.verb should be 'stop'"),
        ({"name": "a", "about": []}, "about should be an object"),
        ([], "it should be an object"),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(data: object, error: str) -> None:
    with pytest.raises(WrongShape) as caught:
        from_json(Shape, data)
    assert str(caught.value) == error


def test_whole_numbers_are_numbers_but_no_other_type_is_converted() -> None:
    assert from_json(Point, {"x": 1, "y": 2}) == Point(1, 2.0)
    for x in ("1", 1.0, None, True):
        with pytest.raises(WrongShape):
            from_json(Point, {"x": x})


def test_infinity_is_unknown() -> None:
    assert to_json({"high": float("inf"), "low": float("nan")}) == {"high": None, "low": None}


def test_a_value_that_json_lacks_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="Event"):
        to_json(type("Event", (), {})())


def test_messages_can_be_described_and_restored() -> None:
    stored = json.loads(json.dumps(add_message_data(to_json(Shape(name=message("Port {port}", port=1))))))
    name = from_json(Shape, restore_messages(stored)).name
    assert isinstance(name, Message)
    assert name.template == "Port {port}"


@dataclass(frozen=True)
class Circle:
    JSON_VIEW: ClassVar[JsonView] = JsonView("name at.x=centre.x at.y=centre.y:1 area:2 note? parts:1")
    name: str
    centre: Point | None
    note: str = ""
    parts: tuple[float, ...] = (0.25, 0.77)

    @property
    def area(self) -> float:
        return 3.14159


def test_a_view_has_its_own_keys() -> None:
    expected = {"name": "a", "at": {"x": 1, "y": 2.3}, "area": 3.14, "note": None, "parts": [0.2, 0.8]}
    assert to_json([Circle("a", Point(1, 2.345))]) == [expected]
    assert to_json(Circle("a", None))["at"] == {"x": None, "y": None}
    assert to_json(Circle("a", None, "b"), JsonView("title=name note")) == {"title": "a", "note": "b"}
