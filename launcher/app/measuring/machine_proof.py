"""Checks on a real machine what tests elsewhere cannot: driver figures, planned memory, load times, a loaded GPU.

Each check names the line of the documentation that it confirms or refutes. A report identifies neither person nor
computer.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from launcher.app.measuring.proof_checks import (
    CHECKS,
    CONTEXT,
    KV,
    MTP,
    NVML_CLAIMS,
    NVML_ROWS,
    SERVED,
    CheckOutcome,
    CheckResult,
    ProofReport,
)
from launcher.app.measuring.saved_tunes import check_no_tune
from launcher.app.measuring.session_bench import SessionBench
from launcher.app.measuring.sweeps import SweepModel, run_endurance
from launcher.app.module_process import ModuleFailed, run_module
from launcher.app.planning.load_memory import measure_load_memory
from launcher.app.planning.model_source import ModelSource, estimate_by_formula
from launcher.app.planning.planner import MachineDescription, read_situation
from launcher.app.serving.serving_session import ServingSession
from launcher.app.serving.session import ServerSession
from launcher.base.errors import GeometryUnknown, LauncherError
from launcher.base.identity import ProcessId
from launcher.base.messages import command_name, message
from launcher.engine.engine_estimate import EngineEstimate, comparable_parts, read_engine_memory
from launcher.engine.server import registry
from launcher.engine.server.client import ChatRequest
from launcher.engine.server.launch import Launch
from launcher.engine.server.load_times import LoadTimer, expected_load_time
from launcher.engine.server.state import EngineStarted, Notice, ServerEvent
from launcher.machine.display import is_display_reachable
from launcher.machine.gpu import Gpu
from launcher.machine.gpus import GpuSensors, read_gpu_states
from launcher.machine.machine import Machine, read_machine
from launcher.machine.nvidia_smi import ComparedFigure, compare_with_nvidia_smi, find_nvidia_smi
from launcher.machine.wsl import find_missing_paths
from launcher.models.catalogue_load import load_catalogue
from launcher.models.evidence import read_rows
from launcher.models.locate import select_model
from launcher.models.memory import MemoryEstimate
from launcher.models.server_settings import Value
from launcher.models.situation import Situation
from launcher.monitor.health_event import FindingCode, HealthEvent
from launcher.monitor.health_watch import lines_since_start
from launcher.tuning.history_environment import Environment
from launcher.tuning.records import Prompt, Run
from launcher.tuning.session_file import OWN_PROMPTS, anonymize_environment
from launcher.tuning.sized_prompts import fill_prompts
from launcher.tuning.space import DRAFT
from launcher.tuning.statistics import Figure, Pair, paired_speedup
from launcher.tuning.timed_request import build_request
from launcher.tuning.workloads import Workload, shipped_workloads

_MIB = 2**20


class ServerRuns(LauncherError):
    """A server of this user runs, so that nothing can be measured beside it."""

    code = "server_runs"


def check_nothing_runs() -> None:
    """Raise ServerRuns if a server of this user runs, and TuneUnderWay during a tune."""
    check_no_tune()
    if entries := registry.list_entries():
        raise ServerRuns(
            message("A server runs at {url}, so memory and speed cannot be measured.", url=entries[0].url),
            message(
                "Stop it first[: {stop}]. Start it again afterwards[: {serve}].",
                stop=command_name("stop"),
                serve=command_name("serve"),
            ),
        )


_SETTINGS_SHARE, _MONITORING_SHARE = 0.6, 0.12
"""Shares of the time after which no further settings are tried, and for the cost of monitoring. The rest is load."""
_SEED = 1
_REPLIES = 2
"""Number of timed replies with the served settings, and with MTP switched on or off."""
_SHORTEST_CONTEXT = 256
_MOST_MEMORY_DIFFERENCE, _MOST_PART_DIFFERENCE = 0.02, 0.01
"""Shares by which the total and a part may differ from the plan, as in docs/accuracy.md."""
_GROWTH_SLACK_MIB = 64
"""MiB by which other programs may change the memory in use, where the driver does not report the memory of each."""
_MOST_LOAD_RATIO, _LOAD_SLACK_S = 2.0, 2.0
"""Limits of a load: this many times the expected time, or this many seconds more."""
_LEAST_RATIO, _LEAST_PAIRS, _PAIR_REPLY_S = 0.99, 6, 0.5
"""Least share of the tokens/s that monitoring leaves, fewest pairs to judge it, and seconds of a reply in a pair."""
_FEWEST_TOKENS, _REPLY_SHARE = 16, 0.05
"""Fewest tokens of a timed reply, and the share of the time that one may take."""
_MOST_SPREAD = 0.1
"""Standard deviation of equal replies, as a share of their mean, above which their speed is no evidence."""
_SHORT_LOAD_S = 1.0
"""Seconds of load where only the time of the load itself can be judged."""
_SHORTEST_LOAD_S = 30.0
"""Seconds of load from which a spill or throttling would have been seen: detectors take ten checks."""
_SMI_TRIES = 3
"""Readings of nvidia-smi, as memory and power may change between its own and ours."""
_TRAY_LIMIT_S = 30.0
_REFUTED_BY = {
    FindingCode.SPILL: "spill",
    FindingCode.THROTTLED_HOT: "throttling",
    FindingCode.THROTTLED_HARDWARE: "throttling",
}
"""The claims that findings of the health monitor refute."""
_SPILL_READINGS = ("gpu_shared_mib", "gtt_used_mib", "pcie_received_mib_s")

_STEPS = {
    SERVED: message("Measuring the memory as served"),
    CONTEXT: message("Measuring the memory with half the context"),
    KV: message("Measuring the memory with another KV cache type"),
    MTP: message("Measuring with MTP off (on if it is off)"),
}
"""Progress texts, by the settings that are being measured."""

_TIME_OVER = message("The time ran out before this check.")
_ON_PROCESSOR = message("The model runs on the processor.")

OnStep = Callable[[str], object]
OnOutcome = Callable[[CheckOutcome], object]


class MachineProof:
    """Runs the checks. `report` may be called at any time; checks that were not reached count as not tried.

    `seconds` is about the longest time. `on_step` gets a text for what is done next, `on_outcome` each outcome as it
    is known; a later one replaces that of the same check.
    """

    def __init__(
        self, model: SweepModel, workload: Workload, seconds: float, on_step: OnStep, on_outcome: OnOutcome
    ) -> None:
        self._model, self._on_step, self._on_outcome = model, on_step, on_outcome
        self._workload, self._prompt = workload, workload.prompts[0]
        self._began_s, self._seconds = time.monotonic(), seconds
        self._session = ServerSession(on_event=self._handle_event, on_health=self._handle_health)
        self._outcomes: dict[str, CheckOutcome] = {}
        self._untried_reason: str = message("The run was interrupted before this check.")
        self._environment: Environment | None = None
        self._situation: Situation | None = None
        self._machine: Machine | None = None
        self._system = "linux"
        self._backend = "cpu"
        self._engines: list[ProcessId] = []
        self._slept_s: float | None = None
        self._load_timer = LoadTimer()
        self._launches: dict[str, Launch] = {}
        self._memory_mib: dict[str, int] = {}
        self._idle_used_mib: float | None = None
        self._runs: dict[str, list[Run]] = {}
        self._pairs: list[Pair] = []

    @property
    def spent_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began_s

    def report(self) -> ProofReport:
        """Return the report of what was tried until now."""
        outcomes = tuple(
            self._outcomes.get(check.id)
            or self._make_outcome(check.id, CheckResult.NOT_TRIED, reason=self._untried_reason)
            for check in CHECKS.values()
        )
        return ProofReport(f"{datetime.now(UTC):%Y-%m-%d}", self._environment, outcomes, self._list_evidence())

    async def run(self) -> None:
        """Try all checks. The server is stopped at the end, also after an error."""
        self._on_step(message("Reading the machine"))
        self._machine = await asyncio.to_thread(read_machine, wake=True)
        host = self._machine.host
        self._system = "wsl" if host.wsl else host.kind
        await asyncio.to_thread(self._compare_with_nvidia_smi, self._machine.gpus)
        self._check_wsl(in_wsl=bool(host.wsl))
        await self._check_tray()
        is_windows = host.kind == "windows"
        by_hand = message(
            "Only a person can check this: note what SmartScreen showed when you opened the setup program."
        )
        self._skip("smartscreen", by_hand if is_windows else message("This is not Windows."))
        self._situation = await read_situation(MachineDescription(wake=True))
        self._idle_used_mib = await asyncio.to_thread(self._read_used_memory)
        try:
            if await self._measure_settings():
                await self._keep_busy()
        finally:
            await self._session.stop()
            self._judge("engine-ends", self._count_running() == 0, "0 running", f"{self._count_running()} running")

    # Results

    def _make_outcome(self, name: str, result: CheckResult, **texts: str | None) -> CheckOutcome:
        check = CHECKS[name]
        key = self._system if check.rows is NVML_ROWS else self._backend
        return CheckOutcome(check, check.line_for(key), result, **texts)

    def _judge(self, name: str, is_true: bool, expected: str | None, measured: str | None) -> None:
        result = CheckResult.CONFIRMED if is_true else CheckResult.REFUTED
        self._note_outcome(self._make_outcome(name, result, expected=expected, measured=measured))

    def _skip(self, name: str, reason: str, *, expected: str | None = None, measured: str | None = None) -> None:
        result = CheckResult.NOT_TRIED
        self._note_outcome(self._make_outcome(name, result, expected=expected, measured=measured, reason=reason))

    def _note_outcome(self, outcome: CheckOutcome) -> None:
        self._outcomes[outcome.check.id] = outcome
        self._on_outcome(outcome)

    # Events of the session

    def _handle_event(self, event: ServerEvent) -> None:
        self._load_timer.handle_event(event)
        match event:
            case EngineStarted(pid, created_s) if created_s is not None:
                self._engines.append(ProcessId(pid, created_s))
            case Notice("slept", _):
                self._slept_s = time.monotonic()
            case _:
                pass

    def _handle_health(self, event: HealthEvent) -> None:
        """Refute a claim at its first finding, which no later reply can take back."""
        name = _REFUTED_BY.get(event.finding.code)
        if name is None or event.cleared or name in self._outcomes:
            return
        self._judge(name, False, "none", event.finding.sentence)
        self._on_step(event.finding.sentence.rstrip("."))

    def _count_running(self) -> int:
        return sum(each.is_running() for each in self._engines)

    # The machine

    def _compare_with_nvidia_smi(self, gpus: Sequence[Gpu]) -> None:
        own = [gpu for gpu in gpus if gpu.vendor == "nvidia" and gpu.driver is not None]
        program = find_nvidia_smi()
        if not own or program is None:
            reason = (
                message("nvidia-smi is not installed.") if own else message("There is no NVIDIA GPU with a driver.")
            )
            for name in NVML_CLAIMS:
                self._skip(name, reason)
            return
        for _ in range(_SMI_TRIES):
            figures = compare_with_nvidia_smi(own, program)
            for name in NVML_CLAIMS:
                self._judge_figures(name, figures[name.removeprefix("nvml-")])
            if not any(self._outcomes[name].result is CheckResult.REFUTED for name in NVML_CLAIMS):
                return

    def _judge_figures(self, name: str, figures: Sequence[ComparedFigure]) -> None:
        """Judge one figure of all cards; `expected` is what nvidia-smi prints, `measured` what was read."""
        known = [each for each in figures if each.is_known]
        if known:
            expected, measured = (
                "; ".join(each.printed_text for each in known),
                "; ".join(each.read_text for each in known),
            )
            self._judge(name, all(each.agrees for each in known), expected, measured)
        else:
            self._skip(name, message("Either the driver or nvidia-smi does not report it."))

    def _check_wsl(self, *, in_wsl: bool) -> None:
        if not in_wsl:
            self._skip("wsl-paths", message("This is not WSL."))
            return
        missing = find_missing_paths()
        self._judge("wsl-paths", not missing, "all found", "all found" if not missing else f"{len(missing)} missing")

    async def _check_tray(self) -> None:
        if not is_display_reachable():
            self._skip("tray", message("There is no display."))
            return
        try:
            answer = await run_module("launcher.gui.tray", limit_s=_TRAY_LIMIT_S)
        except (ModuleFailed, TimeoutError, OSError):
            self._skip("tray", message("The libraries of the window do not work here."))
            return
        text = answer.decode("ascii", "replace").strip()
        self._judge("tray", text == "yes", "yes", text)

    # Memory, with one set of settings after the other

    async def _measure_settings(self) -> bool:
        """Measure the memory with several settings; return whether the model could be served."""
        bench = SessionBench(self._session, self._model.options, model_name=self._model.model_name)
        for name, changes in _list_measured_settings(self._model).items():
            if name != SERVED and self.spent_s > _SETTINGS_SHARE * self._seconds:
                self._skip_memory(name, _TIME_OVER, _TIME_OVER)
                continue
            if changes is None:
                reason = message("The model has no MTP head.")
                self._skip_memory(name, reason, reason)
                continue
            self._on_step(_STEPS[name])
            try:
                await bench.become(changes)
                await self._measure_memory(name)
                if name in (SERVED, MTP):
                    self._runs[name] = await self._time_replies(bench)
                if name == SERVED:
                    await self._measure_monitoring(self._runs[name])
            except LauncherError as error:
                self._judge(f"plan-{name}", False, "starts", error.title)
                self._skip(f"memory-{name}", message("The server did not start, or ended."))
                if name == SERVED:
                    self._untried_reason = message("The model could not be served.")
                    return False
        return True

    async def _time_replies(self, bench: SessionBench) -> list[Run]:
        """Return timed replies after a warm-up, which tells how long they may be; a slow machine makes only one."""
        warm = await bench.run(replace(self._prompt, tokens=_FEWEST_TOKENS), seed=_SEED)
        tokens = round((warm.decode_rate or 0.0) * _REPLY_SHARE * self._seconds)
        prompt = replace(self._prompt, tokens=min(self._prompt.tokens, max(_FEWEST_TOKENS, tokens)))
        runs = [await bench.run(prompt, seed=_SEED)]
        while len(runs) < _REPLIES and self.spent_s < _SETTINGS_SHARE * self._seconds:
            runs.append(await bench.run(prompt, seed=_SEED))
        return runs

    def _skip_memory(self, name: str, plan_reason: str, memory_reason: str) -> None:
        self._skip(f"plan-{name}", plan_reason)
        self._skip(f"memory-{name}", memory_reason)

    async def _measure_memory(self, name: str) -> None:
        supervisor = self._session.supervisor
        launch, pid, lines = supervisor.launch, supervisor.engine_pid, lines_since_start(supervisor.log.last_lines())
        if launch is None or pid is None:
            self._skip_memory(name, message("The engine has ended."), message("The engine has ended."))
            return
        self._launches[name] = launch
        if self._environment is None:
            self._environment = await asyncio.to_thread(Environment.for_launch, launch, self._machine)
        engine = read_engine_memory(launch.build, lines)
        if engine is None:
            reason = message("The engine does not print its memory.")
            self._skip_memory(name, reason, reason)
            return
        self._backend = engine.backend
        estimate = await asyncio.to_thread(self._estimate_memory, launch, engine)
        if estimate is None:
            reason = message("The memory of this model with its draft model, projector or arguments is not compared.")
            self._skip_memory(name, reason, reason)
            return
        planned, measured = _list_parts(estimate, engine)
        agrees = all(map(_is_part_as_planned, planned, measured, [len(engine.devices) or 2] * len(planned)))
        expected = " + ".join(f"{each:,.1f}" for each in planned)
        self._judge(f"plan-{name}", agrees, f"{expected} MiB", f"{' + '.join(f'{each:,}' for each in measured)} MiB")
        await self._measure_gpu_memory(name, launch, pid, lines, estimate, engine)

    def _estimate_memory(self, launch: Launch, engine: EngineEstimate) -> MemoryEstimate | None:
        """Return the plan for a launch on the devices that the engine has used; None where it cannot be compared."""
        options, situation = launch.options, self._situation
        if options.used_draft_file or options.mmproj or options.extra:
            return None
        settings = replace(launch.plan_settings(engine.backend), gpus=max(len(engine.devices), 1))
        if situation is not None and situation.backend == engine.backend:
            settings = replace(settings, **situation.memory_fields | {"gpus": settings.gpus})
        try:
            return estimate_by_formula(ModelSource(launch.header, ()), settings)
        except GeometryUnknown:
            return None

    async def _measure_gpu_memory(
        self,
        name: str,
        launch: Launch,
        pid: int,
        lines: Sequence[str],
        estimate: MemoryEstimate,
        engine: EngineEstimate,
    ) -> None:
        """Compare the planned GPU memory with that which the driver counts for the engine."""
        if len(engine.devices) != 1:
            reason = message("The model is on several GPUs.") if engine.devices else _ON_PROCESSOR
            self._skip(f"memory-{name}", reason)
            return
        await self._read_full_ubatch(launch)
        load = await asyncio.to_thread(measure_load_memory, launch, pid, lines, has_read_prompt=True)
        measured_mib, slack_mib, how = (load.measured_mib if load else None), 0, ""
        if measured_mib is None:  # WDDM and WSL hide the memory of a program
            now_mib = await asyncio.to_thread(self._read_used_memory)
            if now_mib is not None and self._idle_used_mib is not None:
                measured_mib, slack_mib = round(now_mib - self._idle_used_mib), _GROWTH_SLACK_MIB
                how = ", by the growth of the card's memory in use"
        if measured_mib is None:
            self._skip(f"memory-{name}", message("The driver does not report the GPU memory."))
            return
        planned_mib = estimate.parts.total / _MIB
        self._memory_mib[name] = measured_mib
        agrees = abs(measured_mib - planned_mib) <= _MOST_MEMORY_DIFFERENCE * planned_mib + slack_mib
        self._judge(f"memory-{name}", agrees, f"{planned_mib:,.0f} MiB", f"{measured_mib:,} MiB{how}")

    async def _read_full_ubatch(self, launch: Launch) -> None:
        """Have the engine read a prompt of a full ubatch, or of half the context, so that it has all of its memory."""
        settings = launch.plan_settings("cpu")
        size = min(settings.ubatch, settings.slot_context // 2)
        prompt = Prompt("ubatch", (("user", "continue"),), _FEWEST_TOKENS, size=size)
        with suppress(LauncherError):  # the memory is compared all the same
            (filled,) = await fill_prompts([prompt], self._session.supervisor.client)
            await self._session.send_request(build_request(filled, seed=_SEED))

    def _read_used_memory(self) -> float | None:
        """Return the memory in use on the only GPU, in MiB; None if it is unknown, or there are several."""
        gpus = self._machine.gpus if self._machine else ()
        states = list(read_gpu_states(gpus, wake=True).values()) if len(gpus) == 1 else []
        return states[0][0]["vram_used_mib"].value if states else None

    # The cost of monitoring

    async def _measure_monitoring(self, runs: Sequence[Run]) -> None:
        """Compare the tokens/s with and without the monitor, in pairs, each in the other order than the last."""
        minutes = _MONITORING_SHARE * self._seconds / 60
        self._on_step(message("Measuring what monitoring costs, for {minutes:.1f} min", minutes=minutes))
        speed = Figure.from_values(run.decode_rate for run in runs)
        if speed is None:
            self._skip("monitoring", message("The replies have no speed."))
            return
        tokens = max(_FEWEST_TOKENS, min(self._prompt.tokens, round(speed.mean * _PAIR_REPLY_S)))
        request = build_request(_with_length(self._prompt, tokens), seed=_SEED)
        until_s = self.spent_s + _MONITORING_SHARE * self._seconds
        pairs = self._pairs
        await self._session.monitor.end()
        try:
            while self.spent_s < until_s:
                rates: dict[bool, float] = {}
                with_first = len(pairs) % 2 == 0
                for monitored in (with_first, not with_first):
                    rates[monitored] = await measure_reply_rate(self._session, request, monitored=monitored)
                pairs.append(Pair(rates[False], rates[True], baseline_first=not with_first))
        except LauncherError as error:
            self._skip("monitoring", error.title)
            return
        finally:
            self._session.monitor.watch_server(self._session.supervisor)
        if len(pairs) < _LEAST_PAIRS:
            self._skip("monitoring", _TIME_OVER)
            return
        ratio = paired_speedup(pairs)
        expected = f">= {100 * _LEAST_RATIO:.0f} %"
        measured = f"{100 * ratio.low:.1f} to {100 * ratio.high:.1f} % ({len(pairs)} pairs)"
        if ratio.low < _LEAST_RATIO <= ratio.high or find_doubts([], pairs):
            reason = message("Replies vary too much for an answer in this time.")
            self._skip("monitoring", reason, expected=expected, measured=measured)
            return
        self._judge("monitoring", ratio.low >= _LEAST_RATIO, expected, measured)

    # Load

    async def _keep_busy(self) -> None:
        """Load the model again as it is served; if a load can show anything, keep it busy for the rest of the time."""
        seconds = self._seconds - self.spent_s
        if seconds <= 0:
            self._untried_reason = _TIME_OVER
            return
        throttling_known, spill_known = await asyncio.to_thread(self._read_signs)
        if throttling_known or spill_known:
            self._on_step(message("Keeping the model busy for {minutes:.1f} min", minutes=seconds / 60))
        else:
            self._on_step(message("Loading the model again"))
            seconds = min(seconds, _SHORT_LOAD_S)
        expected = await asyncio.to_thread(expected_load_time, self._launches[SERVED])
        self._load_timer.take_seconds()
        runs: list[Run] = []
        model = self._model
        try:
            await run_endurance(self._session, model, model.options.draft, self._workload, seconds, runs.append)
        except LauncherError as error:
            self._untried_reason = error.title
            return
        loaded_s = self._load_timer.take_seconds()
        if expected is None or loaded_s is None:
            self._skip("load-time", message("The time of a load is not known."))
        else:
            most_s = max(_MOST_LOAD_RATIO * expected.seconds, expected.seconds + _LOAD_SLACK_S)
            agrees = expected.seconds / _MOST_LOAD_RATIO - _LOAD_SLACK_S <= loaded_s <= most_s
            self._judge("load-time", agrees, f"{expected.seconds:.1f} s", f"{loaded_s:.1f} s")
        self._judge_load(runs, throttling_known=throttling_known, spill_known=spill_known)
        self._judge_sleep(runs)

    def _read_signs(self) -> tuple[bool, bool]:
        """Return whether a GPU computes whose driver reports the limits of the clocks, and what shows a spill."""
        if self._backend == "cpu":
            return False, False
        sensors = GpuSensors()
        try:
            sensors.sample(engine_runs=True)
            snapshot = sensors.read_snapshot(self._session.supervisor.engine_pid or 0)
        finally:
            sensors.close()
        known = [name for name in _SPILL_READINGS if (each := snapshot.readings.get(name)) and each.value is not None]
        return snapshot.activity.throttled_by is not None, bool(known)

    def _judge_load(self, runs: Sequence[Run], *, throttling_known: bool, spill_known: bool) -> None:
        load_s = sum(run.wall_s for run in runs)
        heat = Figure.from_values(run.temperature_c for run in runs)
        hottest = f", {heat.most:.0f} °C" if heat else ""
        for name, is_known in (("spill", spill_known), ("throttling", throttling_known)):
            if name in self._outcomes:
                continue  # the check has failed under load already
            if self._backend == "cpu":
                self._skip(name, _ON_PROCESSOR)
            elif not is_known:
                self._skip(name, message("The driver reports no value that would show it."))
            elif load_s < _SHORTEST_LOAD_S:
                self._skip(name, message("The load was shorter than {least:.0f} s.", least=_SHORTEST_LOAD_S))
            else:
                self._judge(name, True, "none", f"none in {load_s:.0f} s{hottest}")

    def _judge_sleep(self, runs: Sequence[Run]) -> None:
        later = [run for run in runs if self._slept_s is not None and run.began_s + run.wall_s > self._slept_s]
        if not later:
            self._skip("sleep", message("The computer did not sleep meanwhile."))
            return
        answered = later[-1].error is None
        self._judge("sleep", answered, "answers", "answers" if answered else later[-1].error)

    # Evidence

    def _list_evidence(self) -> tuple[dict[str, str], ...]:
        """Return a row for the settings that are served, and one with MTP switched on or off.

        Returns none unless the model is in the catalogue.
        """
        environment, served = self._environment, self._launches.get(SERVED)
        if environment is None or served is None:
            return ()
        catalogue = load_catalogue()
        selection = select_model(self._model.model_name, catalogue)
        entry, file = selection.entry, selection.file
        if entry not in catalogue.models:
            return ()
        speeds = {name: Figure.from_values(run.decode_rate for run in runs) for name, runs in self._runs.items()}
        doubts = find_doubts(list(self._runs.values()), self._pairs)
        rows = []
        for name, runs in self._runs.items():
            speed, launch = speeds[name], self._launches.get(name)
            if speed is None or launch is None:
                continue
            without = speeds.get(MTP if name == SERVED else SERVED) if launch.options.drafter.drafts else None
            values = _describe_run(anonymize_environment(environment), launch, runs, self._backend)
            values |= {
                "model": entry.published_as,
                "quant": file.quant if file else environment.model.quant or "",
                "baseline": _format_figure(without.mean if without else None, 1),
                "tokens_per_second": _format_figure(speed.mean, 1),
                "memory_mib": _format_figure(self._memory_mib.get(name), 0),
                "workload": self._workload.name if self._workload in shipped_workloads() else OWN_PROMPTS,
                "new_tokens": str(max(run.reply_tokens for run in runs)),
                "trust": "low" if doubts else "good",
                "note": doubts,
            }
            rows.append({column: values.get(column, "") for column in read_rows()[0]})
        return tuple(rows)


def _list_measured_settings(model: SweepModel) -> dict[str, dict[str, Value] | None]:
    """Return the settings to measure as changes of those that are served; None if the model cannot have them.

    None of them takes more memory than the served ones: those with drafts get half the context.
    """
    options = model.options
    half = max((options.context or 0) // 2, _SHORTEST_CONTEXT)
    other_kv = "q8_0" if options.kv in (None, "f16") else "f16"
    longest = max(model.drafts)
    with_drafts: dict[str, Value] | None = {DRAFT: longest, "ctx": half} if longest else None
    return {
        SERVED: {},
        CONTEXT: {"ctx": half},
        KV: {"ctx": half, "kv": other_kv},
        MTP: {DRAFT: 0} if options.drafter.drafts else with_drafts,
    }


def _list_parts(estimate: MemoryEstimate, engine: EngineEstimate) -> tuple[list[float], list[int]]:
    """Return the parts of the memory as planned and as the engine prints them, in MiB, in the same order."""
    parts = comparable_parts(estimate)
    named = [name for name in parts if getattr(engine, name) is not None]
    return [parts[name] for name in named], [getattr(engine, name) for name in named]


def _is_part_as_planned(planned_mib: float, engine_mib: int, roundings: int) -> bool:
    """Return whether a part is as planned; engines round down to whole MiB, once for each kind of memory."""
    beyond_mib = min(planned_mib - engine_mib, 0.0) or max(planned_mib - engine_mib - roundings, 0.0)
    return abs(beyond_mib) <= _MOST_PART_DIFFERENCE * engine_mib


async def measure_reply_rate(session: ServingSession, request: ChatRequest, *, monitored: bool) -> float:
    """Return the tokens/s of one reply by the engine's own clock, with the monitor running or not.

    The monitor must not run before, and does not afterwards, so that opening its sensors counts as its cost. Raises
    LauncherError for a reply without figures.
    """
    if monitored:
        session.monitor.watch_server(session.supervisor)
    try:
        reply = await session.send_request(request, measured=True)
    finally:
        await session.monitor.end()
    rate = reply.timings.tokens_per_second if reply.timings is not None else None
    if not rate:
        raise LauncherError(message("The engine does not time its replies."))
    return rate


def _with_length(prompt: Prompt, tokens: int) -> Prompt:
    """Return the prompt, changed so that the reply has exactly `tokens` tokens, and the same tokens each time."""
    return replace(prompt, tokens=tokens, sampling={**prompt.sampling, "temperature": 0, "ignore_eos": True})


# Rows of presets/evidence/runs.csv


def find_doubts(replies: Sequence[Sequence[Run]], pairs: Sequence[Pair]) -> str:
    """Return why the speeds of a report deserve little trust, or "".

    `replies` are those of each setting, equal but for chance. Each row cites the speed of another setting too, so they
    all count; and so do the replies without the monitor in `pairs`, which show how steady the computer was.
    """
    if any(not run.is_counted for runs in replies for run in runs):
        return "a reply was disturbed"
    if any(len(runs) < _REPLIES for runs in replies):
        return "a single reply"
    rates = [[run.decode_rate for run in runs] for runs in replies]
    if len(pairs) > 1:
        rates.append([pair.baseline for pair in pairs])
    spreads = [figure.stdev / figure.mean for each in rates if (figure := Figure.from_values(each)) and figure.stdev]
    widest = max(spreads, default=0.0)
    return f"equal replies vary by {100 * widest:.0f} % (standard deviation)" if widest > _MOST_SPREAD else ""


def _describe_run(environment: Environment, launch: Launch, runs: Sequence[Run], backend: str) -> dict[str, str]:
    """Return the columns of a row for machine, engine and settings, and the figures of the replies other than their
    speed."""
    gpu = environment.gpus[0] if environment.gpus and backend != "cpu" else None
    options = launch.resolved
    drafted, accepted = (
        sum(getattr(run.acceptance, name) for run in runs if run.acceptance) for name in ("drafted", "accepted")
    )
    prefill, power = (Figure.from_values(getattr(run, name) for run in runs) for name in ("prefill_rate", "power_w"))
    return {
        "file_bytes": str(launch.header.file_bytes),
        "gpu": gpu.name.removeprefix("NVIDIA ").removeprefix("GeForce ") if gpu else environment.cpu or "",
        "gpu_memory_gb": str(round(gpu.memory_bytes / 2**30)) if gpu and gpu.memory_bytes else "",
        "os": environment.system.partition(", kernel")[0],
        "backend": {"cuda": "CUDA", "rocm": "ROCm", "cpu": "CPU"}.get(backend, backend.capitalize()),
        "driver": (gpu.driver or "") if gpu else "",
        "engine": f"{environment.engine} {environment.engine_version}",
        "ctx": str(launch.context),
        "prompt_tokens": str(runs[0].prompt_tokens),
        "kv": options.kv or "f16",
        "ubatch": str(options.ubatch or ""),
        "n_cpu_moe": str(options.n_cpu_moe or ""),
        "speculation": options.drafter.spec_type,
        "draft": str(options.draft),
        "acceptance": f"{accepted / drafted:.3f}" if drafted else "",
        "prompt_rate": _format_figure(prefill.mean if prefill else None, 1),
        "power_w": _format_figure(power.mean if power else None, 0),
        "runs": str(len(runs)),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "method": "mtp-launcher prove",
    }


def _format_figure(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
