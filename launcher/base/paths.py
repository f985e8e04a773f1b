"""Where the program's own files live, and the data that ships with it."""

import os
import platform
from pathlib import Path

import platformdirs

HOME_VARIABLE = "MTP_LAUNCHER_HOME"
"""Set to a folder, it holds everything the program writes (portable use, tests)."""

_APP = "mtp-launcher"
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


def config_dir() -> Path:
    """Return the folder for what the user writes: models and presets of their own."""
    return _home("config")


def cache_dir() -> Path:
    """Return the folder for what can be made again, such as the unpacked demo model."""
    return _home("cache")


def state_dir() -> Path:
    """Return the folder for what outlives a run: logs, ports and keys."""
    return _home("state")


def runtime_dir() -> Path:
    """Return the folder where running servers are registered, one per computer for a shared home."""
    return state_dir() / "run" / (platform.node() or "localhost")
