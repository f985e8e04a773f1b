"""Records the compute buffers that engines plan for emulated cards, for tests/models/test_compute.py.

    python record.py vulkan FOLDER      with the engine that ../fake-gpu left in FOLDER
    python record.py cuda FOLDER        with the backend that ../fake-cuda left in FOLDER

Writes tests/models/data/BACKEND_compute.csv: the buffers of the target context and of the draft context in MiB, those
on the cards first, that on the host last.
"""

import csv
import os
import random
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_DATA = Path(__file__).resolve().parents[2] / "tests" / "models" / "data"
_SAID = re.compile(r"(\w+) compute buffer size = +([\d.]+) MiB")
_PATIENCE_S = 60.0
_COUNTS = {
    # Numbers of cases on one card and on two.
    "qwen35moe-35b-q3_k_xl": (60, 20),
    "qwen35moe-35b-q4_k_m": (15, 0),
    "qwen35-27b-q4_k_s": (40, 10),
    "qwen35-9b-q4_k_m": (20, 5),
    "llama-8b-q4_k": (12, 5),
    "qwen3moe-30b-q4_k": (20, 5),
    "gemma3-12b-q4_k": (10, 3),
    "gemma4-31b-iq4_xs": (10, 3),
}


class Case(NamedTuple):
    """One setting; the columns of the file, before the engine's answer."""

    model: str
    cards: int
    ctx: int
    ubatch: int
    kv: str
    draft: int
    slots: int
    n_cpu_moe: int


def cases() -> Iterator[Case]:
    """Yield the settings, always the same."""
    chance = random.Random(4)  # noqa: S311 -- to be repeated, not to be secret
    for model, counts in _COUNTS.items():
        layers = 41 if "35b" in model else 47 if "qwen3moe" in model else 0
        for cards, count in enumerate(counts, 1):
            for _ in range(count):
                yield Case(
                    model,
                    cards,
                    ctx=chance.choice((4_096, 8_192, 12_288, 16_384, 32_768, 49_152, 65_536, 98_304, 131_072, 262_144)),
                    ubatch=chance.choice((64, 96, 128, 256, 512, 1_024, 2_048)),
                    kv=chance.choice(("f16", "q8_0", "q4_0")),
                    draft=chance.randrange(5) if model.startswith("qwen35") else 0,
                    slots=chance.choice((1, 1, 1, 2, 3, 4)),
                    n_cpu_moe=chance.choice((0, 0, chance.randint(1, layers))) if layers and cards == 1 else 0,
                )


def vulkan(folder: Path, case: Case) -> list[str]:
    """Return the command that has llama-server plan `case`."""
    flags: dict[str, object] = {
        "-m": folder / "models" / f"{case.model}.gguf",
        "-c": case.ctx,
        "-ub": case.ubatch,
        "-b": max(case.ubatch, 2_048),
        "-ctk": case.kv,
        "-ctv": case.kv,
        "-fa": "on",
        "-np": case.slots,
        "-ngl": 99,
        "-lv": 5,
        "--port": 0,
    }
    if case.draft:
        flags |= {"--spec-type": "draft-mtp", "--spec-draft-n-max": case.draft}
    if case.n_cpu_moe:
        flags["-ncmoe"] = case.n_cpu_moe
    server = folder / ("llama-server-24g" if case.cards == 1 else "llama-server-2x12g")
    return [str(server), *(str(part) for flag in flags.items() for part in flag)]


def cuda(folder: Path, case: Case) -> list[str]:
    """Return the command that has llama.cpp plan `case` with its CUDA backend."""
    model = folder / "models" / f"{case.model}.gguf"
    return [str(folder / "buffers"), str(model), *(str(value) for value in case[1:])]


def ask(command: list[str], case: Case) -> list[str]:
    """Return the buffers that `command` names: the target's and, with drafts, the draft context's."""
    expected = case.cards + 1 + 2 * bool(case.draft)
    sizes: list[str] = []
    environment = os.environ | {"LLAMA_LOG_COLORS": "off"}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    ) as child:
        patience = threading.Timer(_PATIENCE_S, child.kill)
        patience.start()
        for line in child.stdout or ():
            sizes += [mib for _, mib in _SAID.findall(line.decode("utf-8", "replace"))]
            if len(sizes) >= expected:
                break
        patience.cancel()
        child.kill()
    if len(sizes) != expected:
        raise RuntimeError(f"{len(sizes)} of {expected} buffers for {case}")
    return ["+".join(sizes[: case.cards + 1]), "+".join(sizes[case.cards + 1 :])]


def main() -> None:
    """Ask for all cases and write the file."""
    backend, folder = sys.argv[1], Path(sys.argv[2]).resolve()
    command = {"vulkan": vulkan, "cuda": cuda}[backend]
    with (_DATA / f"{backend}_compute.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*Case._fields, "target_mib", "draft_mib"))
        for case in cases():
            writer.writerow((*case, *ask(command(folder, case), case)))


if __name__ == "__main__":
    main()
