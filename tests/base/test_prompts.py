"""Prompts from a text file."""

from pathlib import Path

import pytest

from launcher.base.errors import BadOption
from launcher.base.prompts import read_prompts, split_prompts


@pytest.mark.parametrize(
    ("text", "prompts"),
    [
        ("one\ntwo\n", ("one", "two")),
        ("one\nmore\n\n\ntwo\n", ("one\nmore", "two")),
        ("one\r\nmore\r\n \t\r\ntwo", ("one\nmore", "two")),
        ("  one  ", ("one",)),
        ("", ()),
    ],
)
def test_prompts_are_blocks_or_lines(text: str, prompts: tuple[str, ...]) -> None:
    assert split_prompts(text) == prompts


def test_prompts_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes(b"\xef\xbb\xbfone\ntwo")
    assert read_prompts(file) == ("one", "two")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no prompt"), (b"\xff\xfe\0", "UTF-8"), (b"x" * 5_000_000, "4 MiB"), (b"x\n" * 2_000, "2,000"),
        (None, "cannot be read"),
    ],
)  # fmt: skip
def test_an_unusable_file_is_reported(tmp_path: Path, data: bytes | None, why: str) -> None:
    file = tmp_path / "prompts.txt"
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(BadOption, match=why):
        read_prompts(file)
