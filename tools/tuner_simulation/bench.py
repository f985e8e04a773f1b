"""Simulated bench of a random machine: in virtual time, with noise, drift, throttling and failing starts."""

import asyncio
import math
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from launcher.base.action import Action, ActionKind
from launcher.base.errors import EngineFailed
from launcher.models.server_settings import Value
from launcher.monitor.meter import Acceptance
from launcher.tuning.records import Prompt, Run, RunSettings
from launcher.tuning.space import draft_length
from tools.tuner_simulation.machine import PROMPTS, REPLY_TOKENS, Machine

PROMPT_TOKENS = 600
_MARKED = 0.9
"""Share of the runs in a throttling episode that a sensor marks."""
_EPISODE_S = (20.0, 90.0)
_WANDER_S = 400.0
_WARM_UP_S = 180.0
_STRAY_CRASH = 0.002
_TEXT_SPREAD = 0.15
"""Standard deviation of a reply's acceptance about its prompt's own, in logits."""
PROMPT_NAMES = tuple(f"prompt {number + 1}" for number in range(PROMPTS))


def make_prompts() -> tuple[Prompt, ...]:
    """Return the workload of every simulated tune."""
    return tuple(Prompt(name, (("user", name),), REPLY_TOKENS) for name in PROMPT_NAMES)


class SpeedDrift:
    """Changes of a machine's speed during a tune that no setting causes: warming up, slow drift, throttling."""

    def __init__(self, machine: Machine, dice: np.random.Generator) -> None:
        self._machine, self._dice = machine, dice
        self._wander, self._at_s, self._episode_until_s = dice.normal(0, machine.wander), 0.0, 0.0
        self._episode_from_s = self._next_episode(0.0)

    def _next_episode(self, after_s: float) -> float:
        rate = self._machine.episodes_per_s
        return after_s + self._dice.exponential(1 / rate) if rate else math.inf

    def drift_at(self, now_s: float) -> tuple[float, bool]:
        """Return the logarithm of the factor by which steps are slower than nominal, and whether the machine throttles.

        Successive times must not decrease.
        """
        machine, dice = self._machine, self._dice
        keeps = math.exp(-(now_s - self._at_s) / _WANDER_S)
        self._wander = self._wander * keeps + dice.normal(0, machine.wander) * math.sqrt(1 - keeps * keeps)
        self._at_s = now_s
        while now_s > self._episode_until_s and now_s >= self._episode_from_s:
            self._episode_until_s = self._episode_from_s + dice.uniform(*_EPISODE_S)
            self._episode_from_s = self._next_episode(self._episode_until_s)
        throttled = now_s < self._episode_until_s
        slower = machine.warm_up * (1 - math.exp(-now_s / _WARM_UP_S)) + self._wander
        return slower + (machine.episode_slows if throttled else 0.0), throttled


class SimulatedBench:
    """One machine as the tuner sees it. `drifts` are the logarithms of its slowdowns, for computing its true speed."""

    def __init__(self, machine: Machine, seed: int) -> None:
        self.machine = machine
        self.starts = self.runs = 0
        self.drifts: list[float] = []
        self._dice = np.random.default_rng(seed)
        self._drift = SpeedDrift(machine, self._dice)
        self._now_s = 0.0
        self._in_use: dict[str, Value] | None = None
        self._start_effect = 0.0

    def now_s(self) -> float:
        """Return the virtual time."""
        return self._now_s

    def advance_time(self, now_s: float) -> None:
        """Advance the virtual time to `now_s`."""
        self._now_s = max(self._now_s, now_s)

    async def become(self, settings: RunSettings, *, fresh: bool = False, reliable: bool = False) -> float:
        """Start with settings, unless they are in use and no `fresh` start is wanted.

        Raises EngineFailed if memory runs out, and unless `reliable` also at random.
        """
        await asyncio.sleep(0)  # a cancelled tune stops here
        if settings == self._in_use and not fresh:
            return 0.0
        began_s, self._in_use = self._now_s, None
        self.starts += 1
        seconds = self.machine.restart_s * self._dice.uniform(0.9, 1.15)
        if self.machine.runs_out_of_memory(settings):
            self._now_s += seconds * 0.6
            failed = EngineFailed("The engine ended while it loaded: out of memory.")
            failed.attach_actions([Action(ActionKind.MORE_EXPERTS_ON_CPU, "More experts on the CPU")])
            raise failed
        if not reliable and self._dice.random() < _STRAY_CRASH:
            self._now_s += seconds * 0.3
            raise EngineFailed("The engine ended while it loaded.")
        self._now_s += seconds
        self._in_use = dict(settings)
        self._start_effect = self._dice.normal(0, self.machine.start_noise)
        return self._now_s - began_s

    async def run(self, prompt: Prompt, *, seed: int) -> Run:
        """Send one request. `seed` determines the text, and so about the same acceptance at all settings."""
        if self._in_use is None:
            return Run(prompt.name, {}, self._now_s, 0.0, error="Nothing is served.")
        self.runs += 1
        settings, machine, dice = self._in_use, self.machine, self._dice
        drift, throttled = self._drift.drift_at(self._now_s)
        if not throttled:
            self.drifts.append(drift)
        number = PROMPT_NAMES.index(prompt.name)
        steps, hits = self._steps(settings, number, seed, prompt.tokens)
        noise = dice.normal(0, machine.run_noise)
        step_s = machine.step_seconds(settings) * math.exp(drift + self._start_effect + noise)
        tokens = steps + sum(hits)
        prefill = machine.prefill(settings) * math.exp(-drift - self._start_effect - dice.normal(0, machine.run_noise))
        reading_s, writing_s = PROMPT_TOKENS / prefill, step_s * steps
        watts = machine.power(settings) * math.exp(dice.normal(0, 0.01))
        began_s = self._now_s
        self._now_s += reading_s + writing_s + 0.02
        draft = draft_length(settings)
        drafts = Acceptance(steps * draft, sum(hits), (steps,) * draft, hits) if draft else None
        return Run(
            prompt=prompt.name,
            settings=settings,
            began_s=began_s,
            wall_s=self._now_s - began_s,
            prompt_tokens=PROMPT_TOKENS,
            reply_tokens=tokens,
            prefill_rate=prefill,
            decode_rate=tokens / writing_s,
            first_token_s=reading_s,
            acceptance=drafts,
            power_w=watts,
            energy_j=watts * writing_s,
            spoilt="The GPU throttled." if throttled and dice.random() < _MARKED else None,
        )

    def _steps(self, settings: Mapping[str, Value], prompt: int, seed: int, tokens: int) -> tuple[int, tuple[int, ...]]:
        """Return the verification steps of a reply, and how many of them accepted at least 1, 2, ... drafts."""
        more, luck = _text(seed, prompt)
        chain, survival = 1.0, []
        for rate in self.machine.rates(settings, prompt):
            odds = rate / (1 - rate) * more
            chain *= odds / (1 + odds)
            survival.append(chain)
        steps = max(1, round(tokens / (1 + sum(survival))))
        return steps, tuple(int(np.count_nonzero(luck[:steps] < each)) for each in survival)


@lru_cache(maxsize=4_096)
def _text(seed: int, prompt: int) -> tuple[float, NDArray[np.float64]]:
    """Return the properties of one text: the factor on its odds of acceptance, and a random number for each step.

    Both are the same at all settings, as the same seed gives the same text.
    """
    dice = np.random.default_rng((seed, prompt))
    return math.exp(dice.normal(0, _TEXT_SPREAD)), dice.random(REPLY_TOKENS)
