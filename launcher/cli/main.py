"""The command `mtp-launcher`: its verbs, its exit codes, its way to end."""

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from launcher import __version__
from launcher.cli import gui
from launcher.cli.interrupts import INTERRUPTED, run_interruptible
from launcher.cli.terminal import guard

if TYPE_CHECKING:
    from launcher.base.errors import LauncherError

VERBS = {
    "gui": "open the window (also what happens without a verb)",
    "demo": "run the whole chain on the built-in demo model",
    "up": "from nothing to the first token: the recommended plan, downloaded, tested and served",
    "serve": "serve a model until Ctrl-C",
    "chat": "ask a running server",
    "chats": "look after the conversations that the window keeps",
    "status": "list the running servers",
    "stop": "stop a running server",
    "restart": "restart a running server, with other settings",
    "logs": "show the log of the running server, or of the last one",
    "plan": "say what fits this machine, or a described one, and how to run it",
    "estimate": "say what memory a model takes, before it is downloaded",
    "pull": "get a model onto this machine, verified; interrupted, it goes on where it was",
    "downloads": "look after the queue of downloads, and work it",
    "models": "list the models of the catalogue, or tell all about one; look after those on this machine",
    "engine": "list, install, test and switch engines (official builds of llama.cpp, and your own)",
    "bench": "say how fast a model is here, measured with the prompts of a workload",
    "history": "what was measured here: list, show, export, share",
    "preset": "the settings that a tune found best here, model by model; export and import them",
    "compare": "say how many times as fast one measurement is as another",
    "autostart": "serve from login on, or not (off until switched on)",
    "keys": "list the keys of this program's servers, or replace them",
    "settings": "list this program's settings, or change them",
    "tune": "find the fastest draft length and settings on this machine, by measuring them",
    "curve": "measure the speed over how full the context is, how large it is, or how many streams there are",
    "endure": "put a model under load for minutes, and say whether its speed holds",
    "attach": "look at a server that others started, and watch it",
    "export": "write a server down for other tools: shells, compose, systemd, clients, llama-swap, a router",
    "diagnose": "say why an engine failed, from its log",
    "doctor": "say what this machine has and what is missing",
    "versions": "say what runs here, by version, for a report",
    "update": "say whether there is a newer version of this program, and install it",
}
_ANSWERING = ("plan", "estimate", "models", "doctor", "versions", "status", "diagnose", "export")
"""The verbs that do nothing but print."""
_BROKEN_PIPE = 141

OpenWindow = Callable[[argparse.Namespace], int]


def run(open_window: OpenWindow) -> NoReturn:
    """Run the command line of this process; `open_window` is the other face."""
    closed = sys.stdout is None  # or pythonw
    if closed:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 -- for as long as we live
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    if sys.platform != "win32":
        os.umask(0o077)  # keys, logs and what the engine reads are nobody else's business
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # On Windows a pipe would get the code page, in which programs do not read JSON.
            stream.reconfigure(encoding="utf-8" if sys.platform == "win32" else None, errors="replace")
    guard()
    try:
        code = main(sys.argv[1:], open_window)
        sys.stdout.flush()
        if closed and code == 0 and sys.argv[1:2] and sys.argv[1] in _ANSWERING:
            raise OSError("it is closed")
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains at exit
        code = _BROKEN_PIPE
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"Error: The output could not be written: {error.strerror or error}.", file=sys.stderr)
        code = 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # else Ctrl-C shows a traceback of Python's own end
    sys.exit(code)


def main(arguments: list[str], open_window: OpenWindow) -> int:
    """Run one command line and return its exit code: 0 done, 1 an error that was explained, 2 wrong usage."""
    extra: list[str] = []
    if arguments[:1] in (["serve"], ["plan"], ["export"]) and "--" in arguments:
        cut = arguments.index("--")
        arguments, extra = arguments[:cut], arguments[cut + 1 :]
    parser = _parser(arguments)
    if arguments[:1] != ["chat"] and (what := _empty(arguments)):  # a prompt has words of its own for it
        parser.error(f"{what} is empty: give it a value, or leave it out")
    options = parser.parse_args(arguments)
    if extra:
        options.extra = extra
    if options.verb is None:
        if not gui.shows():
            _parser([]).print_help()
            return 2
        options = _parser(["gui"]).parse_args(["gui"])
    if options.verb == "demo" and gui.shows() and not (options.headless or options.json or options.seconds):
        options = _parser(["gui"]).parse_args(["gui", "--demo"])
    if options.verb == "gui":
        return _explained(options, lambda: gui.run(options, open_window))
    return _explained(options, lambda: run_interruptible(lambda: options.run(options)))


def _empty(arguments: list[str]) -> str | None:
    """Return what has an empty value, as from a variable that is not set; no option means anything by one."""
    for before, word in pairwise(["", *arguments]):
        if not word.strip():
            return f"argument {before}" if before.startswith("--") and "=" not in before else "an argument"
        if word.startswith("--") and not word.partition("=")[2].strip() and "=" in word:
            return f"argument {word.partition('=')[0]}"
    return None


def _parser(arguments: list[str]) -> argparse.ArgumentParser:
    """Build the parser; only the verb that was named is imported, so that the others cost nothing."""
    parser = argparse.ArgumentParser(
        prog="mtp-launcher", description="Run llama.cpp's llama-server with MTP speculative decoding, and watch it."
    )
    parser.add_argument("--version", action="version", version=f"mtp-launcher {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    for name, summary in VERBS.items():
        sub = verbs.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name in arguments:
            module = importlib.import_module(f"launcher.cli.{name}")
            module.configure(sub)
            sub.set_defaults(run=module.run, json=False)
            if name != "gui":
                sub.add_argument("--json", action="store_true", help="print JSON for programs")
    return parser


def _explained(options: argparse.Namespace, verb: Callable[[], int]) -> int:
    """Run a verb; what it cannot do is told in a sentence, with exit code 1."""
    from launcher.base.errors import LauncherError
    from launcher.base.paths import check_home, refusal
    from launcher.cli.output import print_error
    from launcher.settings import fill
    from launcher.updates.before_update import keep_copies

    try:
        if options.verb not in ("doctor", "gui"):  # which tell of it beside all else
            check_home()
        keep_copies()
        fill(options)
        return verb()
    except LauncherError as error:
        print_error(error, as_json=options.json)
        if options.verb == "gui":
            _show_unseen(error)
    except OSError as error:
        unnamed = error.filename is None and not isinstance(error, TimeoutError)  # which is a lock's
        if isinstance(error, BrokenPipeError) or (unnamed and options.verb in _ANSWERING):
            raise  # it is the output that cannot be written
        print_error(_without_proc() or refusal(error), as_json=options.json)
    except Exception:
        if (why := _without_proc()) is None:
            raise
        print_error(why, as_json=options.json)
    return 1


def _without_proc() -> "LauncherError | None":
    """Return what to say where Linux's /proc is not mounted, without which psutil fails in many ways."""
    if sys.platform != "linux":
        return None
    import psutil

    from launcher.base.errors import HostUnreadable

    if Path(psutil.PROCFS_PATH, "self").exists():
        return None
    return HostUnreadable(
        "/proc is not mounted here, and without it Linux tells nothing of memory and processes.",
        "Mount it as root, `mount -t proc proc /proc`, and run this again.",
    )


def _show_unseen(error: "LauncherError") -> None:
    from launcher.cli import unseen

    if unseen.started_from_a_menu():
        unseen.show(error)
