"""Command line: `python -m tools.serve_faults` prints the table, `--write` puts it into docs/faults.md.

`--check` ends with exit code 1 if a row differs from the document.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tools.serve_faults.faults import FAULTS
from tools.serve_faults.run import HEAD, make_rows

DOCUMENT = Path(__file__).parents[2] / "docs" / "faults.md"
BEGIN, END = "<!-- the table is made by `python -m tools.serve_faults --write` -->\n", "<!-- end of the table -->\n"


def read_document_rows() -> list[str]:
    """Return the rows of the table in the document."""
    table = DOCUMENT.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]
    return table.removeprefix(HEAD).strip().splitlines()


def _fault_name(row: str) -> str:
    return row.partition(" | ")[0]


def main() -> None:
    """Make the table, or with --only some of its rows."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.serve_faults", description="Provoke each fault and print a table of the results."
    )
    parser.add_argument("--write", action="store_true", help="put the table into docs/faults.md")
    parser.add_argument("--check", action="store_true", help="compare with the table in docs/faults.md")
    parser.add_argument("--only", default="", metavar="WORDS", help="only the faults with these words in their name")
    chosen = parser.parse_args()
    made = []
    with tempfile.TemporaryDirectory(prefix="mtp-faults-") as folder:
        for row in make_rows(Path(folder), [fault for fault in FAULTS if chosen.only in fault.description]):
            made.append(row)
            print(row, flush=True)
    if chosen.check and (others := [row for row in made if row not in read_document_rows()]):
        sys.exit(
            f"{len(others)} of {len(made)} rows are not those of {DOCUMENT}: {', '.join(map(_fault_name, others))}"
        )
    if chosen.write:
        before, _, rest = DOCUMENT.read_text("utf-8").partition(BEGIN)
        known = {_fault_name(row): row for row in ([*read_document_rows(), *made] if chosen.only else made)}
        table = (
            "\n".join([HEAD, *(known[name] for fault in FAULTS if (name := f"| {fault.description}") in known)]) + "\n"
        )
        DOCUMENT.write_text(before + BEGIN + table + END + rest.partition(END)[2], "utf-8")
        print(f"{len(made)} rows written to {DOCUMENT}", file=sys.stderr)


if __name__ == "__main__":
    main()
