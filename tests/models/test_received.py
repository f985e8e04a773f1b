"""What a received file differs in from the model that was wanted."""

from dataclasses import replace
from pathlib import Path

from launcher.models.geometry import read_geometry
from launcher.models.gguf import read_model
from launcher.models.received import describe_differences
from tests.models.tiny_models import write_decoder


def test_differences_of_a_known_layout_are_listed(tmp_path: Path) -> None:
    write_decoder(tmp_path / "tiny.gguf", architecture="qwen3")
    model = read_model(tmp_path / "tiny.gguf")
    own = read_geometry(model)
    assert describe_differences(model, own) == ""
    other = describe_differences(model, replace(own, layers=own.layers + 1, mtp_layers=own.mtp_layers + 1))
    assert other == f"layers {own.layers} in place of {own.layers + 1}"


def test_of_another_architecture_nothing_else_is_listed(tmp_path: Path) -> None:
    write_decoder(tmp_path / "known.gguf", architecture="qwen3")
    wanted = read_geometry(read_model(tmp_path / "known.gguf"))
    write_decoder(tmp_path / "new.gguf", architecture="newer-than-the-engine")
    new = read_model(tmp_path / "new.gguf")
    assert describe_differences(new, wanted) == "its architecture is newer-than-the-engine in place of qwen3"
