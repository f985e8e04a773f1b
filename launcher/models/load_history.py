"""Records how much GPU memory the driver and the process took in loads on this machine, so that later plans count
it.

A load is read twice: when the model is loaded, without CUDA's pool, and after the first full ubatch, with it.
"""

import json
from contextlib import suppress
from pathlib import Path

from launcher.base.files import write_atomically
from launcher.base.kept_files import KeptFile
from launcher.base.paths import state_dir
from launcher.models.compute_buffers import Backend
from launcher.models.overhead import USUAL_MIB

_LOADS_PER_GPU = 8
_PLAUSIBLE_MIB = (-250, 1_500)
"""Smallest and largest difference from the usual overhead that is believed.

Others have another cause: layers left on the host, or another program.
"""


def read_overhead_mib(gpu_id: str, backend: Backend) -> int | None:
    """Return the largest overhead of the last loads on this GPU, in MiB, or None if none was measured."""
    differences = _read_differences().get(_make_key(gpu_id, backend))
    return USUAL_MIB[backend] + max(differences) if differences else None


def record_load(
    gpu_id: str, backend: Backend, *, buffers_mib: int, measured_mib: int, replaces_last: bool = False
) -> bool:
    """Record the measured memory of a load whose buffers took `buffers_mib` by the estimate, without the overhead.

    With `replaces_last`, the load was recorded before. Return False, recording nothing, if the difference is
    implausible.
    """
    difference = measured_mib - buffers_mib - USUAL_MIB[backend]
    if not _PLAUSIBLE_MIB[0] <= difference <= _PLAUSIBLE_MIB[1]:
        return False
    known = _read_differences()
    key = _make_key(gpu_id, backend)
    earlier = known.get(key, [])
    known[key] = [*(earlier[:-1] if replaces_last else earlier), difference][-_LOADS_PER_GPU:]
    write_atomically(_history_path(), json.dumps(known, indent=1).encode())
    return True


def _make_key(gpu_id: str, backend: Backend) -> str:
    return f"{gpu_id} {backend}"


def _history_path() -> Path:
    return state_dir() / "measured-memory.json"


def _read_differences() -> dict[str, list[int]]:
    """Return the differences of recorded loads from the usual overhead; {} if the file is missing or damaged."""
    with suppress(OSError):
        return _FILE.load(_history_path())
    return {}


def _parse_differences(data: bytes) -> dict[str, list[int]]:
    return {
        str(key): [int(each) for each in values if isinstance(each, int | float)]
        for key, values in json.loads(data).items()
        if isinstance(values, list)
    }


_FILE: KeptFile[dict[str, list[int]]] = KeptFile(
    "The list of measured memory", _parse_differences, dict, former_name="loads.json"
)
