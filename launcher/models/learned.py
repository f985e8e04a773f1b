"""What loads on this machine took beyond their estimates: it moves the margin of the plans to come."""

import json
from contextlib import suppress
from pathlib import Path

from launcher.base.files import write_atomically
from launcher.base.paths import state_dir
from launcher.models.compute import Backend

_KEPT = 8
_BELIEVED_MIB = (-200, 1_500)
"""Other differences come from something else: layers that the engine left on the host, or another program."""


def excess_mib(gpu_id: str, backend: Backend) -> int | None:
    """Return the most that one of the last loads on this GPU took beyond its estimate, negative when all took less.

    None while none was measured.
    """
    measured = _read().get(_key(gpu_id, backend))
    return max(measured) if measured else None


def record_load(gpu_id: str, backend: Backend, *, predicted_mib: int, measured_mib: int) -> bool:
    """Keep what a load took, and return whether it is believed to be the estimate's own error."""
    difference = measured_mib - predicted_mib
    if not _BELIEVED_MIB[0] <= difference <= _BELIEVED_MIB[1]:
        return False
    known = _read()
    key = _key(gpu_id, backend)
    known[key] = [*known.get(key, []), difference][-_KEPT:]
    write_atomically(_file(), json.dumps(known, indent=1).encode())
    return True


def _key(gpu_id: str, backend: Backend) -> str:
    return f"{gpu_id} {backend}"


def _file() -> Path:
    return state_dir() / "loads.json"


def _read() -> dict[str, list[int]]:
    """What was kept; nothing when the file is missing, or is not what we write."""
    with suppress(OSError, ValueError):
        data = json.loads(_file().read_bytes())
        if isinstance(data, dict):
            return {
                str(key): [int(each) for each in values if isinstance(each, int | float)]
                for key, values in data.items()
                if isinstance(values, list)
            }
    return {}
