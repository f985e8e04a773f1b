"""Writes tables in Markdown."""

from collections.abc import Iterable, Sequence


def format_table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int | None = None) -> str:
    """Return a table whose first `texts` columns are words and whose other columns are numbers; None: all are words."""
    words = len(titles) if texts is None else texts
    rule = ["---"] * words + ["---:"] * (len(titles) - words)
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, rule, *rows))
