"""Reads and writes settings.toml in the config folder.

A change replaces only the lines of one setting, so that the user's comments and unknown keys stay.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from launcher.base.errors import BadOption
from launcher.base.files import make_folder, write_atomically
from launcher.base.kept_files import PARSE_ERRORS, KeptFile, hold_file_lock
from launcher.base.messages import join_messages, message
from launcher.base.paths import config_dir

AppSettingValue = bool | int | float | str
_FIRST_LINE = (
    "# Settings of MTP Launcher. `mtp-launcher settings` lists them all; those not named here have their default.\n"
)
_LOCK_TIMEOUT_S = 5.0
_MAX_BYTES = 2**20
damage_notices: list[str] = []
"""Notices about damaged files that this process has set aside, for a window that opens later."""


class FileContents(NamedTuple):
    """Contents of the file by TABLE.KEY, and notices about it."""

    values: Mapping[str, AppSettingValue]
    notices: tuple[str, ...] = ()


def settings_path() -> Path:
    """Return the path of the settings file."""
    return config_dir() / "settings.toml"


def read_settings_file() -> FileContents:
    """Return the contents of the file. An invalid file is set aside as .bad, with a notice.

    Raises OSError as KeptFile.load_with_damage does.
    """
    values, damage = _KEPT_FILE.load_with_damage(settings_path())
    if damage is None:
        return FileContents(values)
    if damage.kept_as:
        remains = message("It is kept as {bad}.", bad=damage.kept_as)
    else:
        remains = message("It could not be renamed and is still {file}.", file=damage.path)
    notice = join_messages(
        message("The settings file was damaged ({error}), so the defaults are used.", error=damage.reason), remains
    )
    damage_notices.append(notice)
    return FileContents(values, (notice,))


def write_setting(name: str, value: AppSettingValue | None) -> None:
    """Write a value, or remove the setting for None. All other lines stay as they are.

    Raises BadOption when the file has the setting in a form that cannot be changed line by line, and OSError.
    """
    file = settings_path().resolve()  # keep a symlink, for example into a user's dotfiles
    make_folder(file.parent)
    with hold_file_lock(file, _LOCK_TIMEOUT_S):
        values = dict(read_settings_file().values)
        text = file.read_bytes().decode("utf-8-sig") if file.exists() else _FIRST_LINE
        if value is None and name not in values:
            return
        if value is None:
            del values[name]
        else:
            values[name] = value
        changed = _change_text(text, name, value)
        # Fails for a setting in an inline table, for example, which cannot be changed line by line.
        try:
            is_correct = _parse_file(changed.encode()) == values
        except PARSE_ERRORS:
            is_correct = False
        if not is_correct:
            raise BadOption(
                message("{name} in {file} is written in a form that the program cannot edit.", file=file, name=name),
                message(
                    "Edit the file yourself, or write each setting as KEY = VALUE on its own line under its [TABLE]."
                ),
                setting=name,
            )
        write_atomically(file, changed.encode())


def _parse_file(data: bytes) -> Mapping[str, AppSettingValue]:
    import tomllib  # imported late: most users have no such file

    return _flatten_tables(tomllib.loads(data.decode("utf-8-sig").replace("\r\n", "\n")))


def _flatten_tables(tables: Mapping[str, object], prefix: str = "") -> dict[str, AppSettingValue]:
    """Return the values of all tables by TABLE.KEY. Values of other types (a date, a list) become text."""
    settings: dict[str, AppSettingValue] = {}
    for key, value in tables.items():
        if isinstance(value, dict):
            settings |= _flatten_tables(value, f"{prefix}{key}.")
        else:
            settings[f"{prefix}{key}"] = value if isinstance(value, bool | int | float | str) else str(value)
    return settings


_KEPT_FILE: KeptFile[Mapping[str, AppSettingValue]] = KeptFile(
    "The settings file", _parse_file, dict, consequence="the defaults are used", most_bytes=_MAX_BYTES
)


def _change_text(text: str, name: str, value: AppSettingValue | None) -> str:
    """Return the text with the setting's line changed, added, or removed for None."""
    table, _, key = name.partition(".")
    lines = text.replace("\r\n", "\n").splitlines()
    new_lines = [] if value is None else [f"{key} = {_format_value(value)}"]
    head = re.compile(rf"\s*\[\s*{re.escape(table)}\s*\]\s*(?:#.*)?")
    begin = next((index for index, line in enumerate(lines) if head.fullmatch(line)), None)
    if begin is None:
        gap = [""] if lines and lines[-1].strip() else []
        return _join_lines([*lines, *gap, f"[{table}]", *new_lines])
    end = begin + 1
    while end < len(lines) and not lines[end].lstrip().startswith("["):
        end += 1
    assignment = re.compile(rf"""\s*(?:{re.escape(key)}|"{re.escape(key)}"|'{re.escape(key)}')\s*=""")
    for index in range(begin + 1, end):
        if assignment.match(lines[index]):
            after, comment = _end_of_value(lines, index)
            return _join_lines([*lines[:index], *(f"{line}{comment}" for line in new_lines), *lines[after:]])
    while end > begin + 1 and not lines[end - 1].strip():  # the new lines go above the empty lines that end the table
        end -= 1
    return _join_lines([*lines[:end], *new_lines, *lines[end:]])


def _end_of_value(lines: list[str], begin: int) -> tuple[int, str]:
    """Return the index of the line after the value at `begin`, and the trailing comment of a single-line value."""
    import tomllib

    for end in range(begin + 1, len(lines) + 1):
        try:
            whole = tomllib.loads("\n".join(lines[begin:end]))
        except tomllib.TOMLDecodeError:
            continue
        line = lines[begin]
        if end > begin + 1:
            return end, ""
        for index in (index for index, letter in enumerate(line) if letter == "#"):
            with suppress(tomllib.TOMLDecodeError):  # suppressed if this # lies within a string
                if tomllib.loads(line[:index]) == whole:
                    return end, f"  {line[index:]}"
        return end, ""
    return begin + 1, ""


def _format_value(value: AppSettingValue) -> str:
    """Return a value as TOML. A JSON string is a TOML string, apart from DEL, which JSON does not escape."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _join_lines(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"
