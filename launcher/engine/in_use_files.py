"""The files that a running engine has open, and what has become of them since."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from launcher.base.errors import LauncherError, ModelBroken
from launcher.engine.launch import Launch
from launcher.engine.state import Notice

Kind = Literal["model", "engine"]
What = Literal["removed", "replaced", "cut short"]

_WORDS = {
    ("model", "removed"): "{0} was removed while it is served. What is loaded goes on, but cannot be started again: "
    "put the file back, or serve another model.",
    ("model", "replaced"): "{0} was replaced while it is served. The old content is served until a restart.",
    ("model", "cut short"): "{0} was cut short while it is served, so the engine will crash as soon as it reads there. "
    "Download the model again, then restart.",
    ("engine", "removed"): "The engine {0} was removed while it runs. Install it again before the next start.",
    ("engine", "replaced"): "The engine {0} was replaced while it runs. A restart takes the new one.",
    ("engine", "cut short"): "The engine {0} was changed in place while it runs. Restart it.",
}


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to a file."""

    path: Path
    kind: Kind
    what: What

    @property
    def notice(self) -> Notice:
        """The change as a sentence, with what to do."""
        return Notice(f"{self.kind}_{self.what.replace(' ', '_')}", _WORDS[self.kind, self.what].format(self.path.name))


@dataclass(frozen=True, slots=True)
class FilesInUse:
    """Files as they were when an engine was started: path, kind, size in bytes, inode, time of change in ns."""

    files: tuple[tuple[Path, Kind, os.stat_result], ...]

    @classmethod
    def of(cls, launch: Launch) -> Self:
        """Take note of the files of a launch: the model's parts, a draft in a file of its own, the program."""
        draft = [launch.options.draft_file] if launch.options.draft_file else []
        models = [Path(part.path) for part in launch.header.parts]
        return cls.look([(path, "model") for path in (*models, *draft)] + [(Path(launch.build.command[0]), "engine")])

    @classmethod
    def look(cls, paths: Iterable[tuple[Path, Kind]]) -> Self:
        """Take note of files as they are now; one that cannot be looked at is left out."""
        return cls(tuple((path, kind, stat) for path, kind in paths if (stat := _stat(path)) is not None))

    def changes(self) -> tuple[Change, ...]:
        """Return what has changed since. A file that cannot be looked at has not, unless it is gone."""
        found = []
        for path, kind, before in self.files:
            try:
                now = path.stat()
            except FileNotFoundError:
                found.append(Change(path, kind, "removed"))
            except OSError:
                continue
            else:
                if what := _difference(before, now):
                    found.append(Change(path, kind, what))
        return tuple(found)

    def cause(self) -> LauncherError | None:
        """Return why an engine that has just ended could not go on, when that is a model file that was cut short."""
        for change in self.changes():
            if change.kind == "model" and change.what == "cut short":
                return ModelBroken(
                    f"{change.path.name} was cut short while the engine read it, which ended the engine.",
                    "Download the model again, then start it.",
                    path=str(change.path),
                )
        return None


def _difference(before: os.stat_result, now: os.stat_result) -> What | None:
    if (before.st_dev, before.st_ino) != (now.st_dev, now.st_ino):
        return "replaced"
    if now.st_size < before.st_size:
        return "cut short"
    return "replaced" if (before.st_size, before.st_mtime_ns) != (now.st_size, now.st_mtime_ns) else None


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
