"""The wheel holds all that the program needs."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools.translations import mo_bytes, read

ROOT = Path(__file__).parents[1]


@pytest.mark.thorough
def test_the_demo_runs_from_the_wheel_alone(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("mtp_launcher-*.whl")
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    compiled = "resources/locale/zh_CN/LC_MESSAGES/mtp-launcher.mo"
    assert (site / "launcher" / "_data" / compiled).read_bytes() == mo_bytes(read("zh_CN"))
    environment = os.environ | {"PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"}
    code = "import launcher, sys; print(launcher.__file__, flush=True); import launcher.entry as m; m.run()"
    told = subprocess.run(
        [sys.executable, "-c", code, "demo", "--headless", "--json"],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    where, report = told.stdout.splitlines()
    assert Path(where).is_relative_to(site)
    assert json.loads(report)["draft_n_accepted"] > 0
