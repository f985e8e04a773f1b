"""The manual page mtp-launcher(1), in roff for `man`, made from the argument parser."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from launcher import __version__
from launcher.cli.subparsers import iterate_parsers, list_actions

_END = r"""
.SH EXIT STATUS
.TP
0
Success.
.TP
1
An error was reported, with what to do.
.TP
2
The command line is wrong.
.TP
129, 130, 143
It was ended by a closed terminal, Ctrl-C or SIGTERM.
.SH ENVIRONMENT
.TP
MTP_LAUNCHER_HOME
One folder for all files of the program.
.TP
MTP_LAUNCHER_MODELS
The folder of downloaded models.
.TP
HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE
Token, mirror and offline mode for Hugging Face.
.SH FILES
.TP
~/.config/mtp\-launcher
Settings, and your own models and presets.
.TP
~/.local/share/mtp\-launcher
Downloaded models and engines.
.TP
~/.local/state/mtp\-launcher
Logs, API keys and ports.
.TP
~/.cache/mtp\-launcher
Files that the program can recreate.
"""


def manual_page(parser: argparse.ArgumentParser) -> str:
    """Return the page: the program, each command with its arguments and options, exit codes, files."""
    lines = [
        f'.TH MTP\\-LAUNCHER 1 "" "MTP Launcher {__version__}" "User Commands"',
        ".SH NAME",
        "mtp\\-launcher \\- launcher and tuner for llama.cpp's llama\\-server",
        ".SH SYNOPSIS",
        r".B mtp\-launcher",
        "[COMMAND] [OPTIONS]",
        ".SH DESCRIPTION",
        _escape(parser.description or ""),
        "Without a command it opens the window.",
        ".SH COMMANDS",
    ]
    for each in iterate_parsers(parser):
        if each is not parser:
            lines += _command_section(each)
    return "\n".join(lines) + _END


def _command_section(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the lines of one command."""
    formatter = argparse.HelpFormatter(parser.prog, width=10_000)
    yield f".SS {_escape(parser.prog)}"
    for text in (parser.description, parser.epilog):
        if text:
            yield ".PP"
            yield _escape(text)
    for action in list_actions(parser):
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):  # noqa: SLF001
            continue
        yield ".TP"
        yield f".B {_escape(formatter._format_action_invocation(action))}"  # noqa: SLF001
        yield _escape(formatter._expand_help(action) if action.help else "")  # noqa: SLF001


def _escape(text: str) -> str:
    """Return a text as one line of roff."""
    escaped = re.sub(r"\s+", " ", text).strip().replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
