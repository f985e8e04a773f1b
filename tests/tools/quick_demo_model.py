"""Models made by the generator of the demo model within a second: hardly trained, on few dialogues."""

from pathlib import Path

import pytest

from tools.demo_model import __main__ as generator
from tools.demo_model import fit, text

ONE_OF = 12
"""One dialogue of so many is learnt; all of them take seconds."""


def make_model(path: Path, *options: str) -> None:
    """Write a model to `path`, with the options of `python -m tools.demo_model`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit, "list_dialogues", lambda corpus: text.list_dialogues(corpus)[::ONE_OF])
        generator.main(["--out", str(path), "--steps", "2", *options])
