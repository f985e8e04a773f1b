"""Entry point of `mtp-launcher`: runs the verb that is given, or opens the window."""

import signal
import sys

# Until a verb runs there is nothing to clean up, so Ctrl-C ends the process at once, also during imports. This also
# holds in the background of a script, where the shell makes processes ignore the signal.
signal.signal(signal.SIGINT, signal.SIG_DFL)
if sys.platform != "win32":  # ./start blocks the signal until here: while Python starts, it would print a traceback
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

import argparse  # noqa: E402
import gc  # noqa: E402
from typing import NoReturn  # noqa: E402

from launcher.base.running_mark import mark_running  # noqa: E402
from launcher.cli import main as cli  # noqa: E402


def run() -> NoReturn:
    """Run the command."""
    mark_running()
    cli.run(open_window=_open_window)


def _open_window(options: argparse.Namespace) -> int:
    gc.disable()  # imports leave no garbage, and run_window collects garbage itself
    from launcher.gui.application import run_window

    return run_window(options)
