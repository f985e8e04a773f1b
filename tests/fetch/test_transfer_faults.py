"""Every fault of a download has the outcome that docs/downloads.md documents."""

from tools.fault_matrix.__main__ import made, written


def test_the_documented_table_is_true() -> None:
    assert made().splitlines() == written().splitlines()
