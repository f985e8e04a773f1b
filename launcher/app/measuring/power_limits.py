"""Compares tunes for energy at several power limits of a GPU. The program never sets one: it shows the command.

A GPU at a lower limit is slower and often needs fewer joules per token. A limit holds for the whole GPU and needs an
administrator, so each tune is made at the limit that is set, and the tunes of a model at several limits are compared.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.machine.gpu import Gpu
from launcher.machine.gpus import find_gpus, read_gpu_states
from launcher.tuning.history import History, history_file
from launcher.tuning.space import draft_length

LIMIT_KEY = "power_limit_w"
"""Key of a tune's result in the history."""
_SHARES = (1.0, 0.85, 0.7, 0.55)
"""Limits to try, as shares of the highest one known."""
_NEAR_W = 10.0
"""Limits nearer than this to a measured one are not tried."""


@dataclass(frozen=True, slots=True)
class LimitedTune:
    """The result of a tune for energy at a power limit: tokens per joule of the recommended draft length."""

    id: str
    limit_w: float
    draft: int
    tokens_per_joule: float | None


def read_power_limit() -> tuple[Gpu, float] | None:
    """Return the GPU that an engine would use and its power limit in watts; None if that is unknown."""
    gpus = find_gpus().gpus
    state = read_gpu_states(gpus[:1]).get(gpus[0].id) if gpus else None
    limit = None if state is None else state[0]["gpu_power_limit_w"].value
    return None if limit is None else (gpus[0], limit)


def limit_command(gpu: Gpu, watts: int, platform: str = sys.platform) -> str | None:
    """Return the command with which an administrator sets a power limit; None if there is none for this GPU."""
    if gpu.vendor == "nvidia":
        return f"{'' if platform == 'win32' else 'sudo '}nvidia-smi -i {gpu.index} -pl {watts}"
    if gpu.vendor == "amd" and platform == "linux":
        file = f"/sys/bus/pci/devices/{gpu.id}/hwmon/hwmon*/power1_cap"
        return f"echo {watts}000000 | sudo tee {file}"
    return None


def limits_to_try(now_w: float, tunes: Sequence[LimitedTune]) -> list[int]:
    """Return further limits to measure at, highest first: shares of the highest known, without measured ones."""
    known = [now_w, *(tune.limit_w for tune in tunes)]
    wanted = (5 * round(share * max(known) / 5) for share in _SHARES)
    return [watts for watts in wanted if all(abs(watts - each) >= _NEAR_W for each in known)]


def find_limited_tunes(model: str) -> list[LimitedTune]:
    """Return the newest tune for energy of a model at each power limit, highest limit first. Raises HistoryUnusable."""
    if not history_file().exists():
        return []
    found: dict[int, LimitedTune] = {}
    with History() as history:
        for summary in history.find_sessions(kind="tune", model=model):
            session = history.load(summary.id)
            result, limit_w = session.result, session.result.get(LIMIT_KEY)
            is_energy = result.get("goal") == "energy" and session.environment.model.name == model
            if is_energy and isinstance(limit_w, int | float) and round(limit_w) not in found:
                found[round(limit_w)] = _read_result(summary.id, float(limit_w), result)
    return sorted(found.values(), key=lambda tune: -tune.limit_w)


def _read_result(session_id: str, limit_w: float, result: Mapping[str, Any]) -> LimitedTune:
    draft = draft_length(result)
    values = {each["draft"]: each["value"] for each in result.get("forecasts") or ()}
    return LimitedTune(session_id, limit_w, draft, values.get(draft))
