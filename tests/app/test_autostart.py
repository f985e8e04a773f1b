"""Autostart at login: the entry that is written and read back, and its removal."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from subprocess import list2cmdline

import pytest

from launcher.app import autostart
from launcher.base.errors import BadOption, ModelMissing
from launcher.base.paths import HOME_VARIABLE
from launcher.engine.server.last_start import require_last_model, save_last_model
from tests import forked

NASTY = "/m/a b'c\"d$HOME`id`%h\\é模 .gguf"


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary home on a desktop without systemd."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path


@pytest.fixture
def systemd(login: Path) -> Path:
    """A temporary home with a running systemd user instance."""
    folder = login / "run" / "systemd"
    folder.mkdir(parents=True)
    (folder / "private").touch()
    return login


def read_exec(entry: str) -> list[str]:
    """Parse Exec by the specification: the file's escapes first, then quotes, then field codes."""
    line = next(line for line in entry.splitlines() if line.startswith("Exec=")).removeprefix("Exec=")
    line = re.sub(r"\\(.)", lambda found: {"s": " ", "n": "\n", "t": "\t", "r": "\r"}.get(found[1], found[1]), line)
    words = re.findall(r'"((?:[^"\\]|\\.)*)"', line)
    return [re.sub(r"\\(.)", r"\1", word).replace("%%", "%") for word in words]


def test_autostart_is_off_by_default(login: Path) -> None:
    assert autostart.read_autostart() == autostart.Autostart()
    assert autostart.switch_off() == ()


def test_with_systemd_a_unit_is_written_enabled_and_removed(systemd: Path) -> None:
    state = autostart.switch_on("demo")
    unit = systemd / "config" / "systemd" / "user" / "mtp-launcher.service"
    wanted = unit.parent / "default.target.wants" / unit.name
    assert state.on
    assert state.places == (str(unit), str(wanted))
    assert wanted.resolve() == unit
    assert state.command
    assert state.command.endswith("serve --for-window --model demo")
    assert f"{HOME_VARIABLE}=" in unit.read_text()
    assert autostart.switch_off() == (str(unit), str(wanted))
    assert not unit.exists()
    assert not wanted.is_symlink()
    assert not autostart.read_autostart().on


def test_systemd_accepts_the_unit(systemd: Path) -> None:
    autostart.switch_on(NASTY)
    unit = systemd / "config" / "systemd" / "user" / "mtp-launcher.service"
    analyze = shutil.which("systemd-analyze")
    if analyze:
        result = subprocess.run(
            [analyze, "--user", "verify", str(unit)], capture_output=True, text=True, check=False, env=dict(os.environ)
        )
        assert "mtp-launcher.service" not in result.stderr, result.stderr
    assert "$$HOME" in unit.read_text("utf-8")
    assert "%%h" in unit.read_text("utf-8")


def test_without_systemd_the_desktop_starts_the_server(login: Path) -> None:
    state = autostart.switch_on(NASTY)
    entry = login / "config" / "autostart" / "mtp-launcher.desktop"
    assert state.places == (str(entry),)
    words = read_exec(entry.read_text("utf-8"))
    assert words[0] == "env"
    assert words[1] == f"{HOME_VARIABLE}={os.environ[HOME_VARIABLE]}"
    assert words[-4:] == ["serve", "--for-window", "--model", NASTY]
    autostart.switch_off()
    assert not entry.exists()


def test_switching_on_again_replaces_the_earlier_entry(systemd: Path) -> None:
    autostart.switch_on("demo")
    (systemd / "run" / "systemd" / "private").unlink()
    state = autostart.switch_on(None)
    assert [Path(place).suffix for place in state.places] == [".desktop"]
    assert state.command
    assert "--last" in state.command


def test_a_line_break_is_refused_where_the_file_cannot_hold_it_and_the_earlier_entry_stays(login: Path) -> None:
    before = autostart.switch_on("demo")
    with pytest.raises(BadOption, match="line break"):
        autostart.switch_on("a\nb")
    assert autostart.read_autostart() == before


def test_the_program_in_the_entry_exists(login: Path) -> None:
    command = autostart.serve_command("demo")
    assert Path(command[0]).exists()
    result = subprocess.run([*command[:-4], "--version"], capture_output=True, text=True, check=True, cwd="/")
    assert result.stdout.startswith("mtp-launcher ")


def test_windows_gets_one_line_without_a_console() -> None:
    command = autostart.serve_command("C:\\my models\\a.gguf", windowless=True)
    assert command[1:4] == ["-P", "-m", "launcher"]
    assert autostart.make_run_line(command) == list2cmdline(command)
    assert '"C:\\my models\\a.gguf"' in autostart.make_run_line(command)
    with pytest.raises(BadOption, match="too long"):
        autostart.make_run_line([*command, "x" * 300])


def test_the_last_model_is_stored_under_the_name_that_the_user_gave(
    home: Path, demo_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelMissing, match="No model was loaded"):
        require_last_model()
    save_last_model("demo")
    assert require_last_model() == "demo"
    monkeypatch.chdir(demo_model.parent)
    save_last_model(demo_model.name)
    assert require_last_model() == str(demo_model)


def test_serving_goes_on_if_the_last_model_cannot_be_stored(home: Path) -> None:
    home.mkdir()
    (home / "state").write_text("a file in the way")
    save_last_model("demo")
    with pytest.raises(ModelMissing):
        require_last_model()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run("autostart", *arguments)


@pytest.mark.usefixtures("forked_commands")
@pytest.mark.thorough
def test_the_command_reports_the_files_that_it_wrote(login: Path) -> None:
    assert run().stdout.startswith("Off")
    output = run("on", "--model", "demo").stdout
    entry = login / "config" / "autostart" / "mtp-launcher.desktop"
    assert str(entry) in output
    assert entry.exists()
    assert '"on": true' in run("status", "--json").stdout
    assert str(entry) in run("off").stdout
    assert not entry.exists()


@pytest.mark.usefixtures("forked_commands")
def test_a_missing_model_is_not_stored(login: Path) -> None:
    result = run("on", "--model", "/nowhere/x.gguf")
    assert result.returncode == 1
    assert "/nowhere/x.gguf" in result.stderr
    assert not (login / "config" / "autostart").exists()
    assert run("off", "--model", "demo").returncode == 1


@pytest.mark.usefixtures("forked_commands")
def test_a_folder_for_models_is_stored_if_a_variable_names_it_and_not_if_a_setting_does(login: Path) -> None:
    assert forked.run("settings", "set", "models.folder", login / "set").returncode == 0
    entry = run("on").stdout
    assert "--last" in entry
    assert "nothing starts until you have loaded one" in entry
    assert str(login / "set") not in entry
    environment = os.environ | {"MTP_LAUNCHER_MODELS": str(login / "named")}
    assert str(login / "named") in forked.run("autostart", "on", env=environment).stdout
