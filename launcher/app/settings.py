"""App settings: reading, changing and applying them.

They are declared in settings_declared.py and kept in settings.toml in the config folder, which users may edit: see
settings_file.py.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from launcher.app import settings_file
from launcher.app.settings_declared import (
    ALLOWED_NAMES,
    AT_LOGIN,
    CACHE_DAYS,
    CACHE_DISK,
    CONNECTIONS,
    DOWNLOAD_LIMIT,
    LANGUAGE,
    LEAVE_OUT,
    MAX_TOKENS,
    MIN_P,
    SETTINGS,
    TEMPERATURE,
    TEXT_SCALE,
    THEME,
    THINKING,
    TOP_K,
    TOP_P,
    VALUE_NONE,
    VALUE_OFF,
    VALUE_ON,
    VALUE_SYSTEM,
    Setting,
)
from launcher.app.settings_file import AppSettingValue
from launcher.base.errors import BadOption
from launcher.base.messages import join_messages, message, suggest_names
from launcher.base.paths import cache_dir, data_dir, expand_user

if TYPE_CHECKING:
    import argparse

    from launcher.app.autostart import Autostart
    from launcher.engine.server.launch import Launch
    from launcher.fetch.transfer import TransferSettings
    from launcher.gateway.vault import StateVault, VaultUse

DRAIN_S = 30.0
"""The longest time that running replies get to finish before a restart, if the setting APPLY is "finish"."""
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


class SettingState(NamedTuple):
    """An app setting with its current value and the origin of that value.

    `source` is "default", "file", "system" for a setting that the system stores, or the name of the environment
    variable that overrides the file. `note` is from the system, such as the command that starts at login.
    """

    setting: Setting
    value: AppSettingValue
    source: str
    note: str = ""

    @property
    def changed(self) -> bool:
        """True if the value differs from the default."""
        return self.value != default_value(self.setting)

    @property
    def overridden(self) -> bool:
        """True if an environment variable overrides the file."""
        return bool(self.setting.variable) and self.source == self.setting.variable


class SettingsSnapshot(NamedTuple):
    """All app settings with their current values, the path of the settings file, and notices about it."""

    path: Path
    states: tuple[SettingState, ...]
    notices: tuple[str, ...]

    def value(self, name: str) -> AppSettingValue:
        """Return the current value of a setting."""
        return next(state.value for state in self.states if state.setting.name == name)


def find_setting(name: str) -> Setting:
    """Return the setting called `name`; its last part is enough. Raises BadOption with the nearest names."""
    wanted = name.strip().lower().replace("-", "_")
    for each in SETTINGS:
        if wanted in (each.name, each.name.partition(".")[2]):
            return each
    import difflib  # imported here, because only an unknown name needs it

    names = [each.name for each in SETTINGS]
    near = difflib.get_close_matches(wanted, names, n=2, cutoff=0.4)
    hint = suggest_names(near) or message("There are {settings}.", settings=", ".join(names))
    raise BadOption(message("{name} is not a setting.", name=name), hint, setting=name)


def default_value(declared: Setting) -> AppSettingValue:
    """Return the default of a setting. The default of the models folder depends on the user's home."""
    return str(data_dir() / "models") if declared.kind == "folder" else declared.default


def parse_value(declared: Setting, text: str) -> AppSettingValue:
    """Return the value that a user wrote as text. Raises BadOption for an invalid one."""
    word = text.strip()
    match declared.kind:
        case "switch" if word.lower() in (*_YES, *_NO):
            return word.lower() in _YES
        case "choice" if declared.switch_values and word.lower() in (*_YES, *_NO):
            return declared.switch_values[word.lower() in _YES]
        case "number" if (number := _parse_number(declared, word)) is not None:
            value: AppSettingValue = number
        case "choice" | "number":
            value = next((each for each, _ in declared.choices if each.lower() == word.lower()), word)
        case "folder":
            return str(expand_user(word).absolute())
        case _:
            value = word
    if problem := _find_problem(declared, value):
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
    contents = settings_file.read_settings_file()
    known = {each.name: each for each in SETTINGS if each.stored}
    notices = list(contents.notices)
    valid: dict[str, AppSettingValue] = {}
    for name, stored in contents.values.items():
        value = _convert_switch(known[name], stored) if name in known else stored
        if name not in known:
            import difflib

            near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
            notices.append(
                join_messages(
                    message("{name} is not a setting of this version; it stays in the file.", name=name),
                    suggest_names(near),
                )
            )
        elif problem := _find_problem(known[name], value):
            notices.append(
                message("The value of {name} in the file is ignored: {problem}.", name=name, problem=problem)
            )
        else:
            valid[name] = value
    states = tuple(_read_state(each, valid) for each in SETTINGS)
    return SettingsSnapshot(settings_file.settings_path(), states, tuple(notices))


def stored_value(name: str) -> AppSettingValue:
    """Return a setting's value from the file, without overrides by environment variables.

    Returns its default if the file has no valid value.
    """
    return _stored_values(name)[name]


def read_allowed_names() -> frozenset[str]:
    """Return the host names, and the origins of web pages, that the user allows beside those of this computer."""
    return frozenset(str(stored_value(ALLOWED_NAMES)).lower().split())


def read_cache_limits() -> tuple[int, float]:
    """Return the most bytes of conversations that are kept on disk, and the days to keep one."""
    values = _stored_values(CACHE_DISK, CACHE_DAYS)
    return int(values[CACHE_DISK]) << 30, float(values[CACHE_DAYS])


def read_left_out(path: Path) -> frozenset[str] | None:
    """Return the names of API keys and aliases whose conversations are not kept on disk, in lower case.

    It is asked with each request, so the settings file, at `path`, is read only after it has changed. None, which
    means all, if it cannot be read, or was set aside because of that.
    """
    try:
        stat = path.stat()
        return _read_left_out(path, stat.st_ino, stat.st_mtime_ns, stat.st_size)
    except FileNotFoundError:
        return None if path.with_name(f"{path.name}.bad").exists() else frozenset()
    except OSError:
        return None


@lru_cache(maxsize=1)
def _read_left_out(*_identity: object) -> frozenset[str] | None:
    if settings_file.read_settings_file().notices:
        return None
    return frozenset(str(stored_value(LEAVE_OUT)).lower().split())


def open_vault() -> "StateVault":
    """Return the vault of conversations on disk, which its user closes."""
    from launcher.gateway.vault import StateVault

    return StateVault(cache_dir() / "states", read_cache_limits)


def read_kept(launch: "Launch | None" = None) -> "VaultUse":
    """Return how much is kept of conversations on disk, for the engine of a launch or in all."""
    kind = None
    if launch is not None:
        try:
            kind = launch.state_key
        except OSError:  # its model's file is gone
            kind = ""
    with closing(open_vault()) as vault:
        return vault.read_use(kind)


def forget_kept() -> "VaultUse":
    """Delete all that is kept of conversations on disk; return what is left."""
    with closing(open_vault()) as vault:
        vault.forget_all()
        return vault.read_use()


def forget_conversations(conversation_ids: Sequence[str]) -> None:
    """Delete what models have read of the window's chats from the disk."""
    with closing(open_vault()) as vault:
        vault.forget_conversations(conversation_ids)


def transfer_settings() -> "TransferSettings":
    """Return the settings of downloads."""
    from launcher.fetch.transfer import TransferSettings

    values = _stored_values(DOWNLOAD_LIMIT, CONNECTIONS)
    limit = None if values[DOWNLOAD_LIMIT] == VALUE_NONE else int(values[DOWNLOAD_LIMIT]) * 10**6
    return TransferSettings(connections=int(values[CONNECTIONS]), bytes_per_second=limit)


def chat_sampling() -> dict[str, float | bool]:
    """Return the sampling settings of a chat, by their names in requests. Those left to the server are omitted."""
    sampling = {}
    for name, value in _stored_values(*SAMPLING).items():
        parameter = request_value(value)
        if parameter is not None:
            sampling[SAMPLING[name]] = parameter
    return sampling


def request_value(value: AppSettingValue) -> float | bool | None:
    """Return a setting's value for a request. None leaves it to the server."""
    return {VALUE_ON: True, VALUE_OFF: False}.get(value) if isinstance(value, str) else value


def _stored_values(*names: str) -> dict[str, AppSettingValue]:
    try:
        stored: Mapping[str, AppSettingValue] = settings_file.read_settings_file().values
    except OSError:
        stored = {}
    values: dict[str, AppSettingValue] = {}
    for name in names:
        declared = find_setting(name)
        value = _convert_switch(declared, stored[name]) if name in stored else None
        values[name] = default_value(declared) if value is None or _find_problem(declared, value) else value
    return values


def change_setting(name: str, value: AppSettingValue) -> SettingState:
    """Change a setting, and return its new state.

    Raises BadOption for an invalid value or a file that must be edited by hand, TargetUnusable for a folder that cannot
    be made, and OSError.
    """
    declared = find_setting(name)
    value = _convert_switch(declared, value)
    if problem := _find_problem(declared, value):
        raise BadOption(
            message("{name} cannot be {value}: {problem}.", name=declared.name, value=value, problem=problem),
            message("Nothing was changed."),
            setting=name,
        )
    if not declared.stored:
        _SYSTEM_SETTINGS[declared.name].write(value)
    else:
        if declared.kind == "folder":
            from launcher.models.folders import make_download_folder

            make_download_folder(Path(str(value)), given_by=f"`mtp-launcher settings set {declared.name}`")
        settings_file.write_setting(declared.name, None if value == default_value(declared) else value)
    return _apply_change(declared)


def reset_setting(name: str) -> SettingState:
    """Reset a setting to its default, and return its new state. Raises what `change_setting` raises."""
    declared = find_setting(name)
    if declared.stored:
        settings_file.write_setting(declared.name, None)
    else:
        _SYSTEM_SETTINGS[declared.name].write(declared.default)
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
    """Apply the settings to a parsed command line: to options that were not given, and to environment variables.

    Never raises: problems of the file are logged as warnings.
    """
    if options.verb == "settings":
        return
    try:
        stored = settings_file.read_settings_file().values
    except OSError as error:
        _log.warning("The settings cannot be read (%s): %s.", settings_file.settings_path(), error.strerror or error)
        return
    chosen: dict[str, AppSettingValue] = {}
    for declared in SETTINGS:
        value = stored.get(declared.name) if declared.stored else None
        value = None if value is None else _convert_switch(declared, value)
        if value is not None and (problem := _find_problem(declared, value)):
            _log.warning("%s in %s is not used: %s.", declared.name, settings_file.settings_path(), problem)
        elif value is not None:
            chosen[declared.name] = value
    for name, option in _OPTIONS.items():
        if name in chosen and getattr(options, option, "") is None and chosen[name] != VALUE_SYSTEM:
            setattr(options, option, chosen[name])
    for declared in SETTINGS:
        if declared.variable and declared.name in chosen:
            _set_variable(declared, chosen[declared.name])


_OPTIONS = {LANGUAGE: "language", THEME: "theme", TEXT_SCALE: "scale"}
"""Command-line options that settings fill if the verb has them and they were not given."""
_variables_set: dict[str, str] = {}
"""Environment variables that this process has set from the file, as opposed to the user's own."""


def _set_variable(declared: Setting, value: AppSettingValue) -> None:
    """Set a setting's environment variable for the rest of this process, unless the user has set it."""
    if not _is_set_by_user(declared):
        os.environ[declared.variable] = _variables_set[declared.variable] = str(value)


def _is_set_by_user(declared: Setting) -> bool:
    value = os.environ.get(declared.variable)
    return bool(value) and value != _variables_set.get(declared.variable)


def _apply_change(declared: Setting) -> SettingState:
    """Return the state of a setting after a change, and apply it to this process."""
    if declared.name in (CACHE_DISK, CACHE_DAYS) and (cache_dir() / "states").exists():
        read_kept()  # what is kept then is as little as that
    if declared.variable and not _is_set_by_user(declared):
        os.environ.pop(declared.variable, None)
        _variables_set.pop(declared.variable, None)
        value = settings_file.read_settings_file().values.get(declared.name)
        if value is not None:
            _set_variable(declared, value)
    return next(each for each in read_app_settings().states if each.setting is declared)


def _read_state(declared: Setting, stored: Mapping[str, AppSettingValue]) -> SettingState:
    if not declared.stored:
        value, note = _SYSTEM_SETTINGS[declared.name].read()
        return SettingState(declared, value, "system" if value != declared.default else "default", note)
    if declared.variable and _is_set_by_user(declared):
        value = str(expand_user(os.environ[declared.variable]).absolute())
        return SettingState(declared, value, declared.variable)
    if declared.name in stored:
        return SettingState(declared, stored[declared.name], "file")
    return SettingState(declared, default_value(declared), "default")


def _convert_switch(declared: Setting, value: AppSettingValue) -> AppSettingValue:
    """Return a setting's value; what off and on mean if it was a switch in an earlier version."""
    return declared.switch_values[value] if isinstance(value, bool) and declared.switch_values else value


def _find_problem(declared: Setting, value: AppSettingValue) -> str:
    """Return why a value is invalid for a setting. Empty when it is valid."""
    match declared.kind:
        case "switch":
            return "" if isinstance(value, bool) else message("it must be on or off")
        case "number":
            kinds = int if declared.whole else int | float
            fits = isinstance(value, kinds) and not isinstance(value, bool) and declared.least <= value <= declared.most
            return "" if fits or value in [each for each, _ in declared.choices] else _limits_message(declared)
        case "text":
            fits = isinstance(value, str) and len(value) <= declared.most
            return "" if fits else _limits_message(declared)
        case "choice":
            return "" if value in [each for each, _ in declared.choices] else _limits_message(declared)
        case "folder":
            fits = isinstance(value, str) and expand_user(value).is_absolute()
            return "" if fits else message("it must be the absolute path of a folder")


def _limits_message(declared: Setting) -> str:
    return message("it must be {limits}", limits=declared.limits)


def _parse_number(declared: Setting, word: str) -> int | float | None:
    """Return the number in a word with or without unit. None if it is not a number."""
    text = word.removesuffix(declared.unit).strip()
    try:
        return int(text) if declared.whole else float(text)
    except ValueError:
        return None


def _read_login() -> tuple[AppSettingValue, str]:
    from launcher.app import autostart

    state = autostart.read_autostart()
    return state.on, state.command or ""


def _write_login(value: AppSettingValue) -> None:
    from launcher.app import autostart

    if value:
        switch_autostart_on(None)
    else:
        autostart.switch_off()


def switch_autostart_on(model: str | None) -> "Autostart":
    """Start `model`, or the last served model for None, at login. Raises BadOption and OSError.

    Variables that this process has set are not written into the entry: `serve` reads the settings itself, and the
    variables would override a later change of them.
    """
    from launcher.app import autostart

    removed = {name: os.environ.pop(name) for name, value in _variables_set.items() if os.environ.get(name) == value}
    try:
        return autostart.switch_on(model)
    finally:
        os.environ.update(removed)


class _SystemAccess(NamedTuple):
    """Access to a setting that the system stores. `read` returns its value and a note about it."""

    read: Callable[[], tuple[AppSettingValue, str]]
    write: Callable[[AppSettingValue], None]


_SYSTEM_SETTINGS = {AT_LOGIN: _SystemAccess(_read_login, _write_login)}
