"""The suggested .wslconfig: real keys, figures of this computer, and what the user wrote left as it is."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.machine.host import Host
from launcher.machine.wsl import (
    ClipboardUnreachable,
    WslconfigSuggestion,
    WslSettings,
    copy_to_clipboard,
    find_missing_paths,
    parse_wslconfig,
    suggest_wsl_memory,
    suggest_wslconfig,
)
from tests.machine.conftest import write
from tests.machine.test_advice import HOST

GIB = 2**30
WSL2 = replace(HOST, wsl=2, memory_bytes=16 * GIB)
MORE = "memory=24GB: WSL has 16.0 GiB now, half of this computer's memory."


def suggest_for_text(folder: Path, text: str, host: Host = WSL2) -> WslconfigSuggestion | None:
    path = folder / ".wslconfig"
    path.write_bytes(text.encode())
    return suggest_wslconfig(host, [parse_wslconfig(path, text)])


@pytest.mark.parametrize(
    ("now_gib", "wanted"),
    [(2, 2), (3.8, 4), (4, 4), (6, 8), (7.7, 11), (8, 12), (15.5, 23), (16, 24), (31.3, 47), (64, 96)],
)
def test_the_suggestion_leaves_memory_to_windows(now_gib: float, wanted: int) -> None:
    assert suggest_wsl_memory(int(now_gib * GIB)) == wanted


def test_a_new_file_is_suggested_if_there_is_none() -> None:
    found = suggest_wslconfig(WSL2, [])
    assert found is not None
    assert found.text == "[wsl2]\nmemory=24GB\n"
    (change,) = found.changes
    assert change.startswith(MORE)


def test_lines_of_the_user_are_preserved(tmp_path: Path) -> None:
    text = "# mine\r\n[experimental]\r\nsparseVhd=true\r\n\r\n[WSL2] # and this\r\nSwap=8GB\r\nmemory=0\r\n"
    found = suggest_for_text(tmp_path, text)
    assert found is not None
    assert found.text == "# mine\n[experimental]\nsparseVhd=true\n\n[WSL2] # and this\nmemory=24GB\nSwap=8GB\n"
    assert len(found.changes) == 1


def test_unknown_and_harmful_lines_are_removed_with_their_reason(tmp_path: Path) -> None:
    found = suggest_for_text(
        tmp_path, "memory=4GB\n[wsl2]\ngpuMemory=8GB\nGpuSupport = false # save\nguiApplications=0\nmemory=20GB\n"
    )
    assert found is not None
    assert found.text == "[wsl2]\nmemory=20GB\n"
    assert found.changes == (
        "memory was removed: WSL has no such setting.",
        "gpuMemory was removed: WSL has no such setting in [wsl2].",
        "GpuSupport=false was removed: it keeps the GPU from WSL.",
        "guiApplications=0 was removed: it keeps windows of Linux programs from the screen.",
    )
    again = parse_wslconfig(tmp_path, found.text)
    assert again.unknown == ()


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("[wsl2]\nmemory=4GB\ngpuSupport=true\n", WSL2),  # the user's own choice
        ("", replace(WSL2, memory_bytes=3 * GIB)),  # Windows needs the rest
        ("[wsl2]\ngpuMemory=1\n", replace(WSL2, wsl=1)),
        ("[wsl2]\ngpuMemory=1\n", HOST),
    ],
)
def test_nothing_is_suggested_if_nothing_must_change(tmp_path: Path, text: str, host: Host) -> None:
    assert suggest_for_text(tmp_path, text, host) is None


def test_with_several_users_no_file_is_chosen(tmp_path: Path) -> None:
    others = [WslSettings(tmp_path / name, {"wsl2.swap": "1GB"}, ()) for name in ("a", "b")]
    found = suggest_wslconfig(WSL2, others)
    assert found is not None
    assert found.text == "[wsl2]\nmemory=24GB\n"


def test_a_file_that_disappears_is_not_guessed(tmp_path: Path) -> None:
    assert suggest_wslconfig(WSL2, [WslSettings(tmp_path / "gone", {}, ())]) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[wsl2]\nmemory=4GB\n", b"[wsl2]\r\nmemory=4GB\r\n"),
        ("# Gr\xfc\xdfe\n", "\ufeff# Gr\xfc\xdfe\r\n".encode("utf-16-le")),
    ],
)
def test_the_text_is_copied_as_windows_reads_it(tmp_path: Path, text: str, expected: bytes) -> None:
    assert sys.byteorder == "little"
    clip, got = tmp_path / "clip.exe", tmp_path / "got"
    clip.write_text(f"#!/bin/sh\ncat >'{got}'\n")
    clip.chmod(0o755)
    copy_to_clipboard(WslconfigSuggestion(text, ()), clip)
    assert got.read_bytes() == expected


def test_an_unreachable_clipboard_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ClipboardUnreachable, match=r"The clipboard of Windows cannot be reached") as caught:
        copy_to_clipboard(WslconfigSuggestion("", ()), tmp_path / "clip.exe")
    assert "interop" in caught.value.hint


def test_missing_wsl_paths_are_reported(root: Path) -> None:
    clip, users = "/mnt/c/Windows/System32/clip.exe", "/mnt/c/Users"
    assert find_missing_paths(root) == (clip, users)
    write(root, {clip.lstrip("/"): "", f"{users}/Anna/.wslconfig".lstrip("/"): ""})
    assert find_missing_paths(root) == ()
    write(root, {"dev/dxg": ""})
    assert find_missing_paths(root) == ("/usr/lib/wsl/lib/libnvidia-ml.so.1",)
