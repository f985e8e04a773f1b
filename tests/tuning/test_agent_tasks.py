"""Tasks of coding agents as a load: contents of the requests, the end of a run, and the result."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from launcher.agents.agent import load_agents
from launcher.base.codec import to_json
from launcher.base.errors import BadOption
from launcher.engine.server.client import ChatRequest
from launcher.tuning.agent_tasks import (
    AgentShape,
    AgentTask,
    SizedText,
    describe_task,
    find_agent_workload,
    find_shape,
    judge_tasks,
    load_shapes,
    sustain_tasks,
    task_goal,
    task_workload,
)
from launcher.tuning.records import Prompt, Run, RunSettings
from launcher.tuning.workloads import load_workloads

TINY = AgentShape("tiny", "made for this test", 100, 50, 3, 40, 16)
SETTINGS: RunSettings = {"draft": 2}


RATES = {"prefill_rate": 40.0, "decode_rate": 32.0}


class ScriptedBench:
    """A server that answers in a second, and fails at the requests whose numbers it was given."""

    def __init__(self, failing: Sequence[int] = ()) -> None:
        self.last_text = ""
        self.prompts: list[Prompt] = []
        self.starts = 0
        self._failing = failing
        self._now_s = 100.0

    def now_s(self) -> float:
        return self._now_s

    async def become(self, settings: RunSettings, **_: bool) -> float:
        assert settings == SETTINGS
        self.starts += 1
        return 0.0

    async def run(self, prompt: Prompt, *, seed: int) -> Run:
        assert seed
        self.prompts.append(prompt)
        self._now_s += 1.0
        number = len(self.prompts)
        self.last_text = f"reply {number}"
        if number in self._failing:
            return Run(prompt.name, SETTINGS, self._now_s, 1.0, error="It broke.")
        return Run(
            prompt.name, SETTINGS, self._now_s, 1.0, prompt_tokens=10, cached_tokens=90, reply_tokens=16, **RATES
        )


async def do_tasks(bench: ScriptedBench, seconds: float) -> list[AgentTask]:
    tasks: list[AgentTask] = []
    runs: list[Run] = []
    text = SizedText(4.0)
    await sustain_tasks(
        bench, lambda: bench.last_text, SETTINGS, TINY, text, seconds, on_run=runs.append, on_task=tasks.append
    )
    assert len(runs) == len(bench.prompts) == sum(task.turns for task in tasks)
    return tasks


async def test_each_turn_includes_all_earlier_messages_and_replies() -> None:
    bench = ScriptedBench()
    (task,) = await do_tasks(bench, 2.0)
    first, second, third = bench.prompts
    assert [role for role, _ in third.messages] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert second.messages[: len(first.messages)] == first.messages
    assert third.messages[: len(second.messages)] == second.messages
    assert (third.messages[2][1], third.messages[4][1]) == ("reply 1", "reply 2")
    assert len({text for _, text in third.messages}) == 6
    assert len(first.messages[0][1]) == 4 * 150
    assert all(prompt.sampling == {"cache_prompt": True} for prompt in bench.prompts)
    assert (task.seconds, task.turns, task.read_tokens, task.reused_tokens, task.reply_tokens) == (3.0, 3, 30, 270, 48)
    assert (task.reading_s, task.writing_s) == (0.75, 1.5)


async def test_a_shape_may_ask_for_repeatable_replies() -> None:
    bench = ScriptedBench()
    shape = replace(TINY, temperature=0.0)
    await sustain_tasks(
        bench,
        lambda: bench.last_text,
        SETTINGS,
        shape,
        SizedText(4.0),
        1.0,
        on_run=lambda _: None,
        on_task=lambda _: None,
    )
    assert bench.prompts[0].sampling == {"cache_prompt": True, "temperature": 0.0}


async def test_a_begun_task_is_finished_and_the_next_has_the_same_instructions() -> None:
    bench = ScriptedBench()
    tasks = await do_tasks(bench, 4.0)
    assert [(task.from_s, task.seconds) for task in tasks] == [(0.0, 3.0), (3.0, 3.0)]
    first, second = bench.prompts[0].messages, bench.prompts[3].messages
    assert first[0] == second[0]
    assert first[1] != second[1]


async def test_a_failed_request_ends_its_task_and_the_next_restarts_the_server() -> None:
    bench = ScriptedBench(failing=[2])
    tasks = await do_tasks(bench, 4.0)
    assert [(task.turns, task.error) for task in tasks] == [(2, "It broke."), (3, None)]
    assert bench.starts == 2
    verdict = judge_tasks(TINY, tasks)
    assert verdict.seconds_per_task == 3.0
    assert to_json(verdict)["failed_tasks"] == 1


async def test_three_failed_tasks_in_a_row_end_the_measurement() -> None:
    tasks = await do_tasks(ScriptedBench(failing=range(1, 100)), 1_000.0)
    assert len(tasks) == 3
    verdict = judge_tasks(TINY, tasks)
    assert (verdict.seconds_per_task, verdict.reused) == (None, None)
    assert verdict.sentence == "No task was done to its end: It broke."


def test_the_result_has_seconds_per_task_and_their_trend() -> None:
    tasks = [AgentTask(10.0 * number, 10.0 + number, 3, 10, 90, 48, None, 2.0, 9.0) for number in range(9)]
    verdict = judge_tasks(TINY, tasks)
    assert verdict.sentence == (
        "9 tasks of tiny with 3 turns each: 14.0 s per task (10.0 to 18.0), of which 2.0 s reading and 9.0 s writing;"
        " 90 % of the prompts reused."
    )
    assert verdict.slower == pytest.approx(17 / 11)
    assert judge_tasks(TINY, tasks[:3]).slower is None


async def test_texts_have_about_the_tokens_that_were_asked_for() -> None:
    class Words:
        async def count_tokens(self, request: ChatRequest) -> int:
            return 16 + len(str(request.messages[0]["content"]).split())

    text = await SizedText.measure(Words())
    assert len(text.make_text(500, 7).split()) == pytest.approx(500, rel=0.05)
    assert text.make_text(500, 7) != text.make_text(500, 8)


def test_every_agent_has_a_shape_with_its_source_and_its_first_prompt() -> None:
    shapes = {shape.name: shape for shape in load_shapes()}
    for agent in load_agents():
        shape = shapes[agent.name]
        assert shape.source
        assert shape.system_tokens + shape.tools_tokens == pytest.approx(agent.first_prompt, abs=100)
        assert shape.context_need < 64_000
    assert len(shapes) == len(load_agents()) + 1
    loop = shapes["loop"]
    assert (loop.turns, round((loop.turns - 1) * loop.result_tokens, -3)) == (20, 60_000)
    assert loop.temperature == 0
    assert find_shape("PI").turns == 20
    with pytest.raises(BadOption):
        find_shape("nobody")


def test_a_task_as_a_goal_has_read_and_written_tokens() -> None:
    shape = AgentShape("a", "made up", 300, 700, 3, 184, 50, 0.0)
    goal = task_goal(shape)
    assert (goal.prompt_tokens, goal.reply_tokens) == (1_000 + 2 * 200, 150)
    assert shape.reused_tokens == 1_000 + 1_234
    run = Run("one", {}, 0.0, 1.0, prompt_tokens=7, reply_tokens=9, prefill_rate=700.0, decode_rate=50.0)
    assert goal.run_value(run) == pytest.approx(1_400 / 700 + 150 / 50)
    score = goal.run_score(run)
    assert score is not None
    assert goal.value_from_score(score) == pytest.approx(5.0)
    assert goal.unit == "s per task"
    work = task_workload(shape)
    assert [(prompt.size, prompt.tokens) for prompt in work.prompts] == [(1_000, 50), (2_000, 50)]
    assert str(describe_task(find_shape("loop"))) == "72,466 tokens read, 798,418 reused, 3,200 written"


def test_an_agent_is_a_workload_beside_others() -> None:
    both = load_workloads("code,pi", find_agent_workload)
    assert list(both.parts) == ["code", "pi"]
    sizes = {prompt.name: prompt.size for prompt in both.prompts}
    assert [sizes[name] for name in both.parts["pi"]] == [1_200, 2_400]
    assert load_workloads("loop", find_agent_workload).name == "loop"
    with pytest.raises(BadOption, match="nobody is not a workload"):
        load_workloads("code,nobody", find_agent_workload)
