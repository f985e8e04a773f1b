"""Every fault that a download can meet comes out as docs/downloads.md says."""

from tools.fault_matrix.__main__ import made, written


def test_the_table_in_the_docs_is_what_happens() -> None:
    assert made().splitlines() == written().splitlines()
