"""Writes what an agent did as a transcript for readers, and puts transcripts into a document."""

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import indent

from tools.prove_agents.workplace import TREE, CodeRun, Workplace

_ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_=>])")
_MOST_LINES = 10
_WIDTH = 130
_CUT = "[...]"
_PROGRESS = ("Preparing", "Loading the model", "Warming up", "Stopping")


def describe_run(place: Workplace, run: CodeRun) -> str:
    """Return a command and what it printed, without colours, shortened."""
    return describe_command(place, run.words, run.output)


def describe_command(place: Workplace, words: Sequence[str], output: str) -> str:
    """Return the words of a command of `mtp-launcher` and its output, shortened."""
    return _join_lines(place, f"$ {_hide_paths(place, shlex.join(('mtp-launcher', *words)))}", output)


def describe_typing(place: Workplace, question: str, answer: Sequence[str]) -> str:
    """Return a question that was typed into the agent's own terminal, and the answer, shortened."""
    return _join_lines(place, f"> {question}", "\n".join(answer))


def _join_lines(place: Workplace, first: str, output: str) -> str:
    lines = list(_shorten_lines(place, output))
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES // 2 : -_MOST_LINES // 2] = [_CUT]
    return "\n".join((first, *lines))


def _shorten_lines(place: Workplace, output: str) -> Iterator[str]:
    for line in _ESCAPE.sub("", output).replace("\r", "\n").splitlines():
        text = _hide_paths(place, line.rstrip())
        if text and text not in _PROGRESS:
            yield text if len(text) <= _WIDTH else f"{text[: _WIDTH - len(_CUT) - 1]} {_CUT}"


def _hide_paths(place: Workplace, text: str) -> str:
    for path, name in ((place.project, "~/project"), (place.folder, "~"), (TREE, "mtp-launcher")):
        text = text.replace(str(path), name)
    return text


def save_transcript(folder: Path, name: str, title: str, steps: Sequence[str], summary: str) -> None:
    """Write an agent's transcript into a folder of transcripts: a heading, the summary, and the steps."""
    folder.mkdir(exist_ok=True)
    block = indent("\n\n".join(steps), "    ")
    (folder / f"{name}.md").write_text(f"### {title}\n\n{summary}\n\n{block}\n")


def insert_transcripts(document: Path, folder: Path) -> None:
    """Replace the transcripts in a document by those in the folder. Transcripts without a file there stay."""
    text = document.read_text()
    for path in sorted(folder.glob("*.md")):
        begin, end = f"<!-- transcript of {path.stem} -->\n", f"<!-- end of {path.stem} -->\n"
        before, found, rest = text.partition(begin)
        if not found:
            before, rest = f"{text.rstrip()}\n\n", end
        text = f"{before}{begin}\n{path.read_text()}\n{end}{rest.partition(end)[2]}"
    document.write_text(text)
