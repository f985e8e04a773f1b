"""The numbers that memory follows from, read from headers of models as they are published."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.base.errors import GeometryUnknown
from launcher.models.catalogue import Catalogue
from launcher.models.catalogue_load import shipped_models
from launcher.models.geometry import Geometry, read_geometry
from launcher.models.gguf import read_header, read_model
from tools.sparse_models.geometry import Value
from tools.sparse_models.models import Model, model
from tools.sparse_models.write import write

CATALOGUE = Catalogue(tuple(shipped_models()))


def read(tmp_path: Path, made: Model) -> Geometry:
    path = tmp_path / "model.gguf"
    write(path, "model", made)
    return read_geometry(read_header(path))


def model_with_metadata(name: str, metadata: Mapping[str, Value | None], architecture: str | None = None) -> Model:
    """A sparse model with other metadata; None removes a key."""
    made = model(name)
    merged = {key: value for key, value in {**made.metadata, **metadata}.items() if value is not None}
    return replace(made, architecture=architecture or made.architecture, metadata=merged)


def test_the_35b_equals_the_output_of_llama_cpp(tmp_path: Path) -> None:
    """The values that llama.cpp printed for the real file."""
    found = read(tmp_path, model("qwen35moe-35b-q3_k_xl"))
    assert (found.architecture, found.layers, found.mtp_layers, found.hidden) == ("qwen35moe", 40, 1, 2_048)
    assert (found.attention_layers, found.recurrent_layers) == (10, 30)
    assert (found.heads, found.kv_heads, found.key_length, found.value_length) == (16, 2, 256, 256)
    assert (found.experts, found.experts_used, found.expert_ffn, found.shared_expert_ffn) == (256, 8, 512, 512)
    assert (found.conv_kernel, found.inner_size, found.state_size) == (4, 4_096, 128)
    assert (found.time_step_rank, found.group_count) == (32, 16)
    assert (found.vocabulary, found.trained_context) == (248_320, 262_144)


def test_the_27b_equals_the_output_of_llama_cpp(tmp_path: Path) -> None:
    found = read(tmp_path, model("qwen35-27b-q4_k_m"))
    assert (found.architecture, found.layers, found.mtp_layers, found.hidden) == ("qwen35", 64, 1, 5_120)
    assert (found.attention_layers, found.recurrent_layers) == (16, 48)
    assert (found.heads, found.kv_heads, found.key_length, found.ffn) == (24, 4, 256, 17_408)
    assert (found.inner_size, found.state_size, found.time_step_rank, found.group_count) == (6_144, 128, 48, 16)
    assert (found.experts, found.experts_used) == (0, 0)


@pytest.mark.parametrize(
    ("name", "model_id"),
    [
        ("qwen35moe-35b-q3_k_xl", "qwen3.6-35b-a3b-mtp"),
        ("qwen35moe-35b-iq3_s-nomtp", "qwen3.6-35b-a3b"),
        ("qwen35-27b-q4_k_s", "qwen3.8-27b"),
        ("qwen35-27b-q4_k_m", "qwen3.6-27b-mtp"),
        ("qwen35-9b-q4_k_m", "qwen3.5-9b-mtp"),
    ],
)
def test_catalogue_and_header_agree(name: str, model_id: str, tmp_path: Path) -> None:
    assert CATALOGUE.find(model_id).geometry == read(tmp_path, model(name))


def test_the_header_of_the_demo_model_is_read(demo_model: Path) -> None:
    assert CATALOGUE.find("demo").geometry == read_geometry(read_model(demo_model))


def test_attention_only_and_mixture_of_experts_models_are_read(tmp_path: Path) -> None:
    plain = read(tmp_path, model("llama-8b-q4_k"))
    assert (plain.attention_layers, plain.recurrent_layers, plain.conv_state, plain.delta_state) == (32, 0, 0, 0)
    experts = read(tmp_path, model("qwen3moe-30b-q4_k"))
    assert (experts.attention_layers, experts.experts, experts.experts_used) == (48, 128, 8)


def test_sliding_window_layers_are_counted_separately(tmp_path: Path) -> None:
    found = read(tmp_path, model("gemma3-12b-q4_k"))
    assert (found.attention_layers, found.window, found.window_layers) == (48, 1_024, 40)
    found = read(tmp_path, model("gemma4-31b-iq4_xs"))
    assert (found.window_layers, found.kv_heads, found.window_kv_heads) == (50, 4, 16)
    assert (found.key_length, found.window_key_length) == (512, 256)


def test_missing_header_values_have_the_defaults_of_llama_cpp(tmp_path: Path) -> None:
    absent = dict.fromkeys(("attention.key_length", "attention.value_length", "attention.head_count_kv"))
    found = read(tmp_path, model_with_metadata("llama-8b-q4_k", absent))
    assert (found.key_length, found.value_length, found.kv_heads) == (128, 128, 32)
    assert (
        read(tmp_path, model_with_metadata("qwen35-9b-q4_k_m", {"full_attention_interval": None})).attention_layers == 8
    )


def test_equal_heads_by_layer_are_accepted(tmp_path: Path) -> None:
    found = read(tmp_path, model_with_metadata("llama-8b-q4_k", {"attention.head_count_kv": [8, 0] * 16}))
    assert (found.attention_layers, found.kv_heads) == (16, 8)
    with pytest.raises(GeometryUnknown, match="no memory formula"):
        read(tmp_path, model_with_metadata("llama-8b-q4_k", {"attention.head_count_kv": [8, 4] * 16}))


OTHERS: list[tuple[str, str, dict[str, Value | None]]] = [
    # Latent attention, an indexer, RWKV, short convolutions: keys of src/llama-arch.cpp.
    ("deepseek2", "llama-8b-q4_k", {"attention.kv_lora_rank": 512}),
    ("glm-dsa", "llama-8b-q4_k", {"attention.indexer.head_count": 32}),
    ("rwkv7", "llama-8b-q4_k", {"wkv_head_size": 64}),
    ("lfm2", "llama-8b-q4_k", {"shortconv.l_cache": 3}),
    # Recurrent layers that are no gated delta nets, and attention beside them in the same layer.
    ("mamba2", "qwen35-9b-q4_k_m", {}),
    ("falcon-h1", "qwen35-9b-q4_k_m", {}),
    # Sliding windows of a pattern that is not in the header, or of an architecture that is not known.
    ("step35", "llama-8b-q4_k", {"attention.sliding_window": 128}),
    ("new-model", "llama-8b-q4_k", {"attention.sliding_window": 4_096}),
    # Compressed caches, and layers that are computed several times.
    ("deepseek4", "llama-8b-q4_k", {"attention.compress_ratios": [4] * 32}),
    ("nanbeige", "llama-8b-q4_k", {"num_loops": 2}),
    # By this header all layers share the KV cache of another layer, but there is no other layer.
    ("gemma4", "gemma4-31b-iq4_xs", {"attention.shared_kv_layers": 60}),
]


@pytest.mark.parametrize(("architecture", "name", "metadata"), OTHERS, ids=[each[0] for each in OTHERS])
def test_a_cache_without_a_formula_is_refused(
    architecture: str, name: str, metadata: dict[str, Value | None], tmp_path: Path
) -> None:
    with pytest.raises(GeometryUnknown, match="There is no memory formula for the context") as unknown:
        read(tmp_path, model_with_metadata(name, metadata, architecture))
    assert architecture in unknown.value.title
    assert "--ask-engine" in unknown.value.hint


def test_latent_attention_and_indexers_are_read(tmp_path: Path) -> None:
    latent: dict[str, Value | None] = {
        "attention.kv_lora_rank": 512,
        "attention.key_length_mla": 256,
        "attention.key_length": 576,
        "attention.value_length": 512,
        "attention.head_count_kv": 1,
        "leading_dense_block_count": 3,
    }
    found = read(tmp_path, model_with_metadata("llama-8b-q4_k", latent, "deepseek2"))
    assert (found.latent_attention, found.kv_heads, found.key_length, found.leading_dense) == (True, 1, 576, 3)
    assert (found.attention_layers, found.indexer_layers) == (32, 0)
    indexer: dict[str, Value | None] = {"attention.indexer.head_count": 32, "attention.indexer.key_length": 128}
    found = read(tmp_path, model_with_metadata("llama-8b-q4_k", latent | indexer, "deepseek32"))
    assert (found.indexer_layers, found.indexer_length) == (32, 128)
    # GLM-5.2 shares indexers: the first two layers and then every fourth have one; 5 and 5.1 have one in each layer.
    shared = latent | indexer | {"context_length": 1_048_576}
    assert read(tmp_path, model_with_metadata("llama-8b-q4_k", shared, "glm-dsa")).indexer_layers == 2 + 8
    assert read(tmp_path, model_with_metadata("llama-8b-q4_k", latent | indexer, "glm-dsa")).indexer_layers == 32
    with pytest.raises(GeometryUnknown, match=r"attention\.indexer\.key_length"):
        read(
            tmp_path, model_with_metadata("llama-8b-q4_k", latent | {"attention.indexer.head_count": 32}, "deepseek32")
        )


def test_window_patterns_of_the_architecture_are_used(tmp_path: Path) -> None:
    found = read(tmp_path, model_with_metadata("llama-8b-q4_k", {"attention.sliding_window": 128}, "gpt-oss"))
    assert (found.window, found.window_layers, found.attention_layers) == (128, 16, 32)
    by_period: dict[str, Value | None] = {"attention.sliding_window": 128, "attention.sliding_window_pattern": 4}
    assert read(tmp_path, model_with_metadata("llama-8b-q4_k", by_period, "gpt-oss")).window_layers == 24
    # Step-3.7-Flash: the first of four layers sees everything, and the ones with a window may have other heads.
    by_layer: dict[str, Value | None] = {
        "attention.sliding_window": 512,
        "attention.sliding_window_pattern": [False, True, True, True] * 8,
        "attention.head_count_kv": [8, 4, 4, 4] * 8,
    }
    found = read(tmp_path, model_with_metadata("llama-8b-q4_k", by_layer, "step35"))
    assert (found.window_layers, found.kv_heads, found.window_kv_heads) == (24, 8, 4)


def test_llama_cpp_s_default_windows_are_used(tmp_path: Path) -> None:
    def windows(name: str, metadata: dict[str, Value | None], architecture: str) -> tuple[int, int]:
        found = read(tmp_path, model_with_metadata(name, metadata, architecture))
        assert found.cache_known
        return found.window, found.window_layers

    assert windows("llama-8b-q4_k", {}, "llama4") == (8_192, 24)
    assert windows("llama-8b-q4_k", {"attention.sliding_window": 0}, "llama4") == (0, 0)
    assert windows("llama-8b-q4_k", {}, "gemma2") == (4_096, 16)
    assert windows("llama-8b-q4_k", {"attention.sliding_window": 4_096}, "exaone4") == (0, 0)
    assert windows("llama-8b-q4_k", {"attention.sliding_window": 2_048}, "phi3") == (0, 0)
    shared = read(tmp_path, model_with_metadata("llama-8b-q4_k", {"attention.sliding_window": 512}, "gemma3n"))
    assert (shared.attention_layers, shared.cacheless_layers, shared.window_layers) == (20, 12, 16)


def test_recurrent_layers_of_the_header_are_used(tmp_path: Path) -> None:
    kinds: dict[str, Value | None] = {"attention.recurrent_layers": [True, False] * 16}
    assert read(tmp_path, model_with_metadata("qwen35-9b-q4_k_m", kinds)).attention_layers == 16


def test_caches_of_unknown_architectures_and_keys_are_not_known(tmp_path: Path) -> None:
    assert read(tmp_path, model("llama-8b-q4_k")).cache_known
    assert not read(tmp_path, model_with_metadata("llama-8b-q4_k", {}, "new-model")).cache_known
    for key in ("attention.chunk_size", "ssm.heads", "kv_merge_count"):
        assert not read(tmp_path, model_with_metadata("llama-8b-q4_k", {key: 4})).cache_known
    assert read(tmp_path, model_with_metadata("llama-8b-q4_k", {"new_norm": 4})).cache_known


def test_the_last_layers_of_gemma_4_may_share_a_cache(tmp_path: Path) -> None:
    found = read(tmp_path, model_with_metadata("gemma4-31b-iq4_xs", {"attention.shared_kv_layers": 18}))
    assert (found.attention_layers, found.cacheless_layers, found.window_layers) == (42, 18, 35)
    assert found.recurrent_layers == 0


def test_nemotron_h_has_three_kinds_of_layers(tmp_path: Path) -> None:
    """Four layers: Mamba-2, feed-forward, Mamba-2, attention."""
    kinds: dict[str, Value | None] = {
        "attention.head_count_kv": [0, 0, 0, 2] * 8,
        "feed_forward_length": [0, 1_856, 0, 0] * 8,
    }
    found = read(
        tmp_path,
        model_with_metadata(
            "qwen35-9b-q4_k_m", kinds | {"nextn_predict_layers": None, "block_count": 32}, "nemotron_h"
        ),
    )
    assert (found.attention_layers, found.cacheless_layers, found.recurrent_layers) == (8, 8, 16)
    assert found.ffn == 1_856


@pytest.mark.parametrize(
    "metadata",
    [
        {"block_count": 1_000},
        {"block_count": 0},
        {"block_count": None},
        {"attention.head_count": 0},
        {"attention.head_count": None},
        {"embedding_length": None},
        {"embedding_length": 2**31},
        {"attention.head_count_kv": 2**32 - 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["qwen35moe-35b-q3_k_xl", "gemma3-12b-q4_k"])
def test_impossible_numbers_are_an_error(name: str, metadata: dict[str, Value | None], tmp_path: Path) -> None:
    with pytest.raises(GeometryUnknown, match="header of model"):
        read(tmp_path, model_with_metadata(name, metadata))


@pytest.mark.parametrize(
    "metadata",
    [
        {"expert_used_count": None},
        {"expert_used_count": 0},
        {"expert_used_count": 257},
        {"expert_count": 2**30, "expert_used_count": 2**30},
    ],
    ids=str,
)
def test_impossible_numbers_of_used_experts_are_an_error(metadata: dict[str, Value | None], tmp_path: Path) -> None:
    with pytest.raises(GeometryUnknown, match=r"no usable qwen35moe\.expert_used_count \([\d,]+\): it should be"):
        read(tmp_path, model_with_metadata("qwen35moe-35b-q3_k_xl", metadata))


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("llama-8b-q4_k", "attention.head_count_kv", 0),
        ("llama-8b-q4_k", "attention.key_length", 0),
        ("llama-8b-q4_k", "attention.value_length", 0),
        ("llama-8b-q4_k", "feed_forward_length", None),
        ("qwen35moe-35b-q3_k_xl", "attention.head_count_kv", 0),
        ("qwen35moe-35b-q3_k_xl", "ssm.inner_size", None),
        ("qwen35moe-35b-q3_k_xl", "ssm.state_size", 0),
        ("qwen35moe-35b-q3_k_xl", "ssm.conv_kernel", None),
        ("gemma4-31b-iq4_xs", "attention.key_length_swa", 0),
    ],
)
def test_a_missing_number_that_memory_depends_on_is_an_error(
    name: str, key: str, value: int | None, tmp_path: Path
) -> None:
    made = model_with_metadata(name, {key: value})
    with pytest.raises(GeometryUnknown, match=rf"no usable {made.architecture}\.{re.escape(key)} \(0\)") as broken:
        read(tmp_path, made)
    assert "--ask-engine" in broken.value.hint


def test_layers_without_any_cache_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(GeometryUnknown, match=r"no usable llama\.ssm\."):
        read(tmp_path, model_with_metadata("llama-8b-q4_k", {"attention.head_count_kv": [0] * 32}))


def test_a_model_without_trunk_layers_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GeometryUnknown, match="lists 0 layers of 16 heads"):
        read(tmp_path, model_with_metadata("qwen35moe-35b-q3_k_xl", {"nextn_predict_layers": 41}))


def test_states_follow_from_the_sizes_of_the_delta_net(tmp_path: Path) -> None:
    found = read(tmp_path, model("qwen35moe-35b-q3_k_xl"))
    # llama.cpp: (kernel - 1) x (inner + 2 x groups x state), and state x inner; 30 layers of both in f32 are 62.81 MiB.
    assert found.conv_state == 3 * (4_096 + 2 * 16 * 128)
    assert found.delta_state == 128 * 4_096
    assert 30 * 4 * (found.conv_state + found.delta_state) / 2**20 == pytest.approx(62.81, abs=0.01)
