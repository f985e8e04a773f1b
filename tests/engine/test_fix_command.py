"""The command that repeats a start, and the command of an action."""

from dataclasses import replace
from pathlib import Path

import pytest

from launcher.base.action import Action, ActionKind, Value
from launcher.base.errors import EngineFailed, ModelHasNoHead
from launcher.engine.diagnosis.fix_command import command_for
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.last_start import RepeatableStart, load_last_start, quote_command, save_last_start
from launcher.engine.settings import save_model_settings
from launcher.models.library_index import Record, edit_index

OPTIONS = ServeOptions(Path("/models/m.gguf"), context=65_536, draft=3, kv="q8_0", extra=("--jinja", "-x", "1"))


def start(options: ServeOptions = OPTIONS, port: int | None = None) -> RepeatableStart:
    chosen = {"ctx": 65_536, "kv": "q8_0"}
    return RepeatableStart.from_options(options, model_name="m:Q4", chosen=chosen, port=port, shared=False)


def action(kind: ActionKind, **parameters: Value) -> Action:
    return Action(kind, "Do it", parameters)


def test_a_start_command_has_the_options_that_the_user_gave() -> None:
    wanted = "mtp-launcher serve m:Q4 --ctx 65536 --kv q8_0 --port 9001 -- --jinja -x 1"
    assert quote_command(start(port=9_001).command_words) == wanted


def test_a_start_command_without_a_users_choices_has_every_option_that_is_not_default() -> None:
    options = replace(OPTIONS, engine=Path("/e/llama-server"), rpc=("a:1", "b:2"), extra=())
    words = RepeatableStart.from_options(options, model_name=None, chosen=None, port=None, shared=True).command_words
    wanted = "--engine /e/llama-server --ctx 65536 --kv q8_0 --draft 3 --rpc a:1,b:2 --lan"
    assert " ".join(words) == f"mtp-launcher serve /models/m.gguf {wanted}"


def test_kept_settings_that_are_not_used_add_defaults() -> None:
    save_model_settings(OPTIONS.model, {"ctx": 4_096, "ubatch": 64})
    assert "--defaults" in start().command_words
    save_model_settings(OPTIONS.model, {"ctx": 4_096})
    assert "--defaults" not in start().command_words


@pytest.mark.parametrize(
    ("wanted", "command"),
    [
        (
            action(ActionKind.SMALLER_CONTEXT, context=8_192),
            "mtp-launcher serve m:Q4 --ctx 8192 --kv q8_0 --port 9001 -- --jinja -x 1",
        ),
        (action(ActionKind.LOAD_PROJECTOR), None),  # none is known for this model
        (
            action(ActionKind.DRAFT_OFF),
            "mtp-launcher serve m:Q4 --ctx 65536 --kv q8_0 --draft 0 --port 9001 -- --jinja -x 1",
        ),
        (
            action(ActionKind.REMOVE_FLAG, flag="-x"),
            "mtp-launcher serve m:Q4 --ctx 65536 --kv q8_0 --port 9001 -- --jinja",
        ),
        (
            action(ActionKind.REMOVE_FLAG, flag="--cache-type-k"),
            "mtp-launcher serve m:Q4 --ctx 65536 --port 9001 -- --jinja -x 1",
        ),
        (
            action(ActionKind.BUILT_IN_ENGINE),
            "mtp-launcher serve m:Q4 --engine built-in --ctx 65536 --kv q8_0 --port 9001 -- --jinja -x 1",
        ),
        (action(ActionKind.OTHER_PORT), "mtp-launcher serve m:Q4 --ctx 65536 --kv q8_0 -- --jinja -x 1"),
        (action(ActionKind.RESTART), "mtp-launcher serve m:Q4 --ctx 65536 --kv q8_0 --port 9001 -- --jinja -x 1"),
        (action(ActionKind.OTHER_ENGINE_BUILD), "mtp-launcher engine install"),
        (action(ActionKind.OTHER_ENGINE_BUILD, backend="hip"), "mtp-launcher engine install --backend rocm"),
        (action(ActionKind.OTHER_MODEL), "mtp-launcher models"),
        (action(ActionKind.INSTALL_LIBRARY, library="libgomp.so.1"), "mtp-launcher doctor"),
        (action(ActionKind.UNSET_VARIABLE, variable="LLAMA_ARG_PORT"), "unset LLAMA_ARG_PORT"),
        (action(ActionKind.UNSET_VARIABLE, variable="A; reboot"), None),
        (action(ActionKind.REMOVE_FLAG, flag="--not-there"), None),
        (action(ActionKind.DOWNLOAD_AGAIN, file="/models/unknown.gguf"), None),
        (action(ActionKind.FREE_MEMORY), None),
    ],
    ids=lambda value: str(getattr(value, "kind", "")),
)
def test_an_action_is_a_command(wanted: Action, command: str | None) -> None:
    assert command_for(wanted, start(port=9_001)).command == command


@pytest.mark.parametrize(
    ("model", "command"),
    [
        ("demo", None),
        ("gemma-4-31b", "mtp-launcher pull gemma-4-31b --vision && mtp-launcher serve gemma-4-31b --vision"),
    ],
)
def test_a_projector_is_offered_where_one_is_known(model: str, command: str | None) -> None:
    plain = RepeatableStart.from_options(
        ServeOptions(OPTIONS.model), model_name=model, chosen={}, port=None, shared=False
    )
    assert command_for(action(ActionKind.LOAD_PROJECTOR), plain).command == command


def test_an_action_for_an_unknown_start_has_no_command() -> None:
    assert command_for(action(ActionKind.DRAFT_OFF), None).command is None
    assert command_for(action(ActionKind.OTHER_PORT), None).command is None


def test_only_web_links_are_opened() -> None:
    assert command_for(action(ActionKind.UPDATE_DRIVER, link="https://www.nvidia.com/drivers"), None).link
    assert command_for(action(ActionKind.UPDATE_DRIVER, link="file:///etc/passwd"), None).link is None


def test_a_downloaded_file_is_removed_and_downloaded_again(tmp_path: Path) -> None:
    path = tmp_path / "my model.gguf"
    with edit_index() as index:
        index.records.append(Record(paths=(path,), repo="owner/name", file="my model.gguf"))
    again = action(ActionKind.DOWNLOAD_AGAIN, file=str(path))
    assert command_for(again, None).command == "mtp-launcher pull 'owner/name:my model.gguf'"
    path.touch()
    remove = f"mtp-launcher models remove '{path}'"
    assert command_for(again, None).command == f"{remove} && mtp-launcher pull 'owner/name:my model.gguf'"


def test_a_name_with_control_characters_is_not_printed() -> None:
    assert command_for(action(ActionKind.RESTART), replace(start(), model="m\x1b[2J")).command is None


def test_the_last_start_is_stored_with_its_error(tmp_path: Path) -> None:
    assert load_last_start() is None
    save_last_start(start(), tmp_path / "log")
    kept = load_last_start()
    assert kept is not None
    assert (kept.start, kept.log, kept.diagnosis) == (start(), tmp_path / "log", None)
    error = EngineFailed("It failed.", diagnosis="killed", exit_code=-9)
    error.attach_actions([action(ActionKind.SMALLER_CONTEXT, context=4_096)])
    save_last_start(start(), tmp_path / "log", error)
    kept = load_last_start()
    assert kept is not None
    assert (kept.exit_code, kept.diagnosis, kept.actions) == (-9, "killed", error.actions)


def test_a_damaged_record_of_the_last_start_is_restored_from_its_copy(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_last_start(start(), Path("log"), ModelHasNoHead("No head."))
    path = home / "state" / "last-start.json"
    path.write_text("{")
    kept = load_last_start()
    assert kept is not None
    assert kept.error is not None
    assert (kept.start, kept.error.code, kept.error.title) == (start(), "model_has_no_mtp_head", "No head.")
    assert "The record of the last start was damaged" in caplog.text
    for each in (path, path.with_name("last-start.json.copy")):
        each.write_text("{")
    assert load_last_start() is None
