"""Previews of changed settings: compared with the estimate, on described machines, and on the real engine."""

from dataclasses import replace
from pathlib import Path

import pytest

from launcher.app.planning import preview
from launcher.app.planning.planner import MachineDescription
from launcher.app.planning.preview import PreviewBasis, Previewer, read_basis
from launcher.app.planning.start_settings import resolve_start
from launcher.app.serving import running_servers
from launcher.app.serving.session import ServerSession
from launcher.base.codec import to_json
from launcher.base.errors import BadOption, LauncherError, ModelHasNoHead
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.endpoint import Endpoint
from launcher.engine.server.launch import prepare_launch
from launcher.engine.server.load_times import LoadTime
from launcher.engine.server.start_request import StartRequest
from launcher.engine.settings import load_model_settings
from launcher.models.catalogue_load import load_catalogue
from launcher.models.header_summary import apply_header
from launcher.models.memory import PlanSettings, estimate_memory
from launcher.models.plan import Status
from launcher.models.situation import Situation, describe_machine

_MIB = 2**20


def describe_server(
    model: str = "qwen3.6-35b-a3b-mtp", quant: str = "UD-Q3_K_XL", *, free_mib: int = 23_400
) -> PreviewBasis:
    """A server of a real model on a described GPU of 24 GB."""
    entry = load_catalogue().find(model)
    file = entry.file(quant)
    assert file is not None
    entry, _, weights = apply_header(entry, file)
    assert entry.geometry is not None
    assert weights is not None
    setting = PlanSettings(context=65_536, kv="q8_0", draft=2)
    return PreviewBasis(
        options=ServeOptions(model=Path("model.gguf"), context=65_536, draft=2, kv="q8_0"),
        plan_settings=setting,
        geometry=entry.geometry,
        weights=weights,
        trained_context=entry.geometry.trained_context,
        expert_layers=weights.expert_layers(mtp=True),
        kv_types=("f16", "q8_0", "q4_0"),
        memory_name="RTX 4090",
        total_mib=24_564,
        others_mib=24_564 - free_mib,
        available_mib=free_mib,
        margin_mib=1_024,
        load=LoadTime(8.6, 3),
    )


def test_a_preview_without_changes_shows_the_running_server() -> None:
    found = Previewer(describe_server()).preview(
        {"draft": 2, "ctx": 65_536, "kv": "q8_0", "ubatch": 512, "n_cpu_moe": None}
    )
    assert found.changes == ()
    assert not found.needs_restart
    assert found.difference_mib == 0
    assert found.restart_s == 8.6


def test_each_change_shows_its_own_cost_and_all_changes_their_total() -> None:
    basis = describe_server()
    assert basis.geometry is not None
    assert basis.weights is not None
    found = Previewer(basis).preview({"draft": 3, "ctx": 131_072, "temperature": 1})

    def count_needed_bytes(setting: PlanSettings) -> int:
        assert basis.geometry is not None
        assert basis.weights is not None
        return estimate_memory(basis.geometry, basis.weights, setting).needed_bytes

    before = count_needed_bytes(basis.plan_settings)
    draft, context, temperature = found.changes
    assert draft.mib == round((count_needed_bytes(replace(basis.plan_settings, draft=3)) - before) / _MIB) == 63
    assert str(draft.consequence) == "+63 MiB for 1 more draft token"
    assert context.mib == round((count_needed_bytes(replace(basis.plan_settings, context=131_072)) - before) / _MIB)
    assert str(context.consequence) == f"+{context.mib:,} MiB for 65,536 more tokens of context"
    assert (draft.needs_restart, context.needs_restart, temperature.needs_restart) == (True, True, False)
    assert found.estimate is not None
    together = replace(basis.plan_settings, draft=3, context=131_072)
    assert found.estimate.needed_bytes == count_needed_bytes(together)
    assert found.difference_mib == round((count_needed_bytes(together) - before) / _MIB)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"draft": 0}, "with MTP off"),
        ({"draft": 5}, "for 3 more draft tokens"),
        ({"draft": 1}, "for 1 fewer draft token"),
        ({"ctx": 32_768}, "for 32,768 fewer tokens of context"),
        ({"kv": "f16"}, "with a KV cache of f16"),
        ({"ubatch": 1_024}, "with a ubatch of 1,024 tokens"),
        ({"slots": 2}, "with 2 slots"),
        ({"n_cpu_moe": 10}, "with the experts of 10 layers on the CPU"),
        ({"n_cpu_moe": 1}, "with the experts of one layer on the CPU"),
        ({"threads": 1}, "1 CPU thread, same memory"),
        ({"p_min": 0.5}, "p-min 0.5, same GPU memory"),
        ({"split_mode": "tensor"}, "with split-mode tensor"),
        ({"extra": "--no-warmup"}, "extra arguments are not in the estimate"),
    ],
)
def test_every_setting_has_a_preview_text(change: dict[str, int | str], sentence: str) -> None:
    (found,) = Previewer(describe_server()).preview(change).changes
    assert str(found.consequence).endswith(sentence)
    assert "{" not in str(found.consequence)
    if found.mib is not None:
        sign = "+" if found.mib >= 0 else "\N{MINUS SIGN}"
        assert str(found.consequence).startswith(f"{sign}{abs(found.mib):,} MiB ")


def test_a_preview_fits_is_tight_or_too_big_and_knows_the_largest_context() -> None:
    roomy = describe_server()
    previewer = Previewer(roomy)
    found = previewer.preview({})
    assert found.status is Status.FITS
    largest = found.largest_context
    assert largest == 262_144
    needed = found.needed_mib
    assert needed is not None
    tight = Previewer(replace(roomy, available_mib=needed + 500)).preview({})
    assert (tight.status, tight.missing_mib) == (Status.TIGHT, 0)
    small = Previewer(replace(roomy, available_mib=needed - 100))
    assert (small.preview({}).status, small.preview({}).missing_mib) == (Status.TOO_BIG, 100)
    assert small.preview({"n_cpu_moe": 40}).status is Status.OFFLOADS
    # The running settings fit with 1 MiB to spare, the next step does not fit.
    between = Previewer(replace(roomy, available_mib=needed + 1_024 + 1))
    assert between.preview({"ctx": 4_096}).largest_context == 65_536
    assert between.preview({"draft": 0}).largest_context is not None
    assert Previewer(replace(roomy, available_mib=1_000)).preview({}).largest_context is None


def test_contexts_are_powers_of_two_and_midpoints_up_to_the_trained_length() -> None:
    basis = describe_server()
    assert basis.contexts[:5] == (1_024, 1_536, 2_048, 3_072, 4_096)
    assert basis.contexts[-3:] == (131_072, 196_608, 262_144)
    odd = replace(basis, trained_context=40_960, plan_settings=replace(basis.plan_settings, context=5_000))
    assert odd.contexts[-2:] == (32_768, 40_960)
    assert 5_000 in odd.contexts


def test_settings_that_no_engine_accepts_are_refused() -> None:
    previewer = Previewer(replace(describe_server(), drafters=(), plan_settings=PlanSettings(context=8_192, draft=0)))
    with pytest.raises(BadOption, match="out of range"):
        previewer.preview({"ctx": 1})
    with pytest.raises(BadOption, match="--port cannot be passed"):
        previewer.preview({"extra": "--port 8080"})
    with pytest.raises(ModelHasNoHead, match="no MTP head"):
        previewer.preview({"draft": 2})


def test_a_model_without_a_formula_has_a_reason_in_place_of_figures() -> None:
    unknown = replace(describe_server(), geometry=None, weights=None, unknown="No formula knows it.")
    found = Previewer(unknown).preview({"draft": 3})
    assert (found.estimate, found.status, found.needed_mib, found.largest_context) == (None, None, None, None)
    assert str(found.changes[0].consequence) == "\u2013 MiB for 1 more draft token"
    result = to_json(found)
    assert (result["status"], result["unknown"], result["parts"]) == (None, "No formula knows it.", None)


def test_a_new_memory_reading_keeps_the_estimates() -> None:
    previewer = Previewer(describe_server())
    first = previewer.preview({"draft": 3})
    moved = previewer.with_basis(replace(describe_server(), available_mib=20_000, others_mib=4_564))
    again = moved.preview({"draft": 3})
    assert again.estimate is first.estimate
    assert (again.basis.available_mib, first.basis.available_mib) == (20_000, 23_400)
    other = previewer.with_basis(describe_server(quant="UD-Q4_K_XL"))
    assert other.preview({"draft": 3}).estimate != first.estimate


def test_resetting_host_memory_limits_chooses_them_anew() -> None:
    basis = describe_server()
    options = replace(basis.options, cache_ram=4_096, ctx_checkpoints=4)
    basis = replace(
        basis, options=options, plan_settings=replace(basis.plan_settings, cache_ram=4_096, ctx_checkpoints=4)
    )
    roomy = Previewer(replace(basis, situation=describe_machine(24, host_gib=128))).preview({"cache_ram": None})
    assert [(change.name, change.old, change.new) for change in roomy.changes] == [("cache_ram", 4_096, None)]
    little = replace(describe_machine(24), host_mib=4_096)
    narrow = Previewer(replace(basis, situation=little)).preview({"cache_ram": None, "ctx_checkpoints": None})
    (cache, checkpoints) = (narrow.plan_settings.cache_ram, narrow.plan_settings.ctx_checkpoints)
    assert cache is not None
    assert cache < 4_096
    assert checkpoints is not None


async def test_resetting_the_context_chooses_it_anew(demo_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.models.plan.CONTEXT_WITHOUT_GPU", 16_384)
    session = ServerSession()
    options = ServeOptions(model=demo_model, built_in=True, threads=1, context=1_024)
    await session.start(StartRequest(options, chosen={"ctx": 1_024}))
    try:
        (change,) = (await running_servers.preview_restart(None, {"ctx": "default"}))["changes"]
        expected = (await resolve_start(str(demo_model), {"threads": 1, "draft": 2}, use_kept=False)).options.context
        assert (change["name"], change["old"], change["new"]) == ("ctx", 1_024, expected)
        assert expected == 16_384
        result = await running_servers.restart_server(None, {"ctx": "default"})
        assert result["settings"]["ctx"] == expected
        assert "ctx" not in load_model_settings(demo_model)
    finally:
        await session.stop()


async def test_a_command_that_does_not_run_yet_has_a_preview(demo_model: Path) -> None:
    launch = await prepare_launch(ServeOptions(model=demo_model, built_in=True), Endpoint(1, "key"))
    basis = await read_basis(launch)
    found = Previewer(basis).preview({"draft": 3})
    assert (found.status, basis.memory_name, basis.expert_layers) == (Status.FITS, "host memory", 0)
    assert basis.total_mib >= basis.available_mib > basis.total_mib // 100
    assert found.restart_s is None
    assert not basis.own_measured


async def test_a_preview_of_a_running_server_shows_the_cost_of_a_restart_and_changes_nothing(demo_model: Path) -> None:
    session = ServerSession()
    await session.start(StartRequest(ServeOptions(model=demo_model, built_in=True, threads=1, context=1_024)))
    try:
        before = session.supervisor.engine_pid
        result = await running_servers.preview_restart(None, {"ctx": "4K", "draft": "0"})
        assert [(each["name"], each["old"], each["new"]) for each in result["changes"]] == [
            ("ctx", 1_024, 4_096),
            ("draft", 2, 0),
        ]
        assert (result["status"], result["restart_measured"], result["own_measured"]) == ("FITS", 1, True)
        assert result["restart_s"] > 0
        assert result["other_servers_mib"] == 0
        assert result["available_mib"] + result["others_mib"] == result["total_mib"]
        assert session.supervisor.engine_pid == before
        with pytest.raises(LauncherError, match="out of range"):
            await running_servers.preview_restart(None, {"ctx": "1"})
        await running_servers.restart_server(None, {"draft": "1"})
        assert (await running_servers.preview_restart(None, {}))["restart_measured"] == 2
    finally:
        await session.stop()


async def test_a_server_is_compared_with_the_memory_of_the_backend_that_holds_it(
    demo_model: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []

    async def note_backend(description: MachineDescription, **_: object) -> Situation:
        asked.append(description.backend)
        return describe_machine(24)

    monkeypatch.setattr(preview, "read_situation", note_backend)
    built_in = await prepare_launch(ServeOptions(demo_model, built_in=True, context=2_048), Endpoint(0, ""))
    other = replace(built_in, build=replace(built_in.build, name="llama-server"))
    on_card = ["0.00.030.001 I load_tensors:        CUDA0 model buffer size =    90.00 MiB"]
    for launch, log in ((built_in, on_card), (other, on_card), (other, [])):
        await read_basis(launch, log=log)
    assert asked == ["cpu", "cuda", None]
