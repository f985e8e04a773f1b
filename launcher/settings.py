"""The settings of this program as they stand: read, changed, and handed to what goes by them.

They are declared in settings_declared.py, and kept in settings.toml in the config folder, which may be edited by
hand: see settings_file.py.
"""

import difflib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import settings_file
from launcher.base.errors import BadOption
from launcher.base.paths import data_dir, expanded
from launcher.settings_declared import (
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
from launcher.settings_file import Value

if TYPE_CHECKING:
    import argparse

    from launcher.fetch.transfer import TransferSettings

DRAIN_S = 120.0
"""So long may replies go on before a restart, where they are to be finished."""
SAMPLING = {
    TEMPERATURE: "temperature",
    TOP_K: "top_k",
    TOP_P: "top_p",
    MIN_P: "min_p",
    MAX_TOKENS: "max_tokens",
    THINKING: "thinking",
}
"""The settings that a chat samples with, and the names that requests have for them."""
_log = logging.getLogger(__name__)
_YES, _NO = ("on", "yes", "true", "1"), ("off", "no", "false", "0")


@dataclass(frozen=True, slots=True)
class Standing:
    """How a setting stands: the value in use, and where it comes from.

    `source` is "default", "file", "system", or the name of the variable that goes before the file. `note` is what
    the system adds, such as the command that starts at login.
    """

    setting: Setting
    value: Value
    source: str
    note: str = ""

    @property
    def changed(self) -> bool:
        """Whether it is another value than the default."""
        return self.value != default_of(self.setting)

    @property
    def overridden(self) -> bool:
        """Whether the environment decides, so that the file does not count."""
        return bool(self.setting.variable) and self.source == self.setting.variable


@dataclass(frozen=True, slots=True)
class Look:
    """All settings as they stand, and what is to be said about the file."""

    path: Path
    standings: tuple[Standing, ...]
    notices: tuple[str, ...]

    def value(self, name: str) -> Value:
        """Return the value in use."""
        return next(each.value for each in self.standings if each.setting.name == name)


def setting(name: str) -> Setting:
    """Return the setting of a name; its last part is enough. Raises BadOption, with the nearest names."""
    wanted = name.strip().lower().replace("-", "_")
    for each in SETTINGS:
        if wanted in (each.name, each.name.partition(".")[2]):
            return each
    near = difflib.get_close_matches(wanted, [each.name for each in SETTINGS], n=2, cutoff=0.4)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"There are {', '.join(s.name for s in SETTINGS)}."
    raise BadOption(f"There is no setting {name}.", hint, setting=name)


def default_of(declared: Setting) -> Value:
    """Return what holds where nothing is chosen; a folder's is known only now."""
    return str(data_dir() / "models") if declared.kind == "folder" else declared.default


def parse(declared: Setting, text: str) -> Value:
    """Return the value that a text means. Raises BadOption for one that it cannot be."""
    word = text.strip()
    match declared.kind:
        case "switch" if word.lower() in (*_YES, *_NO):
            return word.lower() in _YES
        case "number" if (number := _number(declared, word)) is not None:
            value: Value = number
        case "choice" | "number":
            value = next((each for each, _ in declared.choices if each.lower() == word.lower()), word)
        case "folder":
            return str(expanded(word).absolute())
        case _:
            value = word
    if problem := _problem(declared, value):
        raise BadOption(f"{declared.name} cannot be {text}: {problem}.", "Nothing was changed.", setting=declared.name)
    return value


def damage() -> tuple[str, ...]:
    """Return what is to be said of damaged files that this process has set aside."""
    return tuple(settings_file.damage)


def look() -> Look:
    """Return how all settings stand. A damaged file is set aside, and is a notice. Raises OSError of the system's."""
    kept = settings_file.read()
    known = {each.name: each for each in SETTINGS if each.stored}
    notices = list(kept.notices)
    good: dict[str, Value] = {}
    for name, value in kept.values.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
            meant = f" Did you mean {near[0]}?" if near else ""
            notices.append(f"{name} is no setting of this version; it is left in the file.{meant}")
        elif problem := _problem(known[name], value):
            notices.append(f"{name} in the file is not used: {problem}.")
        else:
            good[name] = value
    return Look(settings_file.path(), tuple(_standing(each, good) for each in SETTINGS), tuple(notices))


def value(name: str) -> Value:
    """Return the value in use of a setting that the file keeps; the default where the file cannot be used."""
    return _values(name)[name]


def transfer() -> "TransferSettings":
    """Return how downloads are received."""
    from launcher.fetch.transfer import TransferSettings

    found = _values(LIMIT, CONNECTIONS)
    limit = None if found[LIMIT] == NONE else int(found[LIMIT]) * 10**6
    return TransferSettings(connections=int(found[CONNECTIONS]), bytes_per_second=limit)


def drain_s() -> float:
    """Return how long replies that run may go on before the window restarts the server, in seconds."""
    return DRAIN_S if value(APPLY) == FINISH else 0.0


def sampling() -> dict[str, float | bool]:
    """Return what a chat samples with, by the names of requests; what is left to the server is left out."""
    found = ((SAMPLING[name], sampled(each)) for name, each in _values(*SAMPLING).items())
    return {name: each for name, each in found if each is not None}


def sampled(value: Value) -> float | bool | None:
    """Return what a request says for a setting's value; None leaves it to the server."""
    return {ON: True, OFF: False}.get(value) if isinstance(value, str) else value


def _values(*names: str) -> dict[str, Value]:
    try:
        kept: Mapping[str, Value] = settings_file.read().values
    except OSError:
        kept = {}
    found: dict[str, Value] = {}
    for name in names:
        declared, there = setting(name), kept.get(name)
        found[name] = default_of(declared) if there is None or _problem(declared, there) else there
    return found


def change(name: str, value: Value) -> Standing:
    """Choose a value, and return how the setting stands then.

    Raises BadOption for a value that it cannot have or a file that must be edited by hand, TargetUnusable for a folder
    that cannot be made, and OSError.
    """
    declared = setting(name)
    if problem := _problem(declared, value):
        raise BadOption(f"{declared.name} cannot be {value}: {problem}.", "Nothing was changed.", setting=name)
    if not declared.stored:
        _ELSEWHERE[declared.name][1](value)
    else:
        if declared.kind == "folder":
            from launcher.models.folders import make_folder

            make_folder(Path(str(value)), named=f"`mtp-launcher settings set {declared.name}`")
        settings_file.write(declared.name, None if value == default_of(declared) else value)
    return _now(declared)


def reset(name: str) -> Standing:
    """Go back to the default, and return how the setting stands then. Raises what `change` raises."""
    declared = setting(name)
    if declared.stored:
        settings_file.write(declared.name, None)
    else:
        _ELSEWHERE[declared.name][1](declared.default)
    return _now(declared)


def hub_token() -> str | None:
    """Return where the user's token for the hub is found: "HF_TOKEN" or "file"; None where there is none to use."""
    from launcher.fetch import hub

    try:
        if hub.token() is None:
            return None
    except BadOption:  # there is something, but it is no token
        return None
    return "HF_TOKEN" if os.environ.get("HF_TOKEN", "").strip() else "file"


def fill(options: "argparse.Namespace") -> None:
    """Give a command line that was read what it leaves open; what it says itself goes before.

    Never raises: what is wrong with the file is a warning.
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
"""The options of a command line that a setting fills, where the verb has them and they were not given."""
_taken: dict[str, str] = {}
"""Variables that were set by us from the file, so that they do not count as the user's."""


def _take_variable(declared: Setting, value: Value) -> None:
    """Let the rest of this process see a setting by the variable that it is read from, unless the user has set that."""
    if not _is_the_users(declared):
        os.environ[declared.variable] = _taken[declared.variable] = str(value)


def _is_the_users(declared: Setting) -> bool:
    there = os.environ.get(declared.variable)
    return bool(there) and there != _taken.get(declared.variable)


def _now(declared: Setting) -> Standing:
    """Return how a setting stands after it was changed, and let this process go by it."""
    if declared.variable and not _is_the_users(declared):
        os.environ.pop(declared.variable, None)
        _taken.pop(declared.variable, None)
        kept = settings_file.read().values.get(declared.name)
        if kept is not None:
            _take_variable(declared, kept)
    return next(each for each in look().standings if each.setting is declared)


def _standing(declared: Setting, kept: Mapping[str, Value]) -> Standing:
    if not declared.stored:
        value, note = _ELSEWHERE[declared.name][0]()
        return Standing(declared, value, "system" if value != declared.default else "default", note)
    if declared.variable and _is_the_users(declared):
        there = str(expanded(os.environ[declared.variable]).absolute())
        return Standing(declared, there, declared.variable)
    if declared.name in kept:
        return Standing(declared, kept[declared.name], "file")
    return Standing(declared, default_of(declared), "default")


def _problem(declared: Setting, value: Value) -> str:
    """Return why a setting cannot have a value; empty when it can."""
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
                "" if isinstance(value, str) and expanded(value).is_absolute() else "it is the whole path of a folder"
            )


def _number(declared: Setting, word: str) -> int | float | None:
    """Return the number that a word is, with its unit or without; None for what is none."""
    text = word.removesuffix(declared.unit).strip()
    try:
        return int(text) if declared.whole else float(text)
    except ValueError:
        return None


def _look_at_login() -> tuple[Value, str]:
    from launcher import autostart

    found = autostart.look()
    return found.on, found.command or ""


def _switch_login(value: Value) -> None:
    """Switch it; the folder for models is not written into the entry, for the command reads the file itself."""
    from launcher import autostart

    if not value:
        autostart.switch_off()
        return
    ours = {name: os.environ.pop(name) for name, given in _taken.items() if os.environ.get(name) == given}
    try:
        autostart.switch_on(None)
    finally:
        os.environ.update(ours)


_ELSEWHERE: Mapping[str, tuple[Callable[[], tuple[Value, str]], Callable[[Value], None]]] = {
    AT_LOGIN: (_look_at_login, _switch_login)
}
"""How what the system keeps is read, with a note, and written."""
