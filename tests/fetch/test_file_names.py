"""Names that servers send, as names on this disk."""

from pathlib import Path, PurePosixPath, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.base.errors import BadOption
from launcher.fetch.file_names import local_name, local_path

SEGMENTS = st.text(max_size=300) | st.sampled_from(["..", ".", "", "C:", "nul", "CON.gguf", "a/../..", "x.", "\0", "~"])


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("Qwen3.6-35B-A3B-UD-Q3_K_XL.gguf", "Qwen3.6-35B-A3B-UD-Q3_K_XL.gguf"),
        ("模型 50% & more.gguf", "模型 50% & more.gguf"),
        ("a:b.gguf", "a_b.gguf"),
        ("..\\..\\boot.ini", ".._.._boot.ini"),
        ("CON", "_CON"),
        ("nul.gguf", "_nul.gguf"),
        ("com1 .tar", "_com1 .tar"),
        ("console.gguf", "console.gguf"),
        ("model.gguf.", "model.gguf_"),
        ("model. .", "model___"),
        ("a\0b\n.gguf", "a_b_.gguf"),
        ("gguf\u202egnp.exe", "gguf_gnp.exe"),
    ],
)
def test_invalid_characters_are_replaced(name: str, here: str) -> None:
    assert local_name(name) == here


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 221, "模" * 74])
def test_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(BadOption):
        local_name(name)


@given(st.lists(SEGMENTS, max_size=6))
def test_no_name_is_outside_the_folder_on_any_system(segments: list[str]) -> None:
    folder = Path("/models/here")
    try:
        path = local_path(folder, "/".join(segments))
    except BadOption:
        return
    inside = path.relative_to(folder)
    assert inside.parts
    for flavour in (PurePosixPath, PureWindowsPath):
        result = flavour(*inside.parts)
        assert not result.is_absolute()
        assert not getattr(result, "drive", "")
        assert len(result.parts) == len(inside.parts)
        assert ".." not in result.parts
    assert not any(part.endswith((".", " ")) or len(part.encode()) > 255 for part in inside.parts)


@pytest.mark.parametrize("name", ["a/../../etc/passwd", "..", "", "/"])
def test_a_path_outside_the_folder_is_refused(name: str) -> None:
    with pytest.raises(BadOption):
        local_path(Path("/models"), name)


def test_an_absolute_path_is_placed_below_the_folder() -> None:
    assert local_path(Path("/models"), "/etc/x.gguf") == Path("/models/etc/x.gguf")
