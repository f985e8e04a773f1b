"""Checks before a process is started, and its command line."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from launcher.app.planning.start_settings import make_unresolved_options
from launcher.base.errors import (
    BadOption,
    EngineFailed,
    EngineUnsuitable,
    LauncherError,
    ModelBroken,
    ModelHasNoHead,
    ModelMissing,
)
from launcher.engine.builds.known_bad import build_number, find_known_fault
from launcher.engine.builds.probe import probe_engine
from launcher.engine.demo import read_demo_preset, unpack_demo_model
from launcher.engine.diagnosis.explain import explain_exit
from launcher.engine.environment import added_environment, engine_environment
from launcher.engine.serve_options import ServeOptions, check_options
from launcher.engine.server.endpoint import Endpoint
from launcher.engine.server.launch import api_model_name, check_model, other_names, prepare_launch
from launcher.engine.server.process import ProcessExit
from launcher.machine.gpu import Gpu
from launcher.machine.host import read_host
from launcher.machine.machine import Machine, read_machine
from launcher.models.plan import PlanCriteria, check_criteria
from launcher.models.read_situation import ServerMemory
from launcher.models.server_settings import Value
from tests.machine.conftest import pci_card
from tools.sparse_models.models import model
from tools.sparse_models.write import write

GIB = 2**30
ENDPOINT = Endpoint(20_001, "a-secret-that-must-not-show")


def pairs(arguments: list[str]) -> dict[str, str]:
    return {flag: value for flag, value in pairwise(arguments) if flag.startswith("--")}


async def test_the_command_has_the_arguments_of_a_local_server_with_mtp(demo_model: Path) -> None:
    launch = await prepare_launch(ServeOptions(model=demo_model, built_in=True, draft=3, context=4_096), ENDPOINT)
    arguments = list(launch.command.arguments)
    given = pairs(arguments)
    assert given["--host"] == "127.0.0.1"
    assert given["--port"] == "20001"
    assert given["--parallel"] == "1"
    assert given["--ctx-size"] == "4096"
    assert given["--spec-type"] == "draft-mtp"
    assert given["--spec-draft-n-max"] == "3"
    assert given["--cors-origins"] == "localhost"
    assert "--metrics" in arguments
    assert launch.command.environment["LLAMA_API_KEY"] == ENDPOINT.api_key
    assert ENDPOINT.api_key not in " ".join(arguments)
    assert ENDPOINT.api_key not in repr(launch)


async def test_memory_of_the_engine_being_replaced_counts_as_free(
    demo_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = read_machine()
    narrow = replace(found, host=replace(found.host, available_bytes=2**30))
    monkeypatch.setattr("launcher.engine.server.launch.read_machine", lambda: narrow)
    options = ServeOptions(model=demo_model, built_in=True, context=4_096)
    assert (await prepare_launch(options, ENDPOINT)).limits
    freed = ServerMemory(1, "model", {}, 60_000, lambda *_: None)
    assert (await prepare_launch(options, ENDPOINT, replaced=lambda _: freed)).limits == {}


@pytest.mark.parametrize(("asked", "given"), [(None, "1"), (2, "2")], ids=["left open", "named by the user"])
async def test_an_engine_starts_as_many_threads_as_a_container_lets_run(
    demo_model: Path, monkeypatch: pytest.MonkeyPatch, asked: int | None, given: str
) -> None:
    found = read_machine()
    limited = replace(found, host=replace(found.host, physical_cores=2, cpu_limit=1.5))
    monkeypatch.setattr("launcher.engine.server.launch.read_machine", lambda: limited)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    options = ServeOptions(model=demo_model, built_in=True, context=4_096, threads=asked)
    launch = await prepare_launch(options, ENDPOINT)
    assert pairs(launch.command.arguments)["--threads"] == given
    assert launch.resolved.threads == int(given)


async def test_caches_get_what_a_model_leaves_of_memory_that_the_gpu_shares(
    real_engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sparse.gguf"
    write(path, "sparse", model("qwen35moe-35b-iq3_s-nomtp"))

    async def limits(*, unified: bool) -> Mapping[str, Value]:
        gpu = Gpu("amd", 0, "AMD Radeon 8060S", "0000:c3:00.0", 60 * GIB, free_bytes=60 * GIB, unified=unified)
        here = replace(read_host(), memory_bytes=64 * GIB, available_bytes=22 * GIB)
        monkeypatch.setattr(
            "launcher.engine.server.launch.read_machine", lambda: Machine(here, (gpu,), None, {}, (), ())
        )
        options = ServeOptions(model=path, engine=real_engine, context=32_768, draft=0)
        return (await prepare_launch(options, ENDPOINT)).limits

    assert await limits(unified=False) == {}
    assert 0 < int((await limits(unified=True))["cache_ram"]) < 8_192


async def test_without_a_draft_no_speculation_options_are_passed(demo_model: Path) -> None:
    launch = await prepare_launch(ServeOptions(model=demo_model, built_in=True, draft=0), ENDPOINT)
    assert not [argument for argument in launch.command.arguments if argument.startswith("--spec")]


async def test_an_optional_flag_that_the_build_lacks_is_left_out(fake_engine: Path, demo_model: Path) -> None:
    launch = await prepare_launch(ServeOptions(model=demo_model, engine=fake_engine), ENDPOINT)
    assert "--log-colors" not in launch.command.arguments
    assert "--alias" in launch.command.arguments


@pytest.mark.parametrize(
    "options",
    [
        {"context": 0},
        {"context": 2**40},
        {"draft": -1},
        {"draft": 17},
        {"slots": 0},
        {"threads": 0},
        {"threads": (os.cpu_count() or 512) + 1},
    ],
)
def test_a_value_out_of_range_is_an_error(options: dict[str, int]) -> None:
    with pytest.raises(BadOption, match="out of range"):
        check_options(ServeOptions(model=Path("x.gguf"), **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("extra", "hint"),
    [
        (("--port", "5555"), "Put --port before"),
        (("--jinja", "--host=0.0.0.0"), "127.0.0.1 only"),
        (("--api_key", "mine"), "status --json"),
        (("--api-key-file", "keys"), "status --json"),
        (("-m", "b.gguf"), "Put --model before"),
        (("--ssl-cert-file", "cert.pem"), "has no TLS"),
    ],
)
def test_options_that_the_launcher_sets_are_refused_in_extra_arguments(extra: tuple[str, ...], hint: str) -> None:
    with pytest.raises(BadOption, match="the launcher sets it") as refused:
        check_options(ServeOptions(model=Path("x.gguf"), extra=extra))
    assert hint in refused.value.hint


def damage_model(tmp_path: Path, demo_model: Path, damage: Callable[[bytes], bytes]) -> ServeOptions:
    path = tmp_path / "broken.gguf"
    path.write_bytes(damage(demo_model.read_bytes()))
    return ServeOptions(model=path)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match="Model file"):
        check_model(ServeOptions(model=tmp_path / "none.gguf"))


def test_a_truncated_file_is_an_error_with_the_missing_bytes(tmp_path: Path, demo_model: Path) -> None:
    with pytest.raises(ModelBroken, match="incomplete: 1,000 of"):
        check_model(damage_model(tmp_path, demo_model, lambda data: data[:-1_000]))


def test_a_file_truncated_in_its_header_is_an_error(tmp_path: Path, demo_model: Path) -> None:
    with pytest.raises(ModelBroken, match="ends inside its header"):
        check_model(damage_model(tmp_path, demo_model, lambda data: data[:500]))


def test_an_html_page_in_place_of_the_file_is_an_error(tmp_path: Path, demo_model: Path) -> None:
    with pytest.raises(ModelBroken, match="not a GGUF"):
        check_model(damage_model(tmp_path, demo_model, lambda _: b"<!DOCTYPE html>"))


def test_a_file_that_only_promises_a_head_is_an_error(tmp_path: Path, demo_model: Path) -> None:
    options = damage_model(tmp_path, demo_model, lambda data: data.replace(b".nextn.eh_proj", b".gone_.eh_proj"))
    with pytest.raises(ModelHasNoHead, match="lists one"):
        check_model(options)
    assert check_model(ServeOptions(model=options.model, draft=0)).promised_heads == 1


def test_the_engine_gets_the_environment_without_its_own_settings() -> None:
    inherited = {
        "PATH": "/bin",
        "LLAMA_ARG_CTX_SIZE": "1",
        "HF_TOKEN": "x",
        "AIP_MODE": "y",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    environment = engine_environment(api_key="k", inherited=inherited)
    assert environment["CUDA_VISIBLE_DEVICES"] == "0"
    assert environment["LLAMA_API_KEY"] == "k"
    assert not {"LLAMA_ARG_CTX_SIZE", "HF_TOKEN", "AIP_MODE"} & environment.keys()


@pytest.mark.parametrize(
    ("set_by_user", "flags"), [(None, "nogttspill"), ("sam,nogttspill", "sam,nogttspill"), ("sam", "sam,nogttspill")]
)
def test_a_variable_keeps_mesa_from_moving_gpu_memory_to_the_host(
    tmp_path: Path, set_by_user: str | None, flags: str
) -> None:
    inherited = {} if set_by_user is None else {"RADV_PERFTEST": set_by_user}
    assert "RADV_PERFTEST" not in added_environment(inherited, root=tmp_path)
    pci_card(tmp_path, "card-1", (0x10DE, 0x2204), None)
    assert "RADV_PERFTEST" not in added_environment(inherited, root=tmp_path)
    pci_card(tmp_path, "card-3", (0x1002, 0x744C), None)
    assert added_environment(inherited, root=tmp_path)["RADV_PERFTEST"] == flags


def test_without_resizable_bar_buffers_avoid_the_small_region(tmp_path: Path) -> None:
    name = "GGML_VK_DISABLE_HOST_VISIBLE_VIDMEM"
    card = pci_card(tmp_path, "card-3", (0x1002, 0x744C), None)
    assert name not in added_environment({}, root=tmp_path)  # unknown
    small, large = (f"0x{0xE0000000:016x} 0x{0xE0000000 + size - 1:016x} 0x14220c\n" for size in (2**28, 2**35))
    (card / "resource").write_text(small)
    assert added_environment({}, root=tmp_path)[name] == "1"
    assert name not in added_environment({name: "0"}, root=tmp_path)  # the user's own value is inherited
    (card / "resource").write_text(large)
    assert name not in added_environment({}, root=tmp_path)


def test_the_demo_model_is_unpacked_once_and_again_after_damage(home: Path) -> None:
    path = unpack_demo_model()
    assert path.is_relative_to(home)
    data = path.read_bytes()
    before = path.stat().st_mtime_ns
    assert unpack_demo_model() == path
    assert path.stat().st_mtime_ns == before
    path.write_bytes(data[:-1])
    assert unpack_demo_model().read_bytes() == data
    assert list(path.parent.iterdir()) == [path]


def test_the_demo_preset_is_complete() -> None:
    preset = read_demo_preset()
    assert preset.draft > 0
    assert "not a speed-up" in preset.speed_note


@pytest.mark.parametrize(
    ("code", "line", "error", "sentence"),
    [
        (1, "error: invalid argument: --foo", "engine_unsuitable", "does not support the flag --foo"),
        (1, "E srv start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 9101", "port_busy", "Port 9101"),
        (1, "cudaMalloc failed: out of memory", "engine_failed", "Not enough GPU memory"),
        (
            1,
            "W context type MTP requested but model doesn't contain MTP layers",
            "model_has_no_mtp_head",
            "no MTP head",
        ),
        (1, "E failed to create MTP context", "drafts_inert", "does not support MTP"),
        (127, "x: error while loading shared libraries: libgomp.so.1: cannot open", "library_missing", "libgomp.so.1"),
        (1, "version `GLIBC_2.43' not found", "engine_unsuitable", "GLIBC_2.43"),
        (-4, "", "cpu_unsupported", "instruction set"),
        (-9, "", "engine_failed", "memory had run short"),
        (-11, "", "engine_failed", "was ended by SIGSEGV"),
        (3, "0.1 E srv: something new", "engine_failed", "something new"),
    ],
)
def test_the_end_of_an_engine_is_explained(code: int, line: str, error: str, sentence: str) -> None:
    found = explain_exit(ProcessExit(code), ["0.0 I harmless", line], while_doing="loading the model")
    assert found.code == error
    assert sentence in str(found)
    assert found.hint


def test_the_first_cause_is_named_before_later_symptoms() -> None:
    lines = ["E ggml: cudaMalloc failed: out of memory", "E failed to create MTP context", "E exiting due to error"]
    found = explain_exit(ProcessExit(1), lines, while_doing="loading the model")
    assert isinstance(found, EngineFailed)
    assert issubclass(type(found), LauncherError)


async def test_memory_settings_and_extra_arguments_are_passed(demo_model: Path) -> None:
    options = ServeOptions(
        model=demo_model, built_in=True, kv="q8_0", ubatch=4_096, extra=("--spec-draft-p-min", "0.5")
    )
    launch = await prepare_launch(options, ENDPOINT)
    given = pairs(list(launch.command.arguments))
    assert given["--cache-type-k"] == given["--cache-type-v"] == "q8_0"
    assert given["--flash-attn"] == "on"
    assert given["--ubatch-size"] == given["--batch-size"] == "4096"
    assert launch.command.arguments[-2:] == ("--spec-draft-p-min", "0.5")


async def test_a_cache_type_that_the_build_lacks_is_an_error(demo_model: Path) -> None:
    with pytest.raises(BadOption, match='no KV cache type "turbo3"'):
        await prepare_launch(ServeOptions(model=demo_model, built_in=True, kv="turbo3"), ENDPOINT)


async def test_a_cache_type_that_plans_refuse_is_not_served(demo_model: Path) -> None:
    options = ServeOptions(model=demo_model, built_in=True, kv="iq4_nl")
    with pytest.raises(BadOption, match="iq4_nl cannot be used") as served:
        await prepare_launch(options, ENDPOINT)
    with pytest.raises(BadOption) as planned:
        check_criteria(PlanCriteria(kv="iq4_nl"))
    assert served.value.title == planned.value.title
    with pytest.raises(BadOption, match=r'built-in .* has no KV cache type "q8"') as unknown:
        await prepare_launch(replace(options, kv="q8"), ENDPOINT)
    assert "Did you mean q8_0?" in unknown.value.hint
    assert "iq4_nl" not in unknown.value.hint


async def test_a_context_beyond_the_trained_one_is_served_with_a_note(demo_model: Path) -> None:
    usual = await prepare_launch(ServeOptions(model=demo_model, built_in=True), ENDPOINT)
    assert usual.note == ""
    assert usual.header.trained_context is not None
    longer = ServeOptions(model=demo_model, built_in=True, context=usual.header.trained_context + 1)
    assert "RoPE scaling" in (await prepare_launch(longer, ENDPOINT)).note


@pytest.mark.parametrize(("slots", "draft", "warns"), [(4, 2, True), (1, 2, False), (4, 0, False)])
async def test_several_slots_with_mtp_are_served_with_a_note_where_the_build_mixes_replies_up(
    demo_model: Path, slots: int, draft: int, warns: bool
) -> None:
    options = ServeOptions(model=demo_model, built_in=True, slots=slots, draft=draft, context=4_096 * slots)
    launch = await prepare_launch(options, ENDPOINT)
    assert find_known_fault(build_number(launch.build.version)) is None  # for one slot the build is good
    assert ("Use one slot, or turn MTP off." in str(launch.note)) is warns


@pytest.mark.parametrize("left_out", ["context", "threads"])
def test_a_zero_for_the_demo_is_not_taken_as_unset(home: Path, left_out: str) -> None:
    def choose_options(model: Path) -> ServeOptions:
        return ServeOptions(model=model, **{left_out: 0})  # type: ignore[arg-type]

    with pytest.raises(BadOption, match="out of range"):
        check_options(make_unresolved_options("demo", choose_options))


async def test_moving_experts_is_ignored_by_the_built_in_engine(demo_model: Path) -> None:
    options = ServeOptions(model=demo_model, built_in=True, n_cpu_moe=3)
    with pytest.raises(EngineUnsuitable, match="on the CPU only") as refused:
        await prepare_launch(options, ENDPOINT)
    assert "Omit --n-cpu-moe" in refused.value.hint
    assert "--engine" in refused.value.hint
    assert (await prepare_launch(replace(options, n_cpu_moe=0), ENDPOINT)).options.n_cpu_moe == 0


async def test_a_missing_flag_suggests_the_built_in_engine_only_if_it_has_it(fake_engine: Path) -> None:
    with pytest.raises(EngineUnsuitable, match="--strange") as lacking:
        (await probe_engine(None)).require_flags("--strange")
    assert lacking.value.hint == "Choose another llama-server with --engine."
    with pytest.raises(EngineUnsuitable) as lacking:
        (await probe_engine(fake_engine)).require_flags("--strange")
    assert "built-in one" in lacking.value.hint


def test_a_name_after_alias_among_the_extra_arguments_is_the_name_in_the_api() -> None:
    options = ServeOptions(Path("bread.gguf"), alias="bread", extra=("--alias", "toast,crumb"))
    assert api_model_name(options) == "crumb", "llama-server's order"
    assert other_names(options) == {"toast", "crumb"}
    assert api_model_name(replace(options, extra=("--alias=toast",))) == "toast"
    assert api_model_name(replace(options, extra=())) == "bread"
