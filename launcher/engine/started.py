"""The start of a server as it was asked for: the command that does it again, kept with why it failed."""

import logging
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from launcher.base.action import Action, ActionKind, Value
from launcher.base.errors import LauncherError
from launcher.base.files import private_folder, read_or_copy, write_twice
from launcher.base.paths import state_dir
from launcher.engine.build import BUILT_IN
from launcher.engine.demo import DEMO
from launcher.engine.launch import ServeOptions
from launcher.engine.settings import OPTIONS, flag_of, remembered

PROGRAM = "mtp-launcher"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Started:
    """A start: the model as its user named it, all options, and which of the settings were the user's choice.

    `context` is what was launched, in tokens, None when it did not come so far; `port` None left the port to us.
    """

    model: str
    options: ServeOptions
    chosen: frozenset[str] = frozenset()
    context: int | None = None
    port: int | None = None
    shared: bool = False

    @classmethod
    def of(
        cls,
        options: ServeOptions,
        *,
        named: str | None,
        chosen: Mapping[str, object] | None,
        port: int | None,
        shared: bool,
    ) -> "Started":
        """Return a start of `options`; `chosen` are settings by name, None takes all that are not as usual."""
        names = set(OPTIONS if chosen is None else chosen)
        usual = ServeOptions(options.model)
        fields = frozenset(
            field
            for name, field in OPTIONS.items()
            if name in names and (chosen is not None or getattr(options, field) != getattr(usual, field))
        )
        model = named or (DEMO if options.alias == DEMO else str(options.model.absolute()))
        return cls(model, options, fields, port=port, shared=shared)

    def changed(self, options: ServeOptions) -> "Started":
        """Return the start with other options; what differs counts as chosen."""
        differs = {field for field in OPTIONS.values() if getattr(options, field) != getattr(self.options, field)}
        return replace(self, options=options, chosen=self.chosen | differs)

    @property
    def settings(self) -> dict[str, int | str | None]:
        """The chosen settings by name."""
        return {name: getattr(self.options, field) for name, field in OPTIONS.items() if field in self.chosen}

    @property
    def words(self) -> tuple[str, ...]:
        """The command line that does it, word by word."""
        given = {name: value for name, value in self.settings.items() if value is not None}
        kept = remembered(self.options.model).keys() - given.keys()
        engine = self.options.engine or (BUILT_IN if self.options.built_in and self.model != DEMO else None)
        words = [PROGRAM, "serve", self.model, *(["--engine", str(engine)] if engine else [])]
        for name, value in given.items():
            words += [flag_of(name), str(value)]
        if self.options.rpc:
            words += ["--rpc", ",".join(self.options.rpc)]
        words += ["--port", str(self.port)] if self.port is not None else []
        words += ["--lan"] if self.shared else []
        words += ["--defaults"] if kept else []
        return (*words, *(("--", *self.options.extra) if self.options.extra else ()))


def command_text(words: tuple[str, ...]) -> str | None:
    """Return a command as it can be typed in this system's shell; None when a word cannot be shown on a line."""
    if not words or not all(word.isprintable() for word in words):
        return None
    return subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)


class _Proposed(BaseModel):
    kind: ActionKind
    label: str
    parameters: dict[str, Value] = {}


class _Why(BaseModel):
    code: str
    title: str
    hint: str


class _File(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    start: Started | None = None
    log: Path | None = None
    exit_code: int | None = None
    diagnosis: str | None = None
    actions: list[_Proposed] = []
    why: _Why | None = None


@dataclass(frozen=True, slots=True)
class LastStart:
    """The start that was last tried, the log of its engine, and how and why it failed, as far as it did.

    `log` is None when it failed before an engine ran, `start` when what was asked for is no model of ours. `diagnosis`
    is the cause that the log names; `why` what the user was told, with `actions`.
    """

    start: Started | None
    log: Path | None = None
    exit_code: int | None = None
    diagnosis: str | None = None
    actions: tuple[Action, ...] = ()
    why: LauncherError | None = None

    @property
    def told_by_log(self) -> bool:
        """Whether the log is to be asked for the cause: the engine ended, or failed for what its log names."""
        return self.log is not None and (self.why is None or self.diagnosis is not None or self.exit_code is not None)


def keep_start(start: Started | None, log: Path | None, error: LauncherError | None = None) -> None:
    """Keep what was started, and why it failed, for `diagnose`. Where it cannot be written, a warning says so."""
    facts: Mapping[str, Any] = error.facts if error else {}
    kept = _File(
        start=start,
        log=log,
        exit_code=facts.get("exit_code"),
        diagnosis=facts.get("diagnosis"),
        actions=[_Proposed.model_validate(asdict(action)) for action in error.actions] if error else [],
        why=_Why(code=error.code, title=error.title, hint=error.hint) if error else None,
    )
    try:
        private_folder(state_dir())
        write_twice(_path(), kept.model_dump_json().encode("utf-8", "surrogateescape"))
    except (OSError, ValueError) as failed:
        _log.warning("What was started cannot be kept (%s): %s.", _path(), getattr(failed, "strerror", None) or failed)


def last_start() -> LastStart | None:
    """Return the start that was last tried, None when none was or it cannot be read.

    A damaged note of it is set aside, and its copy taken.
    """
    try:
        kept = read_or_copy(_path(), _File.model_validate_json, "The note of the last start")
    except OSError:
        return None
    if kept is None:
        return None
    actions = tuple(Action(each.kind, each.label, each.parameters) for each in kept.actions)
    why = LauncherError(kept.why.title, kept.why.hint) if kept.why else None
    if why is not None and kept.why is not None:
        why.code = kept.why.code
    return LastStart(kept.start, kept.log, kept.exit_code, kept.diagnosis, actions, why)


def _path() -> Path:
    return state_dir() / "last-start.json"
