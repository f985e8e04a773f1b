"""Folders for the program's files, and the data that ships with it."""

import errno
import math
import os
import shutil
import tempfile
from pathlib import Path

import platformdirs

from launcher.base.errors import HomeUnusable, LauncherError
from launcher.base.messages import join_messages, message

HOME_VARIABLE = "MTP_LAUNCHER_HOME"
"""Environment variable for a folder that holds everything the program writes (portable use, tests)."""

MODELS_VARIABLE = "MTP_LAUNCHER_MODELS"
"""Environment variable for the folder of downloaded models."""

_APP = "mtp-launcher"
_OWN_FILES_BYTES = 64e6
"""Upper limit for the program's own files, without models."""
_PACKAGE = Path(__file__).resolve().parent.parent


def shipped_file(*parts: str) -> Path:
    """Return the path of a file that ships with the program, such as `shipped_file("presets", "demo.toml")`.

    In an installed wheel the data is inside the package, in a checkout next to it.
    """
    installed = _PACKAGE / "_data"
    return (installed if installed.is_dir() else _PACKAGE.parent).joinpath(*parts)


def expand_user(path: str | Path) -> Path:
    """Return `path` with a leading ~ or ~NAME expanded; unchanged if there is no such user."""
    path = Path(path)
    if not str(path).startswith("~"):
        return path
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def find_existing_parent(path: Path) -> Path:
    """Return a path if it exists, else its nearest parent that does; the path itself if none does."""
    return next((each for each in (path, *path.parents) if each.exists()), path)


def _user_folder(kind: str) -> Path:
    home = os.environ.get(HOME_VARIABLE)
    if home:
        return expand_user(home).absolute() / kind
    return Path(getattr(platformdirs, f"user_{kind}_path")(_APP, appauthor=False))


def check_home() -> None:
    """Raise HomeUnusable if MTP_LAUNCHER_HOME names something that is not a folder. A missing folder is fine."""
    home = os.environ.get(HOME_VARIABLE)
    if home and (found := _find_non_folder(expand_user(home).absolute())):
        raise HomeUnusable(
            message(
                "{home_variable} is {home}, but {found} is not a folder.",
                home_variable=HOME_VARIABLE,
                home=home,
                found=found,
            ),
            _home_hint(),
            folder=home,
        )


def check_writable() -> None:
    """Raise HomeUnusable if a folder of the program cannot be written; missing ones are created."""
    from launcher.base.files import make_folder

    for folder in _program_folders():
        try:
            make_folder(folder)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise HomeUnusable(
                message("{folder} cannot be written: {strerror}.", folder=folder, strerror=error.strerror or error),
                join_messages(message("Files that belong there are lost when this program ends."), _home_hint()),
                folder=str(folder),
            ) from None


def explain_os_error(error: OSError) -> LauncherError:
    """Return the error for an OSError, with a next step that depends on the path and the cause."""
    if lock := getattr(error, "lock_file", None):  # filelock.Timeout
        from launcher.base.locks import holder_hint

        return HomeUnusable(
            message("Another instance of this program holds {lock} and does not release it.", lock=lock),
            holder_hint(error) or message("It may be suspended, for example by Ctrl-Z. Resume it, or end it."),
            folder=str(lock),
        )
    path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    if isinstance(error, FileNotFoundError) and not Path(path).is_absolute() and not _has_current_folder():
        return LauncherError(
            message("The current folder no longer exists."),
            message("Go to another one, for example by `cd ~`, and run this again."),
        )
    refused = message(
        "The system refused: {strerror}{path}.", strerror=error.strerror or error, path=(f" ({path})" if path else "")
    )
    if isinstance(error, IsADirectoryError) and Path(path).is_relative_to(state_dir()):
        return HomeUnusable(
            refused,
            message("This program needs a file there: move the folder {path} away.", path=path),
            folder=path,
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT) and (full := _explain_full_disk(path)):
        return full
    if path and _is_ours(path):
        is_folder = any(folder.is_relative_to(path) for folder in _program_folders())
        if is_folder and (found := _find_non_folder(Path(path))):
            refused = message("{found} is not a folder.", found=found)
        return HomeUnusable(refused, _home_hint(), folder=path)
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return LauncherError(refused, message("Check the path."))
    return LauncherError(refused, message("Check disk space and permissions."))


def _explain_full_disk(path: str) -> LauncherError | None:
    """Return the error for a file that had no room, None if its disk is not full.

    With "" for an unknown path, the disks of our own folders are asked.
    """
    folders = (Path(path).absolute().parent,) if path else _program_folders()
    folder, free = min(((each, _free_bytes(each)) for each in folders), key=lambda pair: pair[1])
    if free >= _OWN_FILES_BYTES:
        return None
    title = message("The disk of {folder} is full: {free:.1f} MB left.", folder=folder, free=free / 1000000.0)
    advice = message("Free space there, or use another disk.")
    if path and not _is_ours(path):
        return LauncherError(title, advice)
    return HomeUnusable(title, join_messages(advice, _home_hint()), folder=str(folder))


def _is_ours(path: str) -> bool:
    return any(_overlaps(Path(path), folder) for folder in (config_dir(), cache_dir(), state_dir()))


def _has_current_folder() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


def _program_folders() -> tuple[Path, ...]:
    return config_dir(), data_dir(), state_dir(), cache_dir()


def _free_bytes(folder: Path) -> float:
    """Return the free bytes on a folder's disk, also if the folder does not exist yet; infinite if unknown."""
    try:
        return shutil.disk_usage(find_existing_parent(folder)).free
    except OSError:
        return math.inf


def _overlaps(path: Path, folder: Path) -> bool:
    """Return True if one path is inside the other: the path of an error may be a parent that was not created."""
    return path.is_relative_to(folder) or folder.is_relative_to(path)


def _find_non_folder(home: Path) -> Path | None:
    """Return the first part of a path that exists and is not a folder."""
    try:
        return next((each for each in (home, *home.parents) if each.exists() and not each.is_dir()), None)
    except OSError:
        return None  # a path that cannot be read is reported when it is written


def _home_hint() -> str:
    return message("Set {home_variable} to a writable folder on a disk with free space.", home_variable=HOME_VARIABLE)


def config_dir() -> Path:
    """Return the folder for the user's own files: models and presets."""
    return _user_folder("config")


def cache_dir() -> Path:
    """Return the folder for files that can be recreated, such as the unpacked demo model."""
    return _user_folder("cache")


def data_dir() -> Path:
    """Return the folder for data that is to be kept: engines, models, measurements."""
    return _user_folder("data")


def models_dir() -> Path:
    """Return the folder for downloaded models: MTP_LAUNCHER_MODELS, else a folder in the data folder."""
    chosen = os.environ.get(MODELS_VARIABLE)
    return expand_user(chosen).absolute() if chosen else data_dir() / "models"


def state_dir() -> Path:
    """Return the folder for state that outlives the process: logs, ports and keys."""
    return _user_folder("state")


def runtime_dir() -> Path:
    """Return the folder of the registry of running servers: one per computer, because computers may share a home."""
    import platform  # imported late: few need more than the name of a folder

    return state_dir() / "run" / (platform.node() or "localhost")
