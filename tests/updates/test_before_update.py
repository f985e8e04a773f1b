"""Copies of files that are made when another version starts for the first time."""

import logging
from pathlib import Path

import pytest

from launcher import __version__
from launcher.app import settings, settings_file
from launcher.app.settings_declared import TEXT_SCALE
from launcher.conversations.store import conversations_path
from launcher.engine.builds import installed
from launcher.models.library_index import index_path
from launcher.tuning.history import history_file
from launcher.tuning.tuned_settings import tuned_settings_file
from launcher.updates.before_update import list_copied_files, list_version_copies, save_version_copies
from tests.cli.in_process import run


def note(home: Path, version: str) -> None:
    (home / "state").mkdir(parents=True, exist_ok=True)
    (home / "state" / "version").write_text(version)


def read_noted_version(home: Path) -> str:
    return (home / "state" / "version").read_text()


def test_copied_files_are_those_that_the_program_keeps(home: Path) -> None:
    others = {settings_file.settings_path(), tuned_settings_file(), index_path()}
    assert set(list_copied_files()) == {
        home / "state" / "model-settings.json",
        installed.store_dir() / "engines.json",
        home / "config" / "model-folders.txt",
        *others,
    }


def test_another_version_copies_files_before_it_writes_them(home: Path) -> None:
    settings.change_setting(TEXT_SCALE, 120)
    written = settings_file.settings_path().read_bytes()
    note(home, "0.0.9\n")
    assert run("settings", "set", "window.text_scale", "150").returncode == 0
    assert read_noted_version(home) == f"{__version__}\n"
    copy = settings_file.settings_path().with_name("settings.toml.old-0.0.9")
    assert copy.read_bytes() == written
    assert list_version_copies() == [copy]
    run("settings", "set", "window.text_scale", "160")
    assert copy.read_bytes() == written


def test_going_back_to_an_older_version_keeps_its_own_copy(home: Path) -> None:
    path = settings_file.settings_path()
    settings.change_setting(TEXT_SCALE, 120)
    older = path.read_bytes()
    path.with_name(f"{path.name}.old-{__version__}").write_bytes(older)
    settings.change_setting(TEXT_SCALE, 150)
    newer = path.read_bytes()
    note(home, "99.0")
    save_version_copies()
    copies = {each.name.rpartition("old-")[2]: each.read_bytes() for each in list_version_copies()}
    assert copies == {__version__: older, "99.0": newer}
    note(home, "0.0.9")
    save_version_copies()
    assert [each.name for each in list_version_copies()] == [f"{path.name}.old-0.0.9"]


def test_the_first_version_makes_no_copies(home: Path) -> None:
    save_version_copies()
    assert not home.exists()
    (home / "state").mkdir(parents=True)
    settings.change_setting(TEXT_SCALE, 120)
    save_version_copies()
    assert read_noted_version(home) == f"{__version__}\n"
    assert list_version_copies() == []


@pytest.mark.parametrize("odd", ["../x", "\xff", "1.0-rc", ""])
def test_an_invalid_version_makes_no_copies(home: Path, odd: str) -> None:
    settings.change_setting(TEXT_SCALE, 120)
    note(home, odd)
    save_version_copies()
    assert list_version_copies() == []
    assert read_noted_version(home) == f"{__version__}\n"


def test_a_failed_copy_is_repeated(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings.change_setting(TEXT_SCALE, 120)
    note(home, "0.0.9")
    (home / "config" / "settings.toml.old-0.0.9").mkdir()
    with caplog.at_level(logging.WARNING):
        save_version_copies()
    assert "The files of version 0.0.9 cannot be copied: Is a directory." in caplog.text
    assert read_noted_version(home) == "0.0.9"


def test_an_unreadable_state_folder_is_not_an_error(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    home.mkdir()
    (home / "state").symlink_to(home / "state")  # a link to itself, which leads nowhere
    save_version_copies()
    (home / "state").unlink()
    (home / "state").touch()
    save_version_copies()
    assert (home / "state").read_bytes() == b""


def test_databases_are_copied(home: Path) -> None:
    expected = []
    for path in (history_file(), conversations_path()):
        path.parent.mkdir(parents=True)
        expected.append(path.with_name(f"{path.name}.old-v1"))
        expected[-1].touch()
    assert set(list_version_copies()) == set(expected)
