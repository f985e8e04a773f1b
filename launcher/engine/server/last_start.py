"""Saved facts about earlier starts: the last start with its command line and the error, and the models used last."""

import json
import logging
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from launcher.base.action import Action
from launcher.base.codec import decode_json, encode_json
from launcher.base.errors import LauncherError, ModelMissing
from launcher.base.files import make_private_folder, write_atomically
from launcher.base.kept_files import KeptFile
from launcher.base.messages import FaceName, command_name, mark, message
from launcher.base.paths import expand_user, state_dir
from launcher.engine.builds.build import BUILT_IN
from launcher.engine.demo import DEMO
from launcher.engine.serve_options import ServeOptions
from launcher.engine.settings import load_model_settings
from launcher.models.server_settings import ROWS
from launcher.models.server_settings import Value as SettingValue

PROGRAM = "mtp-launcher"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RepeatableStart:
    """A start of a server, with everything that is needed to repeat it.

    `model` is the name or path that the user gave. `chosen` are the attributes of the settings that the user set; the
    program chose the others. `context` is the launched context in tokens, None if the start failed before that. `port`
    None leaves the port to the program. If `shared`, the server listens on all addresses.
    """

    model: str
    options: ServeOptions
    chosen: frozenset[str] = frozenset()
    context: int | None = None
    port: int | None = None
    shared: bool = False

    @classmethod
    def from_options(
        cls,
        options: ServeOptions,
        *,
        model_name: str | None,
        chosen: Mapping[str, object] | None,
        port: int | None,
        shared: bool,
    ) -> "RepeatableStart":
        """Return the start of a server with `options`.

        `model_name` is the model as the user named it. `chosen` are the settings that the user set, by name; those that
        the program has changed since are its own. None means those that differ from the defaults.
        """
        defaults = ServeOptions(options.model)
        if chosen is None:
            rows = [row for row in ROWS.values() if row.value_in(options) != row.value_in(defaults)]
        else:
            rows = [row for name, row in ROWS.items() if name in chosen and chosen[name] == row.value_in(options)]
        fields = frozenset(row.attribute for row in rows)
        model = model_name or (DEMO if options.alias == DEMO else str(options.model.absolute()))
        return cls(model, options, fields, port=port, shared=shared)

    def with_options(self, options: ServeOptions) -> "RepeatableStart":
        """Return the start with other options; settings that differ count as chosen by the user."""
        differs = {row.attribute for row in ROWS.values() if row.value_in(options) != row.value_in(self.options)}
        return replace(self, options=options, chosen=self.chosen | differs)

    @property
    def settings(self) -> dict[str, SettingValue]:
        """The settings chosen by the user, by name."""
        return {name: row.value_in(self.options) for name, row in ROWS.items() if row.attribute in self.chosen}

    @property
    def command_words(self) -> tuple[str, ...]:
        """The words of the command line that repeats this start."""
        given = {name: value for name, value in self.settings.items() if value is not None}
        has_other_saved_settings = bool(load_model_settings(self.options.model).keys() - given.keys())
        engine = self.options.engine or (BUILT_IN if self.options.built_in and self.model != DEMO else None)
        words = [PROGRAM, "serve", self.model, *(["--engine", str(engine)] if engine else [])]
        for name, value in given.items():
            words += ROWS[name].cli_arguments(value)
        words += ["--mmproj", str(self.options.mmproj)] if self.options.mmproj else []
        template = self.options.chat_template_file
        words += ["--chat-template-file", str(template)] if template else []
        if self.options.rpc:
            words += ["--rpc", ",".join(self.options.rpc)]
        words += ["--port", str(self.port)] if self.port is not None else []
        words += ["--lan"] if self.shared else []
        words += ["--defaults"] if has_other_saved_settings else []
        return (*words, *(("--", *self.options.extra) if self.options.extra else ()))


def quote_command(words: tuple[str, ...]) -> str | None:
    """Return a command quoted for this system's shell; None if a word contains unprintable characters."""
    if not words or not all(word.isprintable() for word in words):
        return None
    return subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)


@dataclass(frozen=True, slots=True)
class SavedError:
    """The error that the user saw, as it is saved."""

    code: str
    title: str
    hint: str


@dataclass(frozen=True, slots=True)
class LastStart:
    """The last start that was tried, with its log and the reason if it failed.

    `start` is None if the user named no model. `log` is None if the start failed before an engine ran. `diagnosis` is
    the code of the cause found in the log. `why` is the error that the user saw, `actions` are its suggested fixes.
    `stopped`: the user has ended that server, or the program has.
    """

    start: RepeatableStart | None
    log: Path | None = None
    exit_code: int | None = None
    diagnosis: str | None = None
    actions: tuple[Action, ...] = ()
    why: SavedError | None = None
    stopped: bool = False

    @property
    def error(self) -> LauncherError | None:
        """The error that the user saw."""
        if self.why is None:
            return None
        error = LauncherError(self.why.title, self.why.hint)
        error.code = self.why.code
        return error

    @property
    def explained_by_log(self) -> bool:
        """Whether the log can explain the failure: the engine ended, or its log names the cause."""
        return self.log is not None and (self.why is None or self.diagnosis is not None or self.exit_code is not None)


def save_last_start(
    start: RepeatableStart | None, log: Path | None, error: LauncherError | None = None, *, stopped: bool = False
) -> None:
    """Save the last start, the reason if it failed, and whether its server was stopped, for `diagnose`.

    Logs a warning if it cannot be written.
    """
    facts: Mapping[str, Any] = error.facts if error else {}
    content = LastStart(
        start=start,
        log=log,
        exit_code=facts.get("exit_code"),
        diagnosis=facts.get("diagnosis"),
        actions=error.actions if error else (),
        why=SavedError(error.code, error.title, error.hint) if error else None,
        stopped=stopped,
    )
    try:
        make_private_folder(state_dir())
        _FILE.save(_last_start_file(), encode_json(content))
    except (OSError, ValueError) as failed:
        reason = getattr(failed, "strerror", None) or failed
        _log.warning("Cannot save the last start (%s): %s.", _last_start_file(), reason)


def load_last_start() -> LastStart | None:
    """Return the last start that was tried; None if there was none or it cannot be read.

    A damaged file is set aside, and its backup copy is used.
    """
    try:
        return _FILE.load(_last_start_file())
    except OSError:
        return None


_FILE: KeptFile[LastStart | None] = KeptFile(
    "The record of the last start", partial(decode_json, LastStart), lambda: None, private=True, has_second_copy=True
)


def _last_start_file() -> Path:
    return state_dir() / "last-start.json"


# The last served model, and the time at which each model file was last served.

_MOST_BYTES = 16_384
_MOST_USED = 500


def save_last_model(model: str) -> None:
    """Save the name of the served model, with paths made absolute. Logs a warning if it cannot be written."""
    path = expand_user(model)
    name = str(path.absolute()) if path.exists() else model
    try:
        if load_last_model() != name:
            write_atomically(_last_model_file(), name.encode("utf-8", "surrogateescape"))
    except OSError as error:
        _log.warning("Cannot save the last model (%s): %s.", _last_model_file(), error.strerror or error)


def load_last_model() -> str | None:
    """Return the name of the last served model; None if there was none or it cannot be read."""
    try:
        return _LAST_MODEL.load(_last_model_file())
    except OSError:
        return None


def require_last_model() -> str:
    """Return the name of the last served model. Raises ModelMissing if there was none."""
    name = load_last_model()
    if name is None:
        raise ModelMissing(
            message("No model was loaded before."),
            message(
                "[Name one: {command}.][Choose one on {page}, or open a file.]",
                command=command_name("serve --model FILE"),
                page=FaceName(None, mark("Models")),
            ),
        )
    return name


def save_last_use(model: Path) -> None:
    """Save the current time as the last use of a model file. Logs a warning if it cannot be written."""
    key = str(model.absolute())
    used = load_last_uses()
    used.pop(key, None)
    kept = dict(list(used.items())[1 - _MOST_USED :]) | {key: round(time.time(), 3)}
    try:
        write_atomically(_last_uses_file(), json.dumps(kept, indent=1).encode())
    except OSError as error:
        _log.warning("Cannot save when models were used (%s): %s.", _last_uses_file(), error.strerror or error)


def load_last_uses() -> dict[str, float]:
    """Return the time of each model file's last use, by path, in seconds since the epoch; {} if none is saved."""
    try:
        return _LAST_USES.load(_last_uses_file())
    except OSError:
        return {}


def _parse_name(data: bytes) -> str | None:
    name = data.decode("utf-8", "surrogateescape")
    if not name or "\0" in name:
        raise ValueError("it contains no name")
    return name


def _parse_times(data: bytes) -> dict[str, float]:
    used: dict[str, float] = {}
    for path, time_s in json.loads(data).items():
        if isinstance(time_s, int | float):
            with suppress(OverflowError):
                used[path] = float(time_s)
    return used


_LAST_MODEL: KeptFile[str | None] = KeptFile(
    "The name of the last model", _parse_name, lambda: None, consequence="none is known", most_bytes=_MOST_BYTES
)
_LAST_USES: KeptFile[dict[str, float]] = KeptFile("The list of model uses", _parse_times, dict)


def _last_model_file() -> Path:
    return state_dir() / "last-model"


def _last_uses_file() -> Path:
    return state_dir() / "last-used.json"
