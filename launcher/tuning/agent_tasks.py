"""Tasks of coding agents as a load: loops of turns over one growing prompt, as long as real agents send them.

The sizes are those of real requests (presets/agents/shapes/). The texts are our own. Tools are described in the system
message, so that any model can be measured. A turn is a request with the whole conversation before it, including the
model's own replies, and the result of a tool.
"""

import statistics
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

from launcher.base.codec import JsonView
from launcher.base.errors import BadOption
from launcher.base.messages import Message, message, plural_message
from launcher.base.paths import shipped_file
from launcher.engine.server.client import ChatRequest
from launcher.models.server_settings import Value
from launcher.tuning.goal import Aim, Goal
from launcher.tuning.records import Bench, Prompt, Run, RunSettings
from launcher.tuning.sized_prompts import TokenCounter, journal_entries
from launcher.tuning.workloads import DEFAULT_WORKLOAD, Workload, load_workload

_SYSTEM, _USER, _ASSISTANT = "system", "user", "assistant"
_SAMPLE_ENTRIES = 40
_TEMPLATE_TOKENS = 16
"""Tokens that a chat template adds to a message, roughly."""
_ERRORS_IN_A_ROW = 3
_FEWEST_TASKS = 6
"""Tasks from which the last third is compared with the first."""


@dataclass(frozen=True, slots=True)
class AgentShape:
    """The sizes of an agent's requests in tokens.

    The first prompt has `system_tokens` of instructions and `tools_tokens` of tools. `turns` is the number of turns of
    a task, each with a reply of at most `reply_tokens` and, from the second on, a tool's result. `source` says where
    they are from. `temperature` None leaves the sampling to the server; 0 makes replies repeatable.
    """

    name: str
    source: str
    system_tokens: int
    tools_tokens: int
    turns: int
    result_tokens: int
    reply_tokens: int
    temperature: float | None = None

    @property
    def context_need(self) -> int:
        """The tokens of context that a task takes, with those of the chat template."""
        a_turn = self.reply_tokens + self.result_tokens + 2 * _TEMPLATE_TOKENS
        return self.system_tokens + self.tools_tokens + self.turns * a_turn + 256

    @property
    def read_tokens(self) -> int:
        """The prompt tokens of a task that are new to the engine: all text once, without the replies."""
        results = (self.turns - 1) * (self.result_tokens + _TEMPLATE_TOKENS)
        return self.system_tokens + self.tools_tokens + results

    @property
    def reused_tokens(self) -> int:
        """The prompt tokens of a task that an engine with a cache need not read again."""
        first, a_turn = self.system_tokens + self.tools_tokens, self.result_tokens + self.reply_tokens
        return sum(first + turn * a_turn for turn in range(self.turns - 1))


def load_shapes() -> tuple[AgentShape, ...]:
    """Return the shapes of all agents, by name."""
    paths = sorted(shipped_file("presets", "agents", "shapes").glob("*.toml"))
    return tuple(AgentShape(**tomllib.loads(path.read_text(encoding="utf-8"))) for path in paths)


def find_shape(name: str) -> AgentShape:
    """Return the shape of an agent's requests. Raises BadOption for an unknown agent."""
    shapes = load_shapes()
    for shape in shapes:
        if shape.name == name.lower():
            return shape
    names = ", ".join(shape.name for shape in shapes)
    raise BadOption(
        message("{name} is not a coding agent whose requests are known.", name=name),
        message("Choose one of {usable}.", usable=names),
    )


# A task as the goal of a tune: replaying one in each trial would take minutes, so its time is computed from the rates
# of reading and writing, measured at the depths of its first prompt and of twice that.

DEFAULT_AGENT = "loop"
"""The agent of a tune's tasks, unless the user names another."""
_DEPTHS = (1, 2)
"""Sizes of the measured prompts, as multiples of an agent's first prompt."""


def task_goal(shape: AgentShape) -> Goal:
    """Return the goal of the least seconds for a task, of which the engine reads every token once."""
    return Goal(Aim.TASK, shape.read_tokens, shape.turns * shape.reply_tokens)


def task_workload(shape: AgentShape) -> Workload:
    """Return the workload that measures how fast a server reads and writes at the depths of an agent's task."""
    sampling: dict[str, Value] = {} if shape.temperature is None else {"temperature": shape.temperature}
    first, usual = shape.system_tokens + shape.tools_tokens, load_workload(DEFAULT_WORKLOAD).prompts[0]
    prompts = tuple(
        Prompt(f"{depth * first:,} tokens", usual.messages, shape.reply_tokens, sampling, size=depth * first)
        for depth in _DEPTHS
    )
    return Workload(shape.name, message("Tasks of {agent}", agent=shape.name), 1, prompts, shape.source)


def find_agent_workload(name: str) -> Workload | None:
    """Return the workload at the depths of an agent's task; None for an unknown agent."""
    shape = next((each for each in load_shapes() if each.name == name.lower()), None)
    return None if shape is None else task_workload(shape)


def describe_task(shape: AgentShape) -> Message:
    """Return a sentence on the tokens that a task reads, reuses and writes."""
    return message(
        "{read:,} tokens read, {reused:,} reused, {written:,} written",
        read=shape.read_tokens,
        reused=shape.reused_tokens,
        written=shape.turns * shape.reply_tokens,
    )


# Texts of a given size.


class SizedText:
    """Makes texts with about a given number of one model's tokens, from the journal of sized_prompts."""

    def __init__(self, characters_a_token: float) -> None:
        self._characters_a_token = characters_a_token

    @classmethod
    async def measure(cls, server: TokenCounter) -> "SizedText":
        """Measure how long the tokens of a server's model are in such texts. Raises what `count_tokens` raises."""
        sample = "\n".join(islice(journal_entries(), _SAMPLE_ENTRIES))
        tokens = await server.count_tokens(ChatRequest([{"role": _USER, "content": sample}]))
        return cls(len(sample) / max(1, tokens - _TEMPLATE_TOKENS))

    def make_text(self, tokens: int, begin: int) -> str:
        """Return a text of about `tokens` tokens; `begin` is the number of its first entry."""
        length = round(tokens * self._characters_a_token)
        return "".join(islice(_characters(begin), length))


def _characters(begin: int) -> Iterator[str]:
    for entry in journal_entries(begin):
        yield from entry
        yield "\n"


# The load.


@dataclass(frozen=True, slots=True)
class AgentTask:
    """A task that was done. `from_s` is its beginning in seconds since the load's.

    `read_tokens` and `reused_tokens` are prompt tokens that the engine read and found in its cache, `reply_tokens`
    those that it generated; `reading_s` and `writing_s` are the engine's seconds for them. `error` is the reason
    why it ended early.
    """

    from_s: float
    seconds: float
    turns: int
    read_tokens: int
    reused_tokens: int
    reply_tokens: int
    error: str | None = None
    reading_s: float = 0.0
    writing_s: float = 0.0


OnTask = Callable[[AgentTask], None]
OnRun = Callable[[Run], None]


async def sustain_tasks(
    bench: Bench,
    last_text: Callable[[], str],
    settings: RunSettings,
    shape: AgentShape,
    text: SizedText,
    seconds: float,
    *,
    on_run: OnRun,
    on_task: OnTask,
) -> None:
    """Do one task after another for `seconds` by the bench's clock; a task that has begun is done to its end.

    `last_text` returns the text of the bench's last reply. All begin with the same instructions and tools, as sessions
    in one folder do. A request that fails ends its task, and the server is started again if it ended; three such tasks
    in a row end the load. Raises what Bench.become raises.
    """
    await bench.become(settings)
    began_s, number, errors = bench.now_s(), 0, 0
    sampling = {"cache_prompt": True} | ({} if shape.temperature is None else {"temperature": shape.temperature})
    instructions = text.make_text(shape.system_tokens + shape.tools_tokens, 0)
    while bench.now_s() - began_s < seconds and errors < _ERRORS_IN_A_ROW:
        number += 1
        task_s = bench.now_s()
        runs: list[Run] = []
        messages = [(_SYSTEM, instructions), (_USER, f"Task {number}: {text.make_text(60, 10_000 * number)}")]
        for turn in range(shape.turns):
            if turn:
                result = text.make_text(shape.result_tokens, 10_000 * number + 100 * turn)
                messages += [(_ASSISTANT, last_text()), (_USER, f"Result of the tool:\n{result}")]
            prompt = Prompt(f"{shape.name} turn {turn + 1}", tuple(messages), shape.reply_tokens, sampling)
            runs.append(await bench.run(prompt, seed=number))
            on_run(runs[-1])
            if runs[-1].error is not None:
                break
        error = runs[-1].error
        on_task(
            AgentTask(
                task_s - began_s,
                bench.now_s() - task_s,
                len(runs),
                sum(run.prompt_tokens for run in runs),
                sum(run.cached_tokens for run in runs),
                sum(run.reply_tokens for run in runs),
                error,
                sum(run.prompt_tokens / run.prefill_rate for run in runs if run.prefill_rate),
                sum(run.reply_tokens / run.decode_rate for run in runs if run.decode_rate),
            )
        )
        errors = errors + 1 if error else 0
        if error:
            await bench.become(settings)


@dataclass(frozen=True, slots=True)
class AgentVerdict:
    """The result of a load of tasks: seconds per task, the least and most of them, and the share of prompts reused.

    Only completed tasks count; figures are None if there are none. `reading_s` and `writing_s` are the engine's parts
    of a task. `slower` is the ratio of the last third's median to the first's, None for few tasks.
    """

    JSON_VIEW: ClassVar[JsonView] = JsonView(
        "agent=shape.name turns=shape.turns seconds_per_task reading_seconds_per_task=reading_s "
        "writing_seconds_per_task=writing_s reused_percent last_third_to_first=slower failed_tasks sentence tasks"
    )
    shape: AgentShape
    tasks: tuple[AgentTask, ...]
    seconds_per_task: float | None
    reused: float | None
    slower: float | None
    sentence: Message
    reading_s: float | None = None
    writing_s: float | None = None

    @property
    def reused_percent(self) -> float | None:
        """The share of prompts that was reused, in percent."""
        return None if self.reused is None else 100 * self.reused

    @property
    def failed_tasks(self) -> int:
        """The number of tasks that ended early."""
        return sum(task.error is not None for task in self.tasks)


def judge_tasks(shape: AgentShape, tasks: Sequence[AgentTask]) -> AgentVerdict:
    """Return the result of tasks in the order in which they were done."""
    done = [task for task in tasks if task.error is None]
    if not done:
        error = next((task.error for task in tasks if task.error), None)
        sentence = message("No task was done to its end.")
        if error:
            sentence = message("No task was done to its end: {error}", error=error)
        return AgentVerdict(shape, tuple(tasks), None, None, None, sentence)
    each_s = [task.seconds for task in done]
    read, found = sum(task.read_tokens for task in done), sum(task.reused_tokens for task in done)
    reused = found / (read + found) if read + found else None
    reading_s = statistics.median(task.reading_s for task in done)
    writing_s = statistics.median(task.writing_s for task in done)
    third = len(done) // 3
    slower = None
    if len(done) >= _FEWEST_TASKS:
        slower = statistics.median(each_s[-third:]) / statistics.median(each_s[:third])
    sentence = message(
        "{tasks} of {agent} with {turns} turns each: {seconds:.1f} s per task ({least:.1f} to {most:.1f}), of which"
        " {reading:.1f} s reading and {writing:.1f} s writing; {reused:.0f} % of the prompts reused.",
        tasks=plural_message("{n} task", "{n} tasks", len(done)),
        agent=shape.name,
        turns=shape.turns,
        seconds=statistics.median(each_s),
        least=min(each_s),
        most=max(each_s),
        reading=reading_s,
        writing=writing_s,
        reused=100 * (reused or 0.0),
    )
    seconds = statistics.median(each_s)
    return AgentVerdict(shape, tuple(tasks), seconds, reused, slower, sentence, reading_s, writing_s)
