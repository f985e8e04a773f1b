"""The speed limit of a server by its memory bandwidth, and the reason if it is unknown."""

from dataclasses import replace
from pathlib import Path

import pytest

from launcher.app.measuring.speed_limit import find_speed_limit, limit_on_gpus
from launcher.engine.builds.build import EngineBuild
from launcher.engine.builds.probe import probe_engine
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.launch import Launch
from launcher.engine.server.process import EngineCommand
from launcher.machine.gpu import Gpu
from launcher.models.geometry import read_geometry
from launcher.models.gguf import read_model
from launcher.models.memory import PlanSettings
from launcher.models.speed import bytes_per_token
from launcher.models.weights import read_weights

CARD = Gpu("nvidia", 0, "RTX 4090", "GPU-1", memory_bytes=24 * 2**30, memory_bandwidth_gb_s=1_008.0, unified=False)


def launch_of(model: Path, **options: object) -> Launch:
    build = EngineBuild("llama-server", ("/nowhere/llama-server",), "b1", frozenset())
    chosen = replace(ServeOptions(model=model), **options)  # type: ignore[arg-type]
    return Launch(EngineCommand([], {}, model.parent), build, read_model(model), 4_096, chosen)


def test_the_limit_is_bandwidth_divided_by_the_bytes_read_per_pass(demo_model: Path) -> None:
    launch = launch_of(demo_model)
    geometry = read_geometry(launch.header)
    read = bytes_per_token(geometry, read_weights(launch.header, geometry), PlanSettings(context=4_096))
    assert 1e6 < read < 20e6
    assert limit_on_gpus(launch, [CARD]).value == pytest.approx(1_008e9 / read)


def test_an_integrated_gpu_is_ignored_beside_a_dedicated_one(demo_model: Path) -> None:
    shared = Gpu("amd", 0, "APU", "0000:05:00.0", memory_bandwidth_gb_s=60.0, unified=True)
    launch = launch_of(demo_model)
    assert limit_on_gpus(launch, [CARD, shared]) == limit_on_gpus(launch, [CARD])


@pytest.mark.parametrize(
    ("gpus", "reason"),
    [
        ([], "No driver here reports a GPU"),
        ([CARD, CARD], "several GPUs"),
        ([replace(CARD, memory_bandwidth_gb_s=None, absent={"memory_bandwidth_gb_s": "It hides it."})], "It hides it."),
        ([replace(CARD, memory_bytes=2**20)], "larger than the GPU's memory"),
    ],
)
def test_the_limit_is_unknown_unless_one_gpu_has_a_known_bandwidth(
    demo_model: Path, gpus: list[Gpu], reason: str
) -> None:
    limit = limit_on_gpus(launch_of(demo_model), gpus)
    assert limit.value is None
    assert reason in (limit.absent or "")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"n_cpu_moe": 12}, "12 layers"),
        ({"rpc": ("10.0.0.2:50052",)}, "Other computers"),
        ({"extra": ("-ngl=10",)}, "Your extra arguments"),
    ],
)
def test_weights_in_host_memory_have_no_limit(demo_model: Path, options: dict[str, object], reason: str) -> None:
    limit = find_speed_limit(launch_of(demo_model, **options))
    assert limit.value is None
    assert reason in (limit.absent or "")


async def test_the_built_in_engine_runs_on_the_processor(demo_model: Path) -> None:
    limit = find_speed_limit(replace(launch_of(demo_model), build=await probe_engine(None)))
    assert limit.value is None
    assert "runs on the CPU" in (limit.absent or "")
