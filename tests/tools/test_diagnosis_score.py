"""The score of the diagnosis on held-out logs, and the document that contains it."""

import pytest

from launcher.engine.diagnosis.explain import diagnose_log
from launcher.engine.diagnosis.signatures import fault_signatures
from tools.diagnosis_score.docs import DOCUMENT, HELD_OUT, update_document
from tools.diagnosis_score.score import LOGS, LogLabel, judge_logs

MENDED = ("held-out", "held-out-2", "held-out-3", "reports", "reports-2", "reports-3", "reports-5")
"""The sets that are right since their first score; the others are measured only."""


@pytest.mark.parametrize("name", HELD_OUT)
def test_the_first_cause_is_named_on_logs_that_were_held_out(name: str) -> None:
    judged = list(judge_logs(LOGS / name))
    assert {each.name for each in judged} == {path.name for path in (LOGS / name).glob("*.log")}
    wrong = [each.name for each in judged if not each.is_right]
    assert len(judged) - len(wrong) >= HELD_OUT[name].right
    assert not (wrong and name in MENDED)


def test_a_wrong_name_and_a_false_alarm_are_not_right() -> None:
    killed = diagnose_log("", exit_code=137)
    assert not LogLabel(1, ("port_busy",)).agrees_with(killed)
    assert not LogLabel(1, ("port_busy",)).agrees_with(None)
    assert not LogLabel(0, ()).agrees_with(killed)
    assert LogLabel(0, ()).agrees_with(None)
    assert LogLabel(1, ("port_busy", "killed")).agrees_with(killed)


def test_a_report_is_right_if_a_person_reads_the_cause_and_the_cure_first() -> None:
    killed = diagnose_log("", exit_code=137)
    assert LogLabel(137, says=("ran out of memory",), cures=("free_memory", "smaller_context")).agrees_with(killed)
    assert not LogLabel(137, says=("watchdog",), cures=("smaller_context",)).agrees_with(killed)
    assert not LogLabel(137, says=("memory",), cures=("report",)).agrees_with(killed)
    assert not LogLabel(137, says=("memory",)).agrees_with(None)


def test_the_document_has_every_fault_once_it_is_written() -> None:
    """The figures may be older than the code, until `just generate` writes the document again."""
    document = update_document(DOCUMENT.read_text("utf-8"))
    assert all(f"| `{fault.code}` |" in document for fault in fault_signatures())
