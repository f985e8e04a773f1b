"""settings.toml in the config folder: read as it is, and changed a line at a time, so that comments and keys that are
not known stay."""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.base.errors import BadOption
from launcher.base.files import make_folder, set_aside, write_atomically
from launcher.base.paths import config_dir

Value = bool | int | float | str
_BEGIN = "# Settings of MTP Launcher. `mtp-launcher settings` lists them all; what is not named here is as usual.\n"
_LOCK_S = 5.0
_MOST_BYTES = 2**20
damage: list[str] = []
"""What was said of files that this process has set aside, for a window that opens after the first look."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What the file holds, by TABLE.KEY, and what had to be said of it."""

    values: Mapping[str, Value]
    notices: tuple[str, ...] = ()


def path() -> Path:
    """Return where the settings are kept."""
    return config_dir() / "settings.toml"


def read() -> Kept:
    """Return what is kept. A file that is no TOML is set aside as .bad, with a notice. Raises OSError."""
    file = path()
    try:
        with file.open("rb") as opened:
            data = opened.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return Kept({})
    try:
        return Kept(_flat(_parsed(data)))
    except ValueError as error:
        bad = set_aside(file, "The file of settings", "all are as usual")
        where = f"It is kept as {bad}." if bad else f"It is left as {file}."
        notice = f"The file of settings was damaged ({error}), so all are as usual. {where}"
        damage.append(notice)
        return Kept({}, (notice,))


def write(name: str, value: Value | None) -> None:
    """Keep a value, or with None nothing, and leave all other lines as they are.

    Raises BadOption when the file writes the setting in a way that cannot be changed so, and OSError.
    """
    from filelock import FileLock

    file = path().resolve()  # a link to where somebody keeps such files stays one
    make_folder(file.parent)
    with FileLock(file.with_suffix(".lock"), timeout=_LOCK_S):
        kept = dict(read().values)
        text = file.read_bytes().decode("utf-8-sig") if file.exists() else _BEGIN
        if value is None and name not in kept:
            return
        written = _changed(text, name, value)
        wanted = {each: there for each, there in kept.items() if each != name}
        if value is not None:
            wanted[name] = value
        try:
            same = _flat(_parsed(written.encode())) == wanted
        except ValueError:
            same = False
        if not same:
            raise BadOption(
                f"{file} writes {name} in a way that only a person can change.",
                "Edit it, or write each setting as KEY = VALUE on a line of its own under its [TABLE].",
                setting=name,
            )
        write_atomically(file, written.encode())


def _parsed(data: bytes) -> dict[str, object]:
    if len(data) > _MOST_BYTES:
        raise ValueError("it is larger than any file of settings")
    return tomllib.loads(data.decode("utf-8-sig").replace("\r\n", "\n"))


def _flat(tables: Mapping[str, object], above: str = "") -> dict[str, Value]:
    """Return a table's values by TABLE.KEY; what is no value of ours (a date, a list) as its text."""
    found: dict[str, Value] = {}
    for key, each in tables.items():
        if isinstance(each, dict):
            found |= _flat(each, f"{above}{key}.")
        else:
            found[f"{above}{key}"] = each if isinstance(each, bool | int | float | str) else str(each)
    return found


def _changed(text: str, name: str, value: Value | None) -> str:
    """Return the text with the setting's line changed, added, or with None taken away."""
    table, _, key = name.partition(".")
    lines = text.replace("\r\n", "\n").splitlines()
    begin = next((at for at, line in enumerate(lines) if _heads(line, table)), None)
    line = [] if value is None else [f"{key} = {_written(value)}"]
    if begin is None:
        gap = [""] if lines and lines[-1].strip() else []
        return _joined([*lines, *gap, f"[{table}]", *line])
    end = next((at for at in range(begin + 1, len(lines)) if lines[at].lstrip().startswith("[")), len(lines))
    for at in range(begin + 1, end):
        if re.match(rf"""\s*(?:{re.escape(key)}|"{re.escape(key)}"|'{re.escape(key)}')\s*=""", lines[at]):
            after, comment = _end_of_value(lines, at)
            return _joined([*lines[:at], *(f"{each}{comment}" for each in line), *lines[after:]])
    last = next((at for at in range(end - 1, begin, -1) if lines[at].strip()), begin)
    return _joined([*lines[: last + 1], *line, *lines[last + 1 :]])


def _heads(line: str, table: str) -> bool:
    return re.fullmatch(rf"\s*\[\s*{re.escape(table)}\s*\]\s*(?:#.*)?", line) is not None


def _end_of_value(lines: list[str], begin: int) -> tuple[int, str]:
    """Return the line after a value, which may be written over several, and a comment behind one of a single line."""
    for end in range(begin + 1, len(lines) + 1):
        try:
            whole = tomllib.loads("\n".join(lines[begin:end]))
        except tomllib.TOMLDecodeError:
            continue
        line = lines[begin]
        marks = [at for at, letter in enumerate(line) if letter == "#"] if end == begin + 1 else []
        for at in marks:  # the first that leaves the value whole begins the comment
            try:
                if tomllib.loads(line[:at]) == whole:
                    return end, f"  {line[at:]}"
            except tomllib.TOMLDecodeError:
                continue
        return end, ""
    return begin + 1, ""


def _written(value: Value) -> str:
    """Write a value as TOML; JSON's strings are TOML's, but for the one control character that JSON leaves as it is."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _joined(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"
