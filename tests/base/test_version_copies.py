"""Copies of files from before an update: their places, which one is kept, and the notices."""

import stat
from pathlib import Path

from launcher.base.kept_files import (
    find_readable_version_copy,
    find_version_copies,
    original_path,
    restore_instructions,
    save_version_copy,
    version_copy_path,
)


def test_only_the_last_copy_of_each_file_is_listed(tmp_path: Path) -> None:
    one, other = tmp_path / "settings.toml", tmp_path / "settings.toml.old"
    for version in ("0.1.0", "0.2.0"):
        for each in (one, other):
            each.write_text(version)
            save_version_copy(each, version)
    assert find_version_copies([tmp_path]) == [version_copy_path(one, "0.2.0"), version_copy_path(other, "0.2.0")]
    assert version_copy_path(one, "0.2.0").read_text() == "0.2.0"
    assert stat.S_IMODE(version_copy_path(one, "0.2.0").stat().st_mode) == 0o600
    assert [original_path(each) for each in find_version_copies([tmp_path])] == [one, other]


def test_a_missing_file_is_not_copied(tmp_path: Path) -> None:
    save_version_copy(tmp_path / "none.json", "0.1.0")
    assert list(tmp_path.iterdir()) == []


def test_similar_file_names_are_not_copies(tmp_path: Path) -> None:
    for name in ("a.old-fashioned", "a.old-", ".old-v1", "a.old-v1.draft"):
        (tmp_path / name).touch()
    assert find_version_copies([tmp_path, tmp_path / "absent"]) == []


def test_a_copy_that_the_running_version_can_read_is_found(tmp_path: Path) -> None:
    path = tmp_path / "[a]*.db"
    for name in (f"{path.name}.old-v10", "b.db.old-v1", f"{path.name}.old-1"):
        (tmp_path / name).touch()
    assert find_readable_version_copy(path, up_to=9) is None
    assert find_readable_version_copy(path, up_to=10) == version_copy_path(path, "v10")


def test_instructions_to_restore_a_copy_are_complete(tmp_path: Path) -> None:
    assert restore_instructions(tmp_path / "settings.toml.old-0.1.0") == (
        "Close this program, move settings.toml away, and rename settings.toml.old-0.1.0 to settings.toml."
    )
