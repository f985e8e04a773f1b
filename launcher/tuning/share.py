"""A measurement as one file: whole, or without anything that tells whose computer it was made on."""

import getpass
import json
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter, ValidationError

from launcher.base.errors import ResultMissing, ResultUnreadable
from launcher.base.redact import redacted
from launcher.tuning.history_environment import Environment
from launcher.tuning.history_records import Session
from launcher.tuning.records import Run, Value
from launcher.tuning.workloads import workloads

FORMAT: Literal["mtp-launcher measurement"] = "mtp-launcher measurement"
VERSION = 1
_MOST_BYTES = 256 * 2**20
_DAY_S = 86_400.0
_SHORTEST = 3
"""Characters of a user's or computer's name: a shorter one would be found in ordinary words."""
_ORDINARY = frozenset(
    {"root", "user", "admin", "localhost", "linux", "windows", "debian", "ubuntu", "fedora", "nvidia"}
)
"""Names that are nobody's, and words of the environment."""
_UUID = re.compile(r"\b(?:GPU-|MIG-)?[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE)
_HARDWARE = re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.IGNORECASE)
_SERIAL = re.compile(r"(\bserial(?:\s+number)?\b\W{0,3})[\w-]{4,}", re.IGNORECASE)
_PATH = re.compile(r"(?<![\w/.~:])(?:~|[A-Za-z]:)?(?:[/\\]+[^\s/\\'\"<>|:*?]+){2,}[/\\]?|\\\\[^\s'\"]+")
_URL = re.compile(r"\bhttps?://[^\s'\"<>,)]+", re.IGNORECASE)
OWN_PROMPTS = "own prompts"
"""What prompts of the user's own are called in a file for others."""
_OF_WHAT = re.compile(r", (?:fill|context|streams|load)$")
"""What a curve and a load put behind the name of their workload."""
_PLACES = {", fill": re.compile(r" at \d+$"), ", streams": re.compile(r" \d+$")}
"""And a curve behind the names of its prompts."""
_NAMED = ("name", "workload")
_KERNEL = re.compile(r"(kernel \d+\.\d+)\S*")


class _File(BaseModel):
    format: Literal["mtp-launcher measurement"]
    version: Literal[1]
    id: str
    kind: str
    workload: str
    began_s: float
    ended_s: float | None
    environment: Environment
    settings: dict[str, Value]
    result: dict[str, Any]
    runs: tuple[Run, ...]


_READER = TypeAdapter(_File)


def as_data(session: Session) -> dict[str, Any]:
    """Return a measurement for a file, as `read_file` reads it."""
    return {"format": FORMAT, "version": VERSION, **asdict(session)}


def as_json(session: Session) -> str:
    """Return a measurement as the text of a file, whole."""
    return json.dumps(as_data(session), ensure_ascii=False, indent=1, default=str) + "\n"


def shared_json(session: Session) -> str:
    """Return a measurement as the text of a file for others, without personal data."""
    return as_json(anonymous(session))


def bytes_of(path: Path, most: int) -> bytes:
    """Return what is in a file that the user names. Raises ResultMissing, and ResultUnreadable for more than `most`."""
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except FileNotFoundError as error:
        raise ResultMissing(f"There is no file {path}.", "Check the path.", path=str(path)) from error
    except OSError as error:
        raise ResultUnreadable(f"{path} cannot be read: {error.strerror or error}.", path=str(path)) from error
    if len(data) > most:
        raise ResultUnreadable(f"{path} is too large to be a file of this program.", path=str(path))
    return data


def read_file(path: Path) -> Session:
    """Read a file that `as_json` or `shared_json` wrote. Raises ResultMissing and ResultUnreadable."""
    try:
        file = _READER.validate_json(bytes_of(path, _MOST_BYTES))
    except ValidationError as error:
        hint = "`mtp-launcher history share ID --to FILE.json` writes one."
        raise ResultUnreadable(f"{path} is not a measurement of this program.", hint, path=str(path)) from error
    return Session(**{name: getattr(file, name) for name in Session.__slots__})


def anonymous(
    session: Session, *, user: str | None = None, host: str | None = None, home: Path | None = None
) -> Session:
    """Return a measurement without the user's and the computer's name, paths, addresses, serial numbers and UUIDs.

    Prompts of the user's own lose their names, and so does the file that they were in. `user`, `host` and `home` are
    those of who runs this where they are None. Of times only the day is left, and how long things took; of the kernel
    its two first numbers.
    """
    own, names = _names_of_own(session)

    def clean(value: Any) -> Any:  # noqa: ANN401 -- any JSON value
        return without_person(value, user=user, host=host, home=home)

    began_s = session.began_s // _DAY_S * _DAY_S
    first_s = min((run.began_s for run in session.runs), default=0.0)
    environment = TypeAdapter(Environment).validate_python(clean(session.environment.as_json()))
    return replace(
        session,
        workload=clean(OWN_PROMPTS + session.workload.removeprefix(own) if own else session.workload),
        began_s=began_s,
        ended_s=None if session.ended_s is None else began_s + session.ended_s - session.began_s,
        environment=replace(
            environment,
            system=_KERNEL.sub(r"\1", environment.system),
            model=replace(environment.model, file=None),
        ),
        settings=clean(session.settings),
        result=clean(without_own(session.result, own)),
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


def _names_of_own(session: Session) -> tuple[str, dict[str, str]]:
    """Return the name of a workload that did not come with the program, and other names for its prompts.

    Empty for one that did, with prompts that did, too: a copy of it may have other prompts and the same name.
    """
    name, of_what = _parted(session.workload, _OF_WHAT)
    prompts = {run.prompt: _parted(run.prompt, _PLACES.get(of_what)) for run in session.runs}
    bare = dict.fromkeys(prompt for prompt, _ in prompts.values())
    shipped = {prompt.name for each in workloads() if each.name == name for prompt in each.prompts}
    if not name or (shipped and shipped.issuperset(bare)):
        return "", {}
    numbers = {prompt: number for number, prompt in enumerate(bare, 1)}
    return name, {whole: f"prompt {numbers[prompt]}{place}" for whole, (prompt, place) in prompts.items()}


def _parted(text: str, ending: re.Pattern[str] | None) -> tuple[str, str]:
    found = ending.search(text) if ending else None
    return (text[: found.start()], found[0]) if found else (text, "")


def without_own(value: Any, own: str, of: str = "") -> Any:  # noqa: ANN401 -- any JSON value
    """Return a JSON value without the name of the user's own workload, in its fields `of` names and in sentences."""
    if isinstance(value, str) and own:
        if of in _NAMED:
            return OWN_PROMPTS if value == own else value
        return re.sub(rf"(?<=\bfor ){re.escape(own)}(?!\w)", OWN_PROMPTS, value)
    if isinstance(value, Mapping):
        return {name: without_own(inside, own, str(name)) for name, inside in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(without_own(inside, own, of) for inside in value)
    return value


def without_person(
    value: Any,  # noqa: ANN401 -- any JSON value
    *,
    user: str | None = None,
    host: str | None = None,
    home: Path | None = None,
) -> Any:  # noqa: ANN401 -- the same
    """Return a JSON value whose texts tell nothing of a person or a computer: see `anonymous`."""
    names = [user or _user(), *(host or platform.node()).split(".")[:1], host or platform.node()]
    hidden = [name for name in names if len(name) >= _SHORTEST and name.lower() not in _ORDINARY]
    place = home if home is not None else _home()

    def clean(each: Any) -> Any:  # noqa: ANN401 -- any JSON value
        if isinstance(each, str):
            return _clean(each, hidden, place)
        if isinstance(each, Mapping):
            return {clean(str(name)): clean(inside) for name, inside in each.items()}
        if isinstance(each, list | tuple):
            return type(each)(clean(inside) for inside in each)
        return each

    return clean(value)


def _clean(text: str, hidden: list[str], home: Path | None) -> str:
    text = _URL.sub("[address]", text)
    text = redacted(text, home=home)
    text = _UUID.sub("[id]", text)
    text = _HARDWARE.sub("[id]", text)
    text = _SERIAL.sub(r"\1[id]", text)
    text = _PATH.sub("[path]", text)
    for name in hidden:
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", "[name]", text, flags=re.IGNORECASE)
    return text


def _user() -> str:
    with suppress(OSError, KeyError):
        return getpass.getuser()
    return ""


def _home() -> Path | None:
    with suppress(RuntimeError):
        return Path.home()
    return None
