"""Goal of a tune: tokens per second, the time to an answer or of an agent's task, or tokens per joule."""

import math
from dataclasses import dataclass
from enum import StrEnum

from launcher.base.messages import Message, message
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

    These are for `answer` and `task`. A task is a loop of requests that an agent sends. Its tokens are those that are
    read once and those that are written in all requests, without reused ones (agent_tasks.task_goal).

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
        """Return the value that has this score; the inverse of `run_score`."""
        return math.exp(-score if self.is_time else score)

    def step_cost(self, run: Run) -> float | None:
        """Return the cost of one verification step: seconds, or joules where energy is the aim. None if unknown."""
        steps = run.steps
        if self.run_value(run) is None or not run.decode_rate or not steps:
            return None
        if self.aim is Aim.ENERGY:
            return run.energy_j / steps if run.energy_j else None
        return run.reply_tokens / run.decode_rate / steps


def describe_change(amount: str, aim: Aim, *, better: bool) -> Message:
    """Return by how much a value of a goal is better or worse, such as "41 % ± 3 faster"."""
    match aim:
        case Aim.SPEED:
            return message("{amount} faster", amount=amount) if better else message("{amount} slower", amount=amount)
        case Aim.ANSWER:
            if better:
                return message("{amount} quicker to the answer", amount=amount)
            return message("{amount} slower to the answer", amount=amount)
        case Aim.TASK:
            if better:
                return message("{amount} quicker with a task", amount=amount)
            return message("{amount} slower with a task", amount=amount)
        case Aim.ENERGY:
            if better:
                return message("{amount} more frugal", amount=amount)
            return message("{amount} less frugal", amount=amount)


def describe_speed_change(ratio: float) -> Message:
    """Return a ratio of speeds in words, such as "2.5 % slower"."""
    return describe_change(f"{100 * abs(ratio - 1):.1f} %", Aim.SPEED, better=ratio >= 1)
