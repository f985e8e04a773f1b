"""Fixtures for models."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Hub
from tests.models.pulling import FILE


@pytest.fixture
def repo(hub: Hub, demo_model: Path) -> Iterator[str]:
    """A repository of the fake hub with the demo model."""
    folder = hub.folder / "pull" / "Demo-GGUF"
    folder.mkdir(parents=True)
    shutil.copy(demo_model, folder / FILE)
    yield "pull/Demo-GGUF"
    shutil.rmtree(folder)
