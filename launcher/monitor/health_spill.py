"""GPU memory that spilled into the host's: no error, a healthy server, normal acceptance, and a fraction of the speed.

Windows counts it: the shared memory of the process. 115 MiB made an RTX 3090 2.4 times slower (qwen38-mtp,
sweeps/rtx-3090.md), while its VRAM had room by nvidia-smi. Elsewhere it shows by its effects: whatever lies in host
memory crosses PCIe once for each verification step, and the GPU waits for it with less power. Traffic alone is no
proof (prompts bring experts over, too), so it takes two signs.
"""

from statistics import median

from launcher.engine.action import Action, ActionKind
from launcher.monitor.health_event import Code, Finding, Moment, Setup
from launcher.monitor.health_speed import Comparison, SpeedBook

_GREW_MIB, _MUCH_MIB, _BEYOND_MIB = 64.0, 256.0, 512.0
_FULL = 0.80
"""Share of the VRAM in use from which growth of shared memory is a spill: WDDM keeps a part of it for others."""
_TRAFFIC_MIB_S, _TRAFFIC_TIMES = 1_000.0, 3.0
_SLOWER, _COOLER = 0.75, 0.80
_USUAL_LOOKS = 10


class Spill:
    """Growth of shared memory where it is counted, else PCIe traffic together with a drop of speed or power.

    Windows counts the shared memory of the process (`gpu_shared_mib`). amdgpu counts that of all programs
    (`gtt_used_mib`), a desktop's among them, so that alone never raises it.
    """

    def __init__(self, setup: Setup, book: SpeedBook) -> None:
        self._setup = setup
        self._book = book
        self._least_mib: float | None = None
        self._usual: dict[str, list[float]] = {"gpu_power_w": [], "pcie_received_mib_s": []}

    def look(self, moment: Moment) -> Finding | bool | None:
        """See Detector."""
        speed = self._book.compare(moment.time_s)
        for name in ("gpu_shared_mib", "gtt_used_mib"):
            counted = moment.value(name)
            if counted is not None:
                return self._by_counter(moment, name, counted, speed)
        return self._by_effects(moment, speed) if moment.generating else None

    def _by_counter(self, moment: Moment, name: str, counted: float, speed: Comparison | None) -> Finding | bool | None:
        self._least_mib = counted if self._least_mib is None else min(self._least_mib, counted)
        grew, host = counted - self._least_mib, self._setup.host_mib
        used, total = moment.value("vram_used_mib"), self._setup.vram_total_mib
        full = used is not None and bool(total) and used / (total or 1) >= _FULL
        slower = speed is not None and speed.ratio <= _SLOWER
        own = name == "gpu_shared_mib"
        if own and full and host is not None and counted - host >= _BEYOND_MIB:
            spilled = counted - host
        elif (grew >= _GREW_MIB and slower) or (own and full and grew >= _MUCH_MIB):
            spilled = grew
        else:
            return False if grew < _GREW_MIB / 2 else None
        evidence = {name: counted, "spilled_mib": spilled}
        times = _times(speed)
        told = (
            f"{spilled:.0f} MiB of the GPU's memory have moved to host memory: replies take {times:.1f} times as long."
            if times
            else f"{spilled:.0f} MiB of the GPU's memory have moved to host memory."
        )
        return _found(told, evidence, speed)

    def _by_effects(self, moment: Moment, speed: Comparison | None) -> Finding | bool | None:
        traffic = moment.value("pcie_received_mib_s")
        if traffic is None:
            return None
        power = moment.value("gpu_power_w")
        traffic_times = self._against_usual("pcie_received_mib_s", traffic)
        power_share = self._against_usual("gpu_power_w", power)
        if traffic < _TRAFFIC_MIB_S / 2:
            return False
        if traffic < _TRAFFIC_MIB_S or traffic_times is None or traffic_times < _TRAFFIC_TIMES:
            return None
        slower = speed is not None and speed.ratio <= _SLOWER
        cooler = power_share is not None and power_share <= _COOLER
        if not (slower or cooler):
            return None
        evidence = {"pcie_received_mib_s": traffic, "times_usual_traffic": traffic_times}
        if power is not None and power_share is not None:
            evidence |= {"gpu_power_w": power, "share_of_usual_power": power_share}
        times = _times(speed)
        told = (
            "Parts of the model seem to have moved from the GPU's memory to host memory"
            f" ({traffic:.0f} MiB/s over PCIe while it generates): replies take {times:.1f} times as long."
            if times
            else "Parts of the model seem to have moved from the GPU's memory to host memory"
            f" ({traffic:.0f} MiB/s over PCIe while it generates)."
        )
        return _found(told, evidence, speed)

    def _against_usual(self, name: str, value: float | None) -> float | None:
        """Return `value` over what was usual while this server generated first; None until that is known."""
        if value is None:
            return None
        usual = self._usual[name]
        if len(usual) < _USUAL_LOOKS:
            usual.append(value)
            return None
        return value / max(median(usual), 1.0)


def _times(speed: Comparison | None) -> float | None:
    """Return how many times as long replies take; None unless they take clearly longer."""
    return 1 / speed.latest if speed is not None and speed.ratio <= _SLOWER else None


def _found(told: str, evidence: dict[str, float], speed: Comparison | None) -> Finding:
    figures: dict[str, float | str] = dict(evidence)
    if speed is not None:
        figures["speed_ratio"] = speed.latest
    return Finding(Code.SPILL, told, figures, Action(ActionKind.SMALLER_CONTEXT, "Halve the context"))
