"""The memory estimate beside what engines printed on real GPUs, and what must hold for any setting."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.base.errors import BadOption
from launcher.models.catalogue import Catalogue, ModelEntry, ModelFile
from launcher.models.catalogue_load import shipped_models
from launcher.models.compute_buffers import Backend
from launcher.models.geometry import Geometry
from launcher.models.memory import (
    KV_TYPES,
    MemoryParts,
    PlanSettings,
    draft_kv_bytes,
    estimate_memory,
    kv_bytes,
    recurrent_bytes,
)
from launcher.models.overhead import USUAL_MIB
from launcher.models.preset import Preset
from launcher.models.weights import Block, Weights, weights_by_rules

MIB = 2**20
CATALOGUE = Catalogue(tuple(shipped_models()))
MOE, DENSE = CATALOGUE.find("qwen3.6-35b-a3b-mtp"), CATALOGUE.find("qwen3.8-27b")


def geometry_of(entry: ModelEntry) -> Geometry:
    assert entry.geometry is not None
    return entry.geometry


def weights(entry: ModelEntry, quant: str) -> Weights:
    file = entry.file(quant)
    assert file is not None
    found = weights_by_rules(entry, file, geometry_of(entry))
    assert found is not None
    return found


def parts(entry: ModelEntry, quant: str, setting: PlanSettings) -> MemoryParts:
    return estimate_memory(geometry_of(entry), weights(entry, quant), setting).parts


def mib(size: int) -> float:
    return size / MIB


LOGS = (
    # qiip engine logs (b10964, CUDA, 262,144 context, ubatch 256, one slot, draft 2, draft's KV in f16): weights,
    # KV, states, compute, draft's KV, draft's compute; then the peaks on an L4 and an A30, CUDA's own included.
    (MOE, "UD-Q3_K_XL", "q8_0", (15_903.7, 2_720.0, 188.44, 666.3, 512.0, 148.0), (20_422, 20_469)),
    (DENSE, "UD-Q4_K_S", "q4_0", (14_115.3, 4_608.0, 448.88, 1_192.3, 1_024.0, 162.0), (21_818, 21_865)),
)


class TestAgainstRealEngines:
    """Peaks and buffers that llama.cpp printed: compute within 3 %, totals within 1.5 %, the rest to the MiB."""

    @pytest.mark.parametrize(("entry", "quant", "kv", "buffers", "peaks"), LOGS, ids=["moe", "dense"])
    def test_every_buffer_of_two_logs_is_computed(
        self, entry: ModelEntry, quant: str, kv: str, buffers: tuple[float, ...], peaks: tuple[int, int]
    ) -> None:
        found = parts(entry, quant, PlanSettings(262_144, kv, draft=2, ubatch=256))
        load, cache, states, compute, draft_cache, draft_compute = buffers
        assert mib(found.weights) == pytest.approx(load, abs=1)
        assert mib(found.kv) == cache
        assert mib(found.recurrent) == pytest.approx(states, abs=0.01)
        assert mib(found.draft_kv) == draft_cache
        assert mib(found.compute) == pytest.approx(compute, rel=0.03)
        assert mib(found.draft_compute) == pytest.approx(draft_compute, rel=0.03)
        assert found.staging == found.mmproj == 0
        for peak in peaks:
            assert mib(found.total) == pytest.approx(peak, rel=0.015)

    def test_the_overhead_is_the_difference_of_peaks_and_buffers(self) -> None:
        for _, _, _, buffers, peaks in LOGS:
            left = [peak - sum(buffers) for peak in peaks]
            assert 265 < left[0] < left[1] < USUAL_MIB["cuda"] + 5

    def test_the_memory_of_a_full_rtx_3090(self) -> None:
        # IQ4_NL, 150,000 tokens of f16, draft 2: 21.1 GiB in use (a public report).
        found = parts(MOE, "UD-IQ4_NL", PlanSettings(150_000, "f16", draft=2))
        assert mib(found.total) / 1_024 == pytest.approx(21.1, rel=0.015)

    @pytest.mark.parametrize(("draft", "measured"), [(0, 14_514), (2, 15_404), (4, 15_704)])
    def test_the_memory_of_a_dense_model_on_an_rtx_5060_ti(self, draft: int, measured: int) -> None:
        # Qwen3.8-27B Q4-XYZ-v2, 32,768 tokens of q4_0 (sudoingX/qwen38-mtp). The file's size is not published; 13,362
        # MiB of weights and 300 MiB for the head explain other figures of this file.
        found = Weights(0, 13_362 * MIB, (Block(0),) * 64, (Block(300 * MIB),), exact=True)
        total = estimate_memory(geometry_of(DENSE), found, PlanSettings(32_768, "q4_0", draft=draft)).parts.total
        assert mib(total) == pytest.approx(measured, rel=0.015)

    def test_each_draft_token_of_a_dense_model_takes_150_mib(self) -> None:
        found = [parts(DENSE, "UD-Q4_K_S", PlanSettings(32_768, "q4_0", draft=draft)).total for draft in (2, 3, 4)]
        assert mib(found[1] - found[0]) == pytest.approx(150, abs=2)
        assert mib(found[2] - found[1]) == pytest.approx(150, abs=2)

    def test_figures_of_the_engine_without_mtp(self) -> None:
        # A dry run of b11434 on an emulated card: the context takes 2,782 MiB without MTP and 2,908 MiB with MTP, which
        # also adds 512 and 148 MiB for the head.
        on, off = (parts(MOE, "UD-Q3_K_XL", PlanSettings(262_144, "q8_0", draft, 256)) for draft in (2, 0))
        assert round(mib(off.kv + off.recurrent)) == 2_783
        assert round(mib(on.kv + on.recurrent)) == 2_908
        assert (off.draft_kv, off.draft_compute) == (0, 0)


class TestCaches:
    @pytest.mark.parametrize(
        ("kv", "moe", "dense"),
        [
            # Bytes per token: 10 layers with 2 heads, and 16 with 4; 256 elements each for a key and a value.
            ("f16", 20_480, 65_536),
            ("bf16", 20_480, 65_536),
            ("f32", 40_960, 131_072),
            ("q8_0", 10_880, 34_816),
            ("q5_1", 7_680, 24_576),
            ("q5_0", 7_040, 22_528),
            ("q4_1", 6_400, 20_480),
            ("q4_0", 5_760, 18_432),
        ],
    )
    def test_cache_bytes_per_token(self, kv: str, moe: int, dense: int) -> None:
        assert kv_bytes(geometry_of(MOE), PlanSettings(65_536, kv)) == 65_536 * moe
        assert kv_bytes(geometry_of(DENSE), PlanSettings(65_536, kv)) == 65_536 * dense

    def test_the_context_is_padded_for_each_slot(self) -> None:
        assert kv_bytes(geometry_of(MOE), PlanSettings(1_000, "f16")) == 1_024 * 20_480
        assert kv_bytes(geometry_of(MOE), PlanSettings(1_000, "f16", slots=4)) == 4 * 256 * 20_480

    def test_the_cache_of_the_head_is_one_layer_of_f16_for_any_target(self) -> None:
        for kv in KV_TYPES:
            assert draft_kv_bytes(geometry_of(MOE), PlanSettings(262_144, kv)) == 512 * MIB
            assert draft_kv_bytes(geometry_of(DENSE), PlanSettings(262_144, kv)) == 1_024 * MIB

    @pytest.mark.parametrize(("entry", "state"), [(MOE, 62.81), (DENSE, 149.63)], ids=["moe", "dense"])
    def test_states_exist_per_slot_and_draft_token(self, entry: ModelEntry, state: float) -> None:
        one = recurrent_bytes(geometry_of(entry), slots=1, draft=0)
        assert mib(one) == pytest.approx(state, abs=0.01)
        assert recurrent_bytes(geometry_of(entry), slots=4, draft=2) == 12 * one

    def test_an_attention_only_model_has_no_states(self) -> None:
        plain = replace(
            geometry_of(DENSE), state_size=0, inner_size=0, group_count=0, conv_kernel=0, attention_layers=64
        )
        assert recurrent_bytes(plain, slots=4, draft=2) == 0

    def test_a_cache_type_unknown_to_the_engine_is_refused(self) -> None:
        with pytest.raises(BadOption, match="iq4_nl"):
            estimate_memory(geometry_of(MOE), weights(MOE, "UD-Q3_K_XL"), PlanSettings(32_768, "iq4_nl"))


PRESETS = [
    pytest.param(entry, preset, id=f"{entry.id}-{preset.memory_gb}-{preset.quant}-{preset.ctx}-{preset.intents[0]}")
    for entry in CATALOGUE.models
    for preset in entry.presets
    if preset.predicted_mib and entry.geometry
]


class TestPresets:
    """The figures beside the presets come from another implementation of the formula."""

    @pytest.mark.parametrize(("entry", "preset"), PRESETS)
    def test_the_estimate_uses_the_values_of_a_preset(self, entry: ModelEntry, preset: Preset) -> None:
        file = entry.file(preset.quant)
        assert file is not None
        if file.size_bytes is None:
            assert weights_by_rules(entry, file, geometry_of(entry)) is None
            return
        setting = PlanSettings(preset.ctx, preset.kv, preset.draft, preset.ubatch, preset.slots, preset.n_cpu_moe)
        found = estimate_memory(geometry_of(entry), weights(entry, preset.quant), setting).parts
        total = found.total
        if preset.n_cpu_moe:
            # That formula takes a whole layer of experts for the copy on the GPU. The graph needs less: the copy's
            # place is shared with other buffers (an engine's dry run on emulated cards).
            layer = weights(entry, preset.quant).blocks[0].experts
            assert found.staging <= layer
            total += layer - found.staging
        assert preset.predicted_mib is not None
        if preset.slots > 1:
            # That formula gives every slot the whole context in one mask; the engine splits it among the slots.
            assert preset.predicted_mib * 0.95 < mib(total) < preset.predicted_mib
        else:
            # The files of Qwen3.8-27B were replaced by smaller ones after the presets were made.
            assert mib(total) == pytest.approx(preset.predicted_mib, rel=0.02 if entry is DENSE else 0.005)


SETTINGS = st.builds(
    PlanSettings,
    context=st.sampled_from([512, 8_192, 32_768, 65_536, 131_072, 262_144]),
    kv=st.sampled_from(sorted(KV_TYPES)),
    draft=st.integers(0, 4),
    ubatch=st.sampled_from([128, 256, 512, 1_024, 2_048]),
    slots=st.sampled_from([1, 2, 4]),
    n_cpu_moe=st.sampled_from([0, 0, 1, 20, 40, 41]),
    backend=st.sampled_from(["cuda", "vulkan", "cpu", "rocm", "metal"]),
    gpus=st.sampled_from([1, 1, 2]),
)
MODELS = st.sampled_from([(MOE.id, "UD-Q3_K_XL"), (MOE.id, "UD-Q4_K_XL"), (DENSE.id, "UD-Q4_K_M")])


class TestAnySetting:
    @settings(deadline=None, derandomize=True, max_examples=150)
    @given(model=MODELS, setting=SETTINGS)
    def test_parts_are_never_negative_and_sum_to_the_total(self, model: tuple[str, str], setting: PlanSettings) -> None:
        entry = CATALOGUE.find(model[0])
        found = estimate_memory(geometry_of(entry), weights(entry, model[1]), setting)
        sizes = found.parts.as_dict()
        assert all(isinstance(size, int) and size >= 0 for size in sizes.values())
        assert found.parts.total == sum(sizes.values())
        assert min(found.host.at_start, found.host.checkpoints_most, found.host.prompt_cache_most) >= 0
        mtp = setting.draft > 0
        assert (found.parts.draft_kv > 0, found.parts.draft_compute > 0) == (mtp, mtp)

    @settings(deadline=None, derandomize=True, max_examples=100)
    @given(model=MODELS, setting=SETTINGS)
    def test_weights_are_counted_once_on_gpu_or_host(self, model: tuple[str, str], setting: PlanSettings) -> None:
        entry = CATALOGUE.find(model[0])
        known = weights(entry, model[1])
        heads = known.heads if setting.draft else ()
        all_of_them = known.embedding + known.output + sum(block.rest + block.experts for block in known.blocks + heads)
        found = estimate_memory(geometry_of(entry), known, setting)
        assert found.parts.weights + found.host.weights == all_of_them
        if setting.backend == "cpu":
            assert found.host.weights == 0

    @settings(deadline=None, derandomize=True, max_examples=100)
    @given(model=MODELS, setting=SETTINGS)
    def test_a_longer_context_more_drafts_and_more_slots_never_take_less_memory(
        self, model: tuple[str, str], setting: PlanSettings
    ) -> None:
        entry = CATALOGUE.find(model[0])

        def caches(changed: PlanSettings) -> int:
            found = estimate_memory(geometry_of(entry), weights(entry, model[1]), changed).parts
            return found.kv + found.recurrent + found.draft_kv

        for larger in (
            replace(setting, context=2 * setting.context),
            replace(setting, draft=setting.draft + 1),
            replace(setting, slots=setting.slots + 1),
        ):
            assert caches(larger) >= caches(setting)

    def test_caches_are_the_same_on_every_backend(self) -> None:
        found = [
            parts(MOE, "UD-Q3_K_XL", PlanSettings(65_536, "q8_0", backend=backend))
            for backend in ("cuda", "vulkan", "rocm", "metal", "cpu")
        ]
        assert len({(each.kv, each.recurrent, each.draft_kv) for each in found}) == 1
        # CUDA keeps an f16 copy of a layer's keys and values when the cache is quantised: 65,536 x 2 KiB.
        assert mib(found[0].compute - found[4].compute) == pytest.approx(128, rel=0.2)

    def test_cuda_copies_each_type_of_cache_but_f16(self) -> None:
        def compute(kv: str, backend: Backend = "cuda") -> int:
            return parts(MOE, "UD-Q3_K_XL", PlanSettings(131_072, kv, backend=backend)).compute

        assert compute("bf16") == compute("f32") == pytest.approx(compute("q8_0"), rel=0.05)
        assert mib(compute("bf16") - compute("f16")) > 100
        assert compute("bf16", "vulkan") == compute("f16", "vulkan")

    def test_every_gpu_has_an_overhead(self) -> None:
        for gpus in (1, 2, 3):
            assert parts(MOE, "UD-Q3_K_XL", PlanSettings(65_536, gpus=gpus)).overhead == gpus * 330 * MIB
        assert parts(MOE, "UD-Q3_K_XL", PlanSettings(65_536, gpus=2, backend="cpu")).overhead == 240 * MIB

    def test_a_projector_and_a_separate_draft_are_counted(self) -> None:
        plain = parts(MOE, "UD-Q3_K_XL", PlanSettings(65_536))
        # mmproj-F16: 858 MiB of weights, and buffers of its encoder, which were not measured.
        with_projector = parts(MOE, "UD-Q3_K_XL", PlanSettings(65_536, mmproj_bytes=899_283_584))
        assert 858 + 300 <= mib(with_projector.total - plain.total) <= 858 + 700
        with_draft_model = parts(MOE, "UD-Q3_K_XL", PlanSettings(65_536, draft_sizes=(("mtp-head", 514_687_104),)))
        assert with_draft_model.total - plain.total >= 514_687_104

    def test_a_model_without_a_head_has_no_draft_memory(self) -> None:
        headless = replace(weights(MOE, "UD-Q3_K_XL"), heads=())
        without = replace(geometry_of(MOE), mtp_layers=0)
        with_draft, plain = (
            estimate_memory(without, headless, PlanSettings(65_536, draft=draft)).parts for draft in (3, 0)
        )
        assert with_draft == plain

    def test_host_memory_that_may_be_used_later_is_counted(self) -> None:
        found = estimate_memory(
            geometry_of(MOE), weights(MOE, "UD-Q4_K_XL"), PlanSettings(131_072, "q8_0", n_cpu_moe=30)
        ).host
        # 32 checkpoints of 62.845 MiB each (the engine's log), and --cache-ram's 8,192 MiB.
        assert mib(found.checkpoints_most) == pytest.approx(32 * 62.845, rel=1e-3)
        assert mib(found.prompt_cache_most) == 8_192
        assert mib(found.weights) == pytest.approx(30 * 468 + 515.3, abs=2)


def test_ngram_drafts_need_logits_but_no_states_or_cache() -> None:
    entry = CATALOGUE.find("qwen3.6-35b-a3b")
    off, on = (parts(entry, "UD-IQ3_S", PlanSettings(32_768, draft=draft, spec_type="ngram-mod")) for draft in (0, 3))
    assert (on.recurrent, on.draft_kv, on.draft_compute) == (off.recurrent, 0, 0)
    assert on.compute == parts(entry, "UD-IQ3_S", PlanSettings(32_768, draft=16, spec_type="ngram-mod")).compute
    assert 0 < on.compute - off.compute <= 48 * 4 * geometry_of(entry).vocabulary


# Caches of other kinds, as engines printed them


def cache_mib(model_id: str, setting: PlanSettings) -> float:
    return kv_bytes(geometry_of(CATALOGUE.find(model_id)), setting) / MIB


def test_latent_attention_caches_keys_only_and_indexers_one_more_key() -> None:
    """A log of GLM-5.2 (llama.cpp, 768,000 cells): 78 layers 65,812.50 MiB, "V (f16): 0.00 MiB", indexers 3,937.50."""
    assert cache_mib("glm-5.2", PlanSettings(768_000)) == 65_812.5 + 3_937.5
    assert cache_mib("glm-5.2", PlanSettings(524_288)) == 44_928 + 2_688
    # 47 layers of 576 elements: the print of GLM-4.7-Flash in ik_llama.cpp#1167 has n_embd_k_gqa 576.
    assert cache_mib("glm-4.7-flash", PlanSettings(32_768)) == 47 * 576 * 2 / 32


def test_every_other_layer_of_gpt_oss_has_a_window() -> None:
    """A log of gpt-oss-20b (b6699, 131,072 cells, ubatch 512): 3,072 and 18 MiB; with ubatch 2,048 54 MiB."""
    assert cache_mib("gpt-oss-20b", PlanSettings(131_072)) == 3_072 + 18
    assert cache_mib("gpt-oss-20b", PlanSettings(131_072, ubatch=2_048)) == 3_072 + 54
    # Slots that share one cache need a window each (llama-kv-cache-iswa.cpp: n_swa * n_seq_max); 4 x 128 + 512 cells.
    assert cache_mib("gpt-oss-20b", PlanSettings(131_072, slots=4, kv_unified=True)) == 3_072 + 24


def test_layers_that_share_a_cache_have_none() -> None:
    """A log of Gemma 4 E4B (65,536 cells, q8_0): 544.00 MiB in 4 layers, 21.25 MiB in 20 with a window; 18 share."""
    assert cache_mib("gemma-4-e4b", PlanSettings(65_536, kv="q8_0")) == 544 + 21.25


def test_states_of_small_delta_nets_equal_the_output_of_the_engine() -> None:
    """A log of Qwen3.5-0.8B (262,144 cells, 4 slots): KV 3,072.00 MiB in 6 layers, states 77.06 MiB."""
    small = geometry_of(CATALOGUE.find("qwen3.5-0.8b"))
    assert kv_bytes(small, PlanSettings(262_144, slots=4, kv_unified=True)) / MIB == 3_072
    assert recurrent_bytes(small, slots=4, draft=0) / MIB == pytest.approx(77.06, abs=0.01)


def test_mamba_layers_have_states_and_feed_forward_layers_nothing() -> None:
    """23 Mamba-2 layers of n_embd_r 3 x (4,096 + 2 x 8 x 128) and n_embd_s 128 x 4,096 (src/llama-hparams.cpp)."""
    nano = geometry_of(CATALOGUE.find("nemotron-3-nano-30b-a3b"))
    assert (nano.attention_layers, nano.recurrent_layers, nano.expert_layers) == (6, 23, 23)
    assert recurrent_bytes(nano, slots=1, draft=0) == 23 * 4 * (3 * 6_144 + 128 * 4_096)
    assert kv_bytes(nano, PlanSettings(131_072)) / MIB == 6 * 2 * 2 * 128 * 2 / 8


@pytest.mark.parametrize(
    ("model_id", "quant", "setting", "gib"),
    # Peaks that a board of results gives in GB, taken as GiB (llmfit, RTX 5090, 8,192 tokens of q8_0, no drafts).
    [
        ("glm-4.7-flash", "UD-Q6_K_XL", PlanSettings(8_192, kv="q8_0", draft=0), 25.0),
        ("gemma-4-12b", "UD-Q8_K_XL", PlanSettings(8_192, kv="q8_0", draft=0), 13.7),
        ("gemma-4-31b", "UD-Q6_K_XL", PlanSettings(8_192, kv="q8_0", draft=0), 27.3),
    ],
)
def test_a_published_total_is_in_the_range(model_id: str, quant: str, setting: PlanSettings, gib: float) -> None:
    entry = CATALOGUE.find(model_id)
    file = entry.file(quant) or ModelFile(quant=quant, file="not listed")
    found = weights_by_rules(entry, file, geometry_of(entry))
    assert found
    estimate = estimate_memory(geometry_of(entry), found, setting)
    assert not estimate.exact
    assert estimate.low <= gib * 1_024 * MIB <= estimate.high + 0.3 * 1_024 * MIB
    assert estimate.parts.total / MIB == pytest.approx(gib * 1_024, rel=0.05)


def test_an_estimate_without_a_guess_has_no_range() -> None:
    exact = Weights(0, 13_362 * MIB, (Block(0),) * 64, (Block(300 * MIB),), exact=True)
    known = estimate_memory(geometry_of(DENSE), exact, PlanSettings(8_192, backend="vulkan"))
    assert known.low == known.parts.total == known.high
    pooled = estimate_memory(geometry_of(DENSE), exact, PlanSettings(8_192))
    assert pooled.exact
    assert pooled.low < pooled.parts.total < pooled.high
    projected = estimate_memory(
        geometry_of(DENSE), exact, PlanSettings(8_192, backend="vulkan", mmproj_bytes=900 * MIB)
    )
    assert [end / MIB for end in (projected.low, projected.high)] == [
        projected.parts.total / MIB + doubt for doubt in (-200, 200)
    ]
    unknown = estimate_memory(
        replace(geometry_of(DENSE), cache_known=False), exact, PlanSettings(8_192, backend="vulkan")
    )
    assert not unknown.exact
    assert unknown.low < known.low - 0.8 * known.parts.kv
    assert unknown.high > known.high + 0.4 * known.parts.kv
    guessed = estimate_memory(geometry_of(DENSE), exact, PlanSettings(8_192, backend="metal"))
    assert guessed.low < guessed.parts.total < guessed.high
