"""App settings: kept values, values written by hand, and what overrides the file."""

import argparse
import os
import sys
import tomllib
from pathlib import Path

import pytest

from launcher.app import autostart, settings, settings_file
from launcher.app.settings_declared import AT_LOGIN, LANGUAGE, MODELS_FOLDER, SETTINGS, TEXT_SCALE, THEME, Setting
from launcher.base.errors import BadOption, TargetUnusable
from launcher.base.paths import MODELS_VARIABLE, models_dir
from launcher.engine.server.last_start import save_last_model
from launcher.fetch.transfer import TransferSettings
from tools.settings_table import render_document

BY_HAND = """\
# mine
[window]
theme = "dark"  # at night
colour = "teal"   # of another version
"text_scale" = 120

[other]
list = [
  1,
]
note = '''
[window]
theme = "light"
'''
"""


@pytest.fixture
def file(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The settings file, in a folder that exists; no environment variable overrides it."""
    monkeypatch.delenv(MODELS_VARIABLE, raising=False)
    monkeypatch.setattr(settings, "_variables_set", {})
    path = settings_file.settings_path()
    path.parent.mkdir(parents=True)
    return path


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary home on a desktop without systemd."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path


def read_value(name: str) -> object:
    return settings.read_app_settings().value(name)


def options(**given: object) -> argparse.Namespace:
    return argparse.Namespace(**{"verb": "gui", "language": None, "theme": None, "scale": None} | given)


def test_all_settings_have_their_defaults_without_a_file(file: Path, login: Path) -> None:
    current = settings.read_app_settings()
    assert [each.setting for each in current.states] == list(SETTINGS)
    assert {each.source for each in current.states} == {"default"}
    assert not any(each.changed for each in current.states)
    assert read_value(MODELS_FOLDER) == str(models_dir())
    assert current.notices == ()
    assert not file.exists()


@pytest.mark.parametrize("declared", SETTINGS, ids=lambda each: each.name)
def test_each_setting_is_declared_completely(declared: Setting) -> None:
    assert declared.group
    assert declared.title
    assert declared.sentence.endswith(".")
    assert bool(declared.choices) or declared.kind != "choice"
    if declared.kind == "choice":
        assert declared.default in [each for each, _ in declared.choices]
    if declared.kind == "number" and declared.choices:
        assert declared.default in [each for each, _ in declared.choices]
    elif declared.kind == "number":
        assert isinstance(declared.default, int)
        assert declared.least <= declared.default <= declared.most
        assert (declared.default - declared.least) % declared.step == 0
    text = "off" if declared.kind == "switch" else str(declared.default or 0)
    assert settings.parse_value(declared, text) is not None
    if declared.kind == "number":
        assert settings.parse_value(declared, f"{declared.most}") == declared.most
        with pytest.raises(BadOption, match="number from"):
            settings.parse_value(declared, str(declared.most + 1))


def test_a_changed_value_is_stored_and_a_default_is_removed_from_the_file(file: Path) -> None:
    standing = settings.change_setting(THEME, "dark")
    assert (standing.value, standing.source, standing.changed) == ("dark", "file", True)
    assert settings_file.read_settings_file().values == {THEME: "dark"}
    assert file.read_text().startswith("# Settings of MTP Launcher")
    if sys.platform != "win32":
        assert file.stat().st_mode & 0o077 == 0
    settings.change_setting(TEXT_SCALE, 150)
    assert settings.reset_setting(THEME).source == "default"
    settings.change_setting(TEXT_SCALE, 100)
    assert settings_file.read_settings_file().values == {}


def test_comments_and_layout_of_the_user_are_preserved(file: Path) -> None:
    file.write_text(BY_HAND)
    current = settings.read_app_settings()
    assert current.value(THEME) == "dark"
    assert current.value(TEXT_SCALE) == 120
    assert any("window.colour is not a setting of this version" in each for each in current.notices)
    settings.change_setting(THEME, "light")
    settings.change_setting(TEXT_SCALE, 90)
    settings.change_setting(LANGUAGE, "en")
    settings.reset_setting(TEXT_SCALE)
    changed = BY_HAND.replace('theme = "dark"  # at night', 'theme = "light"  # at night', 1)
    changed = changed.replace('"text_scale" = 120\n', 'language = "en"\n')
    assert file.read_text() == changed


def test_a_file_of_windows_notepad_is_read_and_changed(file: Path) -> None:
    file.write_bytes(b'\xef\xbb\xbf[window]\r\ntheme = "dark"\r\n')
    assert read_value(THEME) == "dark"
    settings.change_setting(TEXT_SCALE, 125)
    assert settings_file.read_settings_file().values == {THEME: "dark", TEXT_SCALE: 125}


def test_a_value_of_several_lines_is_replaced_completely(file: Path) -> None:
    file.write_text('[window]\ntheme = """\\\n  dark"""\nkeep = 1\n')
    assert read_value(THEME) == "dark"
    settings.change_setting(THEME, "light")
    assert file.read_text() == '[window]\ntheme = "light"\nkeep = 1\n'


@pytest.mark.parametrize("written", ['window = { theme = "dark" }\n', 'window.theme = "dark"\n'])
def test_a_file_that_cannot_be_edited_by_line_is_left_to_the_user(file: Path, written: str) -> None:
    file.write_text(written)
    assert read_value(THEME) == "dark"
    with pytest.raises(BadOption, match="cannot edit"):
        settings.change_setting(THEME, "light")
    assert file.read_text() == written


def test_a_damaged_file_is_renamed_with_a_notice(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    file.write_text("[window\ntheme = ")
    current = settings.read_app_settings()
    assert "was damaged" in current.notices[0]
    assert "settings.toml.bad" in current.notices[0]
    assert current.value(THEME) == "system"
    assert file.with_name("settings.toml.bad").read_text() == "[window\ntheme = "
    assert "is damaged" in caplog.text or "was damaged" in caplog.text
    assert settings.read_app_settings().notices == ()
    settings.change_setting(THEME, "dark")
    assert read_value(THEME) == "dark"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('theme = "pink"', "it must be one of system, light, dark"),
        ("text_scale = 500", "it must be a whole number from 80 to 200"),
        ("text_scale = true", "it must be a whole number from 80 to 200"),
        ("text_scale = 1979-05-27", "it must be a whole number from 80 to 200"),
    ],
)
def test_an_invalid_value_is_reported_and_not_used(file: Path, line: str, expected: str) -> None:
    file.write_text(f"[window]\n{line}\n")
    current = settings.read_app_settings()
    assert expected in current.notices[0]
    assert not any(each.changed for each in current.states if each.setting.stored)
    assert line in file.read_text()


def test_an_invalid_choice_is_refused(file: Path) -> None:
    for name, wrong in ((THEME, "pink"), (TEXT_SCALE, 300), (TEXT_SCALE, "big"), (AT_LOGIN, "yes")):
        with pytest.raises(BadOption):
            settings.change_setting(name, wrong)
    with pytest.raises(BadOption, match="from 80 to 200"):
        settings.parse_value(settings.find_setting(TEXT_SCALE), "20")
    with pytest.raises(BadOption) as refused:
        settings.find_setting("window.teme")
    assert refused.value.hint.startswith("Did you mean window.theme")
    assert not file.exists()


def test_values_are_parsed_as_people_write_them() -> None:
    assert settings.find_setting("text-scale").name == TEXT_SCALE
    assert settings.parse_value(settings.find_setting("text_scale"), "125 %") == 125
    assert settings.parse_value(settings.find_setting("language"), "ZH_cn") == "zh_CN"
    assert settings.parse_value(settings.find_setting("at_login"), "On") is True
    assert settings.parse_value(settings.find_setting("models.folder"), "~/models") == str(Path.home() / "models")


def test_the_folder_for_models_applies_at_once(file: Path, tmp_path: Path) -> None:
    usual, wanted = models_dir(), tmp_path / "big disk" / "models"
    settings.change_setting(MODELS_FOLDER, str(wanted))
    assert wanted.is_dir()
    assert models_dir() == wanted
    assert tomllib.loads(file.read_text())["models"]["folder"] == str(wanted)
    other = tmp_path / "other"
    settings.change_setting(MODELS_FOLDER, str(other))
    assert models_dir() == other
    settings.reset_setting(MODELS_FOLDER)
    assert models_dir() == usual
    assert MODELS_VARIABLE not in os.environ


def test_an_invalid_folder_is_refused(file: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TargetUnusable):
        settings.change_setting(MODELS_FOLDER, str(tmp_path / "file"))
    assert settings_file.read_settings_file().values == {}


def test_the_environment_variable_overrides_the_file(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MODELS_VARIABLE, str(tmp_path / "theirs"))
    standing = settings.change_setting(MODELS_FOLDER, str(tmp_path / "ours"))
    assert (standing.value, standing.source) == (str(tmp_path / "theirs"), MODELS_VARIABLE)
    assert standing.overridden
    settings.fill_options(options())
    assert models_dir() == tmp_path / "theirs"


def test_options_that_a_command_line_leaves_open_are_filled(file: Path, tmp_path: Path) -> None:
    file.write_text(f"[window]\ntheme = 'dark'\ntext_scale = 150\n[models]\nfolder = {str(tmp_path)!r}\n")
    given = options(theme="light")
    settings.fill_options(given)
    assert (given.theme, given.scale, given.language) == ("light", 150, None)
    assert models_dir() == tmp_path
    other = argparse.Namespace(verb="status")
    settings.fill_options(other)
    assert vars(other) == {"verb": "status"}
    os.environ.pop(MODELS_VARIABLE)


def test_an_invalid_file_stops_no_command(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    file.write_text("[window]\ntheme = 7\n")
    given = options()
    settings.fill_options(given)
    assert given.theme is None
    assert "window.theme" in caplog.text
    file.unlink()
    file.mkdir()
    settings.fill_options(given)
    assert "The settings file was damaged" in caplog.text
    assert file.with_name("settings.toml.bad").is_dir()


@pytest.mark.skipif(sys.platform == "win32", reason="the registry is the user's own")
def test_the_setting_for_login_reflects_autostart(file: Path, login: Path, tmp_path: Path) -> None:
    save_last_model("demo")
    settings.change_setting(MODELS_FOLDER, str(tmp_path / "models"))
    standing = settings.change_setting(AT_LOGIN, True)
    assert (standing.value, standing.source, standing.changed) == (True, "system", True)
    assert "serve" in standing.note
    assert "--last" in standing.note
    state = autostart.read_autostart()
    assert state.on
    # The started server reads the folder from the file, too.
    assert MODELS_VARIABLE not in Path(state.places[0]).read_text()
    assert models_dir() == tmp_path / "models"
    assert AT_LOGIN not in settings_file.read_settings_file().values
    assert settings.reset_setting(AT_LOGIN).value is False
    assert not autostart.read_autostart().on
    settings.reset_setting(MODELS_FOLDER)


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_a_symbolic_link_to_the_file_is_preserved(file: Path, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles" / "settings.toml"
    real.parent.mkdir()
    real.write_text("[window]\ntheme = 'dark'\n")
    file.symlink_to(real)
    settings.change_setting(THEME, "light")
    assert file.is_symlink()
    assert real.read_text() == '[window]\ntheme = "light"\n'


def test_downloads_use_the_settings_of_the_file(file: Path) -> None:
    assert settings.transfer_settings() == TransferSettings()
    file.write_text("[downloads]\nlimit = 2\nconnections = 3\n")
    assert settings.transfer_settings() == TransferSettings(connections=3, bytes_per_second=2_000_000)
    file.write_text("[downloads]\nlimit = 0\nconnections = 'many'\n")
    assert settings.transfer_settings() == TransferSettings()


def test_a_chat_uses_the_sampling_of_the_file_and_the_server_defaults(file: Path) -> None:
    assert settings.chat_sampling() == {}
    file.write_text('[chat]\ntemperature = 0\ntop_p = 0.95\nmin_p = "server"\ntop_k = 2.5\nthinking = "off"\n')
    assert settings.chat_sampling() == {"temperature": 0, "top_p": 0.95, "thinking": False}
    settings.change_setting("chat.max_tokens", 64)
    settings.change_setting("chat.thinking", "on")
    assert settings.chat_sampling() == {"temperature": 0, "top_p": 0.95, "max_tokens": 64, "thinking": True}


def test_numbers_keywords_and_multi_line_texts_are_stored(file: Path) -> None:
    temperature, prompt = settings.find_setting("temperature"), settings.find_setting("system_prompt")
    assert settings.parse_value(temperature, "0.7") == 0.7
    assert settings.parse_value(temperature, "Server") == "server"
    for wrong in ("nan", "inf", "2.01", "-0.1", "warm"):
        with pytest.raises(BadOption, match="a number from 0 to 2, or server"):
            settings.parse_value(temperature, wrong)
    text = 'Answer "briefly".\nAnd \\ kindly:\t1\x7f 你好'
    settings.change_setting(prompt.name, text)
    assert settings.read_app_settings().value(prompt.name) == text
    with pytest.raises(BadOption, match="a text of up to 20,000 characters"):
        settings.change_setting(prompt.name, "x" * 20_001)


def test_the_document_is_generated_from_the_declarations() -> None:
    """`just generate` writes the document."""
    assert [line.split("`")[1] for line in render_document().splitlines() if line.startswith("| `")] == [
        each.name for each in SETTINGS
    ]
