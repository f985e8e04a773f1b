"""`mtp-launcher tune --goal energy` on the real built-in engine, beside a stand-in for the NVIDIA driver."""

import os
from pathlib import Path

import pytest

from tests import forked
from tests.cli.test_tune import WORKLOAD


@pytest.mark.thorough
def test_a_power_limit_is_measured_after_the_user_has_set_it(driver: Path, tmp_path: Path) -> None:
    work = tmp_path / "boats.toml"
    # Energy needs a reading of the power during the reply, so replies are long: this grammar never lets one end.
    endless = """temperature = 0.0\ngrammar = 'root ::= [a-z .] root'"""
    work.write_text(WORKLOAD.replace("temperature = 0.0", endless).replace("tokens = 24", "tokens = 1500"))
    command = ["tune", "demo", "--goal", "energy", "--workload", work, "--vary", "none", "--yes"]

    def tune_at(limit_w: int, minutes: str) -> str:
        env = {**os.environ, "LD_LIBRARY_PATH": str(driver), "CUDA_VISIBLE_DEVICES": "0", "STUB_LIMIT_W": str(limit_w)}
        done = forked.run(*command, "--budget", minutes, env=env, timeout=240)
        return " ".join(done.stdout.split())

    # The second tune only has to print its plan, so it gets no time.
    first, second = tune_at(400, "0.5"), tune_at(300, "0.001")
    assert "Tune demo for boats, by tokens per joule" in first
    assert "limit 400 W, as the GPU is set now. For another limit, set it and tune again:" in first
    assert "`sudo nvidia-smi -i 0 -pl 340`" in first
    assert "setting tokens/J 95 %" in first
    assert "limit 300 W, as the GPU is set now. Tokens per joule so far: 400 W " in second
    assert "-pl 340` or `sudo nvidia-smi -i 0 -pl 280`" in second
