"""Scores the diagnosis on recorded logs: how often it names the first cause, and where it does not.

python -m tools.diagnosis_score [FOLDER ...]
python -m tools.diagnosis_score --docs           writes the tables of docs/diagnosis.md
"""

import sys
from pathlib import Path

from tools.diagnosis_score.docs import DOCUMENT, HELD_OUT, count_examples, update_document
from tools.diagnosis_score.score import LOGS, LogLabel, judge_logs


def main() -> None:
    """Print the score of each folder, or write the document's tables."""
    if "--docs" in sys.argv:
        DOCUMENT.write_text(update_document(DOCUMENT.read_text("utf-8")), "utf-8")
        return
    for folder in map(Path, sys.argv[1:] or [str(LOGS / name) for name in HELD_OUT]):
        judged = list(judge_logs(folder))
        for each in judged:
            if not each.is_right:
                found = each.diagnosis
                answer = f"{found.code}: {found.title} To do: {found.actions[0].label}" if found else "nothing"
                print(f"{each.name}: should be {_describe_label(each.label)}, is {answer}")
        right = sum(each.is_right for each in judged)
        print(f"{folder.name}: {right} of {len(judged)} right ({100 * right / len(judged):.0f} %)")
        if folder.name in HELD_OUT:
            print(f"  at first, on {HELD_OUT[folder.name].date}: {HELD_OUT[folder.name].right}")
    if not sys.argv[1:]:
        print("signatures.toml: {} of {} right (examples that the patterns were made for)".format(*count_examples()))


def _describe_label(label: LogLabel) -> str:
    if label.codes is not None:
        return " or ".join(label.codes) or "nothing"
    return f"{', '.join(label.says)} (first {' or '.join(label.cures)})"


if __name__ == "__main__":
    main()
