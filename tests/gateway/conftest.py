"""Fixtures of the gateway's tests."""

import pytest

from launcher.gateway import state_keeper


@pytest.fixture
def small_gains_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what saves a tenth of a second: quick computers read the tests' prompts in less than half a one."""
    monkeypatch.setattr(state_keeper, "LEAST_GAIN_S", 0.1)
