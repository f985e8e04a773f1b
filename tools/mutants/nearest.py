"""The tests that are nearest to a place in a module: those that load it, and speak of what its function speaks of."""

import ast
import math
import re
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_WORD = re.compile(r"[^\W\d]\w{2,}")
_OWN_NAME, _USER_NAME, _OWN_FOLDER, _OWN_IMPORT = 4.0, 4.0, 2.0, 2.0
"""Factors for tests named after the module or one that uses the function, in the room's folder, and that import it."""
_NAME = 8.0
"""Weight of a function's name, and of the names of those that call it, up to _MOST_CALLS away."""
_MOST_CALLS = 3
_MODULE = 0.03
_WINDOW = 0.25
"""Factor for tests of the window, which take the longest."""


@dataclass(frozen=True, slots=True)
class _Test:
    """A test function: its name for pytest, its module and the words of its text and of the helpers that it calls."""

    name: str
    path: Path
    words: Mapping[str, int]


class NearestTests:
    """The tests of a checkout by their words, and the modules that they load."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._imports = read_imports(root)
        self._paths = paths = sorted((root / "tests").rglob("test_*.py"))
        self._tests = [each for path in paths for each in _read_tests(root, path)]
        files = Counter(word for path in paths for word in _count_words(path.read_text("utf-8")))
        self._weights = {word: math.log(len(paths) / count) for word, count in files.items()}
        """The weight of each word: high for one that few test files have."""
        self._lengths = {
            test.name: math.sqrt(1 + sum(self._weights[word] ** 2 for word in test.words)) for test in self._tests
        }
        self._modules = {path: _count_words(path.read_text("utf-8")) for path in (root / "launcher").rglob("*.py")}
        self._steps: dict[str, Mapping[str, int]] = {}

    def order_tests(self, file: Path, line: int) -> list[str]:
        """Return the tests that load a module of the program, directly or through others, nearest first."""
        module = name_module(self._root, file)
        if module not in self._steps:
            self._steps[module] = _count_steps(module, self._imports)
        text = file.read_text("utf-8")
        names = _find_users(text, line)
        wanted = _count_wanted(text, names, line)
        users = {path.stem.strip("_") for path, words in self._modules.items() if path != file and names & words.keys()}
        factors = {path: self._weigh_file(path, module, users) for path in self._paths}
        found = [
            (-factors[test.path] * self._score(wanted, test.words) / self._lengths[test.name], test.name)
            for test in self._tests
            if factors[test.path]
        ]
        return [name for _, name in sorted(found)]

    def _weigh_file(self, path: Path, module: str, users: set[str]) -> float:
        """Return the factor of the tests of a file; 0 if it does not load the module."""
        steps = self._steps[module].get(name_module(self._root, path))
        if steps is None:
            return 0.0
        names = module.split(".")
        factor = 1 / steps
        if names[-1].strip("_") in path.stem:
            factor *= _OWN_NAME
        elif any(path.stem.startswith(f"test_{each}") for each in users):
            factor *= _USER_NAME
        folders = path.relative_to(self._root).parts
        factor *= _OWN_IMPORT if steps == 1 else 1
        factor *= _OWN_FOLDER if names[1] in folders else 1
        return factor * (_WINDOW if "gui" in folders else 1)

    def _score(self, wanted: Mapping[str, float], words: Mapping[str, int]) -> float:
        """Return how much a text has of the wanted words, for its length."""
        return sum(wanted[word] * self._weights[word] ** 2 for word in wanted.keys() & words.keys())


def _read_tests(root: Path, path: Path) -> Iterator[_Test]:
    """Yield the tests of a file, without those for `.ci/thorough`."""
    text = path.read_text("utf-8")
    lines, file = text.splitlines(), path.relative_to(root).as_posix()
    helpers: dict[str, Counter[str]] = {}
    tests: dict[str, Counter[str]] = {}
    for owner, node in _list_definitions(ast.parse(text)):
        first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
        own = "\n".join(lines[first - 1 : node.end_lineno])
        if not node.name.startswith("test"):
            helpers[node.name.strip("_").lower()] = _count_words(own)
        elif "mark.thorough" not in own:
            tests[f"{file}::{owner}{node.name}"] = _count_words(own)
    for name, words in tests.items():
        for each in words.keys() & helpers.keys():
            words.update(helpers[each])
        yield _Test(name, path, words)


def _list_definitions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]]:
    """Yield the functions and helping classes of a test file, with the name of the class of tests that they are in."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            yield from ((f"{node.name}::", each) for each in methods)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield "", node


def _find_around(text: str, line: int) -> list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Return the class and the functions around a line, the innermost last."""
    nodes = [
        node
        for node in ast.walk(_parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return sorted(nodes, key=lambda node: node.lineno)


@lru_cache(maxsize=400)
def _parse(text: str) -> ast.Module:
    return ast.parse(text)


def _read_node(text: str, node: ast.stmt) -> str:
    return "\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno])


def _find_users(text: str, line: int) -> set[str]:
    """Return the names of the function at a line, and of those of its module that call it, even through others."""
    functions = [node for node in ast.walk(_parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    words = {node.name: set(_WORD.findall(_read_node(text, node))) for node in functions}
    names = {node.name for node in _find_around(text, line)}
    for _ in range(_MOST_CALLS):
        names |= {name for name, own in words.items() if any(each.startswith("_") and each in own for each in names)}
    return {name.strip("_").lower() for name in names}


def _count_wanted(text: str, names: set[str], line: int) -> Mapping[str, float]:
    """Return the words of a module, those of the function at a line and of its users with a greater weight."""
    wanted = {word: _MODULE * math.sqrt(count) for word, count in _count_words(text).items()}
    if around := _find_around(text, line):
        for word, count in _count_words(_read_node(text, around[-1])).items():
            wanted[word] = wanted.get(word, 0) + math.sqrt(count)
    for name in names:
        wanted[name] = wanted.get(name, 0) + _NAME
    return wanted


def _count_words(text: str) -> Counter[str]:
    return Counter(word.strip("_").lower() for word in _WORD.findall(text))


def read_imports(root: Path) -> dict[str, frozenset[str]]:
    """Return the modules of this checkout that each of its modules imports or runs, anywhere in its text."""
    files = [*(root / "launcher").rglob("*.py"), *(root / "tests").rglob("*.py"), *(root / "tools").rglob("*.py")]
    names = {name_module(root, file) for file in files}
    by_file_name = {file.name: name_module(root, file) for file in files if file.is_relative_to(root / "launcher")}
    found: dict[str, frozenset[str]] = {}
    for file in files:
        wanted = set(_list_imported(ast.parse(file.read_bytes()), by_file_name))
        own = name_module(root, file)
        if file.is_relative_to(root / "tests"):
            folders = [each for each in file.parents if each.is_relative_to(root / "tests")]
            wanted |= {name_module(root, each / "conftest.py") for each in folders}  # loaded for each test in a folder
            wanted.add(own.replace("tests.", "launcher.", 1).replace(".test_", "."))  # tests of a command run it
        if own == "tests.forked":
            wanted |= {each for each in names if each.startswith("launcher.cli.")}  # it runs any command
        found[own] = frozenset(wanted & names - {own})
    return found


def name_module(root: Path, file: Path) -> str:
    """Return the name of a file's module."""
    return file.relative_to(root).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")


def _list_imported(tree: ast.Module, by_file_name: Mapping[str, str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):  # a program of its own, by name or path
            yield by_file_name.get(node.value, node.value)


def _count_steps(goal: str, imports: Mapping[str, frozenset[str]]) -> dict[str, int]:
    """Return the number of imports from each module that loads `goal` to it."""
    importers: dict[str, list[str]] = {}
    for name, imported in imports.items():
        for each in imported:
            importers.setdefault(each, []).append(name)
    steps, queue = {goal: 0}, deque([goal])
    while queue:
        at = queue.popleft()
        for each in importers.get(at, ()):
            if each not in steps:
                steps[each] = steps[at] + 1
                queue.append(each)
    return steps
