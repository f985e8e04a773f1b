"""Lists 500 models of Ollama and LM Studio, each time in a new process."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import format_summary
from benchmarks.reference import Interpreter
from benchmarks.report import Row
from benchmarks.workplace import ROOT
from launcher.engine.demo import unpack_demo_model

_MODELS = 500
_LIMIT = 37


def run(*, quick: bool) -> Iterator[Row]:
    """Create the stores and list their models. The first time the headers are read, later their stored summaries."""
    bare, known = Interpreter(), []
    with tempfile.TemporaryDirectory(prefix="mtp-benchmark-", dir=os.environ["MTP_LAUNCHER_HOME"]) as folder:
        _make_stores(Path(folder))
        first_s = _time_listing(folder)
        for _ in range(5 if quick else 20):
            bare.start()
            known.append(_time_listing(folder))
    yield bare.row(f"{_MODELS} models in two stores listed, from summaries of headers", known, "s", 3, _LIMIT)
    yield Row("the same the first time, with reading the headers", format_summary([first_s], "s", 2))


def _make_stores(home: Path) -> None:
    """Write the stores, whose files are links to one model."""
    model = unpack_demo_model()
    ollama, studio = home / ".ollama" / "models", home / ".lmstudio" / "models"
    manifests = ollama / "manifests" / "registry.ollama.ai" / "library"
    (ollama / "blobs").mkdir(parents=True)
    for number in range(_MODELS // 2):
        digest = f"{number:064x}"
        os.link(model, ollama / "blobs" / f"sha256-{digest}")
        layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}", "size": 1}
        path = manifests / f"model{number}" / "latest"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"schemaVersion": 2, "layers": [layer]}), "utf-8")
        path = studio / f"publisher{number // 10}" / f"Model{number}-GGUF" / f"Model{number}-Q4_K_M.gguf"
        path.parent.mkdir(parents=True)
        os.link(model, path)


def _time_listing(home: str) -> float:
    """Return the seconds that a new process takes to list the models."""
    child = [sys.executable, "-m", "benchmarks.stores_child", str(_MODELS)]
    environment = {**os.environ, "HOME": home, "HF_HOME": f"{home}/hf"}
    result = subprocess.run(child, check=True, capture_output=True, text=True, cwd=ROOT, env=environment)
    return float(result.stdout)
