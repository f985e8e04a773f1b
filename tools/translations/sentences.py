"""What the core says: its sentences, read from the source and from the table of the engine's faults.

A sentence is a string of the core, no docstring, that begins with a capital or a value, has a space, and ends with a
full stop, an exclamation or a question mark; the label of an action; and what is marked as a `part` of one. Values of
f-strings get the names of what they show.
"""

import ast
import re
import tomllib
from collections.abc import Iterator

from babel.messages.catalog import Catalog

from launcher import __version__
from tools.translations import ROOT, SOURCE

_FACES = ("cli", "gui")
_PROMPTS = SOURCE / "tuning" / "fill_text.py"
"""What models are asked to read is no sentence for the user."""
_FAULTS = ROOT / "resources" / "engine-faults.toml"
_DEMO = ROOT / "presets" / "demo.toml"
"""The demo is the program's own; what the catalogue says of other models is quoted from its sources."""
_STATEMENTS = re.compile(r"(?:SELECT|INSERT|UPDATE|DELETE|CREATE|PRAGMA)\b")
_FOLLOWED = re.compile(r"(?<=[.!?])(?: \{\w+\})+$")
"""Values behind a sentence, which are sentences of their own."""
_LABELLED = ("Action", "action")
_PART = "part"


def sentences() -> Catalog:
    """Return every sentence of the core, with the files that say it."""
    catalog = Catalog(project="mtp-launcher", version=__version__)
    for path in sorted(SOURCE.rglob("*.py")):
        if path.relative_to(SOURCE).parts[0] not in _FACES and path != _PROMPTS:
            for text in _of_source(ast.parse(path.read_text("utf-8"))):
                catalog.add(text, locations=[(path.relative_to(ROOT).as_posix(), 0)])
    for preset in (each for model in tomllib.loads(_DEMO.read_text("utf-8"))["models"] for each in model["presets"]):
        catalog.add(preset["note"], locations=[(_DEMO.relative_to(ROOT).as_posix(), 0)])
    for fault in tomllib.loads(_FAULTS.read_text("utf-8"))["fault"]:
        for text in (*(fault.get(name) for name in ("title", "cause", "hint")), *_labels(fault)):
            if text:
                catalog.add(text, locations=[(_FAULTS.relative_to(ROOT).as_posix(), 0)])
    return catalog


def _labels(fault: dict[str, list[dict[str, str]]]) -> list[str]:
    return [action["label"] for action in fault.get("actions", [])]


def _of_source(tree: ast.Module) -> Iterator[str]:
    inner = {id(part) for each in ast.walk(tree) if isinstance(each, ast.JoinedStr) for part in each.values}
    inner |= {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node.func) == _PART:
            yield from (text for each in node.args for text in _texts(each))
        elif isinstance(node, ast.Call) and _name(node.func) in _LABELLED:
            yield from (text for each in node.args[1:2] for text in _texts(each))
        elif isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in inner:
            yield from filter(_is_sentence, (_FOLLOWED.sub("", text) for text in _texts(node)))


def _texts(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) and node.value else []
    if isinstance(node, ast.IfExp):
        return _texts(node.body) + _texts(node.orelse)
    return [_filled(node)] if isinstance(node, ast.JoinedStr) else []


def _filled(node: ast.JoinedStr) -> str:
    """Return an f-string as a text with named places: the same value has the same name, another one another."""
    names: dict[str, str] = {}
    parts = []
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            shown = ast.dump(part)
            if shown not in names:
                name, number = _name(part.value), 2
                while name in names.values():
                    name, number = f"{_name(part.value)}_{number}", number + 1
                names[shown] = name
            parts.append(f"{{{names[shown]}}}")
        elif isinstance(part, ast.Constant):
            parts.append(str(part.value))
    return "".join(parts)


def _name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.strip("_").lower() if name.isupper() else name.strip("_") or "value"
        case ast.Call(func=ast.Name(id="str" | "len" | "min" | "max" | "abs" | "int" | "round"), args=[first, *_]):
            return _name(first)
        case ast.Call(func=func) | ast.Subscript(value=func) | ast.Await(value=func):
            return _name(func)
        case ast.BinOp(left=left, right=right):
            return _name(right) if isinstance(left, ast.Constant) else _name(left)
    return "value"


def _is_sentence(text: str) -> bool:
    said = text.strip()
    begins = said[:1].isupper() or said[:1] in ("{", "`")
    return begins and " " in said and said.endswith((".", "!", "?")) and not _STATEMENTS.match(said)
