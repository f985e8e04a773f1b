"""The score of the diagnosis on held-out logs, and the document that contains it."""

import pytest

from launcher.engine.diagnosis.signatures import fault_signatures
from tools.diagnosis_score.docs import DOCUMENT, HELD_OUT, written
from tools.diagnosis_score.score import LOGS, Judged, judge


@pytest.mark.parametrize("name", HELD_OUT)
def test_the_first_cause_is_named_on_logs_that_were_held_out(name: str) -> None:
    judged = list(judge(LOGS / name))
    assert len(judged) >= 40
    assert {each.name for each in judged} == {path.name for path in (LOGS / name).glob("*.log")}
    assert not [each for each in judged if not each.right]


def test_a_wrong_name_and_a_false_alarm_are_not_right() -> None:
    assert not Judged("a", ("port_busy",), "killed", "").right
    assert not Judged("a", ("port_busy",), None, "").right
    assert not Judged("a", (), "killed", "").right
    assert Judged("a", (), None, "").right
    assert Judged("a", ("port_busy", "killed"), "killed", "").right


def test_the_document_has_every_fault_once_it_is_written() -> None:
    """`just generate` writes it; it may wait for that."""
    document = written(DOCUMENT.read_text("utf-8"))
    assert all(f"| `{fault.code}` |" in document for fault in fault_signatures())
