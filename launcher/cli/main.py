"""The command `mtp-launcher`: verbs, exit codes, signals."""

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from launcher import __version__
from launcher.cli.terminal import guard_output

if TYPE_CHECKING:
    from launcher.base.errors import LauncherError

INTERRUPTED, TERMINATED, HUNG_UP, _BROKEN_PIPE = 130, 143, 129, 141
"""Exit codes after SIGINT (Ctrl-C), SIGTERM, SIGHUP and SIGPIPE: 128 and the number of the signal, as in a shell."""
VERBS = {
    "gui": "open the window (the default without a command)",
    "demo": "try everything with the small built-in model",
    "up": "download, test and serve the recommended model",
    "serve": "serve a model until Ctrl-C",
    "code": "start a coding agent with a server that suits it",
    "agent-check": "check whether a running server suits coding agents",
    "chat": "send a prompt to a running server",
    "chats": "list, search, export and delete the window's conversations",
    "cache": "list, verify and delete what models have read, which is kept on disk",
    "status": "list the running servers and their models",
    "stop": "stop a running server, or unload one of its models",
    "restart": "restart a running server, optionally with other settings",
    "logs": "show the log of a running server, or of the last one",
    "requests": "list the last requests to the server: who sent them, tokens, speed",
    "plan": "recommend models and settings for this machine, or for one that you describe",
    "estimate": "estimate a model's memory before you download it",
    "pull": "download and verify a model, or resume its download",
    "downloads": "show, run and change the download queue",
    "models": "list the catalogue, show one model, or manage the models on this machine",
    "engine": "list, install, test and switch engines: official llama.cpp builds, and your own",
    "bench": "measure a model's speed with the prompts of a workload",
    "history": "list, show, export and share measurements",
    "preset": "list, export and import tuned settings",
    "compare": "compare the speed of two measurements",
    "autostart": "serve a model at login (off by default)",
    "keys": "list, add, replace or revoke API keys of this program's servers",
    "settings": "list or change this program's settings",
    "tune": "measure which draft length and settings are fastest on this machine",
    "curve": "measure the speed by context fill, context size or number of parallel requests",
    "quality": "judge how quants, KV cache types and MTP change a model's answers",
    "endure": "keep a model busy for minutes, and check whether its speed holds",
    "prove": "check the documented claims on this machine, and write a report to send",
    "attach": "inspect and watch a server that another program started",
    "export": "export a server for other tools: shell, containers, clients, coding agents, proxies",
    "diagnose": "find out from its log why an engine failed",
    "doctor": "check this machine's hardware, drivers and engines",
    "versions": "list the versions of all parts, for a bug report",
    "completion": "print the completion script of a shell, or the manual page",
    "update": "check for a newer version of this program, and install it",
}
_PRINTING_VERBS = ("plan", "estimate", "models", "doctor", "versions", "status", "diagnose", "export", "completion")
"""Verbs that do nothing but print, so that a failed output is an error."""

_AFTER_SEPARATOR = {"serve": "llama-server", "plan": "llama-server", "export": "llama-server", "code": "the agent"}
"""Verbs that pass on what follows `--`, and the program that gets it."""

OpenWindow = Callable[[argparse.Namespace], int]


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, without the list of options and without passwords of addresses.

    The verbs' parsers are of this class, too.
    """

    def error(self, message: str) -> NoReturn:
        from launcher.base.text import hide_logins  # imported late: most commands are typed correctly

        self.exit(2, f"{self.prog}: error: {hide_logins(message)}\n`{self.prog} --help` shows the usage.\n")


def run(open_window: OpenWindow) -> NoReturn:
    """Run the command line of this process; `open_window` opens the window."""
    is_stdout_closed = sys.stdout is None  # the caller closed it, or this is pythonw
    if is_stdout_closed:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 -- open for the life of the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    if sys.platform != "win32":
        os.umask(0o077)  # keys, logs and the engine's files are private
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # On Windows a pipe would get the code page, and programs could not read the JSON.
            stream.reconfigure(encoding="utf-8" if sys.platform == "win32" else None, errors="replace")
    guard_output()
    try:
        code = main(sys.argv[1:], open_window)
        sys.stdout.flush()
        if is_stdout_closed and code == 0 and sys.argv[1:2] and sys.argv[1] in _PRINTING_VERBS:
            raise OSError("it is closed")
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise Python prints an error at exit
        code = _BROKEN_PIPE
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"Error: The output could not be written: {error.strerror or error}.", file=sys.stderr)
        code = 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # otherwise Ctrl-C during Python's exit prints a traceback
    sys.exit(code)


def _name_files(extra: list[str]) -> list[str]:
    """Return the engine's arguments with absolute names for the files in the user's folder."""
    from launcher.engine.serve_options import name_files_absolutely  # imported late: few command lines need it

    return [*name_files_absolutely(extra, Path.cwd())]


def main(arguments: list[str], open_window: OpenWindow) -> int:
    """Run one command line. Returns the exit code: 0 for success, 1 after a reported error, 2 for wrong usage."""
    extra: list[str] = []
    if arguments and arguments[0] in _AFTER_SEPARATOR and "--" in arguments:
        separator = arguments.index("--")
        arguments, extra = arguments[:separator], arguments[separator + 1 :]
    if arguments[:1] and arguments[0].startswith("--") and arguments[0] not in ("--help", "--version"):
        arguments = ["gui", *arguments]  # options without a verb are for the window, the default
    parser = _build_parser(arguments)
    if arguments[:1] != ["chat"] and (empty := _find_empty_value(arguments)):  # `chat` reports an empty prompt itself
        parser.error(f"{empty} is empty: give it a value, or leave it out")
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        _reject_arguments(options.verb, unknown)
    if extra:
        options.extra = extra if options.verb == "code" else _name_files(extra)
    if options.verb in (None, "demo", "gui"):
        from launcher.cli import gui  # imported late: the other verbs do not need it

        if options.verb is None:
            if not gui.can_show_window():
                _build_parser([]).print_help()
                print(gui.explain_no_window(), file=sys.stderr)
                return 2
            options = _build_parser(["gui"]).parse_args(["gui"])
        in_terminal = options.verb == "demo" and (options.headless or options.json or options.seconds)
        if options.verb == "demo" and not in_terminal and gui.can_show_window():
            options = _build_parser(["gui"]).parse_args(["gui", "--demo"])
        if options.verb == "gui":
            return _run_and_report(options, lambda: gui.run(options, open_window))
    return _run_and_report(options, lambda: _run_interruptible(lambda: _run_verb(options)))


def _reject_arguments(verb: str | None, unknown: list[str]) -> NoReturn:
    """End with the error for arguments that the verb does not have."""
    program = _AFTER_SEPARATOR.get(verb or "")
    advice = f"; arguments for {program} go after --" if program else ""
    _Parser(prog=f"mtp-launcher {verb}" if verb else "mtp-launcher").error(
        f"unrecognized arguments: {' '.join(unknown)}{advice}"
    )


async def _run_verb(options: argparse.Namespace) -> int:
    """Run a verb and print its result, unless it printed all itself. Returns the exit code."""
    from launcher.cli.output import print_result

    module, _, name = options.run.partition(":")
    outcome = await getattr(importlib.import_module(module), name)(options)
    return outcome if isinstance(outcome, int) else print_result(outcome, as_json=options.json)


def _run_interruptible(verb: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run a verb in its own event loop and return its exit code.

    Ctrl-C, SIGTERM or a closed terminal (SIGHUP, unless nohup has it ignored) cancels the verb; the code is then 130,
    143 or 129, unless the verb treats that as its normal end. A second Ctrl-C ends the process at once with 130; its
    engine ends with it, through the keeper or the job object.
    Signals are handled between two steps of the loop, so no step is interrupted halfway by a KeyboardInterrupt.
    """
    import asyncio

    received: list[int] = []

    async def run_until_signal() -> int:
        loop, running = asyncio.get_running_loop(), asyncio.ensure_future(verb())

        def cancel_verb(number: int) -> None:
            if number == signal.SIGINT and signal.SIGINT in received:
                os._exit(INTERRUPTED)
            received.append(number)
            running.cancel()

        def cancel_verb_soon(number: int, _frame: object) -> None:
            with suppress(RuntimeError):  # the loop is closed: the verb has ended
                loop.call_soon_threadsafe(cancel_verb, number)

        if sys.platform == "win32":  # the event loop of Windows has no add_signal_handler
            signal.signal(signal.SIGINT, cancel_verb_soon)
        else:
            ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            for number in (signal.SIGINT, signal.SIGTERM, *(() if ignored else (signal.SIGHUP,))):
                loop.add_signal_handler(number, cancel_verb, number)
        return await running

    try:
        return asyncio.run(run_until_signal())
    except asyncio.CancelledError:
        if signal.SIGTERM in received:
            return TERMINATED
        return INTERRUPTED if signal.SIGINT in received or not received else HUNG_UP


def _find_empty_value(arguments: list[str]) -> str | None:
    """Return the name of an argument with an empty value, as from an unset shell variable; no option accepts one."""
    for before, word in pairwise(["", *arguments]):
        if not word.strip():
            return f"argument {before}" if before.startswith("--") and "=" not in before else "an argument"
        name, equals, value = word.partition("=")
        if name.startswith("--") and equals and not value.strip():
            return f"argument {name}"
    return None


def _build_parser(arguments: list[str]) -> argparse.ArgumentParser:
    """Build the parser, with the options of the verb in `arguments` only: importing the others would take long."""
    parser = _Parser(
        prog="mtp-launcher", description="Run llama.cpp's llama-server with MTP speculative decoding, and watch it."
    )
    parser.add_argument("--version", action="version", version=f"mtp-launcher {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    chosen = [name for name in arguments[:1] if name in VERBS]
    for name, summary in VERBS.items():
        if chosen and name not in chosen:  # a parser for each of the others would take 10 ms in all
            continue
        verb_parser = verbs.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name in arguments:
            module = name.replace("-", "_")
            verb_parser.set_defaults(run=f"launcher.cli.{module}:run", json=False)
            importlib.import_module(f"launcher.cli.options.{module}").configure(verb_parser)
            if name != "gui":
                verb_parser.add_argument("--json", action="store_true", help="print JSON for programs")
    return parser


def build_full_parser() -> argparse.ArgumentParser:
    """Build the parser with the options of every verb, as generated documents need it; it takes half a second."""
    return _build_parser(["--help", *VERBS])


def _run_and_report(options: argparse.Namespace, verb: Callable[[], int]) -> int:
    """Run a verb and return its exit code; 1 after an error, which is printed."""
    from launcher.app.settings import fill_options
    from launcher.base.errors import LauncherError
    from launcher.base.paths import check_home, explain_os_error
    from launcher.cli.output import print_error
    from launcher.updates.before_update import save_version_copies

    try:
        if options.verb not in ("doctor", "gui"):  # these two verbs report it among other findings
            check_home()
        save_version_copies()
        fill_options(options)
        return verb()
    except LauncherError as error:
        print_error(error, as_json=options.json)
        if options.verb == "gui":
            _show_dialog(error)
    except OSError as error:
        # An error without a file name comes from the output. The exceptions are TimeoutError, which comes from a lock,
        # and FileNotFoundError, which comes from a current folder that was deleted.
        has_no_file = error.filename is None and not isinstance(error, TimeoutError | FileNotFoundError)
        if isinstance(error, BrokenPipeError) or (has_no_file and options.verb in _PRINTING_VERBS):
            raise
        print_error(_find_missing_proc() or explain_os_error(error), as_json=options.json)
    except Exception:
        if (missing_proc := _find_missing_proc()) is None:
            raise
        print_error(missing_proc, as_json=options.json)
    return 1


def _find_missing_proc() -> "LauncherError | None":
    """Return the error for a missing /proc on Linux, None if it is mounted. Without it psutil fails in many ways."""
    if sys.platform != "linux":
        return None
    import psutil

    from launcher.base.errors import HostUnreadable

    if Path(psutil.PROCFS_PATH, "self").exists():
        return None
    return HostUnreadable(
        "/proc is not mounted, so memory and processes cannot be read.",
        "Mount it as root, `mount -t proc proc /proc`, and run this again.",
    )


def _show_dialog(error: "LauncherError") -> None:
    """Show an error of the window in a dialog if it was started from a menu, where nobody sees the output."""
    from launcher.cli import error_dialog

    if error_dialog.is_started_from_menu():
        error_dialog.show_dialog(error)
