"""The tests that are nearest to a module: those that import it, the most special ones first."""

import ast
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path


def order_tests(root: Path, module: str, imports: Mapping[str, frozenset[str]]) -> list[str]:
    """Return the test files that load a module of the program, directly or through others, nearest first.

    Of those that are equally far, the ones named after the module come first, then those in the folder of the tests
    of its package, then those that load the fewest modules.
    """
    package, stem = module.split(".")[1], module.rpartition(".")[2].strip("_")
    steps = _count_steps(module, imports)
    found: list[tuple[bool, bool, bool, int, int, str]] = []
    for test in sorted((root / "tests").rglob("test_*.py")):
        name = name_module(root, test)
        if name in steps:
            path, is_named = test.relative_to(root).as_posix(), stem in test.stem
            is_far, is_foreign = steps[name] > 1 and not is_named, not path.startswith(f"tests/{package}/")
            found.append((is_far, not is_named, is_foreign, steps[name], len(imports[name]), path))
    return [path for *_, path in sorted(found)]


def read_imports(root: Path) -> dict[str, frozenset[str]]:
    """Return the modules of this checkout that each of its modules imports, anywhere in its text."""
    files = [*(root / "launcher").rglob("*.py"), *(root / "tests").rglob("*.py"), *(root / "tools").rglob("*.py")]
    names = {name_module(root, file) for file in files}
    found: dict[str, frozenset[str]] = {}
    for file in files:
        wanted = set(_list_imported(ast.parse(file.read_bytes())))
        own = name_module(root, file)
        if file.parent.is_relative_to(root / "tests"):  # pytest loads these for each test in a folder
            folders = [each for each in file.parents if each.is_relative_to(root / "tests")]
            wanted |= {name_module(root, each / "conftest.py") for each in folders}
        found[own] = frozenset(wanted & names - {own})
    found["tests.forked"] |= {each for each in names if each.startswith("launcher.cli.")}  # it runs any command
    return found


def name_module(root: Path, file: Path) -> str:
    """Return the name of a file's module."""
    return file.relative_to(root).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")


def _list_imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


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
