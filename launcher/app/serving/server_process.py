"""Finds or starts the server process, which holds the window's server and goes on if the window crashes.

There is one for each user. Other windows find it by its entry in the runtime folder. session_host.py is the process.
"""

import os
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen

import psutil

import launcher
from launcher.base.codec import decode_json
from launcher.base.control import ControlAddress
from launcher.base.errors import EngineFailed, LauncherError
from launcher.base.files import make_private_folder, open_private_file
from launcher.base.identity import ProcessId
from launcher.base.kept_files import PARSE_ERRORS, KeptFile
from launcher.base.locks import hold_lock
from launcher.base.messages import message
from launcher.base.paths import explain_os_error, runtime_dir, state_dir

IDLE_LIMIT_S = 600.0
"""Seconds without an owner and without a request after which the process ends."""
_START_LIMIT_S = 60.0
_LOCK_S = 10.0
_MOST_LOG_BYTES = 2**20
_PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); from launcher.app.serving.session_host import main; main(sys.argv[2])"
)
"""Started with -P, so that no file of the current folder is imported in place of a module."""


_opened: ProcessId | None = None
"""The server process that this process has found or started last."""


@dataclass(frozen=True, slots=True)
class ProcessEntry:
    """Address of the server process for a window: `control` and `control_token` are its control socket's.

    It is read without pydantic, whose import would hold up the window's start.
    """

    pid: int
    created_s: float
    version: str
    control: str
    control_token: str = field(repr=False)

    def __post_init__(self) -> None:
        """Raise ValueError for the entry of no process."""
        if self.pid <= 0:
            raise ValueError("its pid is that of no process")

    @property
    def address(self) -> ControlAddress:
        """The address of the control socket."""
        return ControlAddress(self.control, self.control_token)

    @property
    def is_running(self) -> bool:
        """Whether the process still runs."""
        return ProcessId(self.pid, self.created_s).is_running()


_FILE: KeptFile[ProcessEntry | None] = KeptFile(
    "The entry of the server process", partial(decode_json, ProcessEntry), lambda: None, private=True, recreatable=True
)


def entry_file() -> Path:
    """Return the path of the entry of this user's server process."""
    return runtime_dir() / "session-process.json"


def find_process() -> ProcessEntry | None:
    """Return the entry of the running server process; None if there is none, or its entry cannot be read."""
    try:
        entry = _FILE.load(entry_file())
    except (OSError, LauncherError):
        return None
    return entry if entry is not None and entry.is_running else None


def open_process(idle_limit_s: float | None = None) -> tuple[ProcessEntry, Popen[bytes] | None]:
    """Find this user's server process or start one; return its entry and, if it was started, the process.

    One that is started gets `idle_limit_s` in place of IDLE_LIMIT_S. Blocks until it listens. Raises EngineFailed if it
    ends before that, or takes longer than a minute.
    """
    global _opened
    if idle_limit_s is None:
        idle_limit_s = IDLE_LIMIT_S
    try:
        make_private_folder(runtime_dir())
        with hold_lock(runtime_dir() / "session-process.lock", _LOCK_S):
            found = find_process()
            entry, process = (found, None) if found is not None else _start_process(idle_limit_s)
    except OSError:  # nobody else will find it, but this window can use it
        entry, process = _start_process(idle_limit_s)
    _opened = ProcessId(entry.pid, entry.created_s)
    return entry, process


def own_pids() -> frozenset[int]:
    """Return the pids of this process and of the server process that it drives: a start replaces their servers."""
    return frozenset({os.getpid()} | ({_opened.pid} if _opened is not None else set()))


def kill_process() -> None:
    """Kill the server process that this process drives, whose keeper then ends the engine."""
    if _opened is not None and _opened.is_running():
        with suppress(psutil.Error):
            psutil.Process(_opened.pid).kill()


def _start_process(idle_limit_s: float) -> tuple[ProcessEntry, Popen[bytes]]:
    flags = getattr(subprocess, "DETACHED_PROCESS", 0) | getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
    root = Path(launcher.__file__).parents[1]
    log = _open_log()
    try:
        process = Popen(
            [sys.executable, "-P", "-c", _PROGRAM, str(root), str(idle_limit_s)],
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=log,
            start_new_session=True,  # neither Ctrl-C nor the end of the terminal is meant for it
            creationflags=flags,
        )
    except OSError as error:
        raise explain_os_error(error) from error
    finally:
        if log != DEVNULL:
            os.close(log)
    assert process.stdout is not None  # noqa: S101 -- stdout is a pipe
    hurry = threading.Timer(_START_LIMIT_S, process.kill)
    hurry.start()
    try:
        with process.stdout:
            return decode_json(ProcessEntry, process.stdout.readline()), process
    except PARSE_ERRORS as error:
        process.wait()
        raise EngineFailed(
            message("The server process could not be started."),
            message("See its log: {path}", path=log_file()),
            exit_code=process.returncode,
        ) from error
    finally:
        hurry.cancel()


def log_file() -> Path:
    """Return the path of the log of what goes wrong in the server process itself."""
    return state_dir() / "logs" / "server-process.log"


def _open_log() -> int:
    """Open the log, which is begun anew when it is large, and return its descriptor; DEVNULL if that fails."""
    try:
        make_private_folder(log_file().parent)
        log = open_private_file(log_file(), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        if os.fstat(log).st_size > _MOST_LOG_BYTES:
            os.ftruncate(log, 0)
    except OSError:
        return DEVNULL
    return log
