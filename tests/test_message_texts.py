"""No text of the core for users is a plain string, which the window could not translate."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "launcher"
FACES = ("cli", "gui")
OTHER_TEXTS = {
    "tuning/sized_prompts.py",  # texts for a model to read
    "export/clients.py",  # programs and files for other tools, with comments
    "export/client_variables.py",
    "export/gateway_routers.py",
    "engine/builtin.py",  # a program of its own, which imports nothing of ours
    "engine/server/keeper.py",
}
MAKERS = ("message", "plural_message", "join_messages", "fill_template", "mark")
NOT_FOR_USERS = ("compile", "sub", "search", "match", "fullmatch", "debug", "info", "warning", "exception", "OSError")
STATEMENT = re.compile(r"(?:SELECT|INSERT|UPDATE|DELETE|CREATE|PRAGMA|ALTER|WITH)\b|.*\bWHERE \w+ = ")
TEXTS_OF_ERRORS = ("title", "hint", "sentence")
NO_MESSAGES = {"conversations/export.py", "engine/diagnosis/signatures.py"}
"""Files in which such a name is a conversation's title, or a template."""


def name_of(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def text_of(node: ast.AST) -> str | None:
    """The text of a literal, with {} for the values of an f-string."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(str(each.value) if isinstance(each, ast.Constant) else "{}" for each in node.values)
    return None


def is_sentence(text: str) -> bool:
    output = text.strip()
    begins = output[:1].isupper() or output[:1] in ("{", "`")
    return begins and " " in output and output.endswith((".", "!", "?")) and not STATEMENT.match(output)


def plain_sentences(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield each sentence that stands outside the makers of messages, docstrings, logs and patterns."""

    def walk_node(node: ast.AST) -> Iterator[ast.AST]:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return
        if isinstance(node, ast.Call) and name_of(node.func) in (*MAKERS, *NOT_FOR_USERS):
            for given in node.args:
                yield from walk_node(given) if text_of(given) is None else ()
            for keyword in node.keywords:
                yield from walk_node(keyword.value)
            return
        text = text_of(node)
        if text is not None:
            if is_sentence(text):
                yield node
            return
        for child in ast.iter_child_nodes(node):
            yield from walk_node(child)

    yield from walk_node(tree)


def flattened_messages(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield each place that makes plain text of messages: f-strings, +, strip and join."""

    def is_message(node: ast.AST) -> bool:
        if isinstance(node, ast.Call):
            return name_of(node.func) in MAKERS[:-1]
        return isinstance(node, ast.Attribute) and node.attr in TEXTS_OF_ERRORS and "sql" not in ast.dump(node)

    for node in ast.walk(tree):
        match node:
            case ast.FormattedValue(value=value) if is_message(value):
                yield node
            case ast.BinOp(left=left, op=ast.Add(), right=right) if is_message(left) or is_message(right):
                yield node
            case ast.Call(func=ast.Attribute(value=value, attr="strip" | "lstrip" | "rstrip" | "format")):
                if isinstance(value, ast.Call) and is_message(value):
                    yield node
            case ast.Call(func=ast.Attribute(attr="join"), args=[ast.Tuple(elts=parts) | ast.List(elts=parts)]):
                if any(map(is_message, parts)):
                    yield node


def names_outside_brackets(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield each fact that one face has no name for, and that stands outside of [brackets] in its message."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and name_of(node.func) == "message" and node.args:
            always = re.sub(r"\[[^\[\]]*\{[^\[\]]*\]", "", text_of(node.args[0]) or "")
            for fact in node.keywords:
                given = fact.value.args if isinstance(fact.value, ast.Call) else []
                makes_name = isinstance(fact.value, ast.Call) and name_of(fact.value.func) in (
                    "FaceName",
                    "command_name",
                )
                lacks_one = len(given) == 1 or (given and isinstance(given[0], ast.Constant) and given[0].value is None)
                if makes_name and lacks_one and f"{{{fact.arg}}}" in always:
                    yield fact.value


def list_core_files() -> list[Path]:
    files = [path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] not in FACES]
    return [path for path in sorted(files) if path.relative_to(SOURCE).as_posix() not in OTHER_TEXTS]


def describe_places(found: Iterator[ast.AST], path: Path) -> list[str]:
    return [f"{path.relative_to(SOURCE)}:{node.lineno} {ast.unparse(node)[:90]}" for node in found]  # type: ignore[attr-defined]


def test_every_sentence_of_the_core_is_a_message() -> None:
    plain = [
        each
        for path in list_core_files()
        for each in describe_places(plain_sentences(ast.parse(path.read_text("utf-8"))), path)
    ]
    assert not plain, "\n".join(plain)


def test_no_message_is_made_plain_text_in_the_core() -> None:
    files = [path for path in list_core_files() if path.relative_to(SOURCE).as_posix() not in NO_MESSAGES]
    lost = [
        each for path in files for each in describe_places(flattened_messages(ast.parse(path.read_text("utf-8"))), path)
    ]
    assert not lost, "\n".join(lost)


def test_a_name_that_one_face_lacks_stands_in_brackets() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    found = [
        each
        for path in files
        for each in describe_places(names_outside_brackets(ast.parse(path.read_text("utf-8"))), path)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('message("Stop it[: {command}].", command=command_name("stop"))', 0),
        ('message("Stop it: {command}.", command=command_name("stop"))', 1),
        ('message("See {command}.", command=command_name("logs", mark("Logs")))', 0),
        ('message("It is on {page}.", page=FaceName(None, mark("Logs")))', 1),
    ],
)
def test_a_name_outside_of_brackets_is_found(source: str, count: int) -> None:
    assert len(list(names_outside_brackets(ast.parse(source)))) == count


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('x = f"Port {port} is taken."', 1),
        ('raise E(message("Port {port} is taken.", port=port), "Take another one.")', 1),
        ('"""A docstring of words."""\nx = message("Port {port} is taken by {who}.", who="nobody")', 0),
        ('x = message("It failed: {why}", why=f"Port {port} is taken.")', 1),
        ('log.warning("The log cannot be written."); db.execute("SELECT a FROM b WHERE c = 1.")', 0),
    ],
)
def test_a_plain_sentence_is_found(source: str, count: int) -> None:
    assert len(list(plain_sentences(ast.parse(source)))) == count


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('x = f"{error.title} Again."', 1),
        ('x = message("It is.").strip()', 1),
        ('x = " ".join((message("It is."), more))', 1),
        ('x = message("It is.") + more', 1),
        ('x = join_messages(message("It is."), error.title)', 0),
    ],
)
def test_a_message_that_becomes_plain_text_is_found(source: str, count: int) -> None:
    assert len(list(flattened_messages(ast.parse(source)))) == count


def test_no_text_is_the_name_of_a_class() -> None:  # as a renaming by search and replace makes of a caption
    found = [
        f"{path.name}: {text}"
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and name_of(node.func) in (*MAKERS, "tr", "ntr") and node.args
        if re.fullmatch(r"[A-Z][a-z]+(?:[A-Z][a-z]+)+", text := text_of(node.args[0]) or "")
    ]
    assert found == ["formats.py: TypeScript"]
