"""The score of the diagnosis on held-out logs, and the document that contains it."""

import pytest

from launcher.engine.diagnosis.signatures import fault_signatures
from tools.diagnosis_score.docs import DOCUMENT, HELD_OUT, update_document
from tools.diagnosis_score.score import LOGS, JudgedLog, judge_logs


@pytest.mark.parametrize("name", HELD_OUT)
def test_the_first_cause_is_named_on_logs_that_were_held_out(name: str) -> None:
    judged = list(judge_logs(LOGS / name))
    assert len(judged) >= 40
    assert {each.name for each in judged} == {path.name for path in (LOGS / name).glob("*.log")}
    assert not [each for each in judged if not each.is_right]


def test_a_wrong_name_and_a_false_alarm_are_not_right() -> None:
    assert not JudgedLog("a", ("port_busy",), "killed", "").is_right
    assert not JudgedLog("a", ("port_busy",), None, "").is_right
    assert not JudgedLog("a", (), "killed", "").is_right
    assert JudgedLog("a", (), None, "").is_right
    assert JudgedLog("a", ("port_busy", "killed"), "killed", "").is_right


def test_the_document_has_every_fault_once_it_is_written() -> None:
    """The figures may be older than the code, until `just generate` writes the document again."""
    document = update_document(DOCUMENT.read_text("utf-8"))
    assert all(f"| `{fault.code}` |" in document for fault in fault_signatures())
