"""Command line: `python -m tools.fault_matrix` prints the table, `--write` puts it into docs/downloads.md."""

import argparse
import tempfile
from pathlib import Path

from tools.fault_matrix.run import format_table, run_cases

DOCUMENT = Path(__file__).parents[2] / "docs" / "downloads.md"
BEGIN, END = "<!-- the table is made by `python -m tools.fault_matrix --write` -->\n", "<!-- end of the table -->\n"


def make_table() -> str:
    """Provoke all faults, and return the table."""
    with tempfile.TemporaryDirectory(prefix="mtp-faults-") as folder:
        return format_table(run_cases(Path(folder))) + "\n"


def read_document_table() -> str:
    """Return the table in the document."""
    return DOCUMENT.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]


def main() -> None:
    """Make the table."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.fault_matrix",
        description="Provoke each fault of a download, and print a table of the outcomes.",
    )
    parser.add_argument("--write", action="store_true", help="put the table into docs/downloads.md")
    new = make_table()
    if parser.parse_args().write:
        before, _, rest = DOCUMENT.read_text("utf-8").partition(BEGIN)
        DOCUMENT.write_text(before + BEGIN + new + END + rest.partition(END)[2], "utf-8")
    else:
        print(new, end="")


if __name__ == "__main__":
    main()
