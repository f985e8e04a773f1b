"""Fixes for a lack of memory, with values: context, layers, and KV cache types."""

from dataclasses import replace
from pathlib import Path

import pytest

from launcher.base.action import Action, ActionKind
from launcher.base.errors import DraftsInert, EngineFailed, EngineUnsuitable, LauncherError, PortBusy, Refused
from launcher.engine.builds.probe import probe_engine
from launcher.engine.diagnosis.actions import apply_action
from launcher.engine.diagnosis.explain import Diagnosis, diagnose_log, explain_refusal
from launcher.engine.diagnosis.fixes import add_fix_values, attach_fixes, suggest_fixes
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.launch import Launch
from launcher.engine.server.process import EngineCommand
from launcher.models.geometry import read_geometry
from launcher.models.gguf import read_model
from launcher.models.memory import PlanSettings, estimate_memory
from launcher.models.weights import read_weights
from tools.sparse_models.models import model
from tools.sparse_models.write import write

TOO_MUCH = (
    "0.01.110.000 I common_params_fit_impl: projected to use 23403 MiB of device memory vs. 18000 MiB of free device"
    " memory\n0.06.520.077 E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 2908.50 MiB on device 0: cudaMalloc"
    " failed: out of memory\n0.06.520.090 E llama_init_from_model: failed to allocate buffer for kv cache\n"
)


@pytest.fixture
async def launch(tmp_path: Path) -> Launch:
    """A start of a 35B mixture of experts with its longest context."""
    path = tmp_path / "moe.gguf"
    write(path, "moe", model("qwen35moe-35b-iq3_s"))
    options = ServeOptions(path, context=262_144, draft=2, ubatch=512)
    return Launch(EngineCommand([], {}, tmp_path), await probe_engine(None), read_model(path), 262_144, options)


def diagnosis() -> Diagnosis:
    found = diagnose_log(TOO_MUCH, exit_code=1)
    assert found is not None
    return found


def by_kind(actions: tuple[Action, ...]) -> dict[ActionKind, Action]:
    return {action.kind: action for action in actions}


def needed_mib(launch: Launch, context: int, n_cpu_moe: int = 0) -> float:
    geometry = read_geometry(launch.header)
    setting = PlanSettings(context, draft=2, n_cpu_moe=n_cpu_moe, backend="cuda")
    return estimate_memory(geometry, read_weights(launch.header, geometry), setting).needed_bytes / 2**20


def test_the_context_is_the_longest_that_the_formula_says_fits(launch: Launch) -> None:
    found = by_kind(add_fix_values(diagnosis(), launch, backend="cuda"))[ActionKind.SMALLER_CONTEXT]
    context = found.parameters["context"]
    assert isinstance(context, int)
    assert f"{context:,}" in found.label
    assert needed_mib(launch, context) <= 18_000 < needed_mib(launch, 262_144)
    assert apply_action(found, launch.options).context == context
    tighter = by_kind(add_fix_values(diagnosis(), launch, backend="cuda", free_mib=17_000))[ActionKind.SMALLER_CONTEXT]
    assert int(tighter.parameters["context"]) < context


@pytest.fixture(autouse=True)
def free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A computer with 64 GiB of free memory, whatever this one has."""
    monkeypatch.setattr("launcher.engine.diagnosis.fixes.read_available_bytes", lambda: 64 * 2**30)


def test_as_few_experts_as_needed_move_to_the_host(launch: Launch) -> None:
    found = by_kind(add_fix_values(diagnosis(), launch, backend="cuda", free_mib=14_000))[
        ActionKind.MORE_EXPERTS_ON_CPU
    ]
    count = int(found.parameters["n_cpu_moe"])
    assert needed_mib(launch, 262_144, count) <= 14_000 < needed_mib(launch, 262_144, count - 1)


def test_useless_fixes_are_not_suggested(launch: Launch) -> None:
    without = replace(launch, options=replace(launch.options, draft=0, kv="q8_0"))
    kinds = by_kind(add_fix_values(diagnosis(), without, backend="cuda"))
    assert ActionKind.DRAFT_OFF not in kinds
    assert ActionKind.OTHER_KV_TYPE not in kinds
    assert ActionKind.ONE_SLOT not in kinds
    assert ActionKind.SMALLER_CONTEXT in kinds
    smallest = replace(launch, options=replace(launch.options, kv="q4_0"))
    assert ActionKind.OTHER_KV_TYPE not in by_kind(add_fix_values(diagnosis(), smallest, backend="cuda"))
    wrong_type = "0.1 E llama_init_from_model: quantized V cache requires flash_attn to be enabled"
    refused = diagnose_log(wrong_type, exit_code=1)
    assert refused is not None
    assert ActionKind.OTHER_KV_TYPE in by_kind(add_fix_values(refused, smallest, backend="cuda"))


def test_without_figures_the_next_shorter_context_is_tried(launch: Launch) -> None:
    bare = replace(diagnosis(), facts={})
    found = by_kind(add_fix_values(bare, launch, backend="cuda"))
    assert found[ActionKind.SMALLER_CONTEXT].parameters == {"context": 229_376}
    assert found[ActionKind.MORE_EXPERTS_ON_CPU].parameters == {}


def test_fixes_are_suggested_for_a_known_fault_only(launch: Launch) -> None:
    kinds = [action.kind for action in suggest_fixes(1, TOO_MUCH.split("\n"), launch)]
    assert kinds[0] is ActionKind.SMALLER_CONTEXT
    assert suggest_fixes(1, ["all is well"], launch) == ()


def test_only_extra_arguments_can_be_removed(launch: Launch) -> None:
    received = ["error: invalid argument: --warp-speed"]
    ours = [action.kind for action in suggest_fixes(1, received, launch)]
    assert ours == [ActionKind.OTHER_ENGINE_BUILD]
    options = replace(launch.options, extra=("--warp-speed", "9", "--jinja"))
    first = suggest_fixes(1, received, replace(launch, options=options))[0]
    assert apply_action(first, options).extra == ("--jinja",)


def test_a_first_request_that_ran_out_of_memory_is_explained(launch: Launch) -> None:
    received = ["0.00.365.677 E srv  update_slots: decode() failed: std::bad_alloc"]
    error = explain_refusal(Refused("The server refused the request: decode() failed: std::bad_alloc."), received)
    assert error.title.startswith("The host ran out of memory during a reply.")
    attach_fixes(error, launch.options, launch, received)
    assert error.actions[0].parameters == {"context": 229_376}
    other = Refused("The server refused the request: no.")
    assert explain_refusal(other, ["0.00.365.677 I srv  update_slots: all slots are idle"]) is other


def test_a_context_beyond_the_trained_one_is_reduced_first(launch: Launch) -> None:
    options = replace(launch.options, context=3_000_000)
    beyond = replace(launch, options=options, context=3_000_000)
    received = ["ggml_gallocr_reserve_n_impl: failed to allocate CPU buffer of size 3077595200"]
    first, second = suggest_fixes(1, received, beyond)
    assert (first.kind, dict(first.parameters)) == (ActionKind.SMALLER_CONTEXT, {"context": 262_144})
    assert second.kind is ActionKind.SMALLER_UBATCH
    assert suggest_fixes(1, received, launch)[0].kind is ActionKind.SMALLER_UBATCH


def test_free_memory_is_read_from_the_list_of_devices(launch: Launch) -> None:
    devices = ["0.00.001.343 I cmn  common_param:   - CUDA0   : NVIDIA GeForce RTX 3090 (24125 MiB, 17000 MiB free)"]
    weights = ["0.00.900.000 I load_tensors:        CUDA0 model buffer size = 15000.00 MiB"]
    received = [*devices, *weights, *TOO_MUCH.split("\n")[1:]]
    context = by_kind(suggest_fixes(1, received, launch))[ActionKind.SMALLER_CONTEXT].parameters["context"]
    assert needed_mib(launch, int(context)) <= 17_000 < needed_mib(launch, 262_144)


@pytest.mark.parametrize(
    ("error", "kinds"),
    [
        (DraftsInert("None."), ["draft_off", "other_engine_build"]),
        (PortBusy("Taken."), ["other_port"]),
        (EngineFailed("It hung."), ["restart"]),
        (EngineFailed("It ended.", exit_code=3), ["other_engine_build", "report"]),
        (EngineFailed("It was ended by the user.", exit_code=-15), ["restart"]),
        (EngineFailed("Named.", diagnosis="killed"), []),
        (EngineUnsuitable("Not on the processor.", option="--n-cpu-moe"), ["remove_flag"]),
        (EngineUnsuitable("Not set here.", option="--rpc"), []),
    ],
    ids=lambda value: getattr(value, "title", ""),
)
def test_an_error_without_a_log_has_the_fixes_of_its_class(error: LauncherError, kinds: list[str]) -> None:
    attach_fixes(error, ServeOptions(Path("m.gguf"), n_cpu_moe=4))
    assert [action.kind.value for action in error.actions] == kinds


def test_flash_attention_is_turned_off_only_with_a_cache_that_allows_it(launch: Launch) -> None:
    received = ["/src/ggml/src/ggml-cuda/fattn.cu:110: fatal error"]
    first = suggest_fixes(-6, received, launch)[0]
    assert apply_action(first, launch.options).extra == ("--flash-attn", "off")
    quantised = replace(launch, options=replace(launch.options, kv="q8_0"))
    assert ActionKind.ADD_FLAG not in by_kind(suggest_fixes(-6, received, quantised))


def test_a_split_by_layers_is_suggested_only_to_those_who_split_otherwise(launch: Launch) -> None:
    received = ["/src/ggml/src/ggml-backend-meta.cpp:1276: GGML_ASSERT(split_state.n_segments == 1) failed"]
    assert suggest_fixes(-6, received, launch)[0].kind is ActionKind.DRAFT_OFF
    options = replace(launch.options, split_mode="tensor")
    first = suggest_fixes(-6, received, replace(launch, options=options))[0]
    assert apply_action(first, options).split_mode == "layer"
    by_hand = replace(launch.options, extra=("-sm", "tensor", "--jinja"))
    first = suggest_fixes(-6, received, replace(launch, options=by_hand))[0]
    changed = apply_action(first, by_hand)
    assert (changed.split_mode, changed.extra) == ("layer", ("--jinja",))


def test_a_projector_moves_to_the_host_only_if_there_is_one(launch: Launch, tmp_path: Path) -> None:
    received = [
        "I clip_ctx: CLIP using CUDA0 backend",
        "E alloc_buffer: allocating 812.25 MiB on device 0: cudaMalloc failed: out of memory",
    ]
    assert ActionKind.ADD_FLAG not in by_kind(suggest_fixes(1, received, launch))
    options = replace(launch.options, mmproj=tmp_path / "mmproj.gguf")
    first = suggest_fixes(1, received, replace(launch, options=options))[0]
    assert apply_action(first, options).extra == ("--no-mmproj-offload",)


def test_a_larger_batch_is_the_setting(launch: Launch) -> None:
    received = ["E srv send_error: task id = 4, error: input is too large to process. increase the physical batch size"]
    first = suggest_fixes(None, received, launch)[0]
    assert apply_action(first, launch.options).ubatch == 4_096
