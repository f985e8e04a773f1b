"""A simulated machine whose best settings are known: step time, acceptance, memory and power at every setting.

The shapes are those of real machines; the figures are drawn anew for each machine, over ranges that hold the published
results. A step's time is that of one token, and with MTP in addition the head's own fixed part, a pass of the head
for each drafted token, the verification of each (dearer where a mixture of experts reads more of its weights, or
experts lie on the processor), and on some machines jumps from some batch on, where the engine takes other kernels.

Machines with several drafters draw for each how often it is right, as far apart as published runs are by drafter and by
kind of text (presets/evidence/acceptance.csv), and what a pass costs: a small model costs its time for each token, one
that makes a block its time once.
"""

import csv
import math
import random
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

from launcher.base.paths import shipped_file
from launcher.models.evidence import ACCEPTANCE_FILE
from launcher.tuning.goal import Aim, Goal
from launcher.tuning.predict import tokens_per_step
from launcher.tuning.space import DRAFTER, Key, Space, SpaceAxis, draft_length, settings_key

DRAFTS = (1, 2, 3, 4, 5, 6, 7, 8)
_SMALL_BATCH, _PROCESSOR_BATCH = 8, 4
KV = SpaceAxis("kv", ("q4_0", "q8_0", "f16"), memory=True)
UBATCH = SpaceAxis("ubatch", (256, 512, 1024), memory=True)
EXPERTS = SpaceAxis("n_cpu_moe", (24, 22, 20, 18, 16), memory=True)
THREADS = SpaceAxis("threads", (4, 6, 8))
P_MIN = SpaceAxis("p_min", (0.0, 0.5), drafting=True)
NGRAM = SpaceAxis("ngram", ("none", "simple"), drafting=True)
AXES = (KV, UBATCH, P_MIN, NGRAM)
OFFLOAD_AXES = (KV, EXPERTS, THREADS, P_MIN, NGRAM)
_SMALL = {"kv", "n_cpu_moe"}
PROMPTS = 4
REPLY_TOKENS = 200
_MODEL_MIB, _LAYER_MIB, _STATE_MIB, _HEAD_MIB = 14_000.0, 337.0, 63.0, 850.0
_KV_MIB = {"q4_0": 740.0, "q8_0": 1_390.0, "f16": 2_620.0}

_COSTS: Mapping[str, tuple[tuple[float, float], tuple[float, float]]] = {
    "draft-mtp": ((0.01, 0.12), (0.02, 0.10)),
    "draft-eagle3": ((0.01, 0.06), (0.02, 0.09)),
    "draft-dflash": ((0.03, 0.25), (0.0, 0.01)),
    "draft-dspark": ((0.03, 0.20), (0.0, 0.03)),
    "draft-simple": ((0.0, 0.03), (0.03, 0.25)),
}
"""Shares of a step that a drafter takes, once and for each token that it drafts."""
_FILE_MIB = (250.0, 1_600.0)

KINDS = ("dense", "moe", "offload", "hot")
"""Everything on the GPU, dense or a mixture of experts; experts on the CPU; text that is hard to draft."""


@dataclass(frozen=True)
class SimulatedDrafter:
    """What a machine's drafter costs, what memory it takes, and how often it is right: see Machine."""

    head: float
    draft_pass: float
    chain: tuple[float, ...]
    decay: float
    mib: float = _HEAD_MIB
    state_mib: float = _STATE_MIB


@dataclass(frozen=True, eq=False)
class Machine:
    """One machine with one model. Times are in seconds, memory in MiB, effects on time are logarithms.

    Shares of `step_s`, the time of a step with one token, that MTP adds: `head` for the head, `draft_pass` for each
    drafted token; `verify` times the drafted tokens to the power `verify_power`, and `cpu_verify` with experts on the
    processor; `jump` from `jump_at` drafted tokens on; `large_batch` and `processor_batch` for large batches.

    `chain` is the acceptance of the first drafted token by prompt, each further one has `decay` of the one before.
    p-min cuts its value times `p_min_cut` of the drafts. Of the first drafted tokens that the head gets wrong, n-grams
    find the share `ngram_finds`.

    `believed_error` is by what share the plan errs in the memory. `run_noise` and `start_noise` are the standard
    deviations of a reply and of a start, `wander` that of a slow drift, `warm_up` the loss of speed as the machine gets
    warm. `episodes_per_s` is how often throttling begins, `episode_slows` its effect. `drafters` are those of a machine
    that has several, by their --spec-type.
    """

    kind: str
    step_s: float
    head: float
    draft_pass: float
    verify: float
    verify_power: float
    jump_at: int
    jump: float
    large_batch: float
    processor_batch: float
    chain: tuple[float, ...]
    decay: float
    kv_effect: Mapping[str, float]
    kv_verify: Mapping[str, float]
    prefill_rate: float
    prefill_mtp: float
    ubatch_prefill: Mapping[int, float]
    layer: float
    cpu_verify: float
    threads_effect: Mapping[int, float]
    p_min_cut: float
    ngram_finds: tuple[float, ...]
    ngram_costs: float
    memory_mib: float
    believed_error: float
    power_w: float
    power_draft: float
    restart_s: float
    run_noise: float
    start_noise: float
    warm_up: float
    wander: float
    episodes_per_s: float
    episode_slows: float
    tied: bool = False
    small: bool = False
    drafters: Mapping[str, SimulatedDrafter] | None = None

    @property
    def offloads(self) -> bool:
        """Whether experts are on the processor."""
        return self.kind == "offload"

    def space(self) -> Space:
        """Return the grid of a tune on this machine."""
        baseline: dict[str, Any] = {"kv": "q8_0", "ubatch": 512, "p_min": 0.0, "ngram": "none"}
        axes: tuple[SpaceAxis, ...] = AXES
        if self.offloads:
            baseline = {"kv": "q8_0", "n_cpu_moe": 22, "threads": 6, "p_min": 0.0, "ngram": "none"}
            axes = OFFLOAD_AXES
        axes = tuple(axis for axis in axes if axis.name in _SMALL) if self.small else axes
        if self.drafters:
            baseline |= {DRAFTER: next(iter(self.drafters))}
            axes = (*axes, SpaceAxis(DRAFTER, tuple(self.drafters), memory=True, drafting=True))

        def fits_memory(settings: Mapping[str, Any]) -> bool:
            return self.needed_mib(settings) <= self.believed_mib

        return Space(baseline, DRAFTS, axes, fits_memory, on_processor=self.offloads)

    def drafter(self, settings: Mapping[str, Any]) -> SimulatedDrafter:
        """Return what drafts with settings: the machine's only drafter unless it has several."""
        if self.drafters:
            return self.drafters[settings[DRAFTER]]
        return SimulatedDrafter(self.head, self.draft_pass, self.chain, self.decay)

    @property
    def believed_mib(self) -> float:
        """The memory that the plan assumes, a little more or less than the true one."""
        return self.memory_mib * (1 + self.believed_error)

    def needed_mib(self, settings: Mapping[str, Any]) -> float:
        """Return the memory that settings take."""
        mib: float = _MODEL_MIB + _KV_MIB[settings["kv"]] + 0.35 * settings.get("ubatch", 512)
        if self.offloads:
            mib += (24 - settings["n_cpu_moe"]) * _LAYER_MIB
        draft, drafter = draft_length(settings), self.drafter(settings)
        return mib + (drafter.mib + drafter.state_mib * (1 + draft) if draft else 0.0)

    def runs_out_of_memory(self, settings: Mapping[str, Any]) -> bool:
        """Return whether settings cannot be served."""
        return self.needed_mib(settings) > self.memory_mib

    def step_seconds(self, settings: Mapping[str, Any]) -> float:
        """Return the true seconds of a verification step."""
        draft = draft_length(settings)
        if self.tied:
            return self.step_s * math.exp(self._mean_log_yield(settings))
        kept = self._kept_share(settings) * draft
        log = self.kv_effect[settings["kv"]]
        share = 1.0
        if self.offloads:
            share = settings["n_cpu_moe"] / 22
            log += self.layer * (settings["n_cpu_moe"] - 22) + self.threads_effect[settings["threads"]] * share
        extra = 0.0
        if draft:
            verify = (self.verify + (self.cpu_verify * share if self.offloads else 0.0)) * kept**self.verify_power
            kv = self.kv_verify[settings["kv"]] if draft >= 2 else 0.0
            log += self.ngram_costs if settings["ngram"] != "none" else 0.0
            drafter = self.drafter(settings)
            extra = drafter.head + drafter.draft_pass * kept + verify + kv
            extra += self.jump if draft >= self.jump_at else 0.0
            extra += self.large_batch if draft >= _SMALL_BATCH else 0.0
            extra += self.processor_batch * share if draft >= _PROCESSOR_BATCH else 0.0
        return self.step_s * math.exp(log) * (1 + extra)

    def rates(self, settings: Mapping[str, Any], prompt: int) -> tuple[float, ...]:
        """Return the acceptance rate by position, given that all drafts before were accepted."""
        draft, drafter = draft_length(settings), self.drafter(settings)
        first = drafter.chain[prompt] * self._kept_share(settings) ** 0.5
        if settings["ngram"] != "none":
            first += (1 - first) * self.ngram_finds[prompt]
        return tuple(first * drafter.decay**i for i in range(draft))

    def _mean_yield(self, settings: Mapping[str, Any], prompt: int) -> float:
        """Return the tokens that a step yields."""
        return tokens_per_step(self.rates(settings, prompt), draft_length(settings))

    def _mean_log_yield(self, settings: Mapping[str, Any]) -> float:
        return sum(math.log(self._mean_yield(settings, prompt)) for prompt in range(PROMPTS)) / PROMPTS

    def _kept_share(self, settings: Mapping[str, Any]) -> float:
        """Return the share of the drafts that p-min keeps."""
        return 1 - self.p_min_cut * float(settings.get("p_min", 0.0))

    def prefill(self, settings: Mapping[str, Any]) -> float:
        """Return the true tokens a second of reading a prompt."""
        slower = self.prefill_mtp if draft_length(settings) else 0.0
        return self.prefill_rate * math.exp(self.ubatch_prefill[settings.get("ubatch", 512)] - slower)

    def power(self, settings: Mapping[str, Any]) -> float:
        """Return the true power in watts during generation."""
        return self.power_w * (1 + self.power_draft * math.sqrt(draft_length(settings)))

    def benefit(self, settings: Mapping[str, Any], goal: Goal, prompt_tokens: int) -> float:
        """Return the true score of settings: the mean over the prompts of the logarithm of what the goal wants."""
        scores = []
        for prompt in range(PROMPTS):
            rate = self._mean_yield(settings, prompt) / self.step_seconds(settings)
            if goal.aim is Aim.SPEED:
                scores.append(math.log(rate))
            elif goal.aim is Aim.ENERGY:
                scores.append(math.log(rate / self.power(settings)))
            else:
                read = goal.prompt_tokens or prompt_tokens
                written = goal.reply_tokens or REPLY_TOKENS
                scores.append(-math.log(read / self.prefill(settings) + written / rate))
        return sum(scores) / PROMPTS


_OFTEN_PER_S = 1 / 300
"""Throttling episodes per second of a machine that throttles often."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Values that are the same for all machines of a simulation; None is drawn for each machine.

    `load_s` is the seconds of a start, `noise` the standard deviation of a reply's logarithm. With `throttling`, an
    episode begins every five minutes on average. No setting of a `tied` machine makes it faster or slower. The grid of
    a `small` one has only draft lengths, KV types and experts on the processor. With `several`, a machine has two to
    four drafters.
    """

    load_s: float | None = None
    noise: float | None = None
    throttling: bool = False
    tied: bool = False
    small: bool = False
    several: bool = False


@cache
def read_spreads() -> tuple[float, float]:
    """Return how much published acceptance differs, as standard deviations of its logit: between drafters of one model,
    and between kinds of text beyond what all drafters of the model have in common.

    Of each run it is the rate that gives its tokens in a pass if it were the same at all positions.
    """
    with shipped_file(*ACCEPTANCE_FILE).open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["tokens_per_pass"]]
    logits: dict[str, dict[tuple[str, str], dict[str, float]]] = {}
    for row in rows:
        kind = row["drafter"], row["draft"]
        rate = _solve_rate(float(row["tokens_per_pass"]), int(row["draft"]))
        logits.setdefault(row["model"] + row["quant"], {}).setdefault(kind, {})[row["workload"]] = _logit(rate)
    between, within = [], []
    for kinds in (each for each in logits.values() if len(each) > 1):
        means = {kind: statistics.fmean(texts.values()) for kind, texts in kinds.items()}
        between.append(statistics.variance(means.values()))
        texts = set.intersection(*map(set, kinds.values()))
        within += [statistics.variance(own[text] - means[kind] for kind, own in kinds.items()) for text in texts]
    return math.sqrt(statistics.fmean(between)), math.sqrt(statistics.fmean(within))


def _solve_rate(tokens: float, draft: int) -> float:
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if tokens_per_step((middle,) * draft, draft) < tokens else (low, middle)
    return low


def _logit(rate: float) -> float:
    return math.log(rate / (1 - rate))


def draw_drafters(number: int, own: SimulatedDrafter) -> dict[str, SimulatedDrafter]:
    """Return two to four drafters of machine `number`, in random order: its `own`, an MTP head, and others."""
    dice = random.Random(f"drafters {number}")
    between, within = read_spreads()
    found = {"draft-mtp": own}
    for name in dice.sample(list(_COSTS)[1:], dice.randint(1, 3)):
        (head, draft_pass), shift = _COSTS[name], dice.gauss(0, between)
        odds = [_logit(rate) + shift + dice.gauss(0, within) for rate in own.chain]
        chain = tuple(min(0.97, max(0.1, 1 / (1 + math.exp(-each)))) for each in odds)
        costs = dice.uniform(*head), dice.uniform(*draft_pass)
        found[name] = SimulatedDrafter(*costs, chain, dice.uniform(0.9, 1.0), dice.uniform(*_FILE_MIB), 0.0)
    names = dice.sample(list(found), len(found))
    return {name: found[name] for name in names}


def draw_machine(number: int, surroundings: Surroundings | None = None) -> Machine:
    """Return the random machine `number`, always the same one; the kinds take turns."""
    around = surroundings or Surroundings()
    kind = KINDS[number % len(KINDS)]
    dice = random.Random(f"machine {number}")
    uniform = dice.uniform
    first = {"dense": (0.70, 0.93), "moe": (0.65, 0.95), "offload": (0.60, 0.93), "hot": (0.25, 0.62)}[kind]
    typical = uniform(*first)
    chain = tuple(min(0.97, max(0.1, typical + dice.gauss(0, 0.04))) for _ in range(PROMPTS))
    verify = {"dense": (0.0, 0.06), "moe": (0.04, 0.25), "offload": (0.1, 0.5), "hot": (0.05, 0.4)}[kind]
    q4, q8 = uniform(-0.02, 0.06), uniform(-0.01, 0.04)
    best = dice.choice((4, 6, 8))
    bend = uniform(0.01, 0.08)
    offload = kind == "offload"
    memory = _MODEL_MIB + uniform(2_300, 4_400 if not offload else 5_500)
    machine = Machine(
        kind=kind,
        step_s=1 / uniform(25, 110),
        head=uniform(0.01, 0.12),
        draft_pass=uniform(0.02, 0.10),
        verify=uniform(*verify),
        verify_power=uniform(0.8, 1.1),
        jump_at=dice.choice((2, 3, 4, 5, 99)),
        jump=uniform(0.0, 0.05),
        large_batch=max(0.0, random.Random(f"large batch {number}").uniform(-0.2, 0.3)),
        processor_batch=max(0.0, random.Random(f"processor batch {number}").uniform(-0.2, 0.5)) if offload else 0.0,
        chain=chain,
        decay=uniform(0.9, 1.0),
        kv_effect={"q4_0": q4, "q8_0": q8, "f16": 0.0},
        kv_verify={"q4_0": uniform(0, 0.05), "q8_0": uniform(0, 0.04), "f16": 0.0},
        prefill_rate=uniform(400, 3_000),
        prefill_mtp=uniform(0.0, 0.10),
        ubatch_prefill={256: -uniform(0.05, 0.3), 512: 0.0, 1024: uniform(-0.03, 0.2)},
        layer=uniform(0.012, 0.04),
        cpu_verify=uniform(0.0, 0.35),
        threads_effect={n: bend * abs(math.log2(n / best)) * 2 for n in (4, 6, 8)},
        p_min_cut=uniform(0.05, 0.5),
        ngram_finds=tuple(max(0.0, dice.gauss(0.03, 0.05)) for _ in range(PROMPTS)),
        ngram_costs=uniform(0.0, 0.04),
        memory_mib=memory,
        believed_error=uniform(-0.01, 0.01),
        power_w=uniform(120, 420),
        power_draft=uniform(0.0, 0.06),
        restart_s=uniform(5, 12),
        run_noise=uniform(0.01, 0.08),
        start_noise=uniform(0.0, 0.008),
        warm_up=uniform(0.0, 0.04),
        wander=uniform(0.0, 0.015),
        episodes_per_s=dice.choice((0.0, 1 / 2_400, 1 / 800)),
        episode_slows=uniform(0.1, 0.35),
        tied=around.tied,
        small=around.small,
    )
    own = SimulatedDrafter(machine.head, machine.draft_pass, chain, machine.decay)
    return replace(
        machine,
        drafters=draw_drafters(number, own) if around.several else None,
        restart_s=machine.restart_s if around.load_s is None else around.load_s,
        run_noise=machine.run_noise if around.noise is None else around.noise,
        episodes_per_s=_OFTEN_PER_S if around.throttling else machine.episodes_per_s,
    )


@lru_cache(maxsize=8)
def compute_true_scores(machine: Machine, goal: Goal, prompt_tokens: int) -> dict[Key, float]:
    """Return the true score of every setting of a machine's grid that can be served."""
    return {
        settings_key(settings): machine.benefit(settings, goal, prompt_tokens)
        for settings in machine.space().fitting_settings()
        if not machine.runs_out_of_memory(settings)
    }
