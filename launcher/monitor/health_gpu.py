"""What goes wrong with a GPU that runs a model: throttling, other programs in its memory, nothing running on it."""

from launcher.base.words import part
from launcher.engine.action import Action, ActionKind
from launcher.machine.gpu import GpuProcess
from launcher.monitor.health_event import Code, Finding, Level, Moment, Setup

HOT = frozenset({"temperature (driver)", "temperature (hardware)"})
HARDWARE = frozenset({"hardware slowdown", "power brake"})
POWER = frozenset({"power limit"})
"""NVML's reasons in the words of machine.nvidia. The hardware's slowdown comes with its cause, which goes first."""

Evidence = dict[str, float | str]

_MIB = 2**20
_POWER_COSTS, _HEAT_COSTS = 0.75, 0.92
_SHORT_MIB, _ROOM_MIB = 256.0, 512.0
_TAKEN_MIB = 256.0
_NAMED = 2


class Throttling:
    """Clocks that NVML says are held back, while the GPU works.

    A power limit is the ordinary state of a GPU at work. It is told only where it costs a quarter of the clock
    that this server had, and as information where a battery explains it.
    """

    def __init__(self, code: Code) -> None:
        self._code = code
        self._best_mhz = 0.0

    def look(self, moment: Moment) -> Finding | bool | None:
        """See Detector."""
        reasons = moment.activity.throttled_by
        if reasons is None or not moment.generating:
            return None
        clock = moment.value("gpu_clock_mhz")
        self._best_mhz = max(self._best_mhz, clock or 0.0)
        if self._judged(frozenset(reasons)) is not self._code:
            return False
        if self._code is Code.THROTTLED_POWER and (clock is None or clock > _POWER_COSTS * self._best_mhz):
            return None if clock is None else False
        names = ("gpu_temperature_c", "gpu_clock_mhz", "gpu_power_w", "gpu_power_limit_w")
        figures = {name: value for name in names if (value := moment.value(name)) is not None}
        evidence: Evidence = {**figures, "highest_gpu_clock_mhz": self._best_mhz, "reasons": ", ".join(reasons)}
        return self._found(moment, evidence, _clocks(clock, self._best_mhz))

    @staticmethod
    def _judged(reasons: frozenset[str]) -> Code | None:
        if reasons & HOT:
            return Code.THROTTLED_HOT
        if reasons & HARDWARE:
            return Code.THROTTLED_HARDWARE
        return Code.THROTTLED_POWER if reasons & POWER else None

    def _found(self, moment: Moment, evidence: Evidence, clocks: str) -> Finding:
        temperature = moment.value("gpu_temperature_c")
        if self._code is Code.THROTTLED_HOT:
            at = f" at {temperature:.0f} °C" if temperature is not None else ""
            cool = Action(ActionKind.IMPROVE_COOLING, "Clear the fans and the air's way")
            sentence = f"The GPU slows down because it is too hot{at}{clocks}."
            return Finding(self._code, sentence, evidence, cool, self._level_of_heat(moment))
        if self._code is Code.THROTTLED_HARDWARE:
            check = Action(ActionKind.IMPROVE_COOLING, "Check the power cables and the cooling")
            sentence = f"The GPU's own protection slows it down: its power supply or its cooling falls short{clocks}."
            return Finding(self._code, sentence, evidence, check)
        if moment.on_battery:
            sentence = f"On battery the GPU gets less power{clocks}."
            plug = Action(ActionKind.PLUG_IN, "Plug in the charger")
            return Finding(self._code, sentence, evidence, plug, Level.INFORMATION)
        limit = moment.value("gpu_power_limit_w")
        watts = f" of {limit:.0f} W" if limit is not None else ""
        sentence = f"The power limit{watts} holds the GPU back{clocks}."
        return Finding(self._code, sentence, evidence, None, Level.INFORMATION)

    def _level_of_heat(self, moment: Moment) -> Level:
        """A laptop's driver holds a temperature all day; that alone is no alarm while it costs hardly any clock."""
        clock = moment.value("gpu_clock_mhz")
        by_hardware = "temperature (hardware)" in (moment.activity.throttled_by or ())
        costs = clock is None or clock < _HEAT_COSTS * self._best_mhz
        return Level.WARNING if by_hardware or costs else Level.INFORMATION


def _clocks(now: float | None, best: float) -> str:
    return part(f": {now:.0f} MHz, it had {best:.0f} MHz") if now is not None and best > now else ""


class VramPressure:
    """Other programs that came into the GPU's memory after the model, until hardly any is left.

    llama-server takes its memory when it starts. Growth afterwards is others': exactly where NVML tells the memory of
    each program, else by inference.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._others_mib: float | None = None
        self._used_mib: float | None = None

    def look(self, moment: Moment) -> Finding | bool | None:
        """See Detector."""
        used, total = moment.value("vram_used_mib"), self._setup.vram_total_mib
        if used is None or total is None:
            return None
        others = self._others(moment.activity.processes)
        if self._used_mib is None:
            self._used_mib, self._others_mib = used, others
        exact = others is not None and self._others_mib is not None
        came = (others or 0) - (self._others_mib or 0) if exact else used - self._used_mib
        free = total - used
        if free > _ROOM_MIB or came < _TAKEN_MIB / 2:
            return False
        if free > _SHORT_MIB or came < _TAKEN_MIB:
            return None
        who = self._names(moment.activity.processes)
        mib, left = f"{came:.0f} MiB", f"{max(free, 0):.0f} MiB"
        if exact:
            by = who or part("Other programs")
            told = f"{by} took {mib} of GPU memory since the model was loaded; {left} are left."
        else:
            told = f"Other programs took, as it seems, {mib} of GPU memory since the model was loaded; {left} are left."
        if who and not exact:
            told = " ".join((told, f"On it now: {who}."))
        return Finding(
            Code.VRAM_PRESSURE,
            told,
            {"vram_free_mib": free, "vram_taken_by_others_mib": came, "programs": who or "not told"},
            Action(ActionKind.FREE_MEMORY, "Close the programs that use the GPU's memory"),
        )

    def _others(self, processes: tuple[GpuProcess, ...] | None) -> float | None:
        """Return what all programs but the engine use, in MiB; None unless the driver tells it for the engine, too."""
        engine = _engine_of(processes, self._setup.engine_pid)
        if engine is None or engine.used_bytes is None:
            return None
        return sum(each.used_bytes or 0 for each in processes or () if each is not engine) / _MIB

    def _names(self, processes: tuple[GpuProcess, ...] | None) -> str:
        others = [each for each in processes or () if each.pid != self._setup.engine_pid and each.name]
        others.sort(key=lambda each: -(each.used_bytes or 0))
        return " and ".join(dict.fromkeys(each.name or "" for each in others[:_NAMED]))


def _engine_of(processes: tuple[GpuProcess, ...] | None, pid: int | None) -> GpuProcess | None:
    """Return the engine's entry. In a container the numbers are the host's and come without names: none is ours."""
    return next((each for each in processes or () if each.pid == pid and each.name is not None), None)


class GpuUnused:
    """A build made for a GPU that runs on the processor, or layers that are on a GPU by word only.

    Where neither the log nor the driver tells (WDDM, WSL and containers hide the memory of a process), nothing is said.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    def look(self, moment: Moment) -> Finding | bool | None:
        """See Detector."""
        setup = self._setup
        if setup.expects_gpu and setup.on_gpu is False:
            why = part("it found none") if setup.sees_gpu is False else part("it put no part of the model there")
            evidence: Evidence = {"gpus_seen": "none" if setup.sees_gpu is False else "some", "layers_on_gpu": "none"}
            return self._found(f"The engine is made for a GPU but computes on the processor: {why}.", evidence)
        if not setup.on_gpu or not setup.weights_mib:
            return None if setup.expects_gpu is None else False
        taken = self._taken(moment)
        if taken is None:
            return None
        if taken > setup.weights_mib / 2:
            return False
        return self._found(
            f"The engine says that {setup.weights_mib:.0f} MiB of the model are on the GPU, but only {taken:.0f} MiB of"
            " the GPU's memory are in use.",
            {"weights_mib": setup.weights_mib, "vram_used_mib": taken},
        )

    def _taken(self, moment: Moment) -> float | None:
        """Return what the engine has of the GPU's memory, else what all programs have of it together."""
        counted = moment.value("engine_vram_mib")
        if counted is not None:
            return counted
        engine = _engine_of(moment.activity.processes, self._setup.engine_pid)
        return engine.used_bytes / _MIB if engine and engine.used_bytes is not None else moment.value("vram_used_mib")

    @staticmethod
    def _found(sentence: str, evidence: Evidence) -> Finding:
        return Finding(
            Code.GPU_UNUSED,
            sentence,
            evidence,
            Action(ActionKind.OTHER_ENGINE_BUILD, "Install the build that suits this GPU and driver"),
        )
