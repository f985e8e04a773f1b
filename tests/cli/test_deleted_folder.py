"""Commands in a folder that was deleted after the shell went there."""

import sys
from pathlib import Path

import pytest

from tests.cli.in_process import run


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not delete a folder that is in use")
@pytest.mark.parametrize(
    "words",
    [
        ["plan", "model.gguf"],
        ["code", "opencode", "--print", "--model", "demo"],
        ["code", "opencode", "--model", "demo"],
    ],
)
def test_a_deleted_current_folder_is_reported_with_a_hint(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    refused = run(*words)
    assert refused.returncode == 1
    assert refused.stderr.splitlines() == [
        "Error: The current folder no longer exists.",
        "       Go to another one, for example by `cd ~`, and run this again.",
    ]
