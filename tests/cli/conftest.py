"""What the tests of the command line share."""

import sys
from pathlib import Path

import pytest

from tools.sparse_models.models import Model
from tools.sparse_models.write import write


@pytest.fixture
def no_engine_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No display, no driver and no llama-server of this computer's own."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "no-driver"
    folder.mkdir()
    (folder / "libnvidia-ml.so.1").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")


def own_model(home: Path, made: Model) -> Path:
    """A model of the user's own in the catalogue, as the docs advise: its header tells all else."""
    folder = home / "config" / "models"
    folder.mkdir(parents=True)
    path = folder / "own.gguf"
    write(path, "own", made)
    preset = "[[models.presets]]\nquant = 'Q'\nctx = 65_536\nkv = 'q8_0'\n"
    files = "files = [{ quant = 'Q', file = 'own.gguf' }]\nspeculation = 'mtp'\nnative_context = 262_144\n"
    (folder / "own.toml").write_text(f"[[models]]\nid = 'own'\nname = 'My own'\n{files}\n{preset}")
    return path
