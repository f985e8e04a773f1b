"""All pages and commands give the same verdict and MiB for a model file, before and while a server runs."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QTimer
from pytestqt.qtbot import QtBot

from launcher.base.paths import models_dir
from launcher.gui.widgets.read_age import ReadAge, format_age
from launcher.models.gguf import read_header
from launcher.models.header_summary import store_summary
from tests.machine.conftest import compile_driver
from tools.sparse_models.models import model
from tools.sparse_models.write import write

SPARSE = (
    "qwen35moe-35b-iq3_s",
    "qwen35moe-35b-q4_k_m",
    "qwen35-27b-q4_k_m",
    "qwen35-9b-q4_k_m-nomtp",
    "gemma3-12b-q4_k",
)
SERVED = "served-demo"
MODELS = (*SPARSE, SERVED)
QUANT = "Q4_K_M"
OTHERS_MIB, OWN_MIB = 2_000, 12_000
"""GPU memory used by another program, and by our engine once it runs."""
ALONE_MIB = 18 * 1_024 - OTHERS_MIB


def _add_model(model_id: str, demo_model: Path) -> Path:
    """Put a model file where `pull` would, and store the summary of its header as `pull` does."""
    path = models_dir() / "tests" / model_id / f"{model_id}-{QUANT}.gguf"
    path.parent.mkdir(parents=True)
    if model_id == SERVED:
        shutil.copy(demo_model, path)
    else:
        write(path, model_id, model(model_id))
    store_summary(_sha256(model_id), read_header(path))
    return path


def _sha256(model_id: str) -> str:
    return hashlib.sha256(model_id.encode()).hexdigest()


def _entry(model_id: str, path: Path) -> str:
    drafts = model_id.startswith("qwen35") and not model_id.endswith("nomtp")
    draft = 2 if drafts or model_id == SERVED else 0
    size = path.stat().st_size
    file = f"{{ quant = '{QUANT}', file = '{path.name}', size_bytes = {size}, sha256 = '{_sha256(model_id)}' }}"
    lines = [
        "[[models]]",
        f"id = '{model_id}'",
        f"name = '{model_id}'",
        f"repo = 'tests/{model_id}'",
        "speculation = 'mtp'" if draft else "",
        f"files = [{file}]",
        "[[models.presets]]",
        f"quant = '{QUANT}'",
        f"ctx = {4_096 if model_id == SERVED else 32_768}",
        "kv = 'q8_0'" if model_id != SERVED else "kv = 'f16'",
        f"draft = {draft}",
    ]
    return "\n".join(filter(None, lines))


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def shown_figures(home: Path, tmp_path: Path, demo_model: Path, driver: Path) -> dict[str, Any]:
    """The figures that each page and command shows for the files."""
    paths = {each: _add_model(each, demo_model) for each in MODELS}
    catalogue = home / "config" / "models"
    catalogue.mkdir(parents=True)
    (catalogue / "own.toml").write_text("\n".join(_entry(each, path) for each, path in paths.items()))
    programs = tmp_path / "programs"
    programs.write_text(f"1 {OTHERS_MIB}\n")
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(driver),
        "CUDA_VISIBLE_DEVICES": "0",
        "STUB_PROGRAMS": str(programs),
        "QT_QPA_PLATFORM": "offscreen",
        "LANGUAGE": "en",
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_OFFLINE": "1",
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
    }
    command = [sys.executable, "-m", "tests.gui.memory_pages", paths[SERVED], programs, str(OWN_MIB), *MODELS]
    done = subprocess.run(
        command, env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.thorough
def test_all_pages_and_commands_agree_on_each_file_before_and_while_one_is_served(
    shown_figures: dict[str, Any],
) -> None:
    first = {machine: shown_figures["before"][machine]["plan"] for machine in ("here", "described")}
    different = {
        f"{when}, {place}, {machine}: {model}": (figures, first[machine][model])
        for machine in first
        for when in ("before", "while")
        for place, found in shown_figures[when][machine].items()
        for model, figures in found.items()
        if figures != first[machine][model]
    }
    assert different == {}
    places = {"start", "models", "plan", "estimate"}
    assert all(set(shown_figures[when]["here"]) == places for when in ("before", "while"))
    for place, found in shown_figures["while"]["here"].items():
        # The Models page refers to Cockpit for the file that is served.
        assert set(found) == (set(SPARSE) if place == "models" else set(MODELS))
    here = shown_figures["before"]["here"]["plan"]
    assert {free for _, _, free in here.values()} == {ALONE_MIB}
    assert {status for status, _, _ in here.values()} >= {"FITS", "TOO BIG"}  # both verdicts occur among the files
    fit_only_alone = [each for each in here.values() if ALONE_MIB - OWN_MIB < each[1] <= ALONE_MIB]
    assert len(fit_only_alone) >= 3

    before, running, after = (shown_figures[when] for when in ("before", "while", "after"))
    for item in (*before["memory"].values(), after["plan"]):
        assert (item["alone_mib"], item["beside_mib"], item["own_mib"]) == (ALONE_MIB, ALONE_MIB, 0)
    for item in running["memory"].values():
        assert (item["alone_mib"], item["beside_mib"], item["own_mib"]) == (ALONE_MIB, ALONE_MIB - OWN_MIB, OWN_MIB)
        assert item["read_at"] == pytest.approx(time.time(), abs=600)
    assert before["memory"]["plan"]["read_at"] < running["memory"]["plan"]["read_at"] < after["plan"]["read_at"]


def test_the_age_of_a_memory_reading_is_shown_from_ten_seconds_on(qtbot: QtBot) -> None:
    label = ReadAge()
    qtbot.addWidget(label)
    label.show()
    label.show_age(time.time())
    timer = label.findChild(QTimer)
    assert timer is not None
    assert label.text() == ""
    assert timer.isActive()
    label.show_age(time.time() - 12 * 60 - 5)
    assert label.text() == "Memory read 12 minutes ago"
    label.hide()
    assert not timer.isActive()
    label.show_age(None)
    assert label.text() == ""
    assert [format_age(each) for each in (9.9, 10, 47, 60, 3_599, 7_200)] == [
        "",
        "Memory read 10 s ago",
        "Memory read 40 s ago",
        "Memory read 1 minute ago",
        "Memory read 59 minutes ago",
        "Memory read 2 hours ago",
    ]
