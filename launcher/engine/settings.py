"""The settings of a server that a user may change while it runs, by name, and those it had the last time."""

import difflib
import logging
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict

from launcher.base.amounts import TOKENS, amount
from launcher.base.errors import BadOption
from launcher.base.files import private_folder, read_or_copy, write_twice
from launcher.base.paths import state_dir
from launcher.engine.extra import split_extra
from launcher.engine.launch import Launch, ServeOptions, check_options

OPTIONS: Mapping[str, str] = {
    "ctx": "context",
    "draft": "draft",
    "slots": "slots",
    "threads": "threads",
    "kv": "kv",
    "ubatch": "ubatch",
    "n_cpu_moe": "n_cpu_moe",
}
"""The settings that are options of `serve`, by name, and the fields of ServeOptions that they are."""
_FIELDS = {**OPTIONS, "extra": "extra"}
_OPEN = frozenset({"ctx", "threads", "kv", "ubatch", "n_cpu_moe", "extra"})
"""Those that can be left to the program or the engine."""
_IN_TOKENS = ("ctx", "ubatch")
_LEFT_OPEN = ("default", "auto", "none")
_MOST_MODELS = 500
_LOCK_S = 5.0
_log = logging.getLogger(__name__)

Value = int | str | None
Settings = Mapping[str, Value]
"""Settings by name; None leaves one open."""


def parse_settings(written: Mapping[str, str], *, also: Sequence[str] = ()) -> dict[str, Value]:
    """Return settings from `{"ctx": "64K", "draft": "2"}`. `also` are names that its caller takes beside these.

    Raises BadOption for a name that is none, with the nearest one, and for a value that cannot be one.
    """
    return {(known := _name(name, also)): _value(known, text) for name, text in written.items()}


def with_settings(options: ServeOptions, settings: Settings) -> ServeOptions:
    """Return the options with other settings. Raises BadOption for a value that no engine could use."""
    changes: dict[str, Any] = {_FIELDS[_name(name)]: value for name, value in settings.items()}
    if "extra" in changes:
        changes["extra"] = split_extra(str(changes["extra"] or ""))
    changed = replace(options, **changes)
    check_options(changed)
    return changed


def changes_between(running: ServeOptions, wanted: ServeOptions) -> dict[str, str] | None:
    """Return the settings, as a user writes them, that make `wanted` of `running`; None when other things differ."""
    differs = {
        name: getattr(wanted, attribute)
        for name, attribute in _FIELDS.items()
        if getattr(wanted, attribute) != getattr(running, attribute)
    }
    written = {_shown(name): _written(value) for name, value in differs.items()}
    try:
        return written if with_settings(running, parse_settings(written)) == wanted else None
    except BadOption:
        return None


def _written(value: object) -> str:
    words = shlex.join(value) if isinstance(value, tuple) else value
    return _LEFT_OPEN[0] if words is None or words == "" else str(words)


def settings_of(launch: Launch) -> dict[str, object]:
    """Return the settings that a server runs with; what is left to the engine is None."""
    options = launch.options
    told: dict[str, object] = {name: getattr(options, attribute) for name, attribute in _FIELDS.items()}
    return told | {"ctx": launch.context, "extra": list(options.extra)}


def _name(text: str, also: Sequence[str] = ()) -> str:
    name = text.strip().lower().lstrip("-").replace("-", "_")
    if name in _FIELDS:
        return name
    if name == "context":
        return "ctx"
    near = difflib.get_close_matches(name, (*_FIELDS, *also), n=2, cutoff=0.5)
    all_names = ", ".join(map(_shown, (*_FIELDS, *also)))
    hint = f"Did you mean {' or '.join(map(_shown, near))}?" if near else f"There are {all_names}."
    raise BadOption(f"{text} is not a setting that can be changed.", hint, setting=text)


def flag_of(name: str) -> str:
    """Return the option of `serve` that a setting is."""
    return f"--{_shown(name)}"


def _shown(name: str) -> str:
    return name.replace("_", "-")


def _value(name: str, text: str) -> Value:
    word = text.strip().lower()
    if name in _OPEN and word in _LEFT_OPEN:
        return None
    if name == "extra":
        return text.strip()
    if name == "kv":
        return word
    number = amount(text, TOKENS if name in _IN_TOKENS else {"": 1})
    if number is None or number % 1:
        hint = "It is a number of tokens, such as 32768 or 32K." if name in _IN_TOKENS else "It is a whole number."
        raise BadOption(f"{text} is not a value for {_shown(name)}.", hint, setting=name)
    return int(number)


class _Kept(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    ctx: int | None = None
    draft: int | None = None
    slots: int | None = None
    threads: int | None = None
    kv: str | None = None
    ubatch: int | None = None
    n_cpu_moe: int | None = None


class _KeptSettings(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    models: dict[str, _Kept] = {}


def remembered(model: Path) -> dict[str, Value]:
    """Return the settings that a user chose for a model the last time it was served, without those left open."""
    with suppress(OSError):
        kept = _load(_file()).models.get(str(model.absolute()))
        return kept.model_dump(exclude_none=True) if kept else {}
    return {}


def remember(model: Path, settings: Settings) -> None:
    """Keep what a user chose for a model, their own arguments apart. Where that cannot be, a warning says so."""
    path, key = _file(), str(model.absolute())
    lasting = {name: value for name, value in settings.items() if value is not None and name != "extra"}
    chosen = _Kept.model_validate(lasting)
    try:
        private_folder(path.parent)
        with FileLock(path.with_suffix(".lock"), timeout=_LOCK_S):
            kept = _load(path)
            before = kept.models.pop(key, _Kept())
            if before == chosen:
                return
            models = dict(list(kept.models.items())[-_MOST_MODELS:]) | {key: chosen}
            if chosen == _Kept():
                del models[key]
            written = _KeptSettings(models=models).model_dump_json(indent=1, exclude_none=True)
            write_twice(path, written.encode())
    except (OSError, Timeout) as error:
        why = getattr(error, "strerror", None) or error
        _log.warning("The settings cannot be kept for the next time (%s): %s.", path, why)


def _file() -> Path:
    return state_dir() / "settings.json"


def _load(path: Path) -> _KeptSettings:
    try:
        return read_or_copy(path, _KeptSettings.model_validate_json, "The list of settings") or _KeptSettings()
    except FileNotFoundError:
        return _KeptSettings()
