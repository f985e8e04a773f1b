"""When models were used, as it is kept."""

import json
from pathlib import Path

import pytest

from launcher.engine.last import keep_used, last_used


@pytest.mark.parametrize("content", ["{", "[]", "null", "\0", '{"/models/a.gguf": "then"}'])
def test_a_note_that_cannot_be_understood_is_none(home: Path, content: str) -> None:
    (home / "state").mkdir(parents=True)
    (home / "state" / "last-used.json").write_text(content)
    assert last_used() == {}
    keep_used(Path("/models/a.gguf"))
    assert list(last_used()) == ["/models/a.gguf"]


def test_a_time_that_is_none_costs_no_other(home: Path) -> None:
    (home / "state").mkdir(parents=True)
    (home / "state" / "last-used.json").write_text(json.dumps({"/a": 10**400, "/b": 12, "/c": [1]}))
    assert last_used() == {"/b": 12.0}
