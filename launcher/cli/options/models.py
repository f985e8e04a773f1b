"""Options of `mtp-launcher models`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from launcher.cli.options.subject_options import add_set_option

ACTIONS = {
    "list": "show the model files on this machine",
    "verify": "check model files against their checksums",
    "remove": "delete models, or leftovers of downloads, after asking",
    "folders": "list the folders that are searched for models; add or remove folders",
    "alias": "list the names that you gave to models; add or remove names",
    "keep": "list the models that a server does not unload by itself; add or remove models",
}
_RUNNERS = {
    **dict.fromkeys(("list", "verify", "remove"), "launcher.cli.models_local:run"),
    "folders": "launcher.cli.models_folders:run",
    "alias": "launcher.cli.model_names:run_alias",
    "keep": "launcher.cli.model_names:run_keep",
}
"""The functions that run the actions; without one, `launcher.cli.models:run` shows the catalogue."""
_WITH_VALUES = ("--set", "--system")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument(
        "model",
        nargs="?",
        metavar="ID | list | verify | remove | folders | alias | keep",
        help="a model's ID, to show its files, presets and measurements; or what to do with the models on this machine",
    )
    parser.add_argument(
        "which",
        nargs="*",
        metavar="MODEL",
        help="for list, verify and remove: ID[:QUANT], REPO:FILE, a path, or all; for folders, alias and keep: add"
        " or remove",
    )
    parser.add_argument("--yes", action="store_true", help="remove without asking")
    parser.add_argument("--refresh", action="store_true", help="ask the hub for sizes and checksums, and keep them")
    _add_alias_options(parser)
    _allow_any_order(parser)


def _allow_any_order(parser: argparse.ArgumentParser) -> None:
    """Let options stand anywhere among the positional arguments, and give each of ACTIONS its own help.

    By itself argparse accepts no more positional arguments after an option among them. Options are moved to the front,
    with their values.
    """
    parse = parser.parse_known_args

    def parse_reordered(
        args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        words = list(args or ())
        end = words.index("--") if "--" in words else len(words)
        words[:end] = _move_options(words[:end])
        values = [words[index + 1] for index, word in enumerate(words[:-1]) if word in _WITH_VALUES]
        action = next((word for word in words if not word.startswith("-") and word not in values), None)
        if action in ACTIONS and not {"-h", "--help"}.isdisjoint(words[:end]):
            _make_help_parser(parser.prog, action).print_help()
            parser.exit()
        parsed, unknown = parse(words, namespace)
        parsed.run = _RUNNERS.get(parsed.model, parsed.run)
        return parsed, unknown

    parser.parse_known_args = parse_reordered  # type: ignore[method-assign,assignment]


def _move_options(words: Sequence[str]) -> list[str]:
    options: list[str] = []
    others: list[str] = []
    takes_value = False
    for word in words:
        (options if takes_value or word.startswith("-") else others).append(word)
        takes_value = not takes_value and word in _WITH_VALUES
    return options + others


def _make_help_parser(prog: str, action: str) -> argparse.ArgumentParser:
    """Return a parser that prints the help of an action; it parses nothing."""
    summary = ACTIONS[action]
    parser = argparse.ArgumentParser(prog=f"{prog} {action}", description=f"{summary[0].upper()}{summary[1:]}.")
    accepted = "ID[:QUANT], REPO:FILE, a path, or all"
    if action == "folders":
        parser.add_argument(
            "which", nargs="*", metavar="add | remove DIR", help="a folder or a GGUF file (default: list)"
        )
    elif action == "alias":
        parser.add_argument("which", nargs="*", metavar="add NAME=MODEL | remove NAME", help="(default: list)")
        _add_alias_options(parser)
    elif action == "keep":
        parser.add_argument("which", nargs="*", metavar="add | remove MODEL", help="(default: list)")
    elif action == "remove":
        parser.add_argument("which", nargs="+", metavar="MODEL", help=accepted)
        parser.add_argument("--yes", action="store_true", help="do not ask")
    else:
        parser.add_argument("which", nargs="*", metavar="MODEL", help=f"{accepted} (default: all)")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    return parser


def _add_alias_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `alias add`."""
    add_set_option(parser, "for alias add: a server setting that the model is to have for requests by that name")
    parser.add_argument(
        "--system", type=Path, metavar="FILE", help="for alias add: a system text for conversations that have none"
    )
