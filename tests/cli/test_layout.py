"""Text and tables in the width of the terminal."""

import pytest

from launcher.cli.layout import format_table, merge_similar, text_columns, wrap_text

ROWS = (("ID", "NAME", "SIZE"), ("one", "the first of them", "1,234.5"), ("two", "x", "7"))


@pytest.mark.parametrize(("columns", "width"), [("60", 60), ("80", 80), ("300", 120), ("5", 40), ("none", 100)])
def test_text_is_wrapped_to_a_readable_width(columns: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert text_columns() == width


def test_texts_that_differ_in_numbers_are_printed_once() -> None:
    busy = [f"Others used {percent} % of the processor." for percent in (46, 51.5)]
    assert merge_similar([busy[0], "It was hot.", busy[1], "It was hot."]) == f"{busy[0]} It was hot."


def test_lines_continue_below_the_text_and_words_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    name = "a-name-that-is-much-longer-than-any-line-of-40.gguf"
    assert wrap_text(f"1,234 MiB of {name} and of the others, for it", "  why  ").splitlines() == [
        "  why  1,234 MiB of",
        f"       {name}",
        "       and of the others, for it",
    ]
    assert wrap_text("", "Display    ") == "Display"


def test_a_table_in_a_file_has_one_line_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    wide = [("x" * 150, "1"), ("y", "2")]
    assert list(format_table(wide, right={1})) == ["  " + "x" * 150 + "  1", "  " + "y" + " " * 149 + "  2"]


def test_columns_without_room_continue_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert list(format_table(ROWS, right={2})) == [
        "  ID   NAME                  SIZE",
        "  one  the first of them  1,234.5",
        "  two  x                        7",
    ]
    monkeypatch.setenv("COLUMNS", "40")
    assert list(format_table([(*row, "x" * 20) for row in ROWS], right={2})) == [
        "  ID   NAME                  SIZE",
        "      xxxxxxxxxxxxxxxxxxxx",
        "  one  the first of them  1,234.5",
        "      xxxxxxxxxxxxxxxxxxxx",
        "  two  x                        7",
        "      xxxxxxxxxxxxxxxxxxxx",
    ]
