"""Facts about a server that are known from its start."""

from dataclasses import replace
from pathlib import Path

import pytest

from launcher.engine.builds.build import BUILT_IN, EngineBuild
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.launch import Launch
from launcher.engine.server.process import EngineCommand
from launcher.machine.gpu import Gpu, GpuActivity
from launcher.machine.gpus import GpuSnapshot
from launcher.models.gguf import read_model
from launcher.monitor.health_watch import has_gpu_backend, published_acceptance, read_setup

ON_GPU = """\
0.00.001.241 I srv  llama_server: initializing ...
0.00.005.412 I cmn  common_param:   - CUDA0   : NVIDIA GeForce RTX 3090 (24575 MiB, 23909 MiB free)
0.00.005.413 I cmn  common_param:   - CPU     : AMD Ryzen 9 (64105 MiB, 64105 MiB free)
0.00.032.001 I load_tensors: offloaded 41/41 layers to GPU
0.00.033.001 I load_tensors:   CPU_Mapped model buffer size =   515.31 MiB
0.00.033.002 I load_tensors:        CUDA0 model buffer size = 14201.25 MiB
0.00.881.868 I llama_context:  CUDA_Host  output buffer size =     0.95 MiB
0.00.881.919 I llama_kv_cache:      CUDA0 KV buffer size =  1360.00 MiB
0.00.897.534 I sched_reserve:      CUDA0 compute buffer size =   493.00 MiB
0.00.897.535 I sched_reserve:  CUDA_Host compute buffer size =   264.02 MiB""".splitlines()
ON_CPU = """\
0.00.001.241 I srv  llama_server: initializing ...
0.00.005.412 I cmn  common_param:   - CPU     : AMD Ryzen 9 (64105 MiB, 64105 MiB free)
0.00.033.001 I load_tensors:          CPU model buffer size =   608.59 MiB
0.00.897.534 I sched_reserve:        CPU compute buffer size =    30.52 MiB""".splitlines()
CARD = Gpu("nvidia", 0, "NVIDIA GeForce RTX 3090", "GPU-zero", memory_bytes=24_576 * 2**20, unified=False)


def make_snapshot(gpu: Gpu | None = CARD, *, alone: bool = True) -> GpuSnapshot:
    return GpuSnapshot(gpu, alone, GpuActivity.unknown("Not checked."), {})


def build(folder: Path, *libraries: str) -> EngineBuild:
    for name in ("llama-server", *libraries):
        (folder / name).touch()
    return EngineBuild("llama-server", (str(folder / "llama-server"),), "b11669", frozenset())


@pytest.fixture
def launch(demo_model: Path, tmp_path: Path) -> Launch:
    made = build(tmp_path, "libggml-cuda.so", "libggml-cpu-haswell.so")
    options = ServeOptions(model=demo_model, draft=2, slots=3)
    return Launch(EngineCommand(made.command, {}, tmp_path), made, read_model(demo_model), 4_096, options)


def test_a_model_loaded_on_a_gpu_is_recognised(launch: Launch) -> None:
    setup = read_setup(launch, 4711, ON_GPU, make_snapshot())
    assert (setup.draft, setup.slots, setup.engine_pid) == (2, 3, 4711)
    assert (setup.expects_gpu, setup.sees_gpu, setup.on_gpu) == (True, True, True)
    assert setup.weights_mib == 14_201.25
    assert setup.host_mib == pytest.approx(515.31 + 0.95 + 264.02)
    assert setup.vram_total_mib == 24_576
    repeats = replace(launch, options=replace(launch.options, chosen_drafter="ngram-mod"))
    assert read_setup(repeats, 4711, ON_GPU, make_snapshot()).draft == 0, "text need not repeat"


def test_a_gpu_build_that_found_no_gpu_is_recognised(launch: Launch) -> None:
    setup = read_setup(launch, 1, ON_CPU, make_snapshot())
    assert (setup.expects_gpu, setup.sees_gpu, setup.on_gpu, setup.weights_mib) == (True, False, False, None)


def test_only_the_last_start_counts(launch: Launch) -> None:
    assert read_setup(launch, 1, [*ON_GPU, *ON_CPU], make_snapshot()).on_gpu is False
    assert read_setup(launch, 1, [*ON_CPU, *ON_GPU], make_snapshot()).weights_mib == 14_201.25


def test_facts_are_unknown_without_their_lines_in_the_log(launch: Launch) -> None:
    setup = read_setup(launch, 1, ["anything"], make_snapshot())
    assert (setup.sees_gpu, setup.on_gpu, setup.host_mib) == (None, None, None)


@pytest.mark.parametrize("extra", [("-ngl", "0"), ("--device=none",), ("--gpu-layers", "0")])
def test_choosing_the_processor_is_no_finding(launch: Launch, extra: tuple[str, ...]) -> None:
    chosen = replace(launch, options=replace(launch.options, extra=extra))
    assert read_setup(chosen, 1, ON_CPU, make_snapshot()).expects_gpu is False


@pytest.mark.parametrize(
    "seen", [make_snapshot(None), make_snapshot(alone=False), make_snapshot(replace(CARD, unified=True))]
)
def test_weights_on_the_gpu_are_known_only_for_a_single_gpu_with_its_own_memory(
    launch: Launch, seen: GpuSnapshot
) -> None:
    assert read_setup(launch, 1, ON_GPU, seen).weights_mib is None


@pytest.mark.parametrize(
    ("libraries", "expected"),
    [
        (("libggml-vulkan.so", "libggml-cpu-x64.so"), True),
        (("ggml-cuda.dll", "ggml-cpu-x64.dll"), True),
        (("libggml-cpu-haswell.so.0",), False),
        ((), None),
    ],
)
def test_the_backends_of_a_build_are_the_libraries_beside_it(
    tmp_path: Path, libraries: tuple[str, ...], expected: bool | None
) -> None:
    assert has_gpu_backend(build(tmp_path, *libraries)) is expected


def test_the_built_in_engine_is_for_the_processor(tmp_path: Path) -> None:
    assert has_gpu_backend(replace(build(tmp_path), name=BUILT_IN)) is False
    assert has_gpu_backend(replace(build(tmp_path), command=(str(tmp_path / "gone" / "llama-server"),))) is None


def test_the_lowest_published_acceptance_of_the_file_is_used() -> None:
    assert published_acceptance(Path("/models/Qwen3.6-35B-A3B-UD-Q3_K_XL.gguf")) == 0.47
    assert published_acceptance(Path("/models/nobody-knows.gguf")) is None
