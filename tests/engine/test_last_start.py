"""The record of when models were last used."""

import json
from pathlib import Path

import pytest

from launcher.engine.server.last_start import load_last_uses, save_last_use


@pytest.mark.parametrize("content", ["{", "[]", "null", "\0", '{"/models/a.gguf": "then"}'])
def test_an_invalid_file_counts_as_empty(home: Path, content: str) -> None:
    (home / "state").mkdir(parents=True)
    (home / "state" / "last-used.json").write_text(content)
    assert load_last_uses() == {}
    save_last_use(Path("/models/a.gguf"))
    assert list(load_last_uses()) == ["/models/a.gguf"]


def test_an_invalid_time_does_not_affect_the_others(home: Path) -> None:
    (home / "state").mkdir(parents=True)
    (home / "state" / "last-used.json").write_text(json.dumps({"/a": 10**400, "/b": 12, "/c": [1]}))
    assert load_last_uses() == {"/b": 12.0}
