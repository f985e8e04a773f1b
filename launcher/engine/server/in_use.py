"""Files used by running engines: finds the server that uses a file, and detects changes to files in use."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import psutil

from launcher.base.errors import LauncherError, ModelBroken
from launcher.base.messages import fill_template, mark, message
from launcher.engine.server import registry
from launcher.engine.server.launch import Launch
from launcher.engine.server.registry import ServerEntry
from launcher.engine.server.state import Notice


def find_server_using(paths: Iterable[Path]) -> ServerEntry | None:
    """Return the entry of the first server whose engine has one of `paths` in its command line; None without one."""
    wanted = {str(path.absolute()) for path in paths}
    for entry in registry.list_entries():
        for pid in filter(None, (*(each.engine_pid for each in entry.models), entry.pid)):
            try:
                process = psutil.Process(pid)
                words = {word for each in (process, *process.children(recursive=True)) for word in each.cmdline()}
            except psutil.Error:
                continue
            if wanted & words:
                return entry
    return None


# Changes to files that a running engine uses.

UsedFileKind = Literal["model", "engine"]
ChangeKind = Literal["removed", "replaced", "cut short"]

_NOTICES = {
    ("model", "removed"): mark(
        "{name} was deleted while loaded. The server keeps running but cannot restart. Restore the file, or "
        "load another model."
    ),
    ("model", "replaced"): mark("{name} was replaced while loaded. The old file stays in use until a restart."),
    ("model", "cut short"): mark(
        "{name} was truncated while loaded, so the engine will crash when it reads the missing part. "
        "Download the model again, then restart."
    ),
    ("engine", "removed"): mark("The engine {name} was deleted while running. Install it again before the next start."),
    ("engine", "replaced"): mark("The engine {name} was replaced while running. Restart to use the new one."),
    ("engine", "cut short"): mark("The engine {name} was modified while running. Restart it."),
}


@dataclass(frozen=True, slots=True)
class FileChange:
    """A change to a file in use."""

    path: Path
    file_kind: UsedFileKind
    change_kind: ChangeKind

    @property
    def notice(self) -> Notice:
        """The change as a notice for the user, with advice."""
        text = fill_template(_NOTICES[self.file_kind, self.change_kind], {"name": self.path.name})
        return Notice(f"{self.file_kind}_{self.change_kind.replace(' ', '_')}", text)


@dataclass(frozen=True, slots=True)
class FilesInUse:
    """The files of an engine, each with its kind and its stat result at the engine's start."""

    files: tuple[tuple[Path, UsedFileKind, os.stat_result], ...]

    @classmethod
    def from_launch(cls, launch: Launch) -> Self:
        """Record the files of a launch: the model's parts, a separate draft model, the llama-server program."""
        models = [Path(part.path) for part in launch.header.parts]
        if launch.options.used_draft_file:
            models.append(launch.options.used_draft_file)
        files: list[tuple[Path, UsedFileKind]] = [(path, "model") for path in models]
        return cls.from_paths([*files, (Path(launch.build.command[0]), "engine")])

    @classmethod
    def from_paths(cls, paths: Iterable[tuple[Path, UsedFileKind]]) -> Self:
        """Record the current stat of files; a file that cannot be read is left out."""
        return cls(tuple((path, kind, stat) for path, kind in paths if (stat := _read_stat(path)) is not None))

    def find_changes(self) -> tuple[FileChange, ...]:
        """Return the changes since the engine's start. A file that exists but cannot be read counts as unchanged."""
        found = []
        for path, kind, before in self.files:
            try:
                now = path.stat()
            except FileNotFoundError:
                found.append(FileChange(path, kind, "removed"))
            except OSError:
                continue
            else:
                if change := _compare_stats(before, now):
                    found.append(FileChange(path, kind, change))
        return tuple(found)

    def find_exit_cause(self) -> LauncherError | None:
        """Return the error that explains the engine's end if a model file was truncated meanwhile; otherwise None."""
        for change in self.find_changes():
            if change.file_kind == "model" and change.change_kind == "cut short":
                return ModelBroken(
                    message(
                        "The engine ended because {name} was truncated while it read the file.", name=change.path.name
                    ),
                    message("Download the model again, then start it."),
                    path=str(change.path),
                )
        return None


def _compare_stats(before: os.stat_result, now: os.stat_result) -> ChangeKind | None:
    if (before.st_dev, before.st_ino) != (now.st_dev, now.st_ino):
        return "replaced"
    if now.st_size < before.st_size:
        return "cut short"
    return "replaced" if (before.st_size, before.st_mtime_ns) != (now.st_size, now.st_mtime_ns) else None


def _read_stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
