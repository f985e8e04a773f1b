"""Prompts that are read again: when that becomes a finding, its text, and when it ends."""

from pathlib import Path

import pytest

from launcher.base.action import ActionKind
from launcher.engine.diagnosis.actions import apply_action
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.reread import BILLING_HEADER, Reread, RereadCause
from launcher.monitor.health import Health
from launcher.monitor.health_event import FindingCode, HealthEvent, ServerSetup
from tests.monitor.series import list_changes, moment, run


def watch(*prompts: Reread | None, slots: int = 1, left_mib: float | None = None) -> list[HealthEvent]:
    moments = [
        moment(2.0 * number, prompts=(prompt,), host_memory_left_mib=left_mib) for number, prompt in enumerate(prompts)
    ]
    return run(Health(ServerSetup(slots=slots, cache_mib=8_192)), moments)


def make_reread(tokens: int = 2_000, cause: RereadCause = RereadCause.CHECKPOINT, place: str = "") -> Reread:
    return Reread(tokens, 3.0, cause, place)


def test_a_second_small_loss_is_a_finding() -> None:
    assert watch(None, make_reread(), None, None) == []
    (event,) = watch(None, make_reread(), None, make_reread())
    assert event.finding.code is FindingCode.PROMPT_READ_AGAIN
    assert event.finding.sentence.startswith("4,000 tokens of the last prompts were read again, 6 s lost.")
    assert event.finding.evidence["cause"] == "checkpoint"


def test_one_large_loss_is_a_finding() -> None:
    assert list_changes(watch(make_reread(10_000))) == [(FindingCode.PROMPT_READ_AGAIN, True)]


def test_three_requests_without_a_loss_clear_it() -> None:
    events = watch(make_reread(10_000), None, None, None, None, None)
    assert list_changes(events) == [(FindingCode.PROMPT_READ_AGAIN, True), (FindingCode.PROMPT_READ_AGAIN, False)]
    assert list_changes(watch(make_reread(10_000), None, make_reread(), None)) == [
        (FindingCode.PROMPT_READ_AGAIN, True)
    ]


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (RereadCause.CHANGED_PREFIX, "(system 1)"),
        (RereadCause.RESTART, "restarted in between"),
        (RereadCause.OTHER_CLIENT, "Another conversation"),
        (RereadCause.CACHE_LIMIT, "prompt cache in host memory was full"),
        (RereadCause.CHECKPOINT, "checkpoint"),
    ],
)
def test_each_cause_is_reported(cause: RereadCause, words: str) -> None:
    (event,) = watch(make_reread(10_000, cause, "system 1"), slots=2)
    assert words in event.finding.sentence
    action = event.finding.action
    assert (action is not None) == (cause is RereadCause.OTHER_CLIENT)
    if action is not None:
        assert (action.kind, action.parameters) == (ActionKind.MORE_SLOTS, {"slots": 4})


@pytest.mark.parametrize(("left_mib", "cache_mib"), [(17_000, 16_384), (16_000, None), (None, None)])
def test_a_larger_prompt_cache_is_suggested_if_host_memory_allows(
    left_mib: float | None, cache_mib: int | None
) -> None:
    (event,) = watch(make_reread(10_000, RereadCause.CACHE_LIMIT), left_mib=left_mib)
    action = event.finding.action
    assert (action.parameters if action else None) == (cache_mib and {"cache_ram": cache_mib})
    if action is not None:
        assert apply_action(action, ServeOptions(Path("model.gguf"))).cache_ram == cache_mib


def test_the_changing_header_of_claude_code_is_named_with_its_fix() -> None:
    (event,) = watch(make_reread(10_000, RereadCause.CHANGED_PREFIX, BILLING_HEADER))
    assert "header x-anthropic-billing-header" in event.finding.sentence
    assert "`mtp-launcher code claude` turns it off" in event.finding.sentence
