"""Figures that nvidia-smi prints, held against readings."""

from pathlib import Path

import pytest

from launcher.machine.nvidia_smi import ComparedFigure, find_nvidia_smi, read_nvidia_smi
from tests.machine.conftest import write


def script(folder: Path, text: str) -> str:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_values_that_a_card_does_not_report_are_unknown(tmp_path: Path) -> None:
    row = "GPU-1, NVIDIA GeForce RTX 4090, 580.65.06, 24564, 512, 41, [N/A]"
    figures = read_nvidia_smi(script(tmp_path, f"echo '{row}'"))["GPU-1"]
    assert (figures.name, figures.driver) == ("NVIDIA GeForce RTX 4090", "580.65.06")
    assert (figures.total_mib, figures.used_mib, figures.temperature_c, figures.power_w) == (24_564, 512, 41, None)


@pytest.mark.parametrize("text", ["exit 9", "echo 'NVIDIA-SMI has failed'", "echo"])
def test_a_failure_gives_no_figures(tmp_path: Path, text: str) -> None:
    assert read_nvidia_smi(script(tmp_path, text)) == {}


def test_in_wsl_the_program_is_found_outside_path(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(root))
    assert find_nvidia_smi(root) is None
    write(root, {"usr/lib/wsl/lib/nvidia-smi": ""})
    assert find_nvidia_smi(root) == str(root / "usr/lib/wsl/lib/nvidia-smi")


@pytest.mark.parametrize(
    ("printed", "before", "after", "agrees"),
    [
        (500.0, 500.4, 500.4, True),
        (500.0, 498.0, 503.0, True),
        (500.0, 502.0, 503.0, False),
        (500.0, 497.0, 498.9, False),
    ],
)
def test_a_figure_agrees_if_it_is_between_two_readings(
    printed: float, before: float, after: float, agrees: bool
) -> None:
    assert ComparedFigure(printed, before, after, "MiB", 1.0).agrees is agrees


def test_a_tolerance_can_be_a_share_of_the_printed_figure() -> None:
    assert ComparedFigure(100.0, 92.0, 92.0, "W", 0.1, is_share=True).agrees
    assert not ComparedFigure(100.0, 88.0, 88.0, "W", 0.1, is_share=True).agrees


def test_names_are_compared() -> None:
    assert ComparedFigure("NVIDIA L4", "NVIDIA L4", "NVIDIA L4").agrees
    assert not ComparedFigure("NVIDIA L4", "Tesla T4", "Tesla T4").agrees
    assert not ComparedFigure(None, "NVIDIA L4", "NVIDIA L4").is_known
