"""The tuner against a program that speaks HTTP as llama-server does, with the speed of a machine that is known."""

import asyncio
import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE

import pytest

from launcher.base.action import Action, ActionKind
from launcher.base.errors import EngineFailed
from launcher.engine.server.client import ChatRequest, EngineClient
from launcher.models.server_settings import Value
from launcher.monitor.meter import ReplyMeter
from launcher.tuning.goal import Goal
from launcher.tuning.records import Prompt, Run, RunSettings
from launcher.tuning.space import draft_length, settings_key
from launcher.tuning.tuner import tune
from tests import forked
from tests.tuning.simulated import MTP_WINS
from tools.tuner_simulation.bench import PROMPT_TOKENS
from tools.tuner_simulation.machine import compute_true_scores, draw_machine
from tools.tuner_simulation.run import WORK

SERVER = Path(__file__).parents[1] / "fakes" / "simulated_server.py"
FLAGS = {
    "kv": "--cache-type-k",
    "ubatch": "--ubatch-size",
    "n_cpu_moe": "--n-cpu-moe",
    "threads": "--threads",
    "p_min": "--spec-draft-p-min",
}


pytestmark = pytest.mark.usefixtures("forked_commands")


@dataclass
class HttpBench:
    """Starts the program with the settings as flags and reads its replies as the launcher reads llama-server's."""

    machine: int
    served: dict[str, Value] = field(default_factory=dict)
    starts: int = 0
    now: float = 0.0
    process: forked.Program | subprocess.Popen[bytes] | None = None
    client: EngineClient | None = None

    def now_s(self) -> float:
        return self.now

    async def become(self, settings: RunSettings, *, fresh: bool = False) -> float:
        if settings == self.served and not fresh:
            return 0.0
        await self.stop()
        draft = draft_length(settings)
        flags = [text for name, flag in FLAGS.items() if name in settings for text in (flag, str(settings[name]))]
        if draft:
            kind = "draft-mtp,ngram-simple" if settings["ngram"] != "none" else "draft-mtp"
            flags += ["--spec-type", kind, "--spec-draft-n-max", str(draft)]
        self.starts += 1
        environment = {**os.environ, "FAKE_NOW": str(self.now), "FAKE_STARTS": str(self.starts)}
        command = [sys.executable, str(SERVER), str(self.machine), *flags]
        self.process = forked.popen(command, stdout=PIPE, stderr=PIPE, env=environment)
        assert self.process.stdout
        assert self.process.stderr
        line = await asyncio.to_thread(self.process.stdout.readline)
        if not line:
            output = (await asyncio.to_thread(self.process.stderr.read)).decode()
            await self.stop()
            self.now += 5.0
            failed = EngineFailed("The engine ended while it loaded.", output)
            if "out of memory" in output:
                failed.attach_actions([Action(ActionKind.FREE_MEMORY, "Free memory")])
            raise failed
        result = json.loads(line)
        self.client = EngineClient(f"http://127.0.0.1:{result['port']}", None)
        self.served = dict(settings)
        self.now += result["took_s"]
        return float(result["took_s"])

    async def run(self, prompt: Prompt, *, seed: int) -> Run:
        assert self.client
        meter = ReplyMeter()
        messages = [{"role": role, "content": text} for role, text in prompt.messages]
        async with self.client.chat(ChatRequest(messages, max_tokens=prompt.tokens, seed=seed)) as deltas:
            async for delta in deltas:
                if delta.timings:
                    meter.add(delta.timings)
        last = meter.last
        assert last is not None
        began_s = self.now
        self.now += (last.prompt_ms + last.predicted_ms) / 1_000
        return Run(
            prompt=prompt.name,
            settings=self.served,
            began_s=began_s,
            wall_s=self.now - began_s,
            prompt_tokens=last.prompt_n,
            reply_tokens=last.predicted_n,
            prefill_rate=1_000 * last.prompt_n / last.prompt_ms,
            decode_rate=last.predicted_per_second,
            acceptance=meter.acceptance if last.draft_n else None,
        )

    async def stop(self) -> None:
        if self.client:
            await self.client.close()
        if self.process:
            self.process.kill()
            with self.process:
                pass  # closes its pipes, and waits for its end
        self.client, self.process, self.served = None, None, {}


async def test_a_program_with_a_known_answer_is_tuned_over_http() -> None:
    bench = HttpBench(MTP_WINS)
    drawn = draw_machine(MTP_WINS)
    try:
        verdict = await tune(bench, drawn.space(), WORK, Goal(), 420 * max(1.0, 100 * drawn.step_s), seed=1)
    finally:
        await bench.stop()
    scores = compute_true_scores(drawn, Goal(), PROMPT_TOKENS)
    assert verdict.mtp == "on"
    assert scores[settings_key(verdict.settings)] >= scores[settings_key(drawn.space().baseline_settings())]
    assert math.exp(scores[settings_key(verdict.settings)] - max(scores.values())) > 0.9


async def test_a_memory_error_of_another_program_is_recognised() -> None:
    number, too_large = next(
        (number, settings)
        for number in range(100)
        for settings in draw_machine(number).space().fitting_settings()  # the settings that fit by the plan's belief
        if draw_machine(number).runs_out_of_memory(settings)
    )
    bench = HttpBench(number)
    try:
        with pytest.raises(EngineFailed, match="ended while it loaded") as failed:
            await bench.become(too_large)
        assert "out of memory" in failed.value.hint
        assert [action.kind for action in failed.value.actions] == [ActionKind.FREE_MEMORY]
        baseline = draw_machine(number).space().baseline_settings()
        assert await bench.become(baseline) > 0
        run = await bench.run(WORK.prompts[0], seed=1)
        assert Goal().run_value(run) == pytest.approx(1 / draw_machine(number).step_seconds(baseline), rel=0.3)
    finally:
        await bench.stop()
