"""Prepares a tune: determines the search space for one model on this machine, and the expected time."""

import asyncio
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import ClassVar

import psutil

from launcher.app.measuring.benchmark import check_sizes
from launcher.app.measuring.speed_limit import find_speed_limit
from launcher.app.planning.preview import MissingDraft, Preview, PreviewBasis, Previewer, read_basis
from launcher.app.planning.start_settings import with_drafts_here
from launcher.base.codec import JsonView
from launcher.base.errors import BadOption, ModelHasNoHead
from launcher.base.messages import join_messages, message
from launcher.engine.builds.build import BUILT_IN
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.endpoint import Endpoint
from launcher.engine.server.launch import Launch, prepare_launch
from launcher.machine.gpu import ASLEEP, TOO_SHORT
from launcher.machine.gpus import find_gpus, read_gpu_states
from launcher.machine.surroundings import read_cpu_limit
from launcher.models.drafters import Drafter, find_drafter
from launcher.models.evidence import accepted_shares, tokens_per_pass
from launcher.models.limits import check_writes_text
from launcher.models.plan import Status
from launcher.models.server_settings import ROWS, VARIED, Likely, ServerSetting, Value
from launcher.models.speed import bytes_per_token
from launcher.tuning.goal import Aim, Goal
from launcher.tuning.plan_of_trials import TrialPlan, grace_s, plan_trials
from launcher.tuning.records import Prompt, RunSettings
from launcher.tuning.space import DRAFT, DRAFTER, Space, SpaceAxis
from launcher.tuning.tune_state import Trial
from launcher.tuning.workloads import Workload

DRAFTS = (1, 2, 3, 4, 5, 6, 7, 8)
DRAFTS_WITH_P_MIN = (*DRAFTS, 10, 12)
"""Draft lengths to try, and with p-min, which ends drafts early where the head is unsure."""
_EXPERT_STEPS = 5
_MOST_DRAFTERS = 4
"""The most drafters of a tune: those of which most is expected."""
_HOT = 0.6
"""Temperature from which on drafts are worth sampling; below it greedy drafts are nearly always right. llama.cpp's
default is 0.8."""

# Guesses, used until a speed or a start was measured:
_SHARE_OF_LIMIT = 0.6
"""Speed as a share of the limit by memory bandwidth."""
_HOST_GB_S = 20.0
"""Bandwidth of host memory, where the GPU does not hold the model."""
_HIGHEST_RATE = 300.0
"""The highest speed that is expected, in tokens/s."""
_LOAD_GB_S, _START_S = 2.0, 3.0
"""Speed of reading the model's file, and seconds for the rest of a start."""
NEEDLE_S = 10.0
"""Seconds that reading the prompt around the hidden fact may take, with MTP and without."""
_GUESS_TOO_LONG = 3.0
"""The true times may be shorter than these guesses by this factor."""


@dataclass(frozen=True, slots=True)
class PreparedTune:
    """A tune that is ready to begin. `options` serve the model, called `model` by the user, without MTP.

    `plan` is its expected course within `budget_s` seconds, at `rate` tokens/s and `restart_s` seconds for a start.
    `measured` is True if that start time was measured here, False if it is a guess. `missing` are drafters that would
    be tried if their files were here.
    """

    JSON_VIEW: ClassVar[JsonView] = JsonView(
        "model workload=workload.name goal=goal.aim budget_s:0 grace_s:0 answers_s:0 seconds=plan.seconds:0 "
        "starts=plan.starts starting_s=plan.starting_s:0 least_s:0 runs=plan.runs tokens rate:1 restart_s:1 "
        "restart_measured=measured space=space_identity command=launch.command.arguments drafters "
        "missing_drafts=missing"
    )
    model: str
    options: ServeOptions
    launch: Launch
    workload: Workload
    goal: Goal
    budget_s: float
    space: Space
    plan: TrialPlan
    rate: float
    restart_s: float
    measured: bool
    estimate_mib: Callable[[RunSettings], int | None]
    """Returns the GPU memory of settings by the formula in MiB. None where unknown, or where it is host memory."""
    missing: tuple[MissingDraft, ...] = ()

    def with_measured_times(self, trials: Sequence[Trial]) -> "PreparedTune":
        """Return the tune with its plan recomputed from measured trials. Unchanged without a complete trial."""
        complete = [trial for trial in trials if trial.error is None and trial.start_s and trial.runs]
        if not complete:
            return self
        restart_s = fmean(trial.start_s for trial in complete)
        runs = [run for trial in complete for run in trial.runs if run.decode_rate and run.reply_tokens]
        if not runs:
            return self
        writing_s = sum(run.reply_tokens / (run.decode_rate or math.inf) for run in runs)
        rate = sum(run.reply_tokens for run in runs) / writing_s
        reading_s = max(0.0, sum(run.wall_s for run in runs) - writing_s) / len(runs)
        plan = plan_trials(
            self.space, self.workload.prompts, self.budget_s, rate=rate, restart_s=restart_s, reading_s=reading_s
        )
        return replace(self, plan=plan, rate=rate, restart_s=restart_s, measured=True)

    @property
    def least_s(self) -> float:
        """The fewest seconds of a budget that yields a result. A guessed start may take a third of the time."""
        return self.plan.least_s if self.measured else self.plan.least_s / _GUESS_TOO_LONG

    @property
    def answers_s(self) -> float:
        """Expected seconds after the verdict, if that is MTP: two starts, whose answers are compared."""
        return 2 * (self.restart_s + NEEDLE_S)

    @property
    def tokens(self) -> int:
        """Approximate tokens of all replies of the plan."""
        return self.plan.starts * sum(prompt.tokens for prompt in self.workload.prompts)

    @property
    def grace_s(self) -> float:
        """The seconds beyond the budget for what was begun."""
        return grace_s(self.budget_s)

    @property
    def drafters(self) -> tuple[str, ...]:
        """What may draft, as --spec-type calls it."""
        return tuple(find_drafter(each).spec_type for each in self.space.drafters)

    @property
    def space_identity(self) -> Mapping[str, object]:
        """The identity of the space."""
        return self.space.identity()


async def prepare_tune(
    model: str,
    options: ServeOptions,
    workload: Workload,
    goal: Goal,
    budget_s: float,
    *,
    vary: Collection[str] | None = None,
    space: Space | None = None,
    engine_pid: int | None = None,
    log: Sequence[str] = (),
) -> PreparedTune:
    """Determine the search space and plan the trials. Starts nothing.

    `vary` are the settings of VARIED to vary besides the draft length, None for those that are likely to matter.
    `space` is the search space of a continued tune. `engine_pid` is the engine of the server that will be stopped for
    the tune, which may use its memory, and `log` its log. Raises ModelWritesNoText for an embedding model,
    ModelHasNoHead for one that cannot draft, BadOption for an unknown name or a goal without a sensor, and what
    `prepare_launch` raises.
    """
    if unknown := set(vary or ()) - set(VARIED):
        wrong = ", ".join(sorted(unknown)).replace("_", "-")
        known = ", ".join(VARIED).replace("_", "-")
        raise BadOption(
            message("{wrong} is not a setting that a tune can vary.", wrong=wrong),
            message("There are {known}.", known=known),
        )
    options = await asyncio.to_thread(with_drafts_here, options)
    launch = await prepare_launch(replace(options, draft=0), Endpoint(0, ""))
    check_writes_text(launch.header)
    check_sizes(workload, launch.context)
    basis = await read_basis(launch, engine_pid=engine_pid, log=log)
    if not basis.can_draft:
        raise ModelHasNoHead(
            message("{name} has no MTP head, so there is nothing to tune.", name=options.model.name),
            message("Download a file with an MTP head (its repository name often ends in -MTP-GGUF)."),
            path=str(options.model),
        )
    if goal.aim is Aim.ENERGY:
        await asyncio.to_thread(_check_power)
    options = replace(options, draft=0)
    builder = SpaceBuilder(basis, goal, workload.prompts, on_cpu=launch.build.name == BUILT_IN)
    if space is None:
        space = await asyncio.to_thread(builder.build_space, vary)
    else:
        space = replace(space, fits=builder.fits)
    rate = await asyncio.to_thread(_expected_rate, launch, basis)
    load = basis.load
    restart_s = load.seconds if load else launch.header.file_bytes / (_LOAD_GB_S * 1e9) + _START_S
    trials = plan_trials(space, workload.prompts, budget_s, rate=rate, restart_s=restart_s)
    return PreparedTune(
        model,
        options,
        launch,
        workload,
        goal,
        budget_s,
        space,
        trials,
        rate,
        restart_s,
        load is not None,
        builder.needed_mib,
        basis.missing_drafts,
    )


class SpaceBuilder:
    """Builds the search space of a tune from the facts about a model and a machine.

    `on_cpu` is True if the engine computes everything on the processor, as it does without a GPU. Published runs of the
    model's family say of which drafter most is expected.
    """

    def __init__(self, basis: PreviewBasis, goal: Goal, prompts: Sequence[Prompt], *, on_cpu: bool) -> None:
        self._basis, self._goal, self._prompts = basis, goal, prompts
        self._previewer = Previewer(basis)
        self.on_cpu = on_cpu or basis.plan_settings.backend == "cpu"

    def fits(self, settings: RunSettings) -> bool:
        """Return False if settings are known not to fit into memory, or have a cache for experts that are not moved."""
        preview = self._preview(settings)
        planned = preview.plan_settings
        return preview.status is not Status.TOO_BIG and bool(planned.n_cpu_moe or not planned.moe_cache_mib)

    def needed_mib(self, settings: RunSettings) -> int | None:
        """Return the GPU memory of settings in MiB. None where it is host memory."""
        return None if self.on_cpu else self._preview(settings).needed_mib

    def _preview(self, settings: RunSettings) -> Preview:
        return self._previewer.preview(settings)

    def build_space(self, vary: Collection[str] | None) -> Space:
        """Return the search space: the settings in `vary`, or those that are likely to matter here."""
        on_cpu = self.on_cpu
        if vary is not None and "moe_cache_mib" in vary:
            # Varied with it: cache and layers share the GPU's memory, and a cache serves experts on the host.
            vary = {*vary, "n_cpu_moe"}
        caches = self._is_cache_varied(vary)
        drafters = self._drafters_to_try(with_text=DRAFTER in (vary or ()))
        expert_layer_counts = () if on_cpu else self._expert_layers_to_try(drafters, caches=caches)
        offloads = len(expert_layer_counts) > 1
        gpus = self._basis.plan_settings.gpus
        varied_by_default: Mapping[Likely, bool] = {
            "": False,
            "on_gpu": not on_cpu,
            # Nobody has published a gain by tensors that are split beside experts in host memory, or without CUDA.
            "several_gpus": gpus > 1 and self._basis.plan_settings.backend == "cuda" and not offloads,
            "long_answers": self._goal.is_time,
            "offloaded": offloads,
            "on_processor": on_cpu or offloads,
            "sampled": any(_is_hot(prompt) for prompt in self._prompts),
            "several_drafters": len(drafters) > 1,
        }
        baseline = self._baseline_settings(expert_layer_counts)
        machine_values: Mapping[str, Sequence[Value]] = {
            "kv": self._kv_types_to_try(baseline["kv"], offloads=offloads, chosen_by_user=vary is not None),
            "n_cpu_moe": expert_layer_counts,
            "threads": self._thread_counts_to_try(baseline["threads"]),
            DRAFTER: drafters,
        }
        meaningless = set(self._basis.unsupported)
        if not (offloads or self._basis.options.n_cpu_moe):
            meaningless.add("moe_cache_mib")
        if on_cpu or gpus < 2:
            meaningless.add("split_mode")
        axes = []
        for name in VARIED:
            row = ROWS[name]
            # What drafts is one axis with the draft length, which is always tried.
            wanted = name in vary if vary is not None and name != DRAFTER else varied_by_default[row.likely]
            values = machine_values[name] if name in machine_values else _values_to_try(row, baseline[name])
            if wanted and len(values) > 1 and name not in meaningless:
                axes.append(SpaceAxis(name, tuple(values), memory=bool(row.memory), drafting=bool(row.drafting)))
        drafts = DRAFTS_WITH_P_MIN if any(axis.name == "p_min" for axis in axes) else DRAFTS
        chosen = {axis.name: baseline[axis.name] for axis in axes}
        if not self._basis.plan_settings.drafter_if_on.uses_head:
            chosen[DRAFTER] = baseline[DRAFTER]
        on_processor = on_cpu or offloads or bool(self._basis.plan_settings.n_cpu_moe)
        return Space(chosen, drafts, tuple(axes), self.fits, on_processor)

    def _is_cache_varied(self, vary: Collection[str] | None) -> bool:
        """Return whether a cache for experts may be tried: the engine has it, and the user did not leave it out."""
        return "moe_cache_mib" not in self._basis.unsupported and (vary is None or "moe_cache_mib" in vary)

    def _baseline_settings(self, expert_layer_counts: Sequence[int]) -> dict[str, Value]:
        """Return the baseline settings without MTP: the user's own, else the defaults."""
        options = self._basis.options
        baseline: dict[str, Value] = {}
        for name in VARIED:
            own = ROWS[name].value_in(options)
            baseline[name] = _default_value(ROWS[name]) if own is None else own
        baseline["threads"] = options.threads or _usable_cores()
        baseline[DRAFTER] = self._basis.plan_settings.drafter_if_on.spec_type
        if expert_layer_counts and options.n_cpu_moe is None:
            baseline["n_cpu_moe"] = expert_layer_counts[-1]
        return baseline

    def _drafters_to_try(self, *, with_text: bool) -> list[Value]:
        """Return what may draft, the most promising first: the model's own, and those that it has files for.

        `with_text` adds those that need nothing but text.
        """
        own = self._basis.plan_settings.drafter_if_on
        rows = [own, *(find_drafter(each, self._basis.options.draft_files) for each in self._basis.drafters)]
        more = ROWS[DRAFTER].tuned or () if with_text else ()
        ranked = sorted(
            {
                row.spec_type: row for row in rows if row is own or row.source != "text" or row.spec_type in more
            }.values(),
            key=lambda row: -self._expected_tokens(row),
        )
        kept = [row for row in ranked if row is not own][: _MOST_DRAFTERS - 1]
        return [row.spec_type for row in ranked if row is own or row in kept]

    def _expected_tokens(self, row: Drafter) -> float:
        """Return the tokens of a pass as published for the model, else as is usual; 0 if nothing was published."""
        shares = accepted_shares(row, self._basis.published_as)
        return tokens_per_pass(shares, row.usual_length) if shares else 0.0

    def _kv_types_to_try(self, own: Value, *, offloads: bool, chosen_by_user: bool) -> Sequence[Value]:
        """Return the KV cache types to try, smallest first: the user's and f16.

        q8_0 is added where memory is short, and if the user chose to vary the type.
        """
        tried = {own, ROWS["kv"].usual}
        if offloads or chosen_by_user:
            tried.add("q8_0")
        order = ("q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1", "q8_0", "bf16", "f16", "f32")
        known = [kind for kind in order if kind in tried and kind in (*self._basis.kv_types, own)]
        return known if own in known else [own]

    def _thread_counts_to_try(self, own: Value) -> Sequence[Value]:
        """Return the thread numbers to try: the user's, one per core, and one per logical processor."""
        return sorted({int(own or 1), _usable_cores(), _usable_cpus()})

    def _expert_layers_to_try(self, drafters: Sequence[Value], *, caches: bool) -> list[int]:
        """Return the numbers of layers with experts in host memory to try, highest first.

        They go from the fewest with which the longest draft of any of `drafters` fits down to the fewest with which the
        model fits without drafts, and include the user's own. With `caches`, the memory of more layers may go to a
        cache for experts, so there is a number that leaves room for the largest one, and fewer in between. Empty for a
        model without experts that could be moved.
        """
        if not self._basis.expert_layers:
            return []
        without_drafts, with_drafts = (
            self._fewest_expert_layers(0, ()),
            self._fewest_expert_layers(DRAFTS[-1], drafters),
        )
        numbers = {without_drafts, with_drafts}
        if caches and with_drafts:
            largest = (ROWS["moe_cache_mib"].tuned or (0,))[-1]
            numbers.add(self._fewest_expert_layers(DRAFTS[-1], drafters, cache_mib=largest))
        else:
            step = max(1, math.ceil((with_drafts - without_drafts) / (_EXPERT_STEPS - 1)))
            numbers |= set(range(without_drafts, with_drafts, step))
        if self._basis.options.n_cpu_moe is not None:
            numbers.add(self._basis.options.n_cpu_moe)
        return sorted(numbers, reverse=True)

    def _fewest_expert_layers(self, draft: int, drafters: Sequence[Value], *, cache_mib: Value = None) -> int:
        """Return the fewest layers with experts in host memory with which a draft length fits; all if none does.

        `cache_mib` is a cache for experts that has to fit, too; None: the user's own.
        """
        low, high = 0, self._basis.expert_layers
        cache_mib = cache_mib or self._basis.options.moe_cache_mib
        while low < high:
            middle = (low + high) // 2
            changed = {DRAFT: draft, "n_cpu_moe": middle, "moe_cache_mib": cache_mib}
            if all(self.fits(changed | {DRAFTER: each}) for each in drafters) if drafters else self.fits(changed):
                high = middle
            else:
                low = middle + 1
        return low


def _is_hot(prompt: Prompt) -> bool:
    """Return whether a prompt's replies are sampled at _HOT or above. Without a temperature it is the engine's own."""
    temperature = prompt.sampling.get("temperature")
    return not isinstance(temperature, int | float) or temperature >= _HOT


def _default_value(row: ServerSetting) -> Value:
    """Return the default value of a setting; if that is left to the engine, the first value that a tune may try."""
    return row.tuned[0] if row.usual is None and row.tuned else row.usual


def _values_to_try(row: ServerSetting, own: Value) -> Sequence[Value]:
    """Return the values of the row to try, and the user's own. Numbers are sorted."""
    values = dict.fromkeys((*(row.tuned or ()), own))
    numbers = [each for each in values if isinstance(each, int | float)]
    return sorted(numbers) if len(numbers) == len(values) else list(values)


def _check_power() -> None:
    """Raise BadOption if no sensor reports the power of the GPU that an engine would use, unless it sleeps."""
    detected = find_gpus()
    why = detected.no_gpu_reason or ""
    if detected.gpus:
        gpu = detected.gpus[0]
        state = read_gpu_states([gpu]).get(gpu.id)
        if state is None:
            why = gpu.absent.get("driver", message("No driver is queried here."))
        else:
            readings, _ = state
            why = readings["gpu_power_w"].absent or ""
        if gpu.asleep or why in ("", ASLEEP, TOO_SHORT):
            return
    raise BadOption(
        join_messages(message("There is no power sensor here, so tokens per joule cannot be measured."), why),
        message("Choose another goal: speed (tokens/s) or answer (time to the complete reply)."),
    )


def _usable_cpus() -> int:
    return max(1, int(read_cpu_limit() or os.cpu_count() or 1))


def _usable_cores() -> int:
    return min(psutil.cpu_count(logical=False) or _usable_cpus(), _usable_cpus())


def _expected_rate(launch: Launch, basis: PreviewBasis) -> float:
    """Return the expected tokens/s without MTP, from the bytes that are read per token."""
    limit = find_speed_limit(launch).value
    if limit is None and basis.geometry is not None and basis.weights is not None:
        limit = _HOST_GB_S * 1e9 / bytes_per_token(basis.geometry, basis.weights, basis.plan_settings)
    if limit is None:
        limit = _HOST_GB_S * 1e9 / launch.header.file_bytes
    return min(_SHARE_OF_LIMIT * limit, _HIGHEST_RATE)
