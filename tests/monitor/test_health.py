"""Health as a whole: the latch, sleep, and the document, which names all findings."""

import json
from pathlib import Path

from launcher.base.codec import to_json
from launcher.monitor.health import Health
from launcher.monitor.health_event import CheckResult, Finding, FindingCode, Latch, Moment, ServerSetup
from tests.monitor.series import activity, list_changes, moment, repeat_moment, reply, run

DOCUMENT = Path(__file__).parents[2] / "docs" / "health.md"
FOUND = Finding(FindingCode.SPILL, "Found.", {"spilled_mib": 1.23456, "who": "x"})


class Scripted:
    """A detector that returns prepared results."""

    def __init__(self, says: str) -> None:
        self._says = iter(says)

    def check(self, _: Moment) -> CheckResult:
        return {"F": FOUND, "-": False, "?": None}[next(self._says)]


def run_latch(says: str, *, gap_before: int | None = None) -> str:
    """Return the output of a latch that raises (R) after three checks and clears (C) after two; a dot is no change."""
    latch = Latch(Scripted(says), raise_checks=3, clear_checks=2)
    times = [
        2.0 * index + (100.0 if gap_before is not None and index >= gap_before else 0.0) for index in range(len(says))
    ]
    events = [latch.check_moment(moment(time_s)) for time_s in times]
    return "".join("." if event is None else "C" if event.cleared else "R" for event in events)


class TestLatch:
    def test_a_finding_is_raised_and_cleared_once(self) -> None:
        assert run_latch("FFFFFF----") == "..R....C.."

    def test_an_opposite_check_resets_the_count(self) -> None:
        assert run_latch("FF-FF-FF-") == "........."
        assert run_latch("FFF-F-F--") == "..R.....C"

    def test_unknown_checks_do_not_count(self) -> None:
        assert run_latch("F?F??F?-?-?") == ".....R...C."

    def test_a_gap_resets_the_count(self) -> None:
        assert run_latch("FFFFF", gap_before=2) == "....R"


def test_findings_are_json_with_plain_values() -> None:
    finding_json = json.loads(json.dumps(to_json(FOUND)))
    assert finding_json["evidence"] == {"spilled_mib": 1.235, "who": "x"}
    assert (finding_json["code"], finding_json["level"], finding_json["action"]) == ("spill", "warning", None)


def test_a_new_server_without_data_has_no_findings() -> None:
    health = Health(ServerSetup())
    assert run(health, repeat_moment(1_000)) == []
    assert health.open_findings == ()


def test_two_findings_can_be_raised_at_once() -> None:
    hot = repeat_moment(15, generating=True, activity=activity(("temperature (hardware)",)), waiting=2)
    health = Health(ServerSetup())
    assert {code for code, _ in list_changes(run(health, hot))} == {
        FindingCode.THROTTLED_HOT,
        FindingCode.REQUESTS_WAIT,
    }
    assert {found.code for found in health.open_findings} == {FindingCode.THROTTLED_HOT, FindingCode.REQUESTS_WAIT}


def test_a_computer_asleep_raises_nothing() -> None:
    day = [moment(10.0 * i, finished=(reply(144),), generating=True) for i in range(60)]
    next_day = [moment(40_000.0 + 10 * i, finished=(reply(140),), generating=True) for i in range(60)]
    assert run(Health(ServerSetup(draft=2)), day + next_day) == []


def test_the_document_names_every_code() -> None:
    rows = DOCUMENT.read_text("utf-8").split("\n")
    assert {row.split("`")[1] for row in rows if row.startswith("| `")} == {code.value for code in FindingCode}
