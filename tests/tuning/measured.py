"""Measurements for tests: an environment, and runs with given figures."""

from dataclasses import replace

from launcher.monitor.meter import Acceptance
from launcher.tuning.history_environment import Environment, GpuFacts, ModelFacts
from launcher.tuning.records import Run, RunSettings

MODEL = ModelFacts("Qwen3.6-35B-A3B", "UD-Q3_K_XL", 17_227_569_440, ("3f" * 32,))
ENVIRONMENT = Environment(
    model=MODEL,
    engine="b11434-cuda",
    engine_version="11434 (abcdef0)",
    gpus=(GpuFacts("NVIDIA GeForce RTX 4090", "nvidia", 25_757_220_864, "580.82"),),
    cpu="AMD Ryzen 9 7950X",
    cores=16,
    memory_bytes=64 * 2**30,
    system="Debian GNU/Linux 13, kernel 6.12",
    program="1.0",
)
OFF: RunSettings = {"draft": 0, "kv": "q8_0"}
ON: RunSettings = {"draft": 2, "kv": "q8_0"}
DRAFTS = Acceptance(200, 150, (100, 100), (90, 60))


def run(
    rate: float | None, settings: RunSettings = OFF, *, prompt: str = "code", began_s: float = 0.0, **figures: object
) -> Run:
    """Return a run with `rate` tokens a second; its drafts are DRAFTS if the settings have a draft length."""
    drafts = DRAFTS if settings.get("draft") else None
    made = Run(prompt, settings, began_s, 2.5, 40, 0, 250, 900.0, rate, 0.25, drafts)
    return replace(made, **figures)  # type: ignore[arg-type]
