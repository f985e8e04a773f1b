"""Every fault of a download has the outcome that docs/downloads.md documents."""

from tools.fault_matrix.__main__ import made, written


def test_the_table_in_the_docs_is_what_happens() -> None:
    assert made().splitlines() == written().splitlines()
