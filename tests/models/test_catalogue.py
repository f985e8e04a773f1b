"""The shipped catalogue: complete, true to its own arithmetic, and never without evidence."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from launcher.base.codec import from_json
from launcher.base.errors import ModelUnknown
from launcher.engine.demo import DEMO
from launcher.models.catalogue import Catalogue, ModelEntry, ModelFile
from launcher.models.catalogue_load import load_catalogue
from launcher.models.catalogue_schema import ModelsFile, UserFile, find_contradictions
from launcher.models.drafters import DRAFTERS
from launcher.models.preset import Preset
from tools.export_schema import SCHEMA, render_schema

ROOT = Path(__file__).parents[2]
SHIPPED = sorted(path for path in (ROOT / "presets").glob("*.toml") if path.stem != "gpus")
MIB = 2**20

CATALOGUE = load_catalogue(ROOT / "nothing", hub_figures=False)
MOE = CATALOGUE.find("qwen3.6-35b-a3b-mtp")
NO_HEAD = CATALOGUE.find("qwen3.6-35b-a3b")
DENSE = CATALOGUE.find("qwen3.8-27b")
QWEN = [model for model in CATALOGUE.models if model.id.startswith("qwen3.6") or model is DENSE]

BITS_PER_ELEMENT = {"F16": 16, "BF16": 16, "Q8_0": 8.5, "Q4_K": 4.5, "Q3_K": 3.4375}
"""ggml block sizes: 34 bytes for 32 (Q8_0), 144 and 110 for 256 (Q4_K, Q3_K)."""
KV_BYTES = {"f16": 2, "q8_0": 34 / 32, "q4_0": 18 / 32}


def size_mib(file: ModelFile) -> float:
    assert file.size_bytes
    return file.size_bytes / MIB


def file_of(model: ModelEntry, quant: str) -> ModelFile:
    file = model.file(quant)
    assert file
    return file


def token_embd_mib(model: ModelEntry, file: ModelFile) -> float:
    assert model.geometry
    assert file.token_embd_type
    elements = model.geometry.vocabulary * model.geometry.hidden
    return elements * BITS_PER_ELEMENT[file.token_embd_type] / 8 / MIB


def presets(model: ModelEntry, **wanted: object) -> list[Preset]:
    intent = wanted.pop("intent", None)
    return [
        preset
        for preset in model.presets
        if intent in (None, *preset.intents) and all(getattr(preset, name) == value for name, value in wanted.items())
    ]


# The files fit their schema


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_file_is_valid_and_loads_as_its_schema_says(path: Path) -> None:
    source = UserFile.read(path, [])
    tables = source.valid_tables(ModelsFile, "models")
    assert source.problems == []
    assert [list(find_contradictions(from_json(ModelEntry, table))) for _, table in tables] == [[] for _ in tables]
    data = tomllib.loads(path.read_text("utf-8"))
    assert ModelsFile.model_validate_json(json.dumps(data)).models == tuple(
        from_json(ModelEntry, table) for table in data["models"]
    )


def test_the_exported_schema_is_up_to_date() -> None:
    assert SCHEMA.read_text("utf-8") == render_schema(), "run `just generate`"


def test_the_exported_schema_describes_all_its_tables() -> None:
    schema = json.loads(render_schema())
    names = {part.split("/")[-1] for part in render_schema().split('"') if part.startswith("#/$defs/")}
    assert names == set(schema["$defs"])
    for name in names - {"Geometry"}:
        fields = schema["$defs"][name]["properties"]
        assert all(field.get("description") for field in fields.values()), name
    assert schema["$defs"]["Preset"]["properties"]["mark"]["enum"] == ["measured", "derived", "guess"]
    assert schema["$defs"]["ModelFile"]["additionalProperties"] is False


def test_every_shipped_file_names_its_schema_for_editors() -> None:
    for path in SHIPPED:
        assert path.read_text("utf-8").startswith("#:schema schema.json\n"), path
    assert SCHEMA.parent == SHIPPED[0].parent


# The catalogue is complete.


def test_models_have_unique_ids() -> None:
    ids = [model.id for model in CATALOGUE.models]
    assert len(ids) == len(set(ids))
    assert set(ids) >= {DEMO, "qwen3.6-35b-a3b-mtp", "qwen3.6-27b-mtp", "gemma-4-31b"}
    assert len(ids) >= 40
    assert CATALOGUE.problems == ()


def test_the_moe_model_has_all_22_quantisations_pinned_and_with_sizes() -> None:
    assert [file.quant for file in MOE.files] == [
        "UD-IQ1_M", "UD-IQ2_XXS", "UD-IQ2_M", "UD-Q2_K_XL", "UD-IQ3_XXS", "UD-IQ3_S", "UD-Q3_K_M", "UD-Q3_K_XL",
        "UD-IQ4_XS", "UD-IQ4_NL", "UD-Q4_K_S", "MXFP4_MOE", "UD-Q4_K_M", "UD-Q4_K_XL", "UD-Q5_K_S", "UD-Q5_K_M",
        "UD-Q5_K_XL", "UD-Q6_K", "UD-Q6_K_XL", "Q8_0", "UD-Q8_K_XL", "BF16",
    ]  # fmt: skip
    sizes = [file.size_bytes for file in MOE.files]
    assert None not in sizes
    assert sizes == sorted(sizes, key=lambda size: size or 0)
    assert sum(1 for file in MOE.files if file.sha256) == 5
    assert MOE.revision == "5bc3e238d916f48a861bac2f8a1990a0e9b7e98d"


def test_bits_are_parsed_from_the_name() -> None:
    bits = {file.quant: file.bits for file in MOE.files}
    assert (bits["UD-IQ1_M"], bits["UD-Q2_K_XL"], bits["UD-IQ3_S"], bits["MXFP4_MOE"]) == (1, 2, 3, 4)
    assert (bits["UD-Q5_K_S"], bits["UD-Q6_K"], bits["Q8_0"], bits["BF16"]) == (5, 6, 8, 16)
    assert ModelFile(quant="my-own", file="x.gguf").bits is None


def test_the_demo_entry_matches_the_shipped_file() -> None:
    about = json.loads((ROOT / "resources" / "demo" / "demo.json").read_text("utf-8"))
    file = CATALOGUE.find(DEMO).files[0]
    assert (file.file, file.size_bytes, file.sha256) == (about["file"], about["size_bytes"], about["sha256"])


def test_every_kind_of_speculation_has_the_name_of_the_engine() -> None:
    assert {row.name: row.spec_type for row in DRAFTERS.values() if row.name != row.spec_type} == {
        "mtp": "draft-mtp", "draft-file": "draft-mtp", "draft-model": "draft-simple",
        **{name: f"draft-{name}" for name in ("eagle3", "dflash", "dflash2", "dspark", "lilicorr")},
    }  # fmt: skip
    for model in CATALOGUE.models:
        assert model.draft_file == model.draft


def test_a_file_without_its_head_is_marked() -> None:
    assert MOE.has_head(MOE.files[0])
    assert not NO_HEAD.has_head(NO_HEAD.files[0])
    assert not DENSE.has_head(file_of(DENSE, "UD-IQ2_XXS"))
    assert DENSE.mtp_block_mib(file_of(DENSE, "UD-IQ2_XXS")) is None


# No figure is without evidence.


def test_every_figure_has_a_source() -> None:
    for model in CATALOGUE.models:
        assert model.files_source, model.id
        assert bool(model.geometry) == bool(model.geometry_source), model.id
        assert all(preset.source for preset in model.presets), model.id
        assert all(one.tokens_per_second or one.memory_mib or one.note for one in model.measurements), model.id
        unsaid = [preset for preset in model.presets if preset.mark != "derived" and not preset.note]
        assert not unsaid, f"{model.id}: the note says what was measured or guessed"
        for file in model.files:
            known = file.size_bytes or file.about_bytes or file.note
            assert known or model.parameters_b, f"{model.id}, {file.quant}: nothing tells its size"


def test_results_against_mtp_are_included() -> None:
    slower = {one.gpu for model in QWEN for one in model.measurements if one.speedup and one.speedup < 1}
    assert {"RTX 5080", "Radeon 8060S (Strix Halo)", "RTX 3080"} <= slower


def test_slow_down_by_context_fill_on_the_5060_ti_is_included() -> None:
    runs = [one for one in MOE.measurements if one.gpu == "RTX 5060 Ti" and one.kv == "q4_0"]
    rows = [one for one in runs if one.draft]
    assert [one.filled for one in rows] == [0, 10_000, 40_000, 55_000]
    assert [one.speedup for one in rows] == pytest.approx([1.47, 1.46, 1.36, 1.32], abs=0.01)
    baseline = {one.filled: one.tokens_per_second for one in runs if one.draft == 0}
    assert all(one.baseline == baseline[one.filled] for one in rows)


def test_small_quantisations_and_4_bit_caches_have_a_note() -> None:
    for quant in ("UD-IQ2_M", "UD-Q2_K_XL", "UD-IQ3_S", "UD-IQ1_M"):
        assert len(MOE.quality_notes(quant, "q8_0")) == 1
        assert len(MOE.quality_notes(quant, "q4_0")) == 2
    assert MOE.quality_notes("UD-IQ4_XS", "f16") == ()


# The figures agree with each other


def test_the_delta_net_state_equals_the_output_of_the_engine() -> None:
    for model, mib in ((MOE, 62.81), (DENSE, 149.63)):
        shape = model.geometry
        assert shape
        elements = shape.recurrent_layers * (shape.conv_state + shape.delta_state)
        assert elements * 4 / MIB == pytest.approx(mib, abs=0.005)


def test_kv_bytes_per_token_equal_the_output_of_the_engine() -> None:
    for model, f16_bytes in ((MOE, 20_480), (DENSE, 65_536)):
        shape = model.geometry
        assert shape
        assert shape.attention_layers * shape.kv_heads * (shape.key_length + shape.value_length) * 2 == f16_bytes


def test_the_experts_hold_33_billion_parameters() -> None:
    shape, rules = MOE.geometry, MOE.weights
    assert shape
    assert rules
    assert rules.expert_blocks == shape.layers + shape.mtp_layers
    assert rules.expert_blocks * shape.experts * 3 * shape.hidden * shape.expert_ffn == pytest.approx(33.02e9, rel=1e-3)


def test_files_of_one_geometry_differ_in_the_head_only() -> None:
    assert MOE.geometry
    assert NO_HEAD.geometry
    assert (MOE.geometry.mtp_layers, NO_HEAD.geometry.mtp_layers) == (1, 0)
    assert MOE.geometry.layers == NO_HEAD.geometry.layers
    assert CATALOGUE.find("qwen3.6-27b-mtp").geometry == DENSE.geometry


def test_weights_on_the_gpu_equal_the_measured_ones() -> None:
    """Engine logs of build 10964: 15,903.7 MiB for UD-Q3_K_XL, 14,115.3 for Qwen3.8-27B UD-Q4_K_S."""
    for model, quant, mib in ((MOE, "UD-Q3_K_XL", 15_903.7), (DENSE, "UD-Q4_K_S", 14_115.3)):
        file = file_of(model, quant)
        assert model.weights
        assert size_mib(file) - model.weights.header_mib - token_embd_mib(model, file) == pytest.approx(mib, abs=0.1)


def test_measured_and_computed_sizes_of_an_expert_layer_agree() -> None:
    for quant, mib in (("UD-Q3_K_XL", 337), ("UD-Q4_K_M", 464), ("UD-Q4_K_XL", 468)):
        file = file_of(MOE, quant)
        assert MOE.expert_layer_mib(file) == mib
        assert MOE.expert_layer_mib(ModelFile(quant="same", file="x", size_bytes=file.size_bytes)) == pytest.approx(
            mib, abs=0.5
        )
        assert MOE.mtp_block_mib(file) == mib + 35
    assert DENSE.expert_layer_mib(DENSE.files[0]) is None
    assert DENSE.mtp_block_mib(file_of(DENSE, "UD-Q4_K_M")) == 300


def test_a_head_makes_a_file_larger() -> None:
    larger = {file.quant: (file_of(MOE, file.quant).size_bytes or 0) - (file.size_bytes or 0) for file in NO_HEAD.files}
    assert all(0 < extra < 2e9 for extra in larger.values())
    assert larger["UD-Q3_K_XL"] == pytest.approx(382e6, abs=1e6)
    assert larger["UD-IQ3_S"] == pytest.approx(1_670e6, abs=1e6)


def predicted_mib(model: ModelEntry, preset: Preset) -> float:
    """The memory formula for llama.cpp b11434 on CUDA, with 330 MiB of the driver's own.

    Its compute terms were fitted to the engine's own figures for these two shapes.
    """
    shape, rules, file = model.geometry, model.weights, file_of(model, preset.quant)
    assert shape
    assert rules
    moe = shape.experts > 0
    rows = preset.ubatch / 512
    width = shape.kv_heads * (shape.key_length + shape.value_length)
    mask = preset.ctx * preset.ubatch * 2 / MIB
    one_layer_f16 = preset.ctx * width * 2 / MIB
    kv = preset.ctx * shape.attention_layers * width * KV_BYTES[preset.kv] / MIB
    drafts = model.has_head(file) and preset.draft > 0
    state = (62.81 if moe else 149.63) * preset.slots * (1 + (preset.draft if drafts else 0))
    compute = mask + (76 if moe else 152) * rows
    if preset.kv != "f16":
        compute = max(compute, mask + one_layer_f16 + (60.3 if moe else 110.3) * rows)
    draft = one_layer_f16 + max(mask + (40 if moe else 68) * rows, (68 if moe else 130) * rows) if drafts else 0
    experts = 0.0
    if preset.n_cpu_moe:  # one layer's experts are staged on the GPU for prompts
        assert rules.beside_experts_mib
        assert rules.expert_blocks
        experts = (size_mib(file) - rules.beside_experts_mib) / rules.expert_blocks * (preset.n_cpu_moe - 1)
    weights = size_mib(file) - rules.header_mib - token_embd_mib(model, file) - experts
    return weights + kv + state + compute + draft + 330


PREDICTED = [
    (model, preset)
    for model in QWEN
    for preset in model.presets
    if preset.predicted_mib and file_of(model, preset.quant).token_embd_type
]


@pytest.mark.parametrize(
    ("model", "preset"), PREDICTED, ids=[f"{m.id}-{p.memory_gb}GB-{p.quant}-{p.ctx}-{p.kv}" for m, p in PREDICTED]
)
def test_the_memory_of_a_preset_follows_from_the_formula(model: ModelEntry, preset: Preset) -> None:
    assert predicted_mib(model, preset) == pytest.approx(preset.predicted_mib, abs=10)


def test_a_preset_leaves_free_memory() -> None:
    for model in CATALOGUE.models:
        for preset in model.presets:
            if preset.predicted_mib and preset.memory_gb:
                reserve = 1024 if preset.variant == "desktop" else 512
                assert preset.predicted_mib + reserve <= preset.memory_gb * 1024, (model.id, preset)
            assert bool(preset.n_cpu_moe) == bool(preset.host_memory_gb_min), (model.id, preset)
        sizes = [preset.memory_gb or 0 for preset in model.presets]
        assert sizes == sorted(sizes), model.id


def test_settings_of_the_articles_are_presets() -> None:
    published = {
        (model.id, preset.memory_gb): (preset.quant, preset.ctx, preset.kv, preset.draft)
        for model in (MOE, NO_HEAD)
        for preset in presets(model, intent="as-published")
    }
    assert published == {
        (MOE.id, 12): ("UD-Q4_K_XL", 131_072, "q8_0", 2),
        (MOE.id, 16): ("UD-IQ3_S", 65_536, "q4_0", 2),
        (NO_HEAD.id, 16): ("UD-IQ3_S", 262_144, "q4_0", 0),
        (MOE.id, 24): ("UD-Q3_K_XL", 262_144, "q4_0", 3),
        (MOE.id, 32): ("UD-Q4_K_XL", 65_536, "f16", 2),
    }
    assert presets(MOE, memory_gb=12, intent="as-published")[0].n_cpu_moe > 0


def test_longer_drafts_are_always_marked_as_a_guess() -> None:
    for preset in presets(MOE, draft=3):
        assert preset.mark == "guess" or preset.intents == ("as-published",)


# Finding and speed


def test_a_model_is_found_in_any_case() -> None:
    assert CATALOGUE.find("Qwen3.6-35B-A3B-MTP") is MOE
    assert MOE.file("ud-q3_k_xl") is file_of(MOE, "UD-Q3_K_XL")
    assert MOE.file("Q9") is None


def test_an_unknown_model_is_refused_with_similar_ids() -> None:
    with pytest.raises(ModelUnknown, match="qwen35-35b") as caught:
        CATALOGUE.find("qwen35-35b-a3b")
    assert "qwen3.6-35b-a3b" in caught.value.hint
    assert "mtp-launcher models" in caught.value.hint
    with pytest.raises(ModelUnknown) as caught:
        Catalogue(()).find("zzz")
    assert caught.value.hint == "`mtp-launcher models` lists all, `mtp-launcher models list` those that are here."


def test_the_shipped_catalogue_is_read_without_pydantic() -> None:
    code = (
        "import sys, time; from launcher.models.catalogue_load import load_catalogue\n"
        "load_catalogue(); print('pydantic' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout == "False\n"
