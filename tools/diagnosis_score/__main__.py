"""Scores the diagnosis on recorded logs: how often it names the first cause, and where it does not.

python -m tools.diagnosis_score [FOLDER ...]
python -m tools.diagnosis_score --docs           writes the tables of docs/diagnosis.md
"""

import sys
from pathlib import Path

from tools.diagnosis_score.docs import DOCUMENT, HELD_OUT, update_document
from tools.diagnosis_score.score import LOGS, judge_logs


def main() -> None:
    """Print the score of each folder, or write the document's tables."""
    if "--docs" in sys.argv:
        DOCUMENT.write_text(update_document(DOCUMENT.read_text("utf-8")), "utf-8")
        return
    for folder in map(Path, sys.argv[1:] or [str(LOGS / name) for name in HELD_OUT]):
        judged = list(judge_logs(folder))
        for each in judged:
            if not each.is_right:
                print(
                    f"{each.name}: should be {' or '.join(each.codes) or 'nothing'}, is {each.diagnosis or 'nothing'}"
                )
        right = sum(each.is_right for each in judged)
        print(f"{folder.name}: {right} of {len(judged)} right ({100 * right / len(judged):.0f} %)")


if __name__ == "__main__":
    main()
