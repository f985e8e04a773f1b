"""Counts of the code: its size, its names and its modules.

    python -m tools.code_counts [FOLDER ...]     prints a table; each FOLDER is a checkout (default: this one)

Complexity is McCabe's: one, and one more for each branch, loop, exception handler, boolean operator and comprehension.
"""

import ast
import io
import re
import statistics
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

RIDDLES = ("what", "how", "where", "whether", "which", "of", "who", "why", "when")
"""First words of a module docstring that asks instead of naming its subject."""
GRADE_C = 11
"""Complexity from which a function counts as hard to follow."""
_BRANCHES = (
    *(ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.With, ast.AsyncWith, ast.Assert),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.match_case),
)
_SENTENCE = re.compile(r"[A-Z][^.!?]*\s[^.!?]*[.!?](?:\s|$)")
_PRIVATE = re.compile(r"(?<![\w.])(?!self\b|cls\b)[a-z]\w*\._(?!(?:replace|asdict|fields|exit)\b)[a-z]\w*")
"""A private name of something other than the object itself; those of named tuples and os._exit are documented."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def count_code(checkout: Path) -> dict[str, str]:
    """Return the counts of one checkout's package by name, formatted for print."""
    package = checkout / "launcher"
    sources = {path: path.read_text("utf-8") for path in sorted(package.rglob("*.py"))}
    trees = {path: ast.parse(source) for path, source in sources.items()}
    lines = sum(source.count("\n") for source in sources.values())
    functions = [node for tree in trees.values() for node in _functions_of(tree)]
    lengths = sorted((node.end_lineno or node.lineno) - node.lineno + 1 for node in functions)
    complexities = [_complexity_of(node) for node in functions]
    named = [node.name for node in functions if not re.fullmatch(r"__\w+__", node.name)]
    shared = [name for name, uses in Counter(named).items() if uses >= 10]
    comments = sum(1 for source in sources.values() for _ in _comment_lines(source))
    documented = {path: doc for path, tree in trees.items() if (doc := ast.get_docstring(tree))}
    asking = [path for path, doc in documented.items() if doc.split()[0].lower().strip(",.:") in RIDDLES]
    sentences = sum(len(_SENTENCE.findall(text)) for tree in trees.values() for text in _texts_of(tree))
    tests = "\n".join(path.read_text("utf-8") for path in sorted((checkout / "tests").rglob("*.py")))
    return {
        "files / lines of the program": f"{len(sources)} / {lines:,}",
        "modules at the root of the package": f"{sum(1 for path in sources if path.parent == package)}",
        "modules that one sibling alone imports": f"{len(_only_children(package, trees))}",
        "function lines, median / p99": f"{statistics.median(lengths):.0f} / {lengths[int(len(lengths) * 0.99)]}",
        "mean complexity": f"{statistics.mean(complexities):.1f}",
        "functions of complexity 11 or more": _percent(
            sum(each >= GRADE_C for each in complexities), len(complexities)
        ),
        "one-word function names": _percent(sum("_" not in name.strip("_") for name in named), len(named)),
        "names that ten or more functions share": f"{len(shared)}",
        "module docstrings that begin with What, How, Where, ...": _percent(len(asking), len(documented)),
        "comment lines": _percent(comments, lines, digits=1),
        "English sentences per 1,000 lines": f"{1_000 * sentences / lines:.0f}",
        "conditions on a draft length being 0 or not": f"{sum(map(_count_draft_conditions, trees.values()))}",
        "kinds of sessions and benches / their protocols": _count_sessions(trees.values()),
        "functions named after JSON": f"{sum('json' in name for name in named)}",
        "texts with a twin for the window": f"{sum(map(_count_twins, trees.values()))}",
        "imports inside functions": f"{sum(map(_count_inner_imports, trees.values()))}",
        "public class names that occur twice": f"{_count_homonyms(trees.values())}",
        "monkeypatched attributes in tests": f"{len(re.findall(r'monkeypatch.setattr', tests)):,}",
        "private names of others used in tests": f"{len(_PRIVATE.findall(tests)):,}",
    }


def _percent(part: int, whole: int, *, digits: int = 0) -> str:
    return f"{100 * part / whole:.{digits}f} %"


def _functions_of(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def _complexity_of(function: Function) -> int:
    found = 1
    for node in ast.walk(function):
        found += isinstance(node, _BRANCHES)
        found += len(node.values) - 1 if isinstance(node, ast.BoolOp) else 0
    return found


def _comment_lines(source: str) -> Iterator[int]:
    """Yield the numbers of lines with a comment, unless the comment is for a tool (such as noqa)."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#\s*(noqa|type:|pragma|!)", token.string):
            yield token.start[0]


def _texts_of(tree: ast.AST) -> Iterator[str]:
    """Yield the string literals of a module that are not docstrings."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | Function) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def _count_draft_conditions(tree: ast.Module) -> int:
    """Return how often `draft` decides by being 0 or not: as a condition of its own, or compared with 0."""
    asked: list[ast.expr] = []
    for node in ast.walk(tree):
        match node:
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) | ast.Assert(test=test):
                asked.append(test)
            case ast.comprehension(ifs=tests) | ast.BoolOp(values=tests):
                asked += tests
            case ast.UnaryOp(op=ast.Not(), operand=test):
                asked.append(test)
            case ast.Call(func=ast.Name(id="bool"), args=[test]):
                asked.append(test)
    zero = [
        node.left
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare) and any(isinstance(c, ast.Constant) and c.value == 0 for c in node.comparators)
    ]
    return sum(map(_is_draft, (*asked, *zero)))


def _is_draft(node: ast.expr) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in {"draft", "n_draft", "draft_length"}
        case ast.Subscript(slice=ast.Constant(value=key)) | ast.Call(args=[ast.Constant(value=key), *_]):
            return key == "draft"
        case ast.Subscript(slice=ast.Name(id=name)) | ast.Call(args=[ast.Name(id=name), *_]):
            return name == "DRAFT"
    return False


def _count_sessions(trees: Iterable[ast.Module]) -> str:
    """Return the number of public classes that run or borrow a server, and of their protocols and abstract bases."""
    named = [each for each in _public_classes(trees) if re.search(r"(Session|Bench|Loan)$", each.name)]
    protocols = sum(any(ast.unparse(base) == "Protocol" for base in each.bases) or _is_abstract(each) for each in named)
    return f"{len(named) - protocols} / {protocols}"


def _is_abstract(node: ast.ClassDef) -> bool:
    functions = (each for each in node.body if isinstance(each, Function))
    return any("abstractmethod" in map(ast.unparse, each.decorator_list) for each in functions)


def _public_classes(trees: Iterable[ast.Module]) -> list[ast.ClassDef]:
    return [
        node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


def _count_homonyms(trees: Iterable[ast.Module]) -> int:
    return sum(count > 1 for count in Counter(each.name for each in _public_classes(trees)).values())


def _count_twins(tree: ast.Module) -> int:
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    made = (call for call in calls if isinstance(call.func, ast.Name) and call.func.id in ("message", "fill_template"))
    return sum(any(word.arg == "window" for word in call.keywords) for call in made)


def _count_inner_imports(tree: ast.Module) -> int:
    inner = {id(node) for function in _functions_of(tree) for node in ast.walk(function)}
    return sum(isinstance(node, ast.Import | ast.ImportFrom) and id(node) in inner for node in ast.walk(tree))


def _only_children(package: Path, trees: dict[Path, ast.Module]) -> list[str]:
    """Return the modules whose only importer is in the same folder."""
    names = {_module_name(package, path): path for path in trees}
    importers: dict[str, set[str]] = {name: set() for name in names}
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            for wanted in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                if wanted in importers:
                    importers[wanted].add(_module_name(package, path))
    return [
        name
        for name, users in importers.items()
        if len(users) == 1 and next(iter(users)).rpartition(".")[0] == name.rpartition(".")[0]
    ]


def _module_name(package: Path, path: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def main() -> None:
    """Print the counts of the checkouts that are named, a column each."""
    folders = [Path(word) for word in sys.argv[1:]] or [Path()]
    columns = [count_code(folder) for folder in folders]
    print("| |" + "".join(f" {folder.resolve().name} |" for folder in folders))
    print("|---|" + "---|" * len(folders))
    for name in columns[0]:
        print(f"| {name} |" + "".join(f" {column[name]} |" for column in columns))


if __name__ == "__main__":
    main()
