"""App settings: reading, changing and applying them.

They are declared in settings_declared.py and kept in settings.toml in the config folder, which users may edit: see
settings_file.py.
"""

import difflib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.app import settings_file
from launcher.app.settings_declared import (
    APPLY,
    AT_LOGIN,
    CONNECTIONS,
    FINISH,
    LANGUAGE,
    LIMIT,
    MAX_TOKENS,
    MIN_P,
    NONE,
    OFF,
    ON,
    SETTINGS,
    SYSTEM,
    TEMPERATURE,
    TEXT_SCALE,
    THEME,
    THINKING,
    TOP_K,
    TOP_P,
    Setting,
)
from launcher.app.settings_file import Value
from launcher.base.errors import BadOption
from launcher.base.messages import message
from launcher.base.paths import data_dir, expand_user

if TYPE_CHECKING:
    import argparse

    from launcher.fetch.transfer import TransferSettings

DRAIN_S = 120.0
"""Most seconds for running replies to finish before a restart, with the setting "finish"."""
SAMPLING = {
    TEMPERATURE: "temperature",
    TOP_K: "top_k",
    TOP_P: "top_p",
    MIN_P: "min_p",
    MAX_TOKENS: "max_tokens",
    THINKING: "thinking",
}
"""Chat settings, and their names in requests."""
_log = logging.getLogger(__name__)
_YES, _NO = ("on", "yes", "true", "1"), ("off", "no", "false", "0")


@dataclass(frozen=True, slots=True)
class SettingState:
    """A setting with its current value and the origin of that value.

    `source` is "default", "file", "system", or the name of the environment variable that overrides the file. `note` is
    from the system, for example the command that starts at login.
    """

    setting: Setting
    value: Value
    source: str
    note: str = ""

    @property
    def changed(self) -> bool:
        """Whether the value differs from the default."""
        return self.value != default_of(self.setting)

    @property
    def overridden(self) -> bool:
        """Whether an environment variable overrides the file."""
        return bool(self.setting.variable) and self.source == self.setting.variable


@dataclass(frozen=True, slots=True)
class SettingsSnapshot:
    """Snapshot of all settings, with notices about the file."""

    path: Path
    standings: tuple[SettingState, ...]
    notices: tuple[str, ...]

    def value(self, name: str) -> Value:
        """Return the current value of a setting."""
        return next(each.value for each in self.standings if each.setting.name == name)


def find_setting(name: str) -> Setting:
    """Return the setting of a name, whose last part is enough. Raises BadOption with the nearest names."""
    wanted = name.strip().lower().replace("-", "_")
    for each in SETTINGS:
        if wanted in (each.name, each.name.partition(".")[2]):
            return each
    near = difflib.get_close_matches(wanted, [each.name for each in SETTINGS], n=2, cutoff=0.4)
    hint = (
        message("Did you mean {near}?", near=" or ".join(near))
        if near
        else message("There are {settings}.", settings=", ".join(s.name for s in SETTINGS))
    )
    raise BadOption(message("{name} is not a setting.", name=name), hint, setting=name)


def default_of(declared: Setting) -> Value:
    """Return the default of a setting. The default of a folder is computed at run time."""
    return str(data_dir() / "models") if declared.kind == "folder" else declared.default


def parse_value(declared: Setting, text: str) -> Value:
    """Return the value of a text. Raises BadOption for an invalid one."""
    word = text.strip()
    match declared.kind:
        case "switch" if word.lower() in (*_YES, *_NO):
            return word.lower() in _YES
        case "number" if (number := _number(declared, word)) is not None:
            value: Value = number
        case "choice" | "number":
            value = next((each for each, _ in declared.choices if each.lower() == word.lower()), word)
        case "folder":
            return str(expand_user(word).absolute())
        case _:
            value = word
    if problem := _problem(declared, value):
        raise BadOption(
            message("{name} cannot be {text}: {problem}.", name=declared.name, text=text, problem=problem),
            message("Nothing was changed."),
            setting=declared.name,
        )
    return value


def damage_notices() -> tuple[str, ...]:
    """Return the notices about damaged files that this process has set aside."""
    return tuple(settings_file.damage_notices)


def read_app_settings() -> SettingsSnapshot:
    """Return a snapshot of all settings. A damaged file is set aside and becomes a notice.

    Raises the system's OSError.
    """
    kept = settings_file.read()
    known = {each.name: each for each in SETTINGS if each.stored}
    notices = list(kept.notices)
    good: dict[str, Value] = {}
    for name, value in kept.values.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
            meant = message(" Did you mean {near}?", near=near[0]) if near else ""
            notices.append(f"{name} is no setting of this version; it is left in the file.{meant}")
        elif problem := _problem(known[name], value):
            notices.append(
                message("The value of {name} in the file is ignored: {problem}.", name=name, problem=problem)
            )
        else:
            good[name] = value
    return SettingsSnapshot(settings_file.path(), tuple(_state_of(each, good) for each in SETTINGS), tuple(notices))


def current_value(name: str) -> Value:
    """Return the current value of a setting in the file; the default where the file cannot be used."""
    return _current_values(name)[name]


def transfer_settings() -> "TransferSettings":
    """Return the settings of downloads."""
    from launcher.fetch.transfer import TransferSettings

    values = _current_values(LIMIT, CONNECTIONS)
    limit = None if values[LIMIT] == NONE else int(values[LIMIT]) * 10**6
    return TransferSettings(connections=int(values[CONNECTIONS]), bytes_per_second=limit)


def restart_drain_s() -> float:
    """Return how many seconds running replies may continue before the window restarts the server."""
    return DRAIN_S if current_value(APPLY) == FINISH else 0.0


def chat_sampling() -> dict[str, float | bool]:
    """Return the sampling settings of a chat, by their names in requests. Those left to the server are omitted."""
    values = ((SAMPLING[name], request_value(each)) for name, each in _current_values(*SAMPLING).items())
    return {name: each for name, each in values if each is not None}


def request_value(value: Value) -> float | bool | None:
    """Return a setting's value for a request. None leaves it to the server."""
    return {ON: True, OFF: False}.get(value) if isinstance(value, str) else value


def _current_values(*names: str) -> dict[str, Value]:
    try:
        kept: Mapping[str, Value] = settings_file.read().values
    except OSError:
        kept = {}
    values: dict[str, Value] = {}
    for name in names:
        declared, there = find_setting(name), kept.get(name)
        values[name] = default_of(declared) if there is None or _problem(declared, there) else there
    return values


def change_setting(name: str, value: Value) -> SettingState:
    """Change a setting, and return its new state.

    Raises BadOption for an invalid value or a file that must be edited by hand, TargetUnusable for a folder that cannot
    be made, and OSError.
    """
    declared = find_setting(name)
    if problem := _problem(declared, value):
        raise BadOption(
            message("{name} cannot be {value}: {problem}.", name=declared.name, value=value, problem=problem),
            message("Nothing was changed."),
            setting=name,
        )
    if not declared.stored:
        _ELSEWHERE[declared.name][1](value)
    else:
        if declared.kind == "folder":
            from launcher.models.folders import make_download_folder

            make_download_folder(Path(str(value)), named=f"`mtp-launcher settings set {declared.name}`")
        settings_file.write(declared.name, None if value == default_of(declared) else value)
    return _apply_change(declared)


def reset_setting(name: str) -> SettingState:
    """Reset a setting to its default, and return its new state. Raises what `change_setting` raises."""
    declared = find_setting(name)
    if declared.stored:
        settings_file.write(declared.name, None)
    else:
        _ELSEWHERE[declared.name][1](declared.default)
    return _apply_change(declared)


def hub_token_source() -> str | None:
    """Return the source of the user's hub token: "HF_TOKEN" or "file". None where there is none to use."""
    from launcher.fetch import hub

    try:
        if hub.hub_token() is None:
            return None
    except BadOption:  # there is a value, but it is not a valid token
        return None
    return "HF_TOKEN" if os.environ.get("HF_TOKEN", "").strip() else "file"


def fill_options(options: "argparse.Namespace") -> None:
    """Fill the options of a parsed command line that were not given from the settings.

    Never raises: problems of the file are logged as warnings.
    """
    if options.verb == "settings":
        return
    try:
        kept = settings_file.read()
    except OSError as error:
        _log.warning("The settings cannot be read (%s): %s.", settings_file.path(), error.strerror or error)
        return
    chosen: dict[str, Value] = {}
    for declared in SETTINGS:
        value = kept.values.get(declared.name) if declared.stored else None
        if value is not None and (problem := _problem(declared, value)):
            _log.warning("%s in %s is not used: %s.", declared.name, settings_file.path(), problem)
        elif value is not None:
            chosen[declared.name] = value
    for name, option in _OPTIONS.items():
        if name in chosen and getattr(options, option, "") is None and chosen[name] != SYSTEM:
            setattr(options, option, chosen[name])
    for declared in SETTINGS:
        if declared.variable and declared.name in chosen:
            _take_variable(declared, chosen[declared.name])


_OPTIONS = {LANGUAGE: "language", THEME: "theme", TEXT_SCALE: "scale"}
"""Command-line options that settings fill, where the verb has them and they were not given."""
_taken: dict[str, str] = {}
"""Environment variables that we set from the file, to tell them from the user's own."""


def _take_variable(declared: Setting, value: Value) -> None:
    """Set a setting's environment variable for the rest of this process, unless the user has set it."""
    if not _is_the_users(declared):
        os.environ[declared.variable] = _taken[declared.variable] = str(value)


def _is_the_users(declared: Setting) -> bool:
    there = os.environ.get(declared.variable)
    return bool(there) and there != _taken.get(declared.variable)


def _apply_change(declared: Setting) -> SettingState:
    """Return the state of a setting after a change, and apply it to this process."""
    if declared.variable and not _is_the_users(declared):
        os.environ.pop(declared.variable, None)
        _taken.pop(declared.variable, None)
        kept = settings_file.read().values.get(declared.name)
        if kept is not None:
            _take_variable(declared, kept)
    return next(each for each in read_app_settings().standings if each.setting is declared)


def _state_of(declared: Setting, kept: Mapping[str, Value]) -> SettingState:
    if not declared.stored:
        value, note = _ELSEWHERE[declared.name][0]()
        return SettingState(declared, value, "system" if value != declared.default else "default", note)
    if declared.variable and _is_the_users(declared):
        there = str(expand_user(os.environ[declared.variable]).absolute())
        return SettingState(declared, there, declared.variable)
    if declared.name in kept:
        return SettingState(declared, kept[declared.name], "file")
    return SettingState(declared, default_of(declared), "default")


def _problem(declared: Setting, value: Value) -> str:
    """Return why a value is invalid for a setting. Empty when it is valid."""
    match declared.kind:
        case "switch":
            return "" if isinstance(value, bool) else "it is on or off"
        case "number":
            kinds = int if declared.whole else int | float
            fits = isinstance(value, kinds) and not isinstance(value, bool) and declared.least <= value <= declared.most
            return "" if fits or value in [each for each, _ in declared.choices] else f"it is {declared.limits}"
        case "text":
            fits = isinstance(value, str) and len(value) <= declared.most
            return "" if fits else f"it is {declared.limits}"
        case "choice":
            return "" if value in [each for each, _ in declared.choices] else f"it is {declared.limits}"
        case "folder":
            return (
                ""
                if isinstance(value, str) and expand_user(value).is_absolute()
                else "it is the whole path of a folder"
            )


def _number(declared: Setting, word: str) -> int | float | None:
    """Return the number in a word with or without unit. None if it is no number."""
    text = word.removesuffix(declared.unit).strip()
    try:
        return int(text) if declared.whole else float(text)
    except ValueError:
        return None


def _read_login() -> tuple[Value, str]:
    from launcher.app import autostart

    state = autostart.read_autostart()
    return state.on, state.command or ""


def _switch_login(value: Value) -> None:
    """Switch autostart.

    The models folder is not written into the entry, because the started command reads the file itself.
    """
    from launcher.app import autostart

    if not value:
        autostart.switch_off()
        return
    ours = {name: os.environ.pop(name) for name, given in _taken.items() if os.environ.get(name) == given}
    try:
        autostart.switch_on(None)
    finally:
        os.environ.update(ours)


_ELSEWHERE: Mapping[str, tuple[Callable[[], tuple[Value, str]], Callable[[Value], None]]] = {
    AT_LOGIN: (_read_login, _switch_login)
}
"""Functions that read (with a note) and write the settings that the system keeps."""
