"""The command `mtp-launcher`: the command line for its verbs, the window without one."""

import signal
import sys

# Until a verb runs there is nothing to clean up: Ctrl-C ends the process at once, also during imports, and also where
# it is ignored, as in the background of a script.
signal.signal(signal.SIGINT, signal.SIG_DFL)
if sys.platform != "win32":  # ./start blocks the signal until here, because Python prints a traceback while it starts
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

import argparse  # noqa: E402
from typing import NoReturn  # noqa: E402

from launcher.base.running_mark import mark_running  # noqa: E402
from launcher.cli import main as cli  # noqa: E402


def run() -> NoReturn:
    """Run the command."""
    mark_running()
    cli.run(open_window=_open_window)


def _open_window(options: argparse.Namespace) -> int:
    from launcher.gui.application import run_window

    return run_window(options)
