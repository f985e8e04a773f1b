"""The wheel holds all that the program needs, and a checkout's files are the same on every system."""

import json
import os
import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tools.translations import mo_bytes, read_catalog

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("mtp_launcher-*.whl")
    return built


def test_the_wheel_has_all_resources_and_no_sources_of_translations(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    kept = subprocess.run(
        ["git", "ls-files", "presets", "resources"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    expected = {f"launcher/_data/{name}" for name in kept.stdout.split()}
    sources = {name for name in expected if name.endswith(".po")}
    assert sources
    assert expected - sources <= names
    assert {re.sub(r"po$", "mo", name) for name in sources} <= names
    assert not [name for name in names if name.endswith(".po")]


def test_the_description_has_no_link_that_needs_the_repository(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    about = Parser().parsestr(archive.read(metadata).decode())
    description = str(about.get_payload())
    assert about["Author"] == "The MTP Launcher contributors"
    assert description.startswith("# MTP Launcher\n")
    assert not re.findall(r"\]\((?!https?://|#)", description)
    for word in re.findall(r"(?<!!)\[([^]]+)\]\(", (ROOT / "README.md").read_text("utf-8")):
        assert word in description


def test_scripts_checked_out_on_windows_have_no_carriage_returns(tmp_path: Path) -> None:
    """git for Windows would add carriage returns by default (core.autocrlf)."""
    staged = subprocess.run(["git", "ls-files", "--stage"], cwd=ROOT, check=True, capture_output=True, text=True)
    entries = [line.split(maxsplit=3) for line in staged.stdout.splitlines()]
    scripts = [name for mode, _, _, name in entries if mode == "100755" or name.endswith((".sh", ".ps1"))]
    assert {"start", "test", "scripts/bootstrap.sh", "installer/linux/install.sh"} <= set(scripts)
    checkout = ["git", "-c", "core.autocrlf=true", "checkout-index", f"--prefix={tmp_path}/", "--", *scripts]
    subprocess.run(checkout, cwd=ROOT, check=True)
    assert not [name for name in scripts if b"\r" in (tmp_path / name).read_bytes()]


@pytest.mark.thorough
def test_the_demo_runs_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    compiled = "resources/locale/zh_CN/LC_MESSAGES/mtp-launcher.mo"
    assert (site / "launcher" / "_data" / compiled).read_bytes() == mo_bytes(read_catalog("zh_CN"))
    environment = os.environ | {"PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"}
    code = "import launcher, sys; print(launcher.__file__, flush=True); import launcher.entry as m; m.run()"
    result = subprocess.run(
        [sys.executable, "-c", code, "demo", "--headless", "--json"],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    where, report = result.stdout.splitlines()
    assert Path(where).is_relative_to(site)
    assert json.loads(report)["draft_n_accepted"] > 0
