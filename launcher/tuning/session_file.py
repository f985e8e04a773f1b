"""Session files: complete, or anonymised so that nothing identifies the computer or its user."""

import json
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.base.codec import from_json, to_json
from launcher.base.errors import ResultMissing, ResultUnreadable
from launcher.base.messages import message
from launcher.base.redact import find_user, redact_text
from launcher.tuning.history_environment import Environment
from launcher.tuning.history_records import Session
from launcher.tuning.workloads import shipped_workloads

FORMAT = "mtp-launcher measurement"
VERSION = 1
_MOST_BYTES = 256 * 2**20
_DAY_S = 86_400.0
_SHORTEST_NAME = 3
"""Least length of a user or computer name to remove; shorter ones are likely to be ordinary words."""
_ORDINARY_NAMES = frozenset(
    {"root", "user", "admin", "localhost", "linux", "windows", "debian", "ubuntu", "fedora", "nvidia"}
)
"""User and computer names that identify nobody, or that are words of an environment."""
_UUID = re.compile(r"\b(?:GPU-|MIG-)?[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE)
_MAC_ADDRESS = re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.IGNORECASE)
_SERIAL = re.compile(r"(\bserial(?:\s+number)?\b\W{0,3})[\w-]{4,}", re.IGNORECASE)
_PATH = re.compile(r"(?<![\w/.~:])(?:~|[A-Za-z]:)?(?:[/\\]+[^\s/\\'\"<>|:*?]+){2,}[/\\]?|\\\\[^\s'\"]+")
_URL = re.compile(r"\bhttps?://[^\s'\"<>,)]+", re.IGNORECASE)
OWN_PROMPTS = "own prompts"
"""Name of the user's own prompts in a shared file."""
_AXIS_SUFFIX = re.compile(r", (?:fill|context|streams|load)$")
"""Suffix of the workload's name in curves and endurance sessions."""
_PLACE_SUFFIXES = {", fill": re.compile(r" at \d+$"), ", streams": re.compile(r" \d+$")}
"""Suffixes of the prompts' names in curves, by that of the workload."""
_NAME_FIELDS = ("name", "workload")
_KERNEL = re.compile(r"(kernel \d+\.\d+)\S*")


def session_json(session: Session) -> str:
    """Return a complete session as the text of a file."""
    data = {"format": FORMAT, "version": VERSION, **to_json(session)}
    return json.dumps(data, ensure_ascii=False, indent=1) + "\n"


def read_bytes(path: Path, most: int) -> bytes:
    """Return the contents of a file of at most `most` bytes. Raises ResultMissing and ResultUnreadable."""
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except FileNotFoundError as error:
        raise ResultMissing(
            message("There is no file {path}.", path=path), message("Check the path."), path=str(path)
        ) from error
    except OSError as error:
        raise ResultUnreadable(
            message("{path} cannot be read: {strerror}.", path=path, strerror=error.strerror or error), path=str(path)
        ) from error
    if len(data) > most:
        raise ResultUnreadable(message("{path} is too large to be a shared measurement.", path=path), path=str(path))
    return data


def read_session_file(path: Path) -> Session:
    """Read a file that `session_json` wrote. Raises ResultMissing and ResultUnreadable."""
    text = read_bytes(path, _MOST_BYTES)
    try:
        data = json.loads(text)
        session = from_json(Session, data)
        if (data.get("format"), data.get("version")) != (FORMAT, VERSION):
            raise ValueError("it is of another format")
    except (ValueError, RecursionError) as error:
        hint = message("`mtp-launcher history share ID --to FILE.json` writes one.")
        raise ResultUnreadable(
            message("{path} is not a shared measurement.", path=path), hint, path=str(path)
        ) from error
    return session


def anonymize(
    session: Session, *, user: str | None = None, host: str | None = None, home: Path | None = None
) -> Session:
    """Return a session without user and computer names, paths, addresses, serial numbers and UUIDs.

    The user's own prompts and their file are renamed. Times are reduced to the day and durations, the kernel's version
    to two numbers. `user`, `host` and `home` default to those of the current user.
    """
    own, names = _own_workload_names(session)

    def clean(value: Any) -> Any:  # noqa: ANN401 -- any JSON value
        return remove_personal_data(value, user=user, host=host, home=home)

    began_s = session.began_s // _DAY_S * _DAY_S
    first_s = min((run.began_s for run in session.runs), default=0.0)
    return replace(
        session,
        workload=clean(OWN_PROMPTS + session.workload.removeprefix(own) if own else session.workload),
        began_s=began_s,
        ended_s=None if session.ended_s is None else began_s + session.ended_s - session.began_s,
        environment=anonymize_environment(session.environment, user=user, host=host, home=home),
        settings=clean(session.settings),
        result=clean(remove_own_names(session.result, own)),
        runs=tuple(
            replace(
                run,
                prompt=clean(names.get(run.prompt, run.prompt)),
                settings=clean(run.settings),
                began_s=round(run.began_s - first_s, 3),
                spoilt=clean(run.spoilt),
                error=clean(run.error),
            )
            for run in session.runs
        ),
    )


def anonymize_environment(
    environment: Environment, *, user: str | None = None, host: str | None = None, home: Path | None = None
) -> Environment:
    """Return an environment without personal data, the model's file name, and the kernel's exact version."""
    clean = remove_personal_data(to_json(environment), user=user, host=host, home=home)
    cleaned = from_json(Environment, clean)
    return replace(cleaned, system=_KERNEL.sub(r"\1", cleaned.system), model=replace(cleaned.model, file=None))


def _own_workload_names(session: Session) -> tuple[str, dict[str, str]]:
    """Return the name of a workload that did not ship with the program, and replacement names for its prompts.

    Both are empty for a shipped workload. A user's workload may have the name of a shipped one, so prompts are checked.
    """
    name, axis_suffix = _split_suffix(session.workload, _AXIS_SUFFIX)
    place_suffix = _PLACE_SUFFIXES.get(axis_suffix)
    prompts = {run.prompt: _split_suffix(run.prompt, place_suffix) for run in session.runs}
    bare = dict.fromkeys(prompt for prompt, _ in prompts.values())
    shipped = {prompt.name for each in shipped_workloads() if each.name == name for prompt in each.prompts}
    if not name or (shipped and shipped.issuperset(bare)):
        return "", {}
    numbers = {prompt: number for number, prompt in enumerate(bare, 1)}
    return name, {whole: f"prompt {numbers[prompt]}{place}" for whole, (prompt, place) in prompts.items()}


def _split_suffix(text: str, suffix: re.Pattern[str] | None) -> tuple[str, str]:
    found = suffix.search(text) if suffix else None
    return (text[: found.start()], found[0]) if found else (text, "")


def remove_own_names(value: Any, own: str, field: str = "") -> Any:  # noqa: ANN401 -- any JSON value
    """Return a JSON value without `own`, the name of the user's own workload.

    In name fields it is the whole text, elsewhere a word of a sentence. `field` is the key of the value.
    """
    if isinstance(value, str) and own:
        if field in _NAME_FIELDS:
            return OWN_PROMPTS if value == own else value
        return re.sub(rf"(?<=\bfor ){re.escape(own)}(?!\w)", OWN_PROMPTS, value)
    if isinstance(value, Mapping):
        return {name: remove_own_names(inside, own, str(name)) for name, inside in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(remove_own_names(inside, own, field) for inside in value)
    return value


def remove_personal_data(
    value: Any,  # noqa: ANN401 -- any JSON value
    *,
    user: str | None = None,
    host: str | None = None,
    home: Path | None = None,
) -> Any:  # noqa: ANN401 -- any JSON value
    """Return a JSON value whose texts identify no person or computer. See `anonymize`."""
    host = host or platform.node()
    names = [user or find_user(), host.partition(".")[0], host]
    hidden = [name for name in names if len(name) >= _SHORTEST_NAME and name.lower() not in _ORDINARY_NAMES]
    folder = home if home is not None else _find_home()

    def clean(each: Any) -> Any:  # noqa: ANN401 -- any JSON value
        if isinstance(each, str):
            return _clean_text(each, hidden, folder)
        if isinstance(each, Mapping):
            return {clean(str(name)): clean(inside) for name, inside in each.items()}
        if isinstance(each, list | tuple):
            return type(each)(clean(inside) for inside in each)
        return each

    return clean(value)


def _clean_text(text: str, hidden: list[str], home: Path | None) -> str:
    text = _URL.sub("[address]", text)
    text = redact_text(text, home=home)
    text = _UUID.sub("[id]", text)
    text = _MAC_ADDRESS.sub("[id]", text)
    text = _SERIAL.sub(r"\1[id]", text)
    text = _PATH.sub("[path]", text)
    for name in hidden:
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", "[name]", text, flags=re.IGNORECASE)
    return text


def _find_home() -> Path | None:
    with suppress(RuntimeError):
        return Path.home()
    return None
