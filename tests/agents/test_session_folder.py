"""The files of a session: readable by this user only, and deleted at its end, or by the next session after a crash."""

import os
from pathlib import Path

import pytest

from launcher.agents.session_folder import delete_abandoned_folders, kept_session_files, session_folder


def test_files_are_private_and_deleted_with_the_session(home: Path) -> None:
    folder = session_folder("opencode")
    deep = folder / "data" / "settings" / "key.json"
    with kept_session_files(folder, {folder / "a.json": "{}", deep: "secret"}):
        assert deep.read_text() == "secret"
        if os.name != "nt":
            assert [path.stat().st_mode & 0o777 for path in (folder, deep.parent, deep)] == [0o700, 0o700, 0o600]
        delete_abandoned_folders()
        assert deep.exists()
    assert not folder.exists()


def test_files_are_deleted_after_an_error_in_the_session(home: Path) -> None:
    folder = session_folder("pi")
    with pytest.raises(KeyError), kept_session_files(folder, {folder / "a.json": "{}"}):
        raise KeyError
    assert not folder.exists()


def test_files_of_a_killed_session_are_deleted_by_the_next(home: Path) -> None:
    own = session_folder("cline")
    left = own.parent / "cline-999999999-12.34"
    left.mkdir(parents=True)
    (left / "providers.json").write_text("secret")
    other = own.parent / "notes"
    other.mkdir()
    with kept_session_files(own, {}):
        assert not left.exists()
    assert other.exists()
