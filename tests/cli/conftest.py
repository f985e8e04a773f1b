"""Fixtures of the command line's tests."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.tuning.history import History
from launcher.tuning.history_environment import GpuFacts, ModelFacts
from tests import forked
from tests.conftest import FAKES
from tests.tuning.measured import ENVIRONMENT, OFF, ON
from tests.tuning.measured import run as make_run
from tools.sparse_models.models import Model
from tools.sparse_models.write import write

_DAY_S = 86_400.0


@pytest.fixture(scope="session", autouse=True)
def commands_are_forked(forked_commands: None) -> None:
    """Start the process that the commands of tests.forked are forked from."""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a fake library of the NVIDIA driver; the process that commands are forked from finds it there."""
    folder = tmp_path_factory.mktemp("driver")
    cc = shutil.which("cc")
    assert cc, "a C compiler is needed: ./test installs one"
    command = [cc, "-std=c11", "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", FAKES / "nvml_stub.c"]
    subprocess.run(command, check=True, timeout=60)
    with forked.prepared(LD_LIBRARY_PATH=str(folder)):
        yield folder


@pytest.fixture
def no_engine_here(monkeypatch: pytest.MonkeyPatch, no_driver: Path) -> None:
    """No display, no driver and no llama-server of this computer's own."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(no_driver))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")


def add_own_model(home: Path, model: Model) -> Path:
    """Add a model to the user's own catalogue as documented: only its ID, name and file; the rest is in its header."""
    folder = home / "config" / "models"
    folder.mkdir(parents=True)
    path = folder / "own.gguf"
    write(path, "own", model)
    preset = "[[models.presets]]\nquant = 'Q'\nctx = 65_536\nkv = 'q8_0'\n"
    files = "files = [{ quant = 'Q', file = 'own.gguf' }]\nspeculation = 'mtp'\nnative_context = 262_144\n"
    (folder / "own.toml").write_text(f"[[models]]\nid = 'own'\nname = 'My own'\n{files}\n{preset}")
    return path


@pytest.fixture
def two_sessions(home: Path) -> tuple[str, str]:
    """A bench on 2026-11-01, and a tune with other hardware and two settings on 2026-11-02."""
    now_s = 1_793_534_400.0
    other = replace(
        ENVIRONMENT, gpus=(GpuFacts("Tesla T4", "nvidia", 2**34, "1"),), model=ModelFacts("demo\x1b[31m", "F16")
    )
    with History(clock=lambda: now_s) as history:
        bench = history.begin_session("bench", ENVIRONMENT, OFF, workload="code", id="aaa0000001")
        history.add_runs(bench, [make_run(rate) for rate in (50.0, 51.0, 49.0)])
        history.finish(bench, {"mean": 50.0})
        now_s += _DAY_S
        tune = history.begin_session("tune", other, OFF, workload="prose", id="bbb0000002")
        history.add_runs(tune, [make_run(rate) for rate in (20.0, 20.2, 19.9)])
        history.add_runs(tune, [make_run(rate, ON) for rate in (29.0, 29.2, 28.7)])
        history.finish(tune, {"sentence": "Draft 2 is 45 % faster than no MTP for prose."})
    return bench, tune
