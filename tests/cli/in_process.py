"""A command of the command line run in this process: what it printed, and its exit code."""

from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO

from launcher.cli.main import main


@dataclass(frozen=True)
class CommandResult:
    """The output of a command, and its exit code."""

    returncode: int
    stdout: str
    stderr: str


def run(*arguments: str) -> CommandResult:
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(list(arguments), lambda _: 1)
        except SystemExit as ended:
            code = int(ended.code or 0)
    return CommandResult(code, out.getvalue(), err.getvalue())
