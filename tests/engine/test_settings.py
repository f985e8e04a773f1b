"""Server settings by name, and their storage."""

import gettext
import json
from pathlib import Path

import pytest

from launcher.base.errors import BadOption
from launcher.base.messages import message
from launcher.engine.serve_options import ServeOptions
from launcher.engine.settings import change_settings, load_model_settings, parse_settings, save_model_settings
from launcher.models.server_settings import ROWS, Value, format_settings, name_setting

MODEL = Path("/models/a model.gguf")


def settings_path(home: Path) -> Path:
    return home / "state" / "model-settings.json"


def test_settings_are_parsed_as_people_write_them() -> None:
    written = {"ctx": "64K", "--draft": "3", "n-cpu-moe": "12", "KV": "Q8_0", "threads": "auto", "context": "1M"}
    assert parse_settings(written) == {"ctx": 2**20, "draft": 3, "n_cpu_moe": 12, "kv": "q8_0", "threads": None}


@pytest.mark.parametrize("name", ROWS)
def test_a_setting_is_its_option_in_the_terminal_and_its_label_in_the_window(name: str) -> None:
    row, text = ROWS[name], message("Lower {setting}.", setting=name_setting(name))
    assert text == f"Lower {row.option}."
    assert text.render(gettext.NullTranslations()) == f"Lower {row.label or row.spelling}."


@pytest.mark.parametrize(
    ("name", "value", "terminal", "window"),
    [
        ("draft", 0, "--draft 0", "MTP off"),
        ("draft", 3, "--draft 3", "Draft length 3"),
        ("kv", "q8_0", "--kv q8_0", "KV cache q8_0"),
        ("kv_unified", False, "--no-kv-unified", "kv-unified off"),
    ],
)
def test_a_setting_with_a_value_is_named_in_both_faces(name: str, value: Value, terminal: str, window: str) -> None:
    text = message("Use {setting}.", setting=name_setting(name, value))
    assert text == f"Use {terminal}."
    assert text.render(gettext.NullTranslations()) == f"Use {window}."


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("drft", "draft"),
        ("ctx-size", "ctx"),
        ("slot", "slots"),
        ("n_gpu_moe", "n-cpu-moe"),
        ("zzz", "ctx, kv, draft, ubatch, slots, n-cpu-moe"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(BadOption, match="not a server setting") as raised:
        parse_settings({name: "1"})
    assert hint in raised.value.hint


@pytest.mark.parametrize("value", ["", "x", "--1", "1.5", "64KB", "²", "auto"])
def test_an_invalid_value_is_refused(value: str) -> None:
    with pytest.raises(BadOption, match="draft"):
        parse_settings({"draft": value})


@pytest.mark.parametrize(
    ("text", "tokens"), [("1.5K", 1_536), ("1.5M", 1_572_864), ("131,072", 131_072), ("1k", 1_024)]
)
def test_tokens_are_parsed_as_by_the_options_of_serve(text: str, tokens: int) -> None:
    assert parse_settings({"ctx": text, "ubatch": text}) == {"ctx": tokens, "ubatch": tokens}


def test_fractions_of_tokens_are_refused() -> None:
    with pytest.raises(BadOption, match=r"0\.3K is not a value for ctx") as raised:
        parse_settings({"ctx": "0.3K"})
    assert "32K" in raised.value.hint


def test_a_number_out_of_range_is_refused_with_the_range() -> None:
    with pytest.raises(BadOption, match="ctx -1 is out of range") as raised:
        change_settings(ServeOptions(model=MODEL), parse_settings({"ctx": "-1"}))
    assert "It goes from" in raised.value.hint


def test_a_range_is_shown_with_its_unit() -> None:
    for setting, hint in (("p_min", "It goes from 0 to 1."), ("ctx", "It goes from 256 to 16777216 tokens.")):
        with pytest.raises(BadOption) as raised:
            change_settings(ServeOptions(model=MODEL), {setting: 2**25})
        assert raised.value.hint == hint


def test_settings_are_formatted_as_a_user_writes_them() -> None:
    settings = {"ctx": 4_096, "kv_unified": True, "n_cpu_moe": 2, "ubatch": None}
    assert format_settings(settings) == "ctx 4096, kv-unified on, n-cpu-moe 2, ubatch default"


def test_settings_are_added_to_options_and_checked() -> None:
    options = ServeOptions(model=MODEL, context=1_024)
    assert change_settings(options, {"ctx": 4_096, "draft": 0}) == ServeOptions(model=MODEL, context=4_096, draft=0)
    with pytest.raises(BadOption):
        change_settings(options, {"draft": 99})


def test_settings_are_kept_for_each_model(home: Path) -> None:
    assert load_model_settings(MODEL) == {}
    save_model_settings(MODEL, {"ctx": 4_096, "kv": None, "draft": 0})
    save_model_settings(Path("/models/other.gguf"), {"slots": 2})
    assert load_model_settings(MODEL) == {"ctx": 4_096, "draft": 0}
    assert load_model_settings(Path("/models/other.gguf")) == {"slots": 2}
    assert settings_path(home).stat().st_mode & 0o077 == 0
    save_model_settings(MODEL, {})
    assert load_model_settings(MODEL) == {}


@pytest.mark.parametrize(
    "damage", ["", "{", "\0\0", '{"models": []}', '{"models": {"x": {"ctx": "many"}}}', '{"models": {"x": {"y": 1}}}']
)
def test_a_damaged_file_is_kept_and_reported(home: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    settings_path(home).parent.mkdir(parents=True)
    for count, before in ((1, {}), (2, {"draft": 1})):  # in the second round there is an earlier version to copy
        settings_path(home).write_text(damage)
        assert load_model_settings(MODEL) == before
        save_model_settings(MODEL, {"draft": 1})
        assert load_model_settings(MODEL) == {"draft": 1}
        assert caplog.text.count("The list of models' settings was damaged") == count
    assert "its copy takes its place" in caplog.text
    assert [path.read_text() for path in sorted(settings_path(home).parent.glob("model-settings.json.bad*"))] == [
        damage,
        damage,
    ]


def test_a_damaged_copy_is_not_restored(home: Path) -> None:
    save_model_settings(MODEL, {"draft": 1})
    for path in (settings_path(home), settings_path(home).with_name("model-settings.json.copy")):
        path.write_text("{")
    assert load_model_settings(MODEL) == {}


def test_a_deleted_file_is_not_restored(home: Path) -> None:
    save_model_settings(MODEL, {"draft": 1})
    settings_path(home).unlink()
    assert load_model_settings(MODEL) == {}


def test_an_unreadable_file_is_not_overwritten(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings_path(home).parent.mkdir(parents=True, mode=0o700)
    settings_path(home).symlink_to(settings_path(home))
    save_model_settings(MODEL, {"draft": 1})
    assert load_model_settings(MODEL) == {"draft": 1}
    assert settings_path(home).with_name("model-settings.json.bad").is_symlink()
    assert "The list of models' settings was damaged" in caplog.text


def test_an_unwritable_folder_is_only_reported(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    home.mkdir()
    (home / "state").write_text("in the way")
    save_model_settings(MODEL, {"draft": 1})
    assert load_model_settings(MODEL) == {}
    assert "cannot be kept for the next time" in caplog.text


def test_settings_of_a_limited_number_of_models_are_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.engine.settings._MOST_MODELS", 3)
    for number in range(9):
        save_model_settings(Path(f"/models/{number}.gguf"), {"draft": 1})
    assert list(json.loads(settings_path(home).read_text())["models"])[-1] == "/models/8.gguf"
    assert len(json.loads(settings_path(home).read_text())["models"]) <= 4
