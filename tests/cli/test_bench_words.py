"""The text of `bench` for several servers."""

from types import SimpleNamespace
from typing import Any

from launcher.cli.bench import format_standings, tabulate_runs
from launcher.tuning.measured_speed import EndReason, MeasuredSpeed
from launcher.tuning.server_comparison import ServerStanding
from launcher.tuning.statistics import rate_interval
from launcher.tuning.workloads import load_workload
from tests.tuning.measured import ENVIRONMENT, ON, run


def test_a_failed_server_is_not_reported_as_too_few_rounds() -> None:
    runs = (run(50.0), run(51.0))
    measured = MeasuredSpeed(runs, rate_interval([50.0, 51.0]), EndReason.MOST)
    found = [
        ServerStanding("http://first", measured, None, None),
        ServerStanding("http://few", measured, None, None),
        ServerStanding("http://lost", None, None, "It ended."),
    ]
    targets: list[Any] = [SimpleNamespace(url=each.name, environment=ENVIRONMENT) for each in found]
    table = format_standings(found, targets, load_workload("code"), [""] * 3)
    lines = {line.split()[0]: line for line in table if line.startswith("  http")}
    assert lines["http://few"].endswith("unknown: at least 3 rounds are needed (--runs)")
    assert "too few rounds" not in lines["http://first"] + lines["http://lost"]


def test_runs_of_one_prompt_are_shown_in_a_table() -> None:
    measured = MeasuredSpeed(
        (run(249.3, ON), run(None, ON, spoilt="Another program."), run(251.25, ON)), None, EndReason.MOST
    )
    assert list(tabulate_runs(measured)) == [
        "  run  tokens/s  drafted  accepted",
        "    1    249.30      200       150  75.0 %",
        "    2    251.25      200       150  75.0 %",
        "",
    ]
    several = MeasuredSpeed((run(50.0), run(51.0, prompt="other")), None, EndReason.MOST)
    assert list(tabulate_runs(several)) == []
