"""Power limits as an axis of the goal energy: commands that the user may run, and tunes at several limits."""

from dataclasses import replace
from typing import Any

from launcher.app.measuring.power_limits import LimitedTune, find_limited_tunes, limit_command, limits_to_try
from launcher.machine.gpu import Gpu
from launcher.tuning.history import record_session
from tests.tuning.test_session_file import SESSION

NVIDIA = Gpu("nvidia", 1, "NVIDIA GeForce RTX 4090", "GPU-1")
AMD = Gpu("amd", 0, "Radeon RX 7900 XTX", "0000:03:00.0")


def test_the_command_is_left_to_the_user() -> None:
    assert limit_command(NVIDIA, 300, "linux") == "sudo nvidia-smi -i 1 -pl 300"
    assert limit_command(NVIDIA, 300, "win32") == "nvidia-smi -i 1 -pl 300"
    file = "/sys/bus/pci/devices/0000:03:00.0/hwmon/hwmon*/power1_cap"
    assert limit_command(AMD, 250, "linux") == f"echo 250000000 | sudo tee {file}"
    assert limit_command(AMD, 250, "win32") is None
    assert limit_command(replace(AMD, vendor="intel"), 100, "linux") is None


def test_power_limits_that_were_not_measured_are_proposed() -> None:
    assert limits_to_try(450.0, []) == [380, 315, 250]
    measured = [LimitedTune("a", 450.0, 3, 1.0), LimitedTune("b", 318.0, 3, 1.2)]
    assert limits_to_try(250.0, measured) == [380]


async def test_the_newest_tune_at_each_limit_is_kept() -> None:
    def result(limit_w: float | None, value: float, goal: str = "energy") -> dict[str, Any]:
        forecasts = [{"draft": 0, "value": 0.5}, {"draft": 3, "value": value}]
        return {"goal": goal, "draft": 3, "forecasts": forecasts, "power_limit_w": limit_w}

    for each in (
        result(450.0, 1.0),
        result(450.0, 1.1),
        result(300.0, 1.4),
        result(None, 9.0),
        result(200.0, 9.0, "speed"),
    ):
        async with record_session("tune", SESSION.environment, {"draft": 0}, workload="code") as record:
            record.add_run(SESSION.runs[0])
            record.finish(each)
    found = find_limited_tunes(SESSION.environment.model.name)
    assert [(tune.limit_w, tune.draft, tune.tokens_per_joule) for tune in found] == [(450.0, 3, 1.1), (300.0, 3, 1.4)]
