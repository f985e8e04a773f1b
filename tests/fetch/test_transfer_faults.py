"""Every fault of a download has the outcome that docs/downloads.md documents."""

from tools.fault_matrix.__main__ import make_table, read_document_table


def test_the_documented_table_is_true() -> None:
    assert make_table().splitlines() == read_document_table().splitlines()
