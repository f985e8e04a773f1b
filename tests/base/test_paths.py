"""Folders of the program's files, in a checkout and in an installed wheel."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.base.errors import HomeUnusable
from launcher.base.paths import (
    HOME_VARIABLE,
    cache_dir,
    check_home,
    config_dir,
    expand_user,
    explain_os_error,
    runtime_dir,
    shipped_file,
    state_dir,
)
from launcher.base.units import process_age_s

ROOT = Path(__file__).parents[2]


def test_the_variable_moves_all_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "stick"))
    assert cache_dir() == tmp_path / "stick" / "cache"
    assert config_dir() == tmp_path / "stick" / "config"
    assert state_dir() == tmp_path / "stick" / "state"
    assert runtime_dir() == tmp_path / "stick" / "state" / "run" / platform.node()


def test_a_relative_home_starts_at_the_current_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(HOME_VARIABLE, "portable")
    assert state_dir() == tmp_path / "portable" / "state"


def test_a_tilde_is_the_home_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(HOME_VARIABLE, "~/launcher")
    assert cache_dir() == tmp_path / "launcher" / "cache"


@pytest.mark.skipif(sys.platform != "linux", reason="the XDG folders are Linux's")
@pytest.mark.parametrize("value", [None, ""], ids=["unset", "empty"])
def test_without_the_variable_the_folders_of_the_system_are_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str | None
) -> None:
    monkeypatch.delenv(HOME_VARIABLE)
    if value is not None:
        monkeypatch.setenv(HOME_VARIABLE, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configs"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "states"))
    assert cache_dir() == tmp_path / "caches" / "mtp-launcher"
    assert config_dir() == tmp_path / "configs" / "mtp-launcher"
    assert state_dir() == tmp_path / "states" / "mtp-launcher"


def test_returning_a_folder_does_not_create_it(home: Path) -> None:
    runtime_dir()
    assert not home.exists()


def test_in_a_checkout_shipped_files_are_beside_the_package() -> None:
    assert shipped_file("resources", "system-libraries.txt") == ROOT / "resources" / "system-libraries.txt"
    assert shipped_file("resources", "system-libraries.txt").is_file()


def test_in_a_wheel_shipped_files_are_inside_the_package(tmp_path: Path) -> None:
    package = tmp_path / "launcher"
    (package / "base").mkdir(parents=True)
    (package / "_data").mkdir()
    for name in (
        "__init__.py",
        "base/__init__.py",
        "base/codec.py",
        "base/errors.py",
        "base/messages.py",
        "base/paths.py",
        "base/text.py",
    ):
        shutil.copy(ROOT / "launcher" / name, package / name)
    script = "from launcher.base.paths import shipped_file; print(shipped_file('presets', 'demo.toml'))"
    output = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120
    )
    assert output.stdout.strip() == str(package / "_data" / "presets" / "demo.toml")


def test_the_age_of_the_process_is_known() -> None:
    script = "from launcher.base.units import process_age_s as age; print(age()); input(); print(age())"
    pipe = subprocess.PIPE
    before_s = process_age_s()
    with subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        young_s = float(child.stdout.readline())
        lived_s = process_age_s() - before_s
        child.stdin.write(os.linesep)
        child.stdin.flush()
        assert 0 < young_s <= lived_s + 0.02
        assert float(child.stdout.readline()) > young_s


def test_a_tilde_with_an_unknown_user_is_not_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert expand_user("~/a.gguf") == Path.home() / "a.gguf"
    assert expand_user("~nobody-of-that-name/a.gguf") == Path("~nobody-of-that-name/a.gguf")
    monkeypatch.setenv(HOME_VARIABLE, "~nobody-of-that-name")
    assert cache_dir() == Path.cwd() / "~nobody-of-that-name" / "cache"


@pytest.mark.parametrize("below", [".", "further/below"])
def test_a_home_that_is_a_file_is_refused_with_a_hint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, below: str
) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv(HOME_VARIABLE, str(blocked / below))
    with pytest.raises(HomeUnusable) as refused:
        check_home()
    assert refused.value.title == f"MTP_LAUNCHER_HOME is {blocked / below}, but {blocked} is not a folder."
    assert refused.value.hint.startswith("Set MTP_LAUNCHER_HOME to a writable folder")


@pytest.mark.parametrize("name", ["", "home", "home/not/there/yet"])
def test_a_home_that_is_or_can_become_a_folder_is_accepted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / name) if name else "")
    check_home()


def test_an_error_in_our_folders_names_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    for home, inside in ((str(tmp_path / "stick"), "stick/state/run"), ("", "caches/mtp-launcher"), ("", "caches")):
        monkeypatch.setenv(HOME_VARIABLE, home)
        result = explain_os_error(PermissionError(13, "Permission denied", str(tmp_path / inside)))
        assert (result.code, "MTP_LAUNCHER_HOME" in result.hint) == ("home_unusable", True)
        assert result.title == f"The system refused: Permission denied ({tmp_path / inside})."
    elsewhere = explain_os_error(PermissionError(13, "Permission denied", "/elsewhere/model.gguf"))
    assert (elsewhere.code, elsewhere.hint) == ("error", "Check disk space and permissions.")
    assert explain_os_error(OSError("no number")).title == "The system refused: no number."
    assert (
        explain_os_error(OSError(28, "No space left on device", 7)).title
        == "The system refused: No space left on device."
    )


def test_a_full_disk_is_recognised_without_a_file_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "yet to be made"))
    full = shutil.disk_usage(tmp_path)._replace(free=16_384)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: {tmp_path: full}[path])
    result = explain_os_error(OSError(28, "No space left on device"))
    assert result.code == "home_unusable"
    assert result.title == f"The disk of {config_dir()} is full: 0.0 MB left."
    assert result.hint.startswith("Free space there, or use another disk. Set MTP_LAUNCHER_HOME")
    assert "Free space" not in explain_os_error(OSError(5, "Input/output error")).hint


def test_a_full_disk_is_named_by_the_file_that_had_no_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    full = shutil.disk_usage(tmp_path)._replace(free=16_384)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: full)
    ours = explain_os_error(OSError(28, "No space left on device", str(config_dir() / "model-folders.txt")))
    assert ours.title == f"The disk of {config_dir()} is full: 0.0 MB left."
    assert "MTP_LAUNCHER_HOME" in ours.hint
    theirs = explain_os_error(OSError(28, "No space left on device", str(tmp_path / "report.md")))
    assert theirs.title == f"The disk of {tmp_path} is full: 0.0 MB left."
    assert theirs.hint == "Free space there, or use another disk."


def test_a_file_in_place_of_a_folder_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = tmp_path / "person"
    blocked.touch()
    monkeypatch.delenv(HOME_VARIABLE, raising=False)
    for variable in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(variable, str(blocked / variable))
    with pytest.raises(OSError) as refused:
        config_dir().mkdir(parents=True)
    assert explain_os_error(refused.value).title == f"{blocked} is not a folder."
