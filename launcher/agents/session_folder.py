"""Folders for the files of agents' sessions: one per session, deleted at its end."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from launcher.base.files import make_private_folder, write_atomically
from launcher.base.identity import ProcessId
from launcher.base.paths import data_dir, explain_os_error, runtime_dir


def sessions_folder(agent_name: str) -> Path:
    """Return where an agent may keep its conversations from one session to the next."""
    return data_dir() / "agents" / agent_name


def session_folder(agent_name: str) -> Path:
    """Return the folder for the files of a session of this process. It is not created."""
    own = ProcessId.from_pid(os.getpid()) or ProcessId(os.getpid(), 0.0)
    return _folders() / f"{agent_name}-{own.pid}-{own.created_s:.2f}"


@contextmanager
def kept_session_files(folder: Path, files: Mapping[Path, str]) -> Iterator[None]:
    """Write a session's files, which only this user can read, and delete their folder at the end of the block.

    It also deletes the folders of sessions whose process was killed. Raises what explain_os_error returns.
    """
    delete_abandoned_folders()
    try:
        try:
            for path, text in files.items():
                make_private_folder(folder)
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_atomically(path, text.encode(), mode=0o600)
        except OSError as error:
            raise explain_os_error(error) from error
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def delete_abandoned_folders() -> None:
    """Delete the folders of sessions whose process has ended."""
    for folder in _folders().glob("*-*-*"):
        _, pid, created = folder.name.rsplit("-", 2)
        with suppress(ValueError):
            if not ProcessId(int(pid), float(created)).is_running():
                shutil.rmtree(folder, ignore_errors=True)


def _folders() -> Path:
    return runtime_dir() / "agents"
