"""A bench in virtual time, whose replies take the time that a formula gives."""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from launcher.base.errors import EngineFailed
from launcher.monitor.meter import Acceptance
from launcher.tuning.records import Prompt, Run, RunSettings
from launcher.tuning.space import draft_length

START_S = 5.0
PREFILL_RATE = 1_000.0
YIELD = 1.6
"""Tokens that a step with drafts generates."""


@dataclass(frozen=True)
class Moment:
    """Input of the formula. `steps_rate` is in steps/s; the machine's figures are None if unknown."""

    settings: RunSettings
    prompt: Prompt
    now_s: float
    streams: int


@dataclass(frozen=True)
class Speed:
    steps_rate: float
    temperature_c: float | None = None
    clock_mhz: float | None = None
    power_w: float | None = None
    spoilt: str | None = None
    error: str | None = None


@dataclass
class VirtualBench:
    """Replies that are requested together are generated at the same time; a formula gives the time of each."""

    speed: Callable[[Moment], Speed]
    noise: float = 0.0
    fails_to_start: Callable[[RunSettings], bool] = lambda _: False
    starts: list[RunSettings] = field(default_factory=list)
    prompts: list[Prompt] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._now_s = 100.0
        self._settings: Mapping[str, object] | None = None
        self._dice = random.Random(7)
        self._open = 0

    def now_s(self) -> float:
        return self._now_s

    async def become(self, settings: RunSettings, *, fresh: bool = False) -> float:
        if settings == self._settings and not fresh:
            return 0.0
        self._settings = None
        self.starts.append(dict(settings))
        self._now_s += START_S
        if self.fails_to_start(settings):
            raise EngineFailed("The engine ended while it loaded: out of memory.")
        self._settings = dict(settings)
        return START_S

    async def run(self, prompt: Prompt, *, seed: int) -> Run:
        assert self._settings is not None
        settings: RunSettings = dict(self._settings)  # type: ignore[arg-type]
        self.prompts.append(prompt)
        self.seeds.append(seed)
        began_s = self._now_s
        self._open += 1
        await asyncio.sleep(0)  # now all requests of the same moment are open
        result = self.speed(Moment(settings, prompt, began_s, self._open))
        if result.error:
            self._open -= 1
            self._now_s = max(self._now_s, began_s + 1)
            return Run(prompt.name, settings, began_s, 1.0, error=result.error)
        steps_rate = result.steps_rate * (1 + self._dice.gauss(0, self.noise))
        draft = draft_length(settings)
        steps = round(prompt.tokens / YIELD) if draft else prompt.tokens
        accepted = prompt.tokens - steps
        read = prompt.size or 20
        wall_s = read / PREFILL_RATE + steps / steps_rate
        await asyncio.sleep(0)
        self._open -= 1
        self._now_s = max(self._now_s, began_s + wall_s)
        return Run(
            prompt=prompt.name,
            settings=settings,
            began_s=began_s,
            wall_s=wall_s,
            prompt_tokens=read,
            reply_tokens=prompt.tokens,
            prefill_rate=PREFILL_RATE,
            decode_rate=prompt.tokens / steps * steps_rate,
            first_token_s=read / PREFILL_RATE,
            acceptance=Acceptance(steps, accepted, (steps,), (accepted,)) if draft else None,
            power_w=result.power_w,
            energy_j=None if result.power_w is None else result.power_w * wall_s,
            temperature_c=result.temperature_c,
            clock_mhz=result.clock_mhz,
            spoilt=result.spoilt,
        )
