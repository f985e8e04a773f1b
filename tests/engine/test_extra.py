"""A user's extra arguments as one line: split again unchanged."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.base.errors import BadOption
from launcher.engine.serve_options import ServeOptions, check_files, name_files_absolutely
from launcher.engine.settings import (
    change_settings,
    join_extra,
    load_model_settings,
    parse_settings,
    save_model_settings,
    split_extra,
)


@given(st.lists(st.text(st.characters(exclude_categories=("Cs",)))))
def test_joined_arguments_are_split_again_unchanged(words: list[str]) -> None:
    assert split_extra(join_extra(words)) == tuple(words)


def test_arguments_are_split_as_in_a_shell() -> None:
    assert split_extra(r'--lora C:\models\a.gguf  --chat-template "my template" # no comment') == (
        "--lora", r"C:\models\a.gguf", "--chat-template", "my template", "#", "no", "comment"
    )  # fmt: skip
    assert join_extra(["--temp", "0.5", "a b", 'say "hi"']) == """--temp 0.5 "a b" "say "'"'"hi"'"\'"""
    assert split_extra("") == ()
    with pytest.raises(BadOption, match="unclosed quote"):
        split_extra('--alias "open')


def test_files_in_extra_arguments_are_named_from_the_root(tmp_path: Path) -> None:
    folder, other = tmp_path / "here", tmp_path / "other.jinja"
    given = (
        *("--chat-template-file", "./t.jinja", "--temp", "0.5", "--grammar_file", "a/b.gbnf", "--log-file", "new.log"),
        *("--lora", "a.gguf,../b.gguf", "--lora-scaled", f"c.gguf:0.5,{other}:2", "--chat-template", "t.jinja", "-lcs"),
    )
    assert name_files_absolutely(given, folder) == (
        *("--chat-template-file", f"{folder / 't.jinja'}", "--temp", "0.5"),
        *("--grammar_file", f"{folder / 'a' / 'b.gbnf'}", "--log-file", f"{folder / 'new.log'}"),
        *("--lora", f"{folder / 'a.gguf'},{folder / '../b.gguf'}"),
        *("--lora-scaled", f"{folder / 'c.gguf'}:0.5,{other}:2", "--chat-template", "t.jinja", "-lcs"),
    )
    assert name_files_absolutely(name_files_absolutely(given, folder), tmp_path) == name_files_absolutely(given, folder)


def test_a_file_that_extra_arguments_name_must_exist(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()
    check_files(("--lora-scaled", "a.gguf:1", "--log-file", "new.log", "--lora", f"{tmp_path / 'a.gguf'}"), tmp_path)
    with pytest.raises(BadOption, match=r"b\.gguf, which --lora names, does not exist"):
        check_files(("--lora", "a.gguf,b.gguf"), tmp_path)


def test_extra_arguments_are_not_stored(tmp_path: Path) -> None:
    options = ServeOptions(model=tmp_path / "model.gguf")
    chosen = parse_settings({"extra": "--top-k 20", "draft": "3"})
    assert change_settings(options, chosen).extra == ("--top-k", "20")
    assert change_settings(change_settings(options, chosen), {"extra": None}).extra == ()
    with pytest.raises(BadOption, match="--port cannot be passed"):
        change_settings(options, {"extra": "--port 1"})
    save_model_settings(options.model, chosen)
    assert load_model_settings(options.model) == {"draft": 3}
