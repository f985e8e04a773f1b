"""The tests that are nearest to a place in a module: those that load it, and speak of what its function speaks of."""

import ast
import math
import re
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

_WORD = re.compile(r"[^\W\d]\w{2,}")
_OWN_NAME, _OWN_FOLDER, _OWN_IMPORT = 4.0, 2.0, 2.0
"""Factors for tests that are named after the module, or in the folder of its room, or import it themselves."""
_WINDOW = 0.25
"""Factor for tests of the window, which take the longest."""


class NearestTests:
    """The test files of a checkout by their words, and the modules that they load."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._imports = read_imports(root)
        self._words = {path: _count_words(path.read_text("utf-8")) for path in (root / "tests").rglob("test_*.py")}
        self._steps: dict[str, Mapping[str, int]] = {}

    @cached_property
    def _weights(self) -> Mapping[str, float]:
        """The weight of each word: high for one that few test files have."""
        files = Counter(word for words in self._words.values() for word in words)
        return {word: math.log(len(self._words) / count) for word, count in files.items()}

    def order_tests(self, file: Path, line: int) -> list[str]:
        """Return the test files that load a module of the program, directly or through others, nearest first."""
        module = name_module(self._root, file)
        if module not in self._steps:
            self._steps[module] = _count_steps(module, self._imports)
        room, stem = module.split(".")[1], module.rpartition(".")[2].strip("_")
        wanted = _count_wanted(file.read_text("utf-8"), line)
        found: list[tuple[float, str]] = []
        for path, words in self._words.items():
            steps = self._steps[module].get(name_module(self._root, path))
            if steps is not None:
                names = path.relative_to(self._root).parts
                score = self._score(wanted, words) / steps
                score *= _OWN_NAME if stem in path.stem else 1
                score *= _OWN_IMPORT if steps == 1 else 1
                score *= _OWN_FOLDER if room in names else 1
                score *= _WINDOW if "gui" in names else 1
                found.append((-score, "/".join(names)))
        return [path for _, path in sorted(found)]

    def _score(self, wanted: Mapping[str, float], words: Mapping[str, int]) -> float:
        """Return how much a text has of the wanted words, for its length."""
        common = sum(many * self._weights[word] ** 2 for word, many in wanted.items() if word in words)
        return common / math.sqrt(sum(self._weights[word] ** 2 for word in words))


def _count_wanted(text: str, line: int) -> Mapping[str, float]:
    """Return the words of a module, those of the function and class at a line with a greater weight."""
    wanted = {word: 0.2 * math.sqrt(count) for word, count in _count_words(text).items()}
    around = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and node.lineno <= line <= (node.end_lineno or 0)
    ]
    if around:
        inner = ast.get_source_segment(text, max(around, key=lambda node: node.lineno)) or ""
        names = _count_words(" ".join(node.name for node in around))
        for word, count in (_count_words(inner) + names + names).items():
            wanted[word] = wanted.get(word, 0) + math.sqrt(count)
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
        found[own] = frozenset(wanted & names - {own})
    found["tests.forked"] |= {each for each in names if each.startswith("launcher.cli.")}  # it runs any command
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
