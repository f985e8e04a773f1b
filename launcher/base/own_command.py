"""The command line that runs this program again."""

import sys
from pathlib import Path

NAME = "mtp-launcher"


def own_command(*arguments: str, windowless: bool = False) -> list[str]:
    """Return the words that run this program with arguments. With `windowless` (Windows) it opens no console.

    Without its script, Python is told not to import from the current folder, which may be any project.
    """
    python = Path(sys.executable)
    script = python.with_name(NAME)
    if script.exists() and not windowless:
        return [str(script), *arguments]
    if sys.platform == "win32":
        other = python.with_name("pythonw.exe" if windowless else "python.exe")
        python = other if other.exists() else python
    return [str(python), "-P", "-m", "launcher", *arguments]
