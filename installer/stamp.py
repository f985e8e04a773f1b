"""Prints a script as a release has it: with the files that it includes, and with values of the release.

    python stamp.py SCRIPT NAME=VALUE ...

A line `# include FILE` is replaced by that file, whose path is relative to the script's folder. A line `NAME=` of a
shell script, or `$NAME = ''` of PowerShell, gets the value. A missing file or line ends the program with an error.
"""

import re
import sys
from pathlib import Path


def include_files(script: Path) -> str:
    """Return a script with its included files in place. An included file's first line is left out if it names an
    interpreter."""

    def read_file(line: re.Match[str]) -> str:
        return re.sub(r"\A#!.*\n", "", (script.parent / line[1]).read_text("utf-8"))

    return re.sub(r"^# include (\S+)\n", read_file, script.read_text("utf-8"), flags=re.MULTILINE)


def set_value(text: str, name: str, value: str) -> str:
    """Return a script with a value. Raises SystemExit if it has no line for that."""
    text, count = re.subn(
        rf"^({name}=(?=$)|\${name} = '(?='$))", lambda line: line[1] + value, text, flags=re.MULTILINE
    )
    if count != 1:
        sys.exit(f"There are {count} lines for {name}.")
    return text


def main(script: Path, values: list[str]) -> None:
    """Print the script."""
    text = include_files(script)
    for each in values:
        name, _, value = each.partition("=")
        text = set_value(text, name, value)
    sys.stdout.buffer.write(text.encode())  # as bytes, so that Windows changes no line ends


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
