"""The text of a tune, in words for people who do not know its terms."""

import shlex
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.cli.main import build_full_parser
from launcher.cli.tune import (
    describe_answers,
    describe_duration,
    describe_early_use,
    describe_more_time,
    describe_saving,
    describe_settings,
)


@pytest.mark.parametrize(("restart_s", "expected"), [(0.2, "6 starts of less than 1 s"), (8.7, "6 starts of 9 s")])
def test_a_start_time_is_never_shown_as_zero(restart_s: float, expected: str) -> None:
    assert expected in describe_duration(prepared_at(100.0, restart_s))


def test_a_rate_is_printed_with_three_digits() -> None:
    received = [
        describe_duration(prepared_at(rate, 1.0)).rpartition(" at ")[2] for rate in (1_199.6, 96.44, 8.125, 123_456.0)
    ]
    assert received == [f"{rate} tokens/s" for rate in ("1,200", "96.4", "8.12", "123,000")]


def test_printed_commands_quote_their_paths_for_a_shell() -> None:
    path = "/home/jane/My models/a.gguf"
    for each in (
        describe_more_time(path),
        describe_saving(path, "draft 3", applied=False),
        describe_saving(path, "draft 3", applied=True),
    ):
        verb = shlex.split(each.split("`")[1])
        assert path in verb


def test_the_end_of_a_tune_names_the_drafter_that_it_keeps() -> None:
    what = describe_settings({"draft": 4, "drafter": "draft-dflash", "kv": "f16"}, {"kv": "f16"})
    assert describe_saving("demo", what, applied=True).endswith("serve demo` uses these settings (draft 4 by DFlash).")
    assert describe_saving("demo", what, applied=False).startswith("Save these settings (draft 4 by DFlash) for ")


def test_the_command_of_an_early_verdict_can_be_typed() -> None:
    settings = {"draft": 3, "kv": "f16", "moe_cache_mib": 1_024, "draft_sampling": "probabilistic"}
    output = describe_early_use("demo", settings, {"kv": "f16", "moe_cache_mib": 0, "draft_sampling": "greedy"})
    command = "mtp-launcher serve demo --draft 3 --moe-cache-mib 1024 --draft-sampling probabilistic"
    assert output == f"To use what is likely the best now: `{command}`."
    typed = build_full_parser().parse_args(shlex.split(command)[1:])
    assert (typed.draft, typed.moe_cache_mib, typed.draft_sampling) == (3, 1_024, "probabilistic")


def test_each_workload_has_a_line_below_the_overall_sentence() -> None:
    code = {"mtp": "on", "workload": "code", "settings": {"draft": 3}, "likely": 0.996, "ci_low": 1.3, "ci_high": 1.52}
    prose = {**code, "workload": "prose", "mtp": "undecided", "likely": None, "ci_low": 0.9, "ci_high": 1.1}
    verdict = {"sentence": "Draft 3. And more.", "overall": "Draft 3.", "workloads": [code, prose]}
    assert list(describe_answers(verdict, {})) == [
        "Draft 3.",
        "",
        "  workload  recommended  gain with MTP     likely",
        "  code      draft 3       +30 to +52 %  over 99 %",
        "  prose     not clear     -10 to +10 %          –",  # noqa: RUF001 -- an en dash
        "",
    ]
    assert list(describe_answers({**verdict, "workloads": []}, {})) == ["Draft 3. And more."]


def prepared_at(rate: float, restart_s: float) -> Any:  # noqa: ANN401 -- the part of Prepared that is printed
    plan = SimpleNamespace(seconds=100.0, starts=6, runs=24)
    return SimpleNamespace(
        plan=plan,
        budget_s=600.0,
        restart_s=restart_s,
        measured=True,
        tokens=4_800,
        rate=rate,
        prompts=(),
        answers_s=38.0,
    )
