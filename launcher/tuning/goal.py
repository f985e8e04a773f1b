"""Goal of a tune: tokens per second, the time to an answer or of an agent's task, or tokens per joule."""

import math
from dataclasses import dataclass
from enum import StrEnum

from launcher.tuning.records import Run


class Aim(StrEnum):
    """Quantity that a tune optimises."""

    SPEED = "speed"
    ANSWER = "answer"
    TASK = "task"
    ENERGY = "energy"


_UNITS = {Aim.SPEED: "tokens/s", Aim.ANSWER: "s", Aim.TASK: "s per task", Aim.ENERGY: "tokens/J"}


@dataclass(frozen=True, slots=True)
class Goal:
    """Aim of a tune, and the token counts of the user's prompts and replies (None: those of each run).

    These are for `answer` and `task`. A task is a loop of requests that an agent sends: what it reads once and writes
    in all of them, without what the engine reuses (agent_tasks.task_goal).

    Scores are logarithms, and higher is better for every aim, so a ratio above 1 is always an improvement.
    """

    aim: Aim = Aim.SPEED
    prompt_tokens: int | None = None
    reply_tokens: int | None = None

    @property
    def is_time(self) -> bool:
        """Whether values are seconds, of reading and writing."""
        return self.aim in (Aim.ANSWER, Aim.TASK)

    @property
    def unit(self) -> str:
        """The unit of `value`."""
        return _UNITS[self.aim]

    def run_value(self, run: Run) -> float | None:
        """Return tokens/s of generation, seconds of an answer or task, or tokens per joule. None if unknown."""
        if not run.is_counted or not run.decode_rate or not run.reply_tokens:
            return None
        match self.aim:
            case Aim.SPEED:
                return run.decode_rate
            case Aim.ANSWER | Aim.TASK:
                prompt_tokens, reply_tokens = self.answer_tokens(run)
                return prompt_tokens / run.prefill_rate + reply_tokens / run.decode_rate if run.prefill_rate else None
            case Aim.ENERGY:
                return run.reply_tokens / run.energy_j if run.energy_j else None

    def answer_tokens(self, run: Run) -> tuple[int, int]:
        """Return the numbers of prompt tokens and reply tokens of one answer."""
        return self.prompt_tokens or run.prompt_tokens + run.cached_tokens, self.reply_tokens or run.reply_tokens

    def run_score(self, run: Run) -> float | None:
        """Return the logarithm of the run's value, negated for seconds, so that higher is better. None if unknown."""
        value = self.run_value(run)
        if not value:
            return None
        return -math.log(value) if self.is_time else math.log(value)

    def value_from_score(self, score: float) -> float:
        """Return the value that has this score; the inverse of `score`."""
        return math.exp(-score if self.is_time else score)

    def step_cost(self, run: Run) -> float | None:
        """Return the cost of one verification step: seconds, or joules where energy is the aim. None if unknown."""
        steps = run.steps
        if self.run_value(run) is None or not run.decode_rate or not steps:
            return None
        if self.aim is Aim.ENERGY:
            return run.energy_j / steps if run.energy_j else None
        return run.reply_tokens / run.decode_rate / steps
