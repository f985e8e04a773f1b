"""Completion scripts for shells, made by shtab from the argument parser.

What may stand for a value follows from its name in the help: FILE is a file, DIR a folder, and ID or MODEL a model of
the catalogue or a file.
"""

from __future__ import annotations

import argparse
import re
from typing import Any

import shtab

from launcher.cli.subparsers import iterate_parsers, list_actions
from launcher.models.catalogue_load import shipped_models

_FILES = {"FILE", "LOGFILE", "PATH"}
_FOLDERS = {"DIR", "FOLDER"}
_MODELS = {"ID", "MODEL"}


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the completion script for bash, zsh, fish or powershell."""
    models = _complete_models([each.id for each in shipped_models()])
    for each in iterate_parsers(parser):
        for action in list_actions(each):
            if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
                continue
            if action.choices is not None:
                action.choices = tuple(action.choices)  # shtab takes every dict for subcommands
            elif completer := _choose_completer(action, models):
                action.complete = completer  # type: ignore[attr-defined] # where shtab reads it
    return shtab.complete(parser, shell)


def _choose_completer(action: argparse.Action, models: dict[str, Any]) -> dict[str, Any] | None:
    """Return what completes an argument's value; None for numbers and other free text."""
    if action.nargs == 0:
        return None
    name = action.metavar if isinstance(action.metavar, str) else action.dest
    words = set(re.findall(r"[A-Z]+", name.upper() if action.metavar is None else name))
    if words & _MODELS:
        return models
    if words & _FILES:
        return shtab.FILE
    return shtab.DIRECTORY if words & _FOLDERS else None


def _complete_models(names: list[str]) -> dict[str, Any]:
    """Return a completer of the names given and of files, with a function for each shell."""
    words = " ".join(sorted(names))
    quoted = ", ".join(f"'{name}'" for name in sorted(names))
    function = "_mtp_launcher_model_files"  # shtab's bash takes what ends in _files as names of files
    return {
        "bash": function,
        "zsh": function,
        "fish": f"({function})",
        "powershell": function,
        "preamble": {
            "bash": f'{function}() {{\n  compgen -W "{words}" -- "$1"\n  compgen -f -- "$1"\n}}',
            "zsh": f"{function}() {{\n  _alternative 'models:model:({words})' 'files:file:_files'\n}}",
            "fish": f"function {function}\n  printf '%s\\n' {words}\n  __fish_complete_path (commandline -ct)\nend",
            "powershell": f"function {function} {{\n  param([string]$WordToComplete)\n"
            f'  @({quoted}) | Where-Object {{ $_ -like "$WordToComplete*" }}\n'
            "  _shtab_powershell_compgen_files $WordToComplete\n}",
        },
    }
