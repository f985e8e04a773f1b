"""What a tune may change for one model on this machine, and how long that is expected to take."""

import asyncio
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import psutil

from launcher.base.errors import BadOption, ModelHasNoHead
from launcher.bench import ARGUMENTS, NGRAM, NO_NGRAM
from launcher.engine.arguments import USUAL_KV, USUAL_UBATCH
from launcher.engine.build import BUILT_IN
from launcher.engine.endpoint import Endpoint
from launcher.engine.launch import Launch, ServeOptions
from launcher.engine.launch import plan as launch_plan
from launcher.engine.settings import OPTIONS
from launcher.machine.gpu import ASLEEP, TOO_SHORT
from launcher.machine.gpus import find_gpus, inspect_gpus
from launcher.models.plan import Status
from launcher.models.speed import bytes_per_token
from launcher.preview import Basis, Preview, Previewer
from launcher.preview_basis import basis_of
from launcher.speed_limit import speed_limit
from launcher.tuning.goal import Aim, Goal
from launcher.tuning.plan_of_trials import PlanOfTrials, grace_s, plan
from launcher.tuning.records import Prompt, Settings, Value
from launcher.tuning.space import DRAFT, Axis, Space
from launcher.tuning.tuner_state import Trial
from launcher.tuning.workloads import Workload

DRAFTS = (1, 2, 3, 4, 5, 6)
VARIED = ("kv", "ubatch", "n_cpu_moe", "threads", "p_min", "draft_sampling", NGRAM)
"""What can be varied beside the draft length."""
_P_MINS = (0.0, 0.5, 0.75)
_STEPS = 5
_OF_LIMIT, _HOST_GB_S, _FASTEST = 0.6, 20.0, 300.0
"""What is expected of a speed that was never measured: a share of what memory bandwidth allows, that of usual host
memory where the GPU does not hold the model, and no more tokens/s than so many."""
_LOAD_GB_S, _START_S = 2.0, 3.0
"""What a start is expected to take that was never measured: reading the file at this speed, and the rest."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A tune that can begin. `options` is how the model, which the user calls `model`, is served without MTP.

    `plan` is what it is expected to do within `budget_s`, at `rate` tokens/s and `restart_s` for a start; `measured`
    says whether that start was measured here before, else it is a guess.
    """

    model: str
    options: ServeOptions
    launch: Launch
    workload: Workload
    goal: Goal
    budget_s: float
    space: Space
    plan: PlanOfTrials
    rate: float
    restart_s: float
    measured: bool
    needs: Callable[[Settings], int | None]
    """The GPU memory that settings need by the formula, in MiB; None where that is not known, or it is the host's."""

    def measured_by(self, trials: Sequence[Trial]) -> "Prepared":
        """Return it with the plan made anew from what trials of it took; itself where none was whole."""
        whole = [trial for trial in trials if trial.error is None and trial.start_s and trial.runs]
        if not whole:
            return self
        restart_s = fmean(trial.start_s for trial in whole)
        runs = [run for trial in whole for run in trial.runs if run.decode_rate and run.reply_tokens]
        if not runs:
            return self
        writing_s = sum(run.reply_tokens / (run.decode_rate or math.inf) for run in runs)
        rate = sum(run.reply_tokens for run in runs) / writing_s
        reading_s = max(0.0, sum(run.wall_s for run in runs) - writing_s) / len(runs)
        found = plan(
            self.space, self.workload.prompts, self.budget_s, rate=rate, restart_s=restart_s, reading_s=reading_s
        )
        return replace(self, plan=found, rate=rate, restart_s=restart_s, measured=True)

    @property
    def tokens(self) -> int:
        """The tokens that all replies of the plan have together, about."""
        return self.plan.starts * sum(prompt.tokens for prompt in self.workload.prompts)

    def as_json(self) -> dict[str, object]:
        """Return the plan for programs."""
        plan = self.plan
        return {
            "model": self.model,
            "workload": self.workload.name,
            "goal": self.goal.aim.value,
            "budget_s": round(self.budget_s),
            "grace_s": round(grace_s(self.budget_s)),
            "seconds": round(plan.seconds),
            "starts": plan.starts,
            "starting_s": round(plan.starting_s),
            "runs": plan.runs,
            "tokens": self.tokens,
            "rate": round(self.rate, 1),
            "restart_s": round(self.restart_s, 1),
            "restart_measured": self.measured,
            "space": self.space.as_json(),
        }


async def prepare(
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
) -> Prepared:
    """Find out what may be changed, and plan the trials. Nothing is started.

    `vary` names settings of VARIED to vary beside the draft length, None those that are likely to matter. `space` is
    that of a tune which is continued. `engine_pid` is the server's that will be stopped for it, whose memory it may
    have. Raises ModelHasNoHead for a model that cannot draft, BadOption for a name that is none or a goal that no
    sensor here tells, and what checks a start.
    """
    if unknown := set(vary or ()) - set(VARIED):
        wrong, known = (", ".join(names).replace("_", "-") for names in (sorted(unknown), VARIED))
        raise BadOption(f"{wrong} cannot be varied.", f"There are {known}.")
    launch = await launch_plan(replace(options, draft=0), Endpoint(0, ""))
    basis = await basis_of(launch, engine_pid=engine_pid, log=log)
    if not basis.can_draft:
        raise ModelHasNoHead(
            f"{options.model.name} has no MTP head, so there is nothing to decide.",
            "Get a file with the head (its repository is often called ...-MTP-GGUF).",
            path=str(options.model),
        )
    if goal.aim is Aim.ENERGY:
        await asyncio.to_thread(_check_power)
    options = replace(options, draft=0)
    ground = _Ground(launch, basis, goal, workload.prompts)
    found = await asyncio.to_thread(lambda: replace(space, fits=ground.fits) if space else ground.space(vary))
    rate = await asyncio.to_thread(_expected_rate, launch, basis)
    load = basis.load
    restart_s = load.seconds if load else launch.header.file_bytes / (_LOAD_GB_S * 1e9) + _START_S
    trials = plan(found, workload.prompts, budget_s, rate=rate, restart_s=restart_s)
    return Prepared(
        model,
        options,
        launch,
        workload,
        goal,
        budget_s,
        found,
        trials,
        rate,
        restart_s,
        load is not None,
        ground.needs,
    )


class _Ground:
    """What is known of a model and a machine before a tune."""

    def __init__(self, launch: Launch, basis: Basis, goal: Goal, prompts: Sequence[Prompt]) -> None:
        self._launch, self._basis, self._goal, self._prompts = launch, basis, goal, prompts
        self._previewer = Previewer(basis)

    def fits(self, settings: Settings) -> bool:
        """Return whether settings can be served, as far as that is known."""
        return self._preview(settings).status is not Status.TOO_BIG

    def needs(self, settings: Settings) -> int | None:
        """Return the GPU memory that settings need, in MiB."""
        return None if self.on_cpu else self._preview(settings).needed_mib

    @property
    def on_cpu(self) -> bool:
        """Whether the processor computes all."""
        return self._launch.build.name == BUILT_IN or self._basis.setting.backend == "cpu"

    def _preview(self, settings: Settings) -> Preview:
        ours = {name: value for name, value in settings.items() if name in OPTIONS and not isinstance(value, float)}
        return self._previewer.preview(ours)

    def space(self, vary: Collection[str] | None) -> Space:
        """Return what may be tried: what `vary` names, or what is likely to matter here."""
        on_cpu = self.on_cpu
        experts = () if on_cpu else self._experts()
        offloads = len(experts) > 1
        hot = any(prompt.sampling.get("temperature") != 0 for prompt in self._prompts)
        likely = {
            "kv": not on_cpu,
            "ubatch": self._goal.aim is Aim.ANSWER,
            "n_cpu_moe": offloads,
            "threads": on_cpu or offloads,
            "p_min": offloads,  # it saves verification where that is dear: published runs lost by it on a GPU alone
            "draft_sampling": hot,
            NGRAM: False,
        }
        wanted = [name for name in VARIED if (name in vary if vary is not None else likely[name])]
        home = self._home(experts)
        values: Mapping[str, Sequence[Value]] = {
            "kv": self._kinds(home["kv"], offloads=offloads, named=vary is not None),
            "ubatch": sorted({256, 512, 1_024, int(home["ubatch"] or USUAL_UBATCH)}),
            "n_cpu_moe": experts,
            "threads": self._threads(home["threads"]),
            "p_min": _P_MINS,
            "draft_sampling": ("greedy", "probabilistic"),
            NGRAM: (NO_NGRAM, "ngram-simple"),
        }
        axes = [
            Axis(name, tuple(values[name]), memory=name in {"kv", "ubatch", "n_cpu_moe"}, drafting=name not in OPTIONS)
            for name in wanted
            if len(values[name]) > 1 and (name not in ARGUMENTS or ARGUMENTS[name] in self._launch.build.flags)
        ]
        return Space({axis.name: home[axis.name] for axis in axes}, DRAFTS, tuple(axes), fits=self.fits)

    def _home(self, experts: Sequence[int]) -> dict[str, Value]:
        """Return the settings without MTP that all else is compared with: the user's own, else the usual ones."""
        options = self._launch.options
        return {
            "kv": options.kv or USUAL_KV,
            "ubatch": options.ubatch or USUAL_UBATCH,
            "n_cpu_moe": experts[-1] if experts and options.n_cpu_moe is None else options.n_cpu_moe or 0,
            "threads": options.threads or _physical_cores(),
            "p_min": _P_MINS[0],
            "draft_sampling": "greedy",
            NGRAM: NO_NGRAM,
        }

    def _kinds(self, own: Value, *, offloads: bool, named: bool) -> Sequence[Value]:
        """Return types of the KV cache, the smallest first: the user's, f16, and where memory is short, q8_0."""
        tried = {own, USUAL_KV, *(("q8_0",) if offloads or named else ())}
        order = ("q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1", "q8_0", "bf16", "f16", "f32")
        known = [kind for kind in order if kind in tried and kind in (*self._basis.kv_types, own)]
        return known if own in known else [own]

    def _threads(self, own: Value) -> Sequence[Value]:
        """Return numbers of threads: the user's, one for each core, one for each processor that the system counts."""
        return sorted({int(own or 1), _physical_cores(), os.cpu_count() or 1})

    def _experts(self) -> list[int]:
        """Return of how many layers the experts may lie in host memory, most first: from where the longest draft
        fits down to where no draft does, and what the user set. Empty where all experts fit on the GPU.
        """
        most, own = self._basis.expert_layers, self._launch.options.n_cpu_moe
        if not most:
            return []
        fewest, enough = (self._fewest_experts(draft, most) for draft in (0, DRAFTS[-1]))
        step = max(1, -(-(enough - fewest) // (_STEPS - 1)))
        found = {fewest, enough, *range(fewest, enough, step), *(() if own is None else (own,))}
        return sorted(found, reverse=True)

    def _fewest_experts(self, draft: int, most: int) -> int:
        low, high = 0, most
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.fits({DRAFT: draft, "n_cpu_moe": middle}) else (middle + 1, high)
        return low


def _check_power() -> None:
    """Raise BadOption when no sensor tells the power of the GPU that an engine would use. One asleep may yet tell."""
    found = find_gpus()
    why = found.none_because or ""
    if found.gpus:
        gpu = found.gpus[0]
        told = inspect_gpus([gpu]).get(gpu.id)
        why = (told[0]["gpu_power_w"].absent or "") if told else gpu.absent.get("driver", "No driver here is asked.")
        if gpu.asleep or why in ("", ASLEEP, TOO_SHORT):
            return
    raise BadOption(
        f"There is no power sensor here, so tokens per joule cannot be measured. {why}",
        "Choose another goal: speed (tokens/s) or answer (time to the whole answer).",
    )


def _physical_cores() -> int:
    return min(psutil.cpu_count(logical=False) or os.cpu_count() or 1, os.cpu_count() or 1)


def _expected_rate(launch: Launch, basis: Basis) -> float:
    """Return the tokens/s that are expected without MTP, by the bytes that a token reads. See speed_limit."""
    limit = speed_limit(launch).value
    if limit is None and basis.geometry is not None and basis.weights is not None:
        limit = _HOST_GB_S * 1e9 / bytes_per_token(basis.geometry, basis.weights, basis.setting)
    if limit is None:
        limit = _HOST_GB_S * 1e9 / launch.header.file_bytes
    return min(_OF_LIMIT * limit, _FASTEST)
