"""Hundreds of settings on models without data: the formula's figures and those that a real engine prints."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.app.planning.model_source import ModelSource, estimate_by_formula, read_source
from launcher.engine.builds.build import EngineBuild
from launcher.engine.engine_estimate import EngineEstimate, ask_engine, comparable_parts
from launcher.models.compute_buffers import Backend
from launcher.models.memory import PlanSettings
from tools.sparse_models.models import WITHOUT_HEAD
from tools.sparse_models.models import model as describe_model
from tools.sparse_models.write import write

PARTS = ("model_mib", "context_mib", "compute_mib", "draft_context_mib", "draft_compute_mib")
"""Parts that formula and engine both give, by the names of an EngineEstimate."""
COUNTS: Mapping[str, int] = {
    "qwen35moe-35b-q3_k_xl": 80,
    "qwen35-27b-q4_k_s": 80,
    "qwen35-9b-q4_k_m": 30,
    f"qwen35moe-35b-iq3_s{WITHOUT_HEAD}": 10,
    "llama-8b-q4_k": 15,
    "qwen3moe-30b-q4_k": 15,
    "gemma3-12b-q4_k": 15,
    "gemma4-31b-iq4_xs": 15,
}
"""Number of settings to draw for each model. There are models with gated delta nets (with experts and dense), with
attention alone, and with sliding windows.
"""
_SEED = 20_261_121
_CONTEXTS = (4_096, 5_000, 8_192, 16_384, 20_001, 32_768, 49_152, 65_536, 98_304, 131_072, 150_000, 196_608, 262_144)
_KV = ("f16", "f16", "q8_0", "q8_0", "q4_0", "q4_0", "q5_1")
_UBATCHES = (64, 128, 256, 384, 512, 1_024, 2_048)
_SLOTS = (1, 1, 1, 2, 3, 4)
_MOST_STATES = 6
"""Limit of slots times drafts: even for a dry run an engine really allocates recurrent states, and more of them only
take time.
"""
_CORNERS = (
    PlanSettings(context=262_144, kv="q8_0", draft=2, ubatch=256),
    PlanSettings(context=262_144, kv="q4_0", draft=4, ubatch=2_048),
    PlanSettings(context=131_072, kv="f16", draft=3, ubatch=1_024),
    PlanSettings(context=65_536, kv="q4_0", draft=0, ubatch=512, slots=4),
    PlanSettings(context=4_096, kv="f16", draft=1, ubatch=64),
)


@dataclass(frozen=True, slots=True)
class Case:
    """A model of tools.sparse_models, and a setting to run it with."""

    model: str
    setting: PlanSettings

    def __str__(self) -> str:
        """Return a name similar to the command line."""
        at = self.setting
        experts = f" --n-cpu-moe {at.n_cpu_moe}" if at.n_cpu_moe else ""
        return f"{self.model} -c {at.context} -ctk {at.kv} -ub {at.ubatch} -np {at.slots} n{at.draft}{experts}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case with the formula's figures and the engine's, in MiB."""

    case: Case
    formula: Mapping[str, float]
    engine: EngineEstimate

    def engine_mib(self, part: str) -> int:
        """Return the engine's figure in whole MiB, 0 for a draft without MTP."""
        return getattr(self.engine, part) or 0

    def is_equal(self, part: str) -> bool:
        """Whether the figures are equal, given that the engine rounds down for each kind of memory."""
        return self.engine_mib(part) <= self.formula[part] < self.engine_mib(part) + self._roundings(part)

    def beyond_mib(self, part: str) -> float:
        """Return by how many MiB the figures differ beyond the engine's rounding."""
        least = self.engine_mib(part)
        return min(self.formula[part] - least, 0.0) or max(self.formula[part] - least - self._roundings(part), 0.0)

    def beyond_percent(self, part: str) -> float:
        """Return `beyond_mib` in percent of the engine's figure."""
        return 100 * self.beyond_mib(part) / max(self.engine_mib(part), 1)

    def _roundings(self, part: str) -> int:
        if self.engine.devices:
            return len(self.engine.devices)
        return 2 if part == "model_mib" else 1  # the processor's weights: as they are, and repacked


def draw_cases(counts: Mapping[str, int], *, gpu: bool) -> list[Case]:
    """Return random settings, the same every time: for each model the number in `counts`. With `gpu` some have experts
    in host memory, and their backend is a GPU's, else the processor's; `measure_cases` uses the engine's own instead.
    """
    choose = random.Random(_SEED)
    found: dict[Case, None] = {}
    for model, count in counts.items():
        wanted = len(found) + count
        settings = _settings(model, gpu, choose)
        while len(found) < wanted:
            found[Case(model, next(settings))] = None
    return list(found)


def _settings(model: str, gpu: bool, choose: random.Random) -> Iterator[PlanSettings]:
    backend: Backend = "cuda" if gpu else "cpu"
    metadata = describe_model(model).metadata
    has_head = "nextn_predict_layers" in metadata
    layers = metadata["block_count"]
    on_host: tuple[int, ...] = (0,)
    if gpu and "expert_count" in metadata and isinstance(layers, int):
        on_host = (0, 0, 0, 1, 8, 20, 30, layers - 2, layers - 1, layers)
    for corner in _CORNERS:
        yield replace(corner, backend=backend, draft=corner.draft if has_head else 0)
    while True:
        setting = PlanSettings(
            context=choose.choice(_CONTEXTS),
            kv=choose.choice(_KV),
            draft=choose.randrange(5) if has_head else 0,
            ubatch=choose.choice(_UBATCHES),
            slots=choose.choice(_SLOTS),
            n_cpu_moe=choose.choice(on_host),
            backend=backend,
        )
        if setting.slots * (1 + setting.draft) <= _MOST_STATES:
            yield setting


async def measure_cases(
    build: EngineBuild,
    wanted: Sequence[Case],
    folder: Path,
    *,
    at_once: int = 2,
    report_outcome: Callable[[Outcome], None] = lambda _outcome: None,
) -> list[Outcome]:
    """Let `build` estimate every case, `at_once` of them at a time; the models are written to `folder`.

    Raises what ask_engine raises, with the case as a note.
    """
    sources: dict[str, ModelSource] = {}
    for name in dict.fromkeys(case.model for case in wanted):
        path = folder / f"{name}.gguf"
        write(path, name, describe_model(name))
        sources[name] = read_source(str(path))
    turn = asyncio.Semaphore(at_once)

    async def measure_case(case: Case) -> Outcome:
        source = sources[case.model]
        async with turn:
            try:
                engine = await ask_engine(build, source.parts, case.setting)
            except Exception as error:
                error.add_note(str(case))
                raise
        formula = estimate_by_formula(source, replace(case.setting, backend=engine.backend))
        outcome = Outcome(case, comparable_parts(formula), engine)
        report_outcome(outcome)
        return outcome

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(measure_case(case)) for case in wanted]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]
