"""The table of faults agrees with what happens."""

from pathlib import Path

import pytest

from tests import forked
from tools.serve_faults.__main__ import read_document_rows
from tools.serve_faults.faults import FAULTS, Fault
from tools.serve_faults.run import make_rows


def test_the_document_has_every_fault_in_order() -> None:
    assert [row.split(" | ")[0].removeprefix("| ") for row in read_document_rows()] == [
        fault.description for fault in FAULTS
    ]


def test_nothing_in_the_document_went_wrong() -> None:
    """A result that must not occur is written in capitals."""
    for row in read_document_rows():
        happened, lost = row.split(" | ")[2], row.split(" | ")[4]
        words = f"{happened} {lost}".replace("SIGKILL", "").replace("SIGCONT", "").replace("SIGSTOP", "").split()
        assert not [word for word in words if len(word) > 2 and word.isupper() and word != "MTP"], row


@pytest.mark.cases(2)
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if not fault.slow], ids=lambda fault: fault.description)
@pytest.mark.usefixtures("forked_commands")
def test_a_fault_behaves_as_documented(fault: Fault, tmp_path: Path) -> None:
    assert next(make_rows(tmp_path / "faults", [fault], forked.start)) in read_document_rows()
