"""The settings that a tune tries, by the model, the machine, the engine and the prompts."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.app.measuring.tuner_space import SpaceBuilder, prepare_tune
from launcher.app.planning import preview
from launcher.app.planning.preview import PreviewBasis, list_missing_drafts
from launcher.base.codec import to_json
from launcher.cli.tune import describe_missing
from launcher.engine.arguments import LLAMA_SERVER, server_arguments
from launcher.engine.serve_options import DraftFile, ServeOptions
from launcher.engine.settings import change_settings
from launcher.models.catalogue import Catalogue, CompanionFile
from launcher.models.drafters import SPEC_TYPES
from launcher.models.file_entry import describe_file
from launcher.models.gguf import read_model
from launcher.tuning.goal import Goal
from launcher.tuning.records import Prompt
from launcher.tuning.space import Space
from launcher.tuning.workloads import Workload
from tests.app.planning.test_preview import describe_server


def build_space(
    basis: PreviewBasis, vary: Collection[str] | None = None, *, temperature: float | None = 0.6, on_cpu: bool = False
) -> Space:
    sampling = {} if temperature is None else {"temperature": temperature}
    prompt = Prompt("one", (("user", "Write."),), 100, sampling)
    return SpaceBuilder(basis, Goal(), [prompt], on_cpu=on_cpu).build_space(vary)


def values(found: Space) -> dict[str, tuple[Any, ...]]:
    return {axis.name: axis.values for axis in found.axes}


def described_with(**changes: Any) -> PreviewBasis:  # noqa: ANN401
    basis = describe_server()
    return replace(basis, plan_settings=replace(basis.plan_settings, **changes))


def two_cards(**changes: Any) -> PreviewBasis:  # noqa: ANN401
    return described_with(gpus=2, **changes)


@pytest.mark.parametrize(("temperature", "tried"), [(0.0, False), (0.5, False), (0.6, True), (1.0, True), (None, True)])
def test_draft_sampling_is_varied_where_the_temperature_is_high(temperature: float | None, tried: bool) -> None:
    assert ("draft_sampling" in values(build_space(describe_server(), temperature=temperature))) is tried


def test_settings_without_a_flag_in_the_engine_are_not_varied() -> None:
    old = replace(describe_server(free_mib=12_000), unsupported=frozenset({"draft_sampling", "moe_cache_mib"}))
    assert not {"draft_sampling", "moe_cache_mib"} & values(build_space(old)).keys()
    assert (
        not {"draft_sampling", "moe_cache_mib"} & values(build_space(old, ["draft_sampling", "moe_cache_mib"])).keys()
    )


def test_an_expert_cache_is_tried_together_with_moving_experts() -> None:
    short = describe_server(free_mib=12_000)
    found = build_space(short)
    assert values(found)["moe_cache_mib"] == (0, 1_024, 4_096)
    layers = values(found)["n_cpu_moe"]
    assert len(layers) == 3
    fitting = list(found.fitting_settings())
    cached = [each for each in fitting if each["moe_cache_mib"]]
    assert {each["moe_cache_mib"] for each in cached} == {1_024, 4_096}
    assert {each["n_cpu_moe"] for each in cached if each["moe_cache_mib"] == 4_096} == {layers[0]}
    assert {each["n_cpu_moe"] for each in fitting if not each["moe_cache_mib"]} == set(layers)
    # without the cache, room for it is no reason to move experts
    assert max(values(build_space(short, ["n_cpu_moe"]))["n_cpu_moe"]) < layers[0]


def test_an_expert_cache_on_the_command_line_includes_moving_experts() -> None:
    assert values(build_space(describe_server(free_mib=12_000), ["moe_cache_mib"])).keys() - {"drafter"} == {
        "moe_cache_mib",
        "n_cpu_moe",
    }


@pytest.mark.parametrize("vary", [None, ["moe_cache_mib"]])
def test_no_expert_cache_is_tried_for_experts_on_the_gpu_or_without_a_gpu(vary: list[str] | None) -> None:
    roomy = replace(describe_server(), plan_settings=replace(describe_server().plan_settings, context=8_192))
    for found in (
        build_space(replace(roomy, available_mib=80_000), vary),
        build_space(describe_server(free_mib=12_000), vary, on_cpu=True),
        build_space(replace(describe_server(free_mib=12_000), expert_layers=0), vary),
    ):
        assert "moe_cache_mib" not in values(found)


def test_split_modes_are_varied_on_two_cards() -> None:
    assert values(build_space(replace(two_cards(), available_mib=48_000)))["split_mode"] == ("layer", "tensor")
    vulkan = replace(two_cards(backend="vulkan"), available_mib=48_000)
    assert "split_mode" not in values(build_space(vulkan))
    assert "split_mode" in values(build_space(vulkan, ["split_mode"]))
    for one in (describe_server(), two_cards(backend="cpu")):
        assert "split_mode" not in values(build_space(one, ["split_mode"]))


def test_settings_tried_reach_the_engine() -> None:
    changes = {
        "draft": 3,
        "draft_sampling": "probabilistic",
        "moe_cache_mib": 1_024,
        "n_cpu_moe": 8,
        "split_mode": "tensor",
    }
    options = change_settings(replace(describe_server().options, context=8_192), changes)
    words = " ".join(server_arguments(options, LLAMA_SERVER, gpu=True))
    for flag in (
        "--spec-draft-n-max 3",
        "--spec-draft-sampling probabilistic",
        "--moe-cache-mib 1024",
        "--n-cpu-moe 8",
        "--split-mode tensor",
    ):
        assert flag in words


@pytest.mark.parametrize(
    ("free_mib", "vary"),
    [
        (12_000, None),  # so little memory that experts have to lie on the host
        (40_000, None),
        (40_000, ["p_min", "ngram"]),
        (40_000, ["ubatch", "draft_sampling"]),
        (40_000, ["kv", "threads"]),
    ],
)
def test_settings_that_give_the_engine_the_same_arguments_are_tried_once(free_mib: int, vary: list[str] | None) -> None:
    basis = describe_server(free_mib=free_mib)
    received = [
        tuple(server_arguments(change_settings(basis.options, settings), LLAMA_SERVER, gpu=True))
        for settings in build_space(basis, vary).fitting_settings()
    ]
    assert len(received) > 8
    assert len(set(received)) == len(received)


@pytest.mark.parametrize(
    ("basis", "on_cpu", "expected"),
    [
        (describe_server(), False, False),
        (describe_server(), True, True),
        (described_with(backend="cpu"), False, True),
        (described_with(n_cpu_moe=4), False, True),
    ],
)
def test_a_space_says_whether_the_processor_verifies(basis: PreviewBasis, on_cpu: bool, expected: bool) -> None:
    assert build_space(basis, on_cpu=on_cpu).on_processor is expected


def described_drafts(*kinds: str, drafters: tuple[str, ...]) -> PreviewBasis:
    """A server of Qwen3.8's family with drafts beside the model, of unknown size."""
    basis = describe_server()
    files = tuple(DraftFile(kind, Path(f"{kind}.gguf")) for kind in kinds)
    return replace(
        basis, options=replace(basis.options, other_drafts=files), drafters=drafters, published_as="qwen3.8-27b"
    )


def test_the_drafters_whose_files_are_here_are_tried_in_the_order_of_published_runs() -> None:
    """With every choice of other settings; those from text only by name."""
    basis = described_drafts(
        "dflash", "eagle3", drafters=("draft-mtp", "draft-eagle3", "draft-dflash2", "ngram-simple")
    )
    builder = SpaceBuilder(basis, Goal(), [], on_cpu=False)
    for vary in (None, [], ["kv"]):
        space = builder.build_space(vary)
        assert space.drafters == ("draft-dflash2", "draft-mtp", "draft-eagle3")
        assert space.baseline["drafter"] == "draft-mtp"
    assert builder.build_space(["drafter"]).drafters == ("draft-dflash2", "draft-mtp", "draft-eagle3", "ngram-simple")
    alone = build_space(replace(described_drafts(drafters=("draft-mtp", "ngram-simple"))))
    assert "drafter" not in alone.baseline


def test_each_way_to_draft_gives_the_engine_other_arguments() -> None:
    basis = described_drafts("dflash", drafters=("draft-mtp", "draft-dflash", "ngram-simple"))
    received = [
        tuple(server_arguments(change_settings(basis.options, settings), LLAMA_SERVER, gpu=True))
        for settings in build_space(basis, ["drafter", "p_min"]).fitting_settings()
    ]
    assert len(set(received)) == len(received) > 40


async def test_a_draft_that_is_not_here_is_named_with_what_is_known_of_it(
    demo_model: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalogue's files with size and command, and drafters of which only runs were published."""
    entry = replace(
        describe_file(read_model(demo_model)),
        id="qwen3.8-27b",
        family="qwen3.8-27b",
        repo="owner/name",
        drafts=(CompanionFile(file="eagle3.gguf", size_bytes=900_000_000, speculation="eagle3"),),
    )
    monkeypatch.setattr(preview, "load_catalogue", lambda: Catalogue((entry,)))
    monkeypatch.setattr(preview, "find_entry", lambda catalogue, _: (catalogue.models[0], entry.files[0]))
    work = Workload("one", "One", 1, (Prompt("one", (("user", "Write."),), 24, {"temperature": 0.0}),), "these tests")
    options = ServeOptions(model=demo_model, built_in=True, threads=1, context=1_024)
    found = await prepare_tune("demo", options, work, Goal(), 600.0, vary=[])
    eagle, dspark = found.missing  # the built-in engine has no DFlash2, of which runs were published
    assert (dspark.row.title, dspark.file) == ("DSpark", None)
    assert to_json(eagle) == {
        "drafter": "draft-eagle3",
        "title": "EAGLE-3",
        "file": "owner/name:eagle3.gguf",
        "bytes": 900_000_000,
        "download": "owner/name:eagle3.gguf",
        "tokens": None,
        "length": None,
    }
    assert describe_missing(eagle) == "EAGLE-3, 0.90 GB; `mtp-launcher pull owner/name:eagle3.gguf`, then tune again."
    assert to_json(found)["missing_drafts"] == [to_json(eagle), to_json(dspark)]
    assert to_json(found)["drafters"] == ["draft-mtp"]


def test_what_a_missing_drafter_gave_in_published_runs_is_told() -> None:
    found = list_missing_drafts(None, "qwen3.8-27b", ("draft-mtp",), SPEC_TYPES)
    assert [(each.row.title, each.length, each.file) for each in found] == [
        ("DFlash2", 7, None),
        ("DSpark", 2, None),
    ]
    assert found[0].tokens == pytest.approx(3.6, abs=0.1)
    assert "3.6 tokens a pass with draft 7" in describe_missing(found[0])
    (dspark,) = list_missing_drafts(None, "qwen3.8-27b", ("draft-mtp", "draft-dflash2"), SPEC_TYPES)
    assert dspark.row.title == "DSpark"
