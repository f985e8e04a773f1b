"""Advice for an estimate that does not fit: each piece of advice makes it fit."""

from dataclasses import replace
from pathlib import Path

import pytest

from launcher.models.fit_advice import advise_fit
from launcher.models.geometry import read_geometry
from launcher.models.gguf import read_model
from launcher.models.memory import MemoryEstimate, PlanSettings, estimate_memory
from launcher.models.server_settings import to_fields
from launcher.models.situation import describe_machine
from launcher.models.weights import read_weights
from tools.sparse_models.models import model
from tools.sparse_models.write import write


@pytest.mark.parametrize(
    ("name", "gib", "setting", "kinds"),
    [
        ("qwen35-9b-q4_k_m", 12, PlanSettings(262_144), [{"ctx"}, {"kv"}]),
        ("qwen35-9b-q4_k_m", 8, PlanSettings(131_072), [{"ctx"}]),
        ("qwen35-9b-q4_k_m", 4, PlanSettings(131_072), []),
        ("qwen35moe-35b-q3_k_xl", 12, PlanSettings(65_536, kv="q8_0"), [{"n_cpu_moe"}]),
        ("qwen35moe-35b-q3_k_xl", 22, PlanSettings(262_144, kv="f16"), [{"ctx"}, {"kv"}, {"n_cpu_moe"}]),
    ],
)
def test_each_advice_fits(name: str, gib: float, setting: PlanSettings, kinds: list[set[str]], tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write(path, name, model(name))
    header = read_model(path)
    geometry = read_geometry(header)
    weights, there = read_weights(header, geometry), describe_machine((gib,), host_gib=64)

    def measure(candidate: PlanSettings) -> MemoryEstimate:
        return estimate_memory(geometry, weights, candidate)

    assert measure(setting).needed_bytes > there.free_mib * 2**20
    advice = advise_fit(setting, there, weights.expert_layers(mtp=True), measure, None)
    assert [set(each.settings) for each in advice] == kinds
    for each in advice:
        changed = replace(setting, **to_fields(each.settings))
        assert measure(changed).needed_bytes <= there.free_mib * 2**20


def test_experts_are_not_moved_into_a_host_that_is_too_small(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write(path, "Moe", model("qwen35moe-35b-q3_k_xl"))
    header = read_model(path)
    geometry = read_geometry(header)
    weights = read_weights(header, geometry)
    there = describe_machine((12,), host_gib=8)
    setting = PlanSettings(65_536, kv="q8_0")
    assert advise_fit(setting, there, 41, lambda each: estimate_memory(geometry, weights, each), None) == ()
