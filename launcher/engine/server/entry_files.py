"""The files of the registry of running servers, without their content: registry.py, which reads them, imports a lot."""

from pathlib import Path

from launcher.base.paths import runtime_dir

_PREFIX, _SUFFIX = "server-", ".json"


def entry_file(port: int) -> Path:
    """Return the file of the server at a port."""
    return runtime_dir() / f"{_PREFIX}{port}{_SUFFIX}"


def list_entry_files() -> list[Path]:
    """Return the files of all servers, running or killed; raises OSError if the folder exists but cannot be read."""
    try:
        files = sorted(runtime_dir().iterdir())
    except FileNotFoundError:
        return []
    return [path for path in files if path.name.startswith(_PREFIX) and path.name.endswith(_SUFFIX)]
