"""Compute buffers, compared with those that engines printed for simulated cards (.ci/fake-gpu.d/record.py)."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from launcher.models.compute_buffers import (
    Backend,
    ComputeBuffers,
    ComputeSetting,
    compute_buffers,
    draft_model_buffers,
    is_graph_known,
    window_cells,
)
from launcher.models.geometry import Geometry, read_geometry
from launcher.models.gguf import read_header
from launcher.models.weights import read_weights
from tools.sparse_models import models, write

DATA = Path(__file__).parent / "data"
MOE, DENSE, SMALL = "qwen35moe-35b-q3_k_xl", "qwen35-27b-q4_k_s", "qwen35-9b-q4_k_m"
Matrices = tuple[int, int, int]
Model = Callable[[str], tuple[Geometry, tuple[Matrices, ...]]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("models")

    @cache
    def read(name: str) -> tuple[Geometry, tuple[Matrices, ...]]:
        path = folder / f"{name}.gguf"
        write.write(path, name, models.model(name))
        header = read_header(path)
        path.unlink()
        geometry = read_geometry(header)
        weights = read_weights(header, geometry)
        return geometry, tuple(block.matrices for block in weights.blocks + weights.heads)

    return read


def printed_mib(row: dict[str, str]) -> list[float]:
    parts = (row["target_mib"], row["draft_mib"])
    return [float(mib) for part in parts if part for mib in part.split("+")]


def computed_mib(buffers: ComputeBuffers) -> list[float]:
    cards = [target for target, _ in buffers.by_device]
    drafts = [draft for _, draft in buffers.by_device if draft]
    found = [*cards, buffers.target_host, *drafts, *([buffers.draft_host] if drafts else [])]
    return [size / 2**20 for size in found]


@pytest.mark.parametrize("backend", ["cuda", "vulkan"])
def test_sizes_equal_those_recorded_on_simulated_cards(backend: Backend, model: Model) -> None:
    with (DATA / f"{backend}_compute.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 200
    assert {row["n_cpu_moe"] != "0" for row in rows} == {row["cards"] == "2" for row in rows} == {True, False}
    differing = []
    for row in rows:
        geometry, experts = model(row["model"])
        on_host = int(row["n_cpu_moe"])
        setting = ComputeSetting(
            backend=backend,
            context=int(row["ctx"]),
            ubatch=int(row["ubatch"]),
            slots=int(row["slots"]),
            draft=int(row["draft"]),
            quantised=row["kv"] != "f16",
            cpu_expert_layers=on_host,
            expert_bytes=experts[:on_host],
            devices=int(row["cards"]),
        )
        found = compute_buffers(geometry, setting)
        assert found.exact
        worst = max(abs(ours - theirs) for ours, theirs in zip(computed_mib(found), printed_mib(row), strict=True))
        if worst > 0.02:
            differing.append((row, computed_mib(found)))
    assert not differing


def compute_setting(backend: Backend = "cuda", **changes: int | bool) -> ComputeSetting:
    plain = ComputeSetting(backend, context=65_536, ubatch=512, slots=1, draft=2, quantised=True)
    return plain._replace(**changes)  # type: ignore[arg-type]


def test_sizes_equal_those_measured_on_real_cards(model: Model) -> None:
    """Sizes that b10964 printed on an L4 and an A30: the 35B with a cache of q8_0, and the 27B with one of q4_0."""
    long = compute_setting(context=262_144, ubatch=256)
    for name, target_mib, draft_mib in ((MOE, 666.3, 148.0), (DENSE, 1_192.3, 162.0)):
        found = compute_buffers(model(name)[0], long)
        assert found.target / 2**20 == pytest.approx(target_mib, rel=0.01)
        assert found.draft / 2**20 == pytest.approx(draft_mib, rel=0.001)


def test_only_cuda_and_rocm_convert_quantised_keys_and_values(model: Model) -> None:
    """A copy of one layer's keys and values in F16: with 2 heads of 256 that is 2,048 bytes a cell."""
    geometry, _ = model(MOE)
    long, longer = (compute_setting(context=context, ubatch=64, draft=0) for context in (131_072, 262_144))
    for backend, cell_bytes in (("cuda", 2_048), ("rocm", 2_048), ("vulkan", 0), ("metal", 0), ("cpu", 0)):
        sizes = [compute_buffers(geometry, one._replace(backend=backend)).target for one in (long, longer)]
        mask = 131_072 * 64 * 2
        assert sizes[1] - sizes[0] == 131_072 * cell_bytes + mask, backend


def test_the_processor_has_one_buffer(model: Model) -> None:
    geometry, experts = model(MOE)
    found = compute_buffers(geometry, compute_setting("cpu"))
    assert found.target_host == found.draft_host == found.staging == 0
    assert found.by_device == ()
    on_host = compute_setting("cpu")._replace(cpu_expert_layers=40, expert_bytes=experts[:40])
    assert compute_buffers(geometry, on_host) == found


def test_experts_on_the_host_are_copied_matrix_by_matrix(model: Model) -> None:
    geometry, experts = model(MOE)
    plain = compute_buffers(geometry, compute_setting("vulkan"))
    on_host = compute_setting("vulkan")._replace(cpu_expert_layers=20, expert_bytes=experts[:20])
    moved = compute_buffers(geometry, on_host)
    assert (moved.target, moved.draft) == (plain.target, plain.draft)
    assert max(experts[0]) < moved.staging < sum(experts[0])
    assert sum(moved.by_device[0]) == plain.target + plain.draft + moved.staging


def test_with_experts_on_the_host_several_cards_do_not_work_on_successive_batches(model: Model) -> None:
    """Then llama.cpp keeps one copy of each input, not four: what the experts add is told from that."""
    geometry, experts = model(MOE)
    setting = compute_setting("cuda", devices=2)
    moved = compute_buffers(geometry, setting._replace(cpu_expert_layers=20, expert_bytes=experts[:20]))
    assert moved.target < compute_buffers(geometry, setting).target
    assert moved.staging > min(experts[0])


def test_few_tokens_are_computed_on_the_device_of_the_experts(model: Model) -> None:
    """Below 32 tokens no weight is copied: b11669 prints 4.28 MiB for the host's buffer, 2.77 with all on the card."""
    geometry, experts = model(MOE)
    few = compute_setting("vulkan", ubatch=16)._replace(cpu_expert_layers=20, expert_bytes=experts[:20])
    found, plain = compute_buffers(geometry, few), compute_buffers(geometry, compute_setting("vulkan", ubatch=16))
    assert found.staging < 2**20
    assert found.target_host / 2**20 == pytest.approx(4.28, abs=0.01)
    assert plain.target_host / 2**20 == pytest.approx(2.77, abs=0.01)
    assert compute_buffers(geometry, few._replace(ubatch=32)).staging > max(experts[0])


def test_moving_experts_of_a_dense_model_changes_nothing(model: Model) -> None:
    geometry, _ = model(DENSE)
    assert compute_buffers(geometry, compute_setting(cpu_expert_layers=20)) == compute_buffers(
        geometry, compute_setting()
    )


def test_the_experts_of_the_head_move_last(model: Model) -> None:
    geometry, experts = model(MOE)
    trunk, all_layers = (
        compute_buffers(geometry, compute_setting()._replace(cpu_expert_layers=count, expert_bytes=experts[:count]))
        for count in (40, 41)
    )
    assert all_layers.by_device[0][0] == trunk.by_device[0][0]
    assert all_layers.by_device[0][1] > trunk.by_device[0][1]


def test_a_separate_draft_model_has_its_own_buffer(model: Model) -> None:
    """Printed by b11669 on a card: a Qwen3 of 0.6B takes 54.01 MiB as the draft model for 32,768 tokens."""
    geometry, _ = model(MOE)
    with_head = compute_buffers(geometry, compute_setting())
    without = compute_buffers(geometry, compute_setting(head=False))
    assert (without.target, without.draft, without.draft_host) == (with_head.target, 0, 0)
    with_ngrams = compute_buffers(geometry, ComputeSetting("vulkan", 32_768, 512, 1, 0, quantised=False, outputs=49))
    assert with_ngrams.target / 2**20 == pytest.approx(108.02, abs=0.01)
    assert with_ngrams.draft == 0

    target, _ = model("llama-8b-q4_k")
    small = replace(
        target,
        architecture="qwen3",
        layers=28,
        attention_layers=28,
        hidden=1_024,
        heads=16,
        ffn=3_072,
        vocabulary=151_936,
    )
    wanted = ComputeSetting("vulkan", 32_768, 512, 1, 3, quantised=True)
    draft = draft_model_buffers(small, target, wanted)
    assert draft.target == draft.target_host == 0
    assert draft.draft / 2**20 == pytest.approx(54.01, abs=0.01)
    assert draft.draft_host / 2**20 == pytest.approx(40.02, abs=0.01)


@pytest.mark.parametrize(
    ("wanted", "draft_mib", "host_mib"),
    [
        (ComputeSetting("cuda", 32_768, 512, 1, 3, quantised=False), 118.50, 54.50),
        (ComputeSetting("cuda", 131_072, 256, 1, 3, quantised=True), 1_132.41, 76.41),
        (ComputeSetting("cuda", 4_096, 1_024, 2, 3, quantised=False), 182.00, 50.01),
        (ComputeSetting("cpu", 32_768, 512, 1, 3, quantised=False), 108.00, 0.0),
        (ComputeSetting("cpu", 131_072, 256, 1, 3, quantised=True), 103.16, 0.0),
    ],
)
def test_buffers_of_a_draft_that_reads_the_cache_of_the_target_are_exact(
    model: Model, wanted: ComputeSetting, draft_mib: float, host_mib: float
) -> None:
    """Recorded from b11434. Its dry run omits Gemma 4's assistant, so both contexts were really created."""
    target, draft = model("gemma4-31b-iq4_xs")[0], model("gemma4-31b-draft-q8_0")[0]
    found = draft_model_buffers(draft, target, wanted)
    assert found.exact
    assert found.draft / 2**20 == pytest.approx(draft_mib, abs=0.02)
    assert found.draft_host / 2**20 == pytest.approx(host_mib, abs=0.02)


def test_other_float_caches_than_f16_are_copied_like_quantised_ones(model: Model) -> None:
    """ggml_cuda_flash_attn_ext_get_alloc_size (b11434) adds K and V in F16 for every type but F16 itself."""
    geometry, _ = model(MOE)
    alone, copied = (compute_buffers(geometry, compute_setting(quantised=False, wide=wide)) for wide in (False, True))
    # 65,536 cells of 2 heads, 256 keys and 256 values each; a rotation, which quantised caches have, is not added.
    least = 65_536 * 2 * (256 + 256) * 2
    quantised = compute_buffers(geometry, compute_setting())
    assert least <= copied.target < quantised.target < 1.05 * copied.target
    assert copied.target > alone.target
    # MiB that b11434 computes for caches of bf16 and f32.
    for context, ubatch, printed in ((131_072, 512, 432.02), (32_768, 256, 104.01)):
        found = compute_buffers(geometry, compute_setting(context=context, ubatch=ubatch, quantised=False, wide=True))
        assert found.target / 2**20 == pytest.approx(printed, abs=0.01)
    for backend in ("vulkan", "cpu"):
        first, second = (
            compute_buffers(geometry, compute_setting(backend, quantised=False, wide=w)) for w in (False, True)
        )
        assert first == second


def test_a_sliding_window_cache_holds_one_more_batch(model: Model) -> None:
    geometry, _ = model("gemma3-12b-q4_k")
    assert window_cells(geometry, 131_072, 512) == 1_536
    assert window_cells(geometry, 131_072, 100) == 1_280  # padded to 256
    assert window_cells(geometry, 1_024, 512) == 1_024
    assert window_cells(model(MOE)[0], 131_072, 512) == 0


@pytest.mark.parametrize(
    "name", [MOE, DENSE, SMALL, "llama-8b-q4_k", "qwen3moe-30b-q4_k", "gemma3-12b-q4_k", "gemma4-31b-iq4_xs"]
)
@pytest.mark.parametrize("backend", ["cuda", "vulkan", "cpu"])
def test_the_guess_for_an_unknown_architecture_is_large_enough(name: str, backend: Backend, model: Model) -> None:
    geometry, _ = model(name)
    unknown = replace(geometry, architecture="unknown-architecture")
    for context, ubatch, quantised in ((4_096, 1_024, True), (65_536, 512, False), (262_144, 128, True)):
        wanted = compute_setting(backend, context=context, ubatch=ubatch, quantised=quantised)
        known, guessed = compute_buffers(geometry, wanted), compute_buffers(unknown, wanted)
        assert (known.exact, guessed.exact) == (True, False)
        assert known.target <= guessed.target < 1.45 * known.target
        assert known.draft <= guessed.draft


def test_unknown_graphs_are_recognised(model: Model) -> None:
    known = model("gemma3-12b-q4_k")[0]
    assert is_graph_known(known)
    assert not is_graph_known(replace(known, window_layers=0, window=0))  # layers that share a cache, say
    assert not is_graph_known(replace(known, experts=8, experts_used=2, expert_ffn=1_024))
    assert not is_graph_known(replace(known, architecture="unknown-architecture"))
    for backend in ("metal", "rocm"):
        # No engine with these backends was compared.
        assert not compute_buffers(model(SMALL)[0], compute_setting(backend)).exact


def test_buffers_of_attention_only_and_recurrent_only_models(model: Model) -> None:
    plain, hybrid = model("llama-8b-q4_k")[0], model(SMALL)[0]
    for odd in (
        replace(plain, layers=1, attention_layers=1),
        replace(hybrid, attention_layers=0),
        replace(hybrid, layers=3),
    ):
        for devices in (1, 2):
            assert compute_buffers(odd, compute_setting(devices=devices)).target > 0


def test_several_cards_have_a_buffer_each(model: Model) -> None:
    geometry, _ = model(SMALL)
    one, two, three = (compute_buffers(geometry, compute_setting(devices=count)) for count in (1, 2, 3))
    assert [len(found.by_device) for found in (one, two, three)] == [1, 2, 3]
    assert one.target == one.by_device[0][0]
    assert two.target == sum(target for target, _ in two.by_device)
    assert two.by_device[0][0] > one.target  # four copies of every input
    assert [draft > 0 for _, draft in three.by_device] == [False, False, True]


def test_larger_settings_take_more_memory(model: Model) -> None:
    geometry, _ = model(DENSE)
    for field, less, more in (("context", 8_192, 131_072), ("ubatch", 128, 2_048), ("draft", 1, 4)):
        small, large = (
            compute_buffers(geometry, compute_setting("vulkan", **{field: value})) for value in (less, more)
        )
        assert small.target + small.draft <= large.target + large.draft, field
