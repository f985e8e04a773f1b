"""Small faults that a programmer could make: another comparison, operator, number or result, a call left out."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

_COMPARISONS: Mapping[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
}
_ARITHMETIC: Mapping[type[ast.operator], tuple[str, str]] = {
    ast.Add: (r"\+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: (r"\*", "//"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
}
_HARMLESS_CALLS = frozenset({"debug", "info", "warning", "error", "exception", "log", "setObjectName", "tr", "mark"})
"""Calls of which the loss, and in whose arguments a fault, changes a log or a name for style sheets only."""
_HARMLESS_FUNCTIONS = frozenset({"__repr__", "__str__"})


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: the bytes from `start` to `end` of a source become `after`. `line` begins with 1, `before` is shown."""

    kind: str
    line: int
    start: int
    end: int
    before: str
    after: str

    def put_into(self, source: bytes) -> bytes:
        """Return a source with the fault."""
        return source[: self.start] + self.after.encode() + source[self.end :]


class _Source:
    """A source text by the positions of its syntax tree."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._lines = [0]
        for line in text.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self._lines[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._lines[node.end_lineno - 1] + node.end_col_offset

    def read(self, start: int, end: int) -> str:
        return self.text[start:end].decode()


def find_faults(text: bytes) -> list[Fault]:
    """Return the faults that can be put into the functions of a source, in its order."""
    tree, source = ast.parse(text), _Source(text)
    left_out = {id(node) for node in _list_left_out(tree)}
    found: dict[tuple[int, int, str], Fault] = {}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and id(function) not in left_out:
            for node in ast.walk(function):
                if id(node) not in left_out and (fault := _fault_of(node, source)) is not None:
                    found.setdefault((fault.start, fault.end, fault.kind), fault)
    return sorted(found.values(), key=lambda each: (each.start, each.end))


def _list_left_out(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the nodes in which a fault would do no harm or could not run: annotations, texts, logs."""
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.AnnAssign):
            parts = [node.annotation]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            parts = [each.annotation for each in (*arguments, node.args.vararg, node.args.kwarg) if each is not None]
            parts += [node.returns, *node.decorator_list]
            if node.name in _HARMLESS_FUNCTIONS:
                parts.append(node)
            if node.returns is not None and ast.unparse(node.returns) == "bool":
                left_out = (each for each in ast.walk(node) if isinstance(each, ast.Return) and _is_false(each.value))
                yield from left_out  # None in its place is the same for every caller
        elif isinstance(node, ast.keyword) and node.arg == "strict":  # of a zip of equally many
            parts = [node.value]
        elif isinstance(node, ast.JoinedStr | ast.Assert) or _is_harmless(node):
            parts = [node]
        for part in filter(None, parts):
            yield from ast.walk(part)


def _is_false(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def _is_harmless(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _name_call(node.value) in _HARMLESS_CALLS


def _name_call(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _fault_of(node: ast.AST, source: _Source) -> Fault | None:
    for kind, make in _MAKERS.items():
        if (made := make(node, source)) is not None:
            assert isinstance(node, ast.expr | ast.stmt)
            start, end = source.start(node), source.end(node)
            before = source.read(start, end)
            return None if made == before else Fault(kind, node.lineno, start, end, before, made)
    return None


def _replace_operators(parts: list[ast.expr], node: ast.expr, operator: str, other: str, source: _Source) -> str | None:
    """Return the text of `node` with each operator between two of its `parts` replaced, in parentheses."""
    start, end = source.start(node), source.end(node)
    result, at = "(", start
    for left, right in pairwise(parts):
        between_start, between_end = source.end(left), source.start(right)
        between = source.read(between_start, between_end)
        pattern = rf"\b{operator}\b" if operator[0].isalpha() else operator
        replaced, count = re.subn(pattern, other, between, count=1)
        if not count or "#" in between:  # the operator's name may be a word of the comment
            return None
        result += source.read(at, between_start) + replaced
        at = between_end
    return result + source.read(at, end) + ")"


def _compare(node: ast.AST, source: _Source) -> str | None:
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        return None
    return _replace_operators([node.left, *node.comparators], node, *_COMPARISONS[type(node.ops[0])], source)


def _calculate(node: ast.AST, source: _Source) -> str | None:
    if not isinstance(node, ast.BinOp) or type(node.op) not in _ARITHMETIC:
        return None
    if any(isinstance(each, ast.JoinedStr) or _is_text(each) for each in ast.walk(node)):
        return None
    return _replace_operators([node.left, node.right], node, *_ARITHMETIC[type(node.op)], source)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _combine(node: ast.AST, source: _Source) -> str | None:
    if not isinstance(node, ast.BoolOp):
        return None
    names = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
    return _replace_operators(node.values, node, *names, source)


def _affirm(node: ast.AST, source: _Source) -> str | None:
    if not (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)):
        return None
    return f"bool({source.read(source.start(node) + len('not'), source.end(node)).strip()})"


def _change_value(node: ast.AST, _source: _Source) -> str | None:
    if not isinstance(node, ast.Constant):
        return None
    if isinstance(node.value, bool):
        return str(not node.value)
    if isinstance(node.value, int) and node.value:
        return str(node.value + 1)
    return str(node.value * 1.5) if isinstance(node.value, float) and node.value else None


def _return_nothing(node: ast.AST, _source: _Source) -> str | None:
    if not isinstance(node, ast.Return) or node.value is None:
        return None
    return None if isinstance(node.value, ast.Constant) and node.value.value is None else "return None"


def _leave_out(node: ast.AST, _source: _Source) -> str | None:
    if not isinstance(node, ast.Expr):
        return None
    value = node.value.value if isinstance(node.value, ast.Await) else node.value
    return "pass" if isinstance(value, ast.Call) else None


_MAKERS: Mapping[str, Callable[[ast.AST, _Source], str | None]] = {
    "comparison": _compare,
    "arithmetic": _calculate,
    "boolean": _combine,
    "not": _affirm,
    "value": _change_value,
    "result": _return_nothing,
    "call": _leave_out,
}
"""For each kind of fault, the function that returns the faulty text of a node; None if it cannot have that fault."""
