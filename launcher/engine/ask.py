"""What an engine itself says that a model will take: its dry run on a sparse twin, ended before it loads weights."""

import asyncio
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launcher.base.errors import EngineUnsuitable
from launcher.engine.arguments import memory_arguments
from launcher.engine.breakdown import BreakdownReader, Table
from launcher.engine.build import Build
from launcher.engine.diagnosis import explain
from launcher.engine.environment import engine_environment
from launcher.engine.process import Command, Stream, start
from launcher.engine.twin import TwinPart, sparse_twin
from launcher.models.compute import Backend
from launcher.models.memory import Estimate, Setting

ANSWER_S = 60.0
"""How long an engine may take to print its tables; measured were 0.1 to 0.3 s."""
_ANOTHER = "Another llama.cpp build may tell."
_PATIENCE_S = (0.0, 0.0)
_KEPT_LINES = 400
_BACKENDS: tuple[tuple[str, Backend], ...] = (
    ("CUDA", "cuda"),
    ("ROCm", "rocm"),
    ("Vulkan", "vulkan"),
    ("MTL", "metal"),
)
_WEIGHTS_AT = re.compile(r"load_tensors:\s+(\w+) model buffer size")


@dataclass(frozen=True, slots=True)
class EngineEstimate:
    """An engine's own figures in whole MiB: on the GPUs, or on the host where it uses none.

    `draft_*` are None without MTP. `host_mib` is what it puts on the host beside a GPU. `seconds` is how long it took.
    """

    engine: str
    backend: Backend
    devices: tuple[str, ...]
    model_mib: int
    context_mib: int
    compute_mib: int
    draft_context_mib: int | None
    draft_compute_mib: int | None
    host_mib: int
    free_mib: int | None
    seconds: float

    @property
    def total_mib(self) -> int:
        """All that it would put on the GPUs; without one, on the host."""
        draft = (self.draft_context_mib or 0) + (self.draft_compute_mib or 0)
        return self.model_mib + self.context_mib + self.compute_mib + draft


async def ask_engine(
    build: Build, parts: Sequence[TwinPart], setting: Setting, *, limit_s: float = ANSWER_S
) -> EngineEstimate:
    """Start `build` on the twin of a model with `setting`, read the memory tables it prints, and end it.

    Raises TwinImpossible where no sparse file can be made, EngineUnsuitable when the build prints no tables, or not
    within `limit_s` seconds, and what its log explains when it refuses the model or the settings.
    """
    began_s = time.monotonic()
    with sparse_twin(parts) as model:
        tables = await _tables(build, model, setting, limit_s)
    target = tables[0]
    devices = tuple(row.name for row in target if row.device)
    if devices and setting.n_cpu_moe:
        build.require("--n-cpu-moe")
    own = [row for row in target if row.device] if devices else list(target)
    draft = [row for row in tables[1] if row.device or not devices] if len(tables) > 1 else None
    free = [row.free for row in target if row.device and row.free is not None]
    return EngineEstimate(
        engine=f"{build.name} {build.version}",
        backend=_backend(devices),
        devices=devices,
        model_mib=sum(row.model for row in own),
        context_mib=sum(row.context for row in own),
        compute_mib=sum(row.compute for row in own),
        draft_context_mib=sum(row.context for row in draft) if draft is not None else None,
        draft_compute_mib=sum(row.compute for row in draft) if draft is not None else None,
        host_mib=sum(row.model + row.context + row.compute for row in target if not row.device) if devices else 0,
        free_mib=sum(free) if free else None,
        seconds=time.monotonic() - began_s,
    )


def comparable(estimate: Estimate) -> dict[str, float]:
    """Return a formula's figures in MiB by the names of an engine's table; overhead and projector are not in it."""
    parts = estimate.parts
    mib = 2**20
    return {
        "model_mib": (parts.weights - estimate.setting.draft_model_bytes) / mib,
        "context_mib": (parts.kv + parts.recurrent) / mib,
        "compute_mib": (parts.compute + parts.staging) / mib,
        "draft_context_mib": parts.draft_kv / mib,
        "draft_compute_mib": parts.draft_compute / mib,
    }


def difference_percent(estimate: Estimate, engine: EngineEstimate) -> float | None:
    """Return by how many percent the formula is above the engine, on the parts that both know; None if those are 0."""
    formula = sum(comparable(estimate).values())
    return 100 * (formula / engine.total_mib - 1) if engine.total_mib else None


async def _tables(build: Build, model: Path, setting: Setting, limit_s: float) -> list[Table]:
    wanted = 2 if setting.draft else 1
    reader = BreakdownReader()
    lines: list[str] = []
    enough = asyncio.Event()

    def take(_stream: Stream, line: str) -> None:
        lines.append(line)
        del lines[:-_KEPT_LINES]
        reader.feed(line)
        if len(reader.tables) >= wanted or reader.ended:
            enough.set()

    process = await start(_command(build, model, setting), take)
    told = asyncio.ensure_future(enough.wait())
    waiting: set[asyncio.Future[Any]] = {told, process.exited}
    try:
        await asyncio.wait(waiting, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        told.cancel()
        ended_itself = process.exited.done()
        ended = await process.stop(_PATIENCE_S)
    if len(reader.tables) >= wanted:
        return reader.tables
    if ended_itself and ended.code:
        raise explain(ended, lines, while_doing="judging the memory", hint=_ANOTHER)
    name = f"The engine {build.name} ({build.version})"
    if not (ended_itself or enough.is_set()):
        raise EngineUnsuitable(f"{name} did not say within {limit_s:g} s what the model takes.", _ANOTHER)
    raise EngineUnsuitable(
        f"{name} does not print what {'MTP' if reader.tables else 'a model'} takes.",
        "A newer llama.cpp build (b11434 or later) prints it.",
    )


def _command(build: Build, model: Path, setting: Setting) -> Command:
    asked = replace(setting, backend="cpu") if "--gpu-layers" not in build.flags else setting
    if "--n-cpu-moe" not in build.flags:  # on the processor it changes nothing
        asked = replace(asked, n_cpu_moe=0)
    arguments = ["--model", str(model), "--host", "127.0.0.1", "--port", "0", *memory_arguments(asked, build.flags)]
    for flag, value in (("--verbosity", "4"), ("--log-jsonl", None), ("--log-colors", "off"), ("--threads", "1")):
        if flag in build.flags:
            arguments += [flag] if value is None else [flag, value]
    return Command((*build.command, *arguments), engine_environment() | dict(build.environment), model.parent)


def backend_of_log(lines: Iterable[str]) -> Backend:
    """Return where an engine has put the weights of the last model that its log tells of (verbosity 4)."""
    names = [found[1] for line in lines if (found := _WEIGHTS_AT.search(line))]
    known = [backend for name in reversed(names) if (backend := _backend([name])) != "cpu"]
    return known[0] if known else "cpu"


def _backend(devices: Sequence[str]) -> Backend:
    first = devices[0] if devices else ""
    return next((backend for prefix, backend in _BACKENDS if first.startswith(prefix)), "cpu")
