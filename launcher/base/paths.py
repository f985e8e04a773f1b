"""Where the program's own files live, and the data that ships with it."""

import errno
import math
import os
import platform
from pathlib import Path

import platformdirs

from launcher.base.errors import HomeUnusable, LauncherError

HOME_VARIABLE = "MTP_LAUNCHER_HOME"
"""Set to a folder, it holds everything the program writes (portable use, tests)."""

MODELS_VARIABLE = "MTP_LAUNCHER_MODELS"
"""Set to a folder, it holds the models that are downloaded."""

_APP = "mtp-launcher"
_LITTLE_BYTES = 64e6
"""The program's own files, without models, take less than that."""
_PACKAGE = Path(__file__).resolve().parent.parent


def shipped(*parts: str) -> Path:
    """Return the path of a file that ships with the program, such as `shipped("presets", "demo.toml")`.

    In an installed wheel the data lies inside the package, in a checkout beside it.
    """
    installed = _PACKAGE / "_data"
    return (installed if installed.is_dir() else _PACKAGE.parent).joinpath(*parts)


def expanded(path: str | Path) -> Path:
    """Return `path` with a leading ~ or ~NAME as that user's home; as it is where there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def _home(kind: str) -> Path:
    home = os.environ.get(HOME_VARIABLE)
    if home:
        return expanded(home).absolute() / kind
    return Path(getattr(platformdirs, f"user_{kind}_path")(_APP, appauthor=False))


def check_home() -> None:
    """Raise HomeUnusable when the variable names something that is no folder. One that is not there yet is made."""
    home = os.environ.get(HOME_VARIABLE)
    if home and (found := _in_the_way(expanded(home).absolute())):
        raise HomeUnusable(f"{HOME_VARIABLE} is {home}, but {found} is not a folder.", _remedy(), folder=home)


def check_writable() -> None:
    """Raise HomeUnusable when a folder that the program writes to cannot be written to; missing ones are made."""
    import tempfile

    from launcher.base.files import make_folder

    for folder in _folders():
        try:
            make_folder(folder)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise HomeUnusable(
                f"{folder} cannot be written: {error.strerror or error}.",
                " ".join(("What belongs there is not kept when this program ends.", _remedy())),
                folder=str(folder),
            ) from None


def refusal(error: OSError) -> LauncherError:
    """Return what the system has refused as a sentence, and what to do about it, also where it was a folder of ours."""
    if lock := getattr(error, "lock_file", None):  # filelock.Timeout
        return HomeUnusable(
            f"Another run of this program holds {lock} and does not let go of it.",
            "Is one of them stopped, by Ctrl-Z say? Let it go on, or end it.",
            folder=str(lock),
        )
    path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    refused = f"The system refused: {error.strerror or error}{f' ({path})' if path else ''}."
    if isinstance(error, IsADirectoryError) and Path(path).is_relative_to(state_dir()):
        return HomeUnusable(
            refused, f"A file of this program's belongs there: move the folder {path} away.", folder=path
        )
    if path and any(_related(Path(path), folder) for folder in (config_dir(), cache_dir(), state_dir())):
        return HomeUnusable(refused, _remedy(), folder=path)
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return LauncherError(refused, "Check the path.")
    if not path and error.errno in (errno.ENOSPC, errno.EDQUOT):
        folder, free = min(((each, _free(each)) for each in _folders()), key=lambda pair: pair[1])
        if free < _LITTLE_BYTES:
            title = f"The disk of {folder} is full: it has {free / 1e6:.1f} MB left."
            return HomeUnusable(title, f"Make room there, or use another disk. {_remedy()}", folder=str(folder))
    return LauncherError(refused, "Check disk space and permissions.")


def _folders() -> tuple[Path, ...]:
    return config_dir(), data_dir(), state_dir(), cache_dir()


def _free(folder: Path) -> float:
    """Return the free bytes of a folder's disk, also where the folder is yet to be made; infinite where unknown."""
    import shutil  # 4 ms, which most commands never need

    there = next((each for each in (folder, *folder.parents) if each.exists()), folder)
    try:
        return shutil.disk_usage(there).free
    except OSError:
        return math.inf


def _related(path: Path, folder: Path) -> bool:
    """Whether a path lies in a folder, or is one above it that could not be made."""
    return path.is_relative_to(folder) or folder.is_relative_to(path)


def _in_the_way(home: Path) -> Path | None:
    """Return the first of a path's own folders that is something else."""
    try:
        return next((each for each in (home, *home.parents) if each.exists() and not each.is_dir()), None)
    except OSError:
        return None  # what cannot be looked at is told when it is written


def _remedy() -> str:
    return f"Set {HOME_VARIABLE} to a folder that you may write, on a disk with room."


def config_dir() -> Path:
    """Return the folder for what the user writes: models and presets of their own."""
    return _home("config")


def cache_dir() -> Path:
    """Return the folder for what can be made again, such as the unpacked demo model."""
    return _home("cache")


def data_dir() -> Path:
    """Return the folder for what was downloaded to be kept: engines and models."""
    return _home("data")


def models_dir() -> Path:
    """Return the folder for downloaded models: what MTP_LAUNCHER_MODELS names, else one in the data folder."""
    chosen = os.environ.get(MODELS_VARIABLE)
    return expanded(chosen).absolute() if chosen else data_dir() / "models"


def state_dir() -> Path:
    """Return the folder for what outlives a run: logs, ports and keys."""
    return _home("state")


def runtime_dir() -> Path:
    """Return the folder where running servers are registered, one per computer for a shared home."""
    return state_dir() / "run" / (platform.node() or "localhost")
