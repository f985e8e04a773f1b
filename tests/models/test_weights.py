"""Placement of weights: by tensors of a header, and by a family's rules until it is read."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.base.errors import GeometryUnknown
from launcher.models.catalogue import ModelEntry
from launcher.models.catalogue_load import load_catalogue
from launcher.models.geometry import read_geometry
from launcher.models.gguf import read_header
from launcher.models.weights import Block, Weights, read_weights, weights_by_rules
from tools.sparse_models.models import Model, model, n_bytes
from tools.sparse_models.write import write

MIB = 2**20
CATALOGUE = load_catalogue()
MOE, DENSE = CATALOGUE.find("qwen3.6-35b-a3b-mtp"), CATALOGUE.find("qwen3.8-27b")


def read(tmp_path: Path, made: Model) -> Weights:
    path = tmp_path / "model.gguf"
    write(path, "model", made)
    header = read_header(path)
    return read_weights(header, read_geometry(header))


def by_rules(entry: ModelEntry, quant: str) -> Weights:
    file = entry.file(quant)
    assert file is not None
    assert entry.geometry is not None
    found = weights_by_rules(entry, file, entry.geometry)
    assert found is not None
    return found


class TestFromAHeader:
    @pytest.mark.parametrize(
        "name", ["qwen35moe-35b-q3_k_xl", "qwen35-27b-q4_k_m", "llama-8b-q4_k", "qwen3moe-30b-q4_k"]
    )
    def test_every_tensor_is_counted_once(self, name: str, tmp_path: Path) -> None:
        made = model(name)
        found = read(tmp_path, made)
        assert found.exact
        assert found.on_device(0, mtp=True) + found.on_host(0, mtp=True) == made.tensor_bytes
        assert found.embedding == n_bytes(*made.tensors["token_embd.weight"])

    def test_experts_are_the_tensors_that_the_engine_moves(self, tmp_path: Path) -> None:
        made = model("qwen35moe-35b-q4_k_m")
        found = read(tmp_path, made)
        wanted = [n_bytes(*made.tensors[f"blk.3.ffn_{part}_exps.weight"]) for part in ("gate", "up", "down")]
        assert found.blocks[3].matrices == tuple(wanted)
        assert found.blocks[3].experts == sum(wanted)
        shared = n_bytes(*made.tensors["blk.3.ffn_up_shexp.weight"])
        assert found.blocks[3].rest > shared
        assert (found.expert_layers(mtp=True), found.expert_layers(mtp=False)) == (41, 40)

    def test_the_head_is_loaded_only_with_mtp(self, tmp_path: Path) -> None:
        made = model("qwen35moe-35b-q3_k_xl")
        found = read(tmp_path, made)
        head = sum(n_bytes(*tensor) for name, tensor in made.tensors.items() if name.startswith("blk.40."))
        assert found.on_device(0, mtp=True) - found.on_device(0, mtp=False) == head
        assert read(tmp_path, model("qwen35moe-35b-q3_k_xl-nomtp")).heads == ()

    def test_a_tied_embedding_is_on_both_sides(self, tmp_path: Path) -> None:
        made = model("gemma3-12b-q4_k")
        found = read(tmp_path, made)
        both = n_bytes(*made.tensors["token_embd.weight"])
        assert found.on_device(0, mtp=False) + found.on_host(0, mtp=False) == made.tensor_bytes + both

    @pytest.mark.parametrize(
        ("name", "quant", "floats"),
        [
            ("qwen35moe-35b-q3_k_xl", "Q3_K", (True, False)),  # its routers
            ("qwen35-27b-q4_k_m", "Q4_K", (False, False)),  # only the kernels of its convolutions
            ("llama-8b-q4_k", "BF16", (True, False)),
            ("qwen3moe-30b-q4_k", "F16", (True, True)),
        ],
    )
    def test_matrices_of_floats_are_noted(
        self, name: str, quant: str, floats: tuple[bool, bool], tmp_path: Path
    ) -> None:
        made = model(name)
        tensors = {
            tensor: (shape, quant if "ffn_up" in tensor else own) for tensor, (shape, own) in made.tensors.items()
        }
        found = read(tmp_path, replace(made, tensors=tensors))
        assert (found.floats, found.float_experts) == floats

    def test_layers_without_tensors_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "model.gguf"
        write(path, "model", model("llama-8b-q4_k"))
        header = read_header(path)
        with pytest.raises(GeometryUnknown, match="lists 1,000 layers but has 292 tensors"):
            read_weights(header, replace(read_geometry(header), layers=1_000))

    def test_an_unknown_tensor_type_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "model.gguf"
        write(path, "model", model("llama-8b-q4_k"))
        with path.open("rb") as file:
            data = bytearray(file.read(2**16))
        name = b"blk.7.attn_q.weight"
        place = data.index(name) + len(name)
        dimensions = int.from_bytes(data[place : place + 4], "little")
        at = place + 4 + 8 * dimensions
        data[at : at + 4] = (99).to_bytes(4, "little")
        with path.open("r+b") as file:
            file.write(data)
        header = read_header(path)
        with pytest.raises(GeometryUnknown, match=r"blk\.7\.attn_q\.weight"):
            read_weights(header, read_geometry(header))


class TestByRules:
    @pytest.mark.parametrize(
        ("entry", "quant", "loaded_mib"),
        # What llama.cpp loaded onto the GPU (qiip engine logs, b10964).
        [(MOE, "UD-Q3_K_XL", 15_903.7), (DENSE, "UD-Q4_K_S", 14_115.3)],
        ids=["moe", "dense"],
    )
    def test_a_load_logged_by_an_engine_is_reproduced(self, entry: ModelEntry, quant: str, loaded_mib: float) -> None:
        assert by_rules(entry, quant).on_device(0, mtp=True) / MIB == pytest.approx(loaded_mib, abs=1)

    @pytest.mark.parametrize(("quant", "layer_mib"), [("UD-Q4_K_M", 464), ("UD-Q4_K_XL", 468), ("UD-Q3_K_XL", 337)])
    def test_the_size_of_one_layer_of_experts(self, quant: str, layer_mib: int) -> None:
        found = by_rules(MOE, quant)
        assert found.blocks[0].experts / MIB == pytest.approx(layer_mib, abs=1)
        moved = found.on_device(0, mtp=True) - found.on_device(10, mtp=True)
        assert moved == 10 * found.blocks[0].experts == found.on_host(10, mtp=True) - found.on_host(0, mtp=True)

    def test_the_input_embedding_stays_on_the_host(self) -> None:
        # Q8_0 in every one of Unsloth's UD files that was seen: 248,320 x 2,048 elements.
        assert by_rules(MOE, "UD-Q3_K_XL").embedding / MIB == pytest.approx(515.31, abs=0.01)
        assert by_rules(DENSE, "UD-Q4_K_S").embedding / MIB == pytest.approx(521.0, abs=0.2)

    def test_a_file_of_unknown_size_has_unknown_weights(self) -> None:
        file = DENSE.file("Q3_K_M")
        assert file is not None
        assert file.size_bytes is None
        assert DENSE.geometry is not None
        guessed = weights_by_rules(DENSE, file, DENSE.geometry)
        assert guessed
        assert guessed.tolerance > 0.05
        assert weights_by_rules(replace(DENSE, parameters_b=None), file, DENSE.geometry) is None

    def test_every_catalogue_file_is_counted_completely(self) -> None:
        for entry in CATALOGUE.models:
            for file in entry.files:
                if entry.geometry is None or file.size_bytes is None or entry.geometry.per_layer_input:
                    continue
                found = by_rules(entry, file.quant)
                tied = entry.weights is not None and entry.weights.tied_output
                there = file.size_bytes + (found.shared or (found.embedding if tied else 0))
                header = there - found.on_device(0, mtp=True) - found.on_host(0, mtp=True)
                assert 0 < header < max(0.02 * file.size_bytes, 12 * MIB), (entry.id, file.quant)
                assert min(found.blocks[0].rest, found.output, found.embedding) > 0
                assert bool(found.heads) == entry.has_head(file)
                if entry.geometry.experts and entry.id != "demo":
                    assert found.blocks[-1].experts > found.blocks[-1].rest

    @pytest.mark.parametrize(
        ("name", "entry", "quant"),
        [
            ("qwen35moe-35b-iq3_s", MOE, "UD-IQ3_S"),
            ("qwen35moe-35b-q3_k_xl", MOE, "UD-Q3_K_XL"),
            ("qwen35moe-35b-q4_k_m", MOE, "UD-Q4_K_M"),
            ("qwen35-27b-q4_k_s", DENSE, "UD-Q4_K_S"),
        ],
    )
    def test_rules_and_a_header_of_that_size_agree(
        self, name: str, entry: ModelEntry, quant: str, tmp_path: Path
    ) -> None:
        header, rules = read(tmp_path, model(name)), by_rules(entry, quant)
        assert rules.on_device(0, mtp=True) == pytest.approx(header.on_device(0, mtp=True), rel=0.002)
        assert rules.on_host(0, mtp=True) == pytest.approx(header.on_host(0, mtp=True), rel=0.01)


BLOCKS = st.builds(Block, st.integers(0, 10**9), st.tuples(*[st.integers(0, 10**9)] * 3))


@settings(derandomize=True)
@given(
    weights=st.builds(
        Weights,
        embedding=st.integers(0, 10**9),
        output=st.integers(0, 10**9),
        blocks=st.lists(BLOCKS, min_size=1, max_size=5).map(tuple),
        heads=st.lists(BLOCKS, max_size=2).map(tuple),
        exact=st.booleans(),
    ),
    n_cpu_moe=st.integers(0, 9),
    mtp=st.booleans(),
)
def test_tensors_that_leave_the_gpu_are_counted_on_the_host(weights: Weights, n_cpu_moe: int, mtp: bool) -> None:
    whole = weights.on_device(0, mtp=mtp) + weights.on_host(0, mtp=mtp)
    assert weights.on_device(n_cpu_moe, mtp=mtp) + weights.on_host(n_cpu_moe, mtp=mtp) == whole
    assert weights.on_device(n_cpu_moe + 1, mtp=mtp) <= weights.on_device(n_cpu_moe, mtp=mtp)
    assert weights.on_device(n_cpu_moe, mtp=False) <= weights.on_device(n_cpu_moe, mtp=True)
