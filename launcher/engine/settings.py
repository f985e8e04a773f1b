"""Server settings by name, as users write and change them, and the settings saved for each model."""

import logging
import re
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from launcher.base.errors import BadOption
from launcher.base.files import make_private_folder
from launcher.base.kept_files import KeptFile, hold_file_lock
from launcher.base.messages import message
from launcher.base.paths import state_dir
from launcher.base.validation import BaseModel, ConfigDict, create_model
from launcher.engine.serve_options import ServeOptions, check_options
from launcher.engine.server.launch import Launch
from launcher.models.library_index import edit_index
from launcher.models.server_settings import LEFT_OPEN, ROWS, ServerSettings, Value, find_setting_name, to_fields

# The user's extra arguments as one line of text, for an input field or an option.

_NEEDS_QUOTES = re.compile(r"[\s\"']")


def split_extra(line: str) -> tuple[str, ...]:
    """Split a line into words at blanks outside of single or double quotes.

    A backslash has no special meaning, because Windows paths contain it. Raises BadOption for an unclosed quote.
    """
    reader = shlex.shlex(line, posix=True)
    reader.whitespace_split, reader.escape, reader.commenters = True, "", ""
    try:
        return tuple(reader)
    except ValueError:
        raise BadOption(
            message("The arguments have an unclosed quote."), message("Close or remove the quote."), option=line
        ) from None


def join_extra(words: Iterable[str]) -> str:
    """Join words into a line that `split_extra` splits into the same words."""
    return " ".join(map(_quote, words))


def _quote(word: str) -> str:
    if word and not _NEEDS_QUOTES.search(word):
        return word
    parts = [part for part in re.split('(")', word) if part]
    return "".join(f"'{part}'" if part == '"' else f'"{part}"' for part in parts) or '""'


EXTRA = "extra"
"""Name of the user's extra engine arguments: changed like a setting, as one line, but not a row of ROWS."""
_MOST_MODELS = 500
_LOCK_S = 5.0
_log = logging.getLogger(__name__)

Settings = Mapping[str, Value]
"""Settings by name; None leaves a setting open."""


def parse_settings(written: Mapping[str, str]) -> dict[str, Value]:
    """Parse settings written as text, such as `{"ctx": "64K", "draft": "2"}`.

    Raises BadOption for an unknown name, with the closest known one, and for an invalid value.
    """
    settings = {}
    for word, text in written.items():
        name = find_setting_name(word, also=(EXTRA,))
        settings[name] = _parse_value(name, text)
    return settings


def _parse_value(name: str, text: str) -> Value:
    if name == EXTRA:
        return None if text.strip().lower() in LEFT_OPEN else text.strip()
    return ROWS[name].parse_value(text)


def change_settings(options: ServeOptions, settings: Settings) -> ServeOptions:
    """Return `options` with changed settings. Raises BadOption for a value that no engine accepts."""
    named = {find_setting_name(name, also=(EXTRA,)): value for name, value in settings.items()}
    if EXTRA in named:
        options = replace(options, extra=split_extra(str(named.pop(EXTRA) or "")))
    changed = replace(options, **to_fields(named))
    check_options(changed)
    return changed


def changes_between(running: ServeOptions, wanted: ServeOptions) -> dict[str, str] | None:
    """Return the settings in which `wanted` differs, as a user writes them; None if it also differs in something else
    than the drafts that have come to this computer since."""
    written = {
        row.spelling: row.format_value(row.value_in(wanted))
        for row in ROWS.values()
        if row.value_in(wanted) != row.value_in(running)
    }
    if wanted.extra != running.extra:
        written[EXTRA] = shlex.join(wanted.extra) or LEFT_OPEN[0]
    try:
        running = replace(running, other_drafts=wanted.other_drafts)
        return written if change_settings(running, parse_settings(written)) == wanted else None
    except BadOption:
        return None


def launched_settings(launch: Launch) -> dict[str, object]:
    """Return the settings of a launched server by name, with the user's extra arguments; open ones are None."""
    options = launch.options
    settings: dict[str, object] = {name: row.value_in(options) for name, row in ROWS.items()}
    if options.used_draft_file is not None and not options.drafter.uses_head:  # no head, as readers assume
        settings["drafter"] = options.drafter.spec_type
    return settings | {"ctx": launch.context, EXTRA: list(options.extra)}


class _StrictModel(BaseModel):
    """Base of the saved settings of one model."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)


_FIELD_TYPES: dict[str, Any] = {
    name: (ServerSettings.__annotations__[row.attribute], None) for name, row in ROWS.items()
}
_ModelSettings: Any = create_model("_ModelSettings", __base__=_StrictModel, **_FIELD_TYPES)
"""The saved settings of one model: one field per setting, None if it is left open."""


class _KeptSettings(BaseModel):
    """The content of model-settings.json: saved settings by the absolute path of the model."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    models: dict[str, _ModelSettings] = {}


def load_model_settings(model: Path) -> dict[str, Value]:
    """Return the settings that the user chose when the model was last served; those left open are absent."""
    with suppress(OSError):
        kept = _FILE.load(_settings_file()).models.get(str(model.absolute()))
        return kept.model_dump(exclude_none=True) if kept else {}
    return {}


def save_model_settings(model: Path, settings: Settings) -> None:
    """Save the settings that the user chose for a model, without the extra arguments. Logs a warning on failure."""
    path, key = _settings_file(), str(model.absolute())
    chosen = _ModelSettings.model_validate(
        {name: value for name, value in settings.items() if value is not None and name != EXTRA}
    )
    try:
        make_private_folder(path.parent)
        with hold_file_lock(path, _LOCK_S):
            kept = _FILE.load(path)
            before = kept.models.pop(key, _ModelSettings())
            if before == chosen:
                return
            models = dict(list(kept.models.items())[-_MOST_MODELS:]) | {key: chosen}
            if chosen == _ModelSettings():
                del models[key]
            content = _KeptSettings(models=models).model_dump_json(indent=1, exclude_none=True)
            _FILE.save(path, content.encode())
    except OSError as error:
        why = getattr(error, "strerror", None) or error
        _log.warning("The settings cannot be kept for the next time (%s): %s.", path, why)


def keep_choices(options: ServeOptions, chosen: Settings) -> None:
    """Save the settings that the user chose for a model, and the draft that was named with them."""
    save_model_settings(options.model, chosen)
    if options.draft_file is not None and chosen.get("drafter") == options.spec_type:
        with suppress(OSError), edit_index() as index:  # else it must be named again
            index.drafts[options.model.absolute()] = options.draft_file.absolute()


def _settings_file() -> Path:
    return state_dir() / "model-settings.json"


_FILE = KeptFile(
    "The list of models' settings",
    _KeptSettings.model_validate_json,
    _KeptSettings,
    private=True,
    has_second_copy=True,
    former_name="settings.json",
)
