"""Faults that are put into a program: which are drawn, and which tests are tried against them first."""

from pathlib import Path

from tools.mutants.__main__ import draw_trials
from tools.mutants.faults import find_faults
from tools.mutants.nearest import NearestTests

SOURCE = b'''"""Sizes."""

def find_largest(sizes: list[int], most: int = 5) -> int | None:
    """Return the largest size."""
    log.warning("%d sizes", 3 + 4)
    pairs = zip(sizes, sizes, strict=True)
    return max(sizes) if len(sizes) > 1 else None

def is_small(size: int) -> bool:
    if size > 7:
        return False
    return True
'''
LARGEST = """def test_the_largest():
    assert find_largest([1]) is None
"""
SMALL = """def test_small():
    assert is_small(3)
"""
FILES = {
    "launcher/base/sizes.py": SOURCE.decode(),
    "launcher/base/other.py": "from launcher.base.sizes import is_small\n",
    "tests/base/test_sizes.py": f"from launcher.base.sizes import *\n{LARGEST}{SMALL}",
    "tests/base/test_other.py": "from launcher.base import other\ndef test_other(): ...\n",
    "tests/base/test_words.py": "def test_words(): ...\n",
}


def write_checkout(folder: Path) -> Path:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_faults_are_where_a_program_can_be_wrong() -> None:
    found = {(each.line, each.before, each.after) for each in find_faults(SOURCE)}
    assert {(7, "len(sizes) > 1", "(len(sizes) >= 1)"), (10, "size > 7", "(size >= 7)"), (11, "False", "True")} <= found
    # A log, a check of equal lengths, and None in place of False lose nothing.
    assert not [each for each in found if each[0] in (5, 6)]
    assert not [each for each in found if each[1] == "return False"]


def test_a_fault_changes_its_place_only() -> None:
    (fault,) = [each for each in find_faults(SOURCE) if each.before == "size > 7"]
    assert fault.put_into(SOURCE) == SOURCE.replace(b"size > 7", b"(size >= 7)")


def test_the_nearest_tests_load_the_module_and_speak_of_its_function(tmp_path: Path) -> None:
    file = write_checkout(tmp_path) / "launcher/base/sizes.py"
    small, largest = "tests/base/test_sizes.py::test_small", "tests/base/test_sizes.py::test_the_largest"
    nearest = NearestTests(tmp_path)
    assert nearest.order_tests(file, 10)[0] == small
    assert nearest.order_tests(file, 7)[0] == largest
    assert set(nearest.order_tests(file, 10)) == {small, largest, "tests/base/test_other.py::test_other"}


def test_a_seed_draws_the_same_faults_after_a_change_elsewhere(tmp_path: Path) -> None:
    write_checkout(tmp_path)
    before = [each.fault.before for each in draw_trials(tmp_path, ["base"], 4, 3)]
    other = tmp_path / "launcher/base/sizes.py"
    other.write_text(other.read_text() + "\n\ndef add_one(size: int) -> int:\n    return size + 1\n")
    after = [each.fault.before for each in draw_trials(tmp_path, ["base"], 7, 3)]
    assert [each for each in after if each in before] == before
