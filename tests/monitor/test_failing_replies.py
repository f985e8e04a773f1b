"""Requests that fail one after another: when that becomes a finding, what it says, and when it ends."""

import pytest

from launcher.base.action import ActionKind
from launcher.base.codec import to_json
from launcher.engine.server.state import FailedReplies
from launcher.monitor.health import Health
from launcher.monitor.health_event import FindingCode, FindingLevel, HealthEvent, ServerSetup
from tests.monitor.series import list_changes, moment, run

ODD = FailedReplies(3, 0, 0, 500, "something odd.")


def watch(*failed: FailedReplies | None) -> list[HealthEvent]:
    return run(Health(ServerSetup()), [moment(2.0 * at, failed_replies=each) for at, each in enumerate(failed)])


def test_the_third_failure_is_a_finding_and_a_reply_ends_it() -> None:
    assert watch(FailedReplies(), ODD._replace(total=2), None) == []
    events = watch(FailedReplies(), ODD, ODD, None, FailedReplies(has_replied=True))
    assert list_changes(events) == [(FindingCode.REPLIES_FAIL, True), (FindingCode.REPLIES_FAIL, False)]
    finding = events[0].finding
    assert finding.sentence == "The last 3 requests all failed: something odd."
    assert finding.level is FindingLevel.WARNING
    assert finding.action is not None
    assert finding.action.kind is ActionKind.RESTART
    assert to_json(finding)["evidence"] == {
        "requests_failed": 3.0,
        "message": "something odd.",
        "http_status": 500.0,
    }


def test_it_is_raised_again_when_twice_as_many_have_failed() -> None:
    events = watch(ODD, ODD._replace(total=4), ODD._replace(total=5), ODD._replace(total=8))
    assert [each.finding.evidence["requests_failed"] for each in events] == [3, 4, 8]


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("image input is not supported", ActionKind.LOAD_PROJECTOR),
        ("request (9 tokens) exceeds the available context size (8 tokens)", ActionKind.LARGER_CONTEXT),
        ("something that no table knows", None),
    ],
)
def test_requests_that_are_refused_are_information_with_their_cure(message: str, kind: ActionKind | None) -> None:
    (event,) = watch(FailedReplies(4, 4, 0, 400, message))
    assert event.finding.level is FindingLevel.INFORMATION
    assert event.finding.sentence.startswith("The engine refused the last 4 requests: ")
    action = event.finding.action
    assert (action.kind if action is not None else None) is kind


def test_an_error_without_a_message_has_its_status() -> None:
    (event,) = watch(FailedReplies(3, 0, 0, 500, ""))
    assert event.finding.sentence == "The last 3 requests all failed: HTTP status 500."


def test_an_engine_that_gives_no_reason_has_none() -> None:
    assert FailedReplies(total=3).sentence == "The last 3 requests all failed: no message."
