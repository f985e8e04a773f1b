"""Reads and writes settings.toml in the config folder.

A change replaces only the lines of one setting, so that the user's comments and unknown keys stay.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.base.errors import BadOption
from launcher.base.files import make_folder, write_atomically
from launcher.base.messages import join_messages, message
from launcher.base.paths import config_dir
from launcher.base.store import PARSE_ERRORS, KeptFile, hold_file_lock

Value = bool | int | float | str
_FIRST_LINE = (
    "# Settings of MTP Launcher. `mtp-launcher settings` lists them all; those not named here have their default.\n"
)
_LOCK_TIMEOUT_S = 5.0
_MAX_BYTES = 2**20
damage_notices: list[str] = []
"""Notices about damaged files that this process has set aside, for a window that opens later."""


@dataclass(frozen=True, slots=True)
class FileContents:
    """Contents of the file by TABLE.KEY, and notices about it."""

    values: Mapping[str, Value]
    notices: tuple[str, ...] = ()


def path() -> Path:
    """Return the path of the settings file."""
    return config_dir() / "settings.toml"


def read() -> FileContents:
    """Return the contents of the file. An invalid file is set aside as .bad, with a notice.

    Raises OSError as KeptFile.inspect does.
    """
    values, damaged = _FILE.load_with_damage(path())
    if damaged is None:
        return FileContents(values)
    where = (
        message("It is kept as {bad}.", bad=damaged.kept_as)
        if damaged.kept_as
        else message("It could not be renamed and is still {file}.", file=damaged.path)
    )
    notice = join_messages(
        message("The settings file was damaged ({error}), so the defaults are used.", error=damaged.why), where
    )
    damage_notices.append(notice)
    return FileContents(values, (notice,))


def write(name: str, value: Value | None) -> None:
    """Write a value, or remove the setting for None. All other lines stay as they are.

    Raises BadOption when the file has the setting in a form that cannot be changed line by line, and OSError.
    """
    file = path().resolve()  # keep a symlink, for example into a user's dotfiles
    make_folder(file.parent)
    with hold_file_lock(file, _LOCK_TIMEOUT_S):
        kept = dict(read().values)
        text = file.read_bytes().decode("utf-8-sig") if file.exists() else _FIRST_LINE
        if value is None and name not in kept:
            return
        changed = _change_text(text, name, value)
        wanted = {other: its_value for other, its_value in kept.items() if other != name}
        if value is not None:
            wanted[name] = value
        # A setting in an inline table, for example, cannot be changed by lines: the result would be invalid.
        try:
            as_wanted = _parse_file(changed.encode()) == wanted
        except PARSE_ERRORS:
            as_wanted = False
        if not as_wanted:
            raise BadOption(
                message("{name} in {file} is written in a form that the program cannot edit.", file=file, name=name),
                message(
                    "Edit the file yourself, or write each setting as KEY = VALUE on its own line under its [TABLE]."
                ),
                setting=name,
            )
        write_atomically(file, changed.encode())


def _parse_file(data: bytes) -> Mapping[str, Value]:
    return _flatten_tables(tomllib.loads(data.decode("utf-8-sig").replace("\r\n", "\n")))


def _flatten_tables(tables: Mapping[str, object], above: str = "") -> dict[str, Value]:
    """Return a table's values by TABLE.KEY. Values of other types (a date, a list) become text."""
    settings: dict[str, Value] = {}
    for key, value in tables.items():
        if isinstance(value, dict):
            settings |= _flatten_tables(value, f"{above}{key}.")
        else:
            settings[f"{above}{key}"] = value if isinstance(value, bool | int | float | str) else str(value)
    return settings


_FILE: KeptFile[Mapping[str, Value]] = KeptFile(
    "The settings file", _parse_file, dict, then="the defaults are used", most_bytes=_MAX_BYTES
)


def _change_text(text: str, name: str, value: Value | None) -> str:
    """Return the text with the setting's line changed, added, or removed for None."""
    table, _, key = name.partition(".")
    lines = text.replace("\r\n", "\n").splitlines()
    begin = next((at for at, line in enumerate(lines) if _is_table_head(line, table)), None)
    line = [] if value is None else [f"{key} = {_format_value(value)}"]
    if begin is None:
        gap = [""] if lines and lines[-1].strip() else []
        return _join_lines([*lines, *gap, f"[{table}]", *line])
    end = next((at for at in range(begin + 1, len(lines)) if lines[at].lstrip().startswith("[")), len(lines))
    for at in range(begin + 1, end):
        if re.match(rf"""\s*(?:{re.escape(key)}|"{re.escape(key)}"|'{re.escape(key)}')\s*=""", lines[at]):
            after, comment = _end_of_value(lines, at)
            return _join_lines([*lines[:at], *(f"{each}{comment}" for each in line), *lines[after:]])
    last = next((at for at in range(end - 1, begin, -1) if lines[at].strip()), begin)
    return _join_lines([*lines[: last + 1], *line, *lines[last + 1 :]])


def _is_table_head(line: str, table: str) -> bool:
    return re.fullmatch(rf"\s*\[\s*{re.escape(table)}\s*\]\s*(?:#.*)?", line) is not None


def _end_of_value(lines: list[str], begin: int) -> tuple[int, str]:
    """Return the index of the line after a value, and the trailing comment of a single-line value."""
    for end in range(begin + 1, len(lines) + 1):
        try:
            whole = tomllib.loads("\n".join(lines[begin:end]))
        except tomllib.TOMLDecodeError:
            continue
        line = lines[begin]
        hashes = [at for at, letter in enumerate(line) if letter == "#"] if end == begin + 1 else []
        for at in hashes:  # the first # that leaves the value unchanged begins the comment
            try:
                if tomllib.loads(line[:at]) == whole:
                    return end, f"  {line[at:]}"
            except tomllib.TOMLDecodeError:
                continue
        return end, ""
    return begin + 1, ""


def _format_value(value: Value) -> str:
    """Return a value as TOML.

    JSON strings are TOML strings, except for one control character that JSON does not escape.
    """
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _join_lines(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"
