"""Options of `mtp-launcher engine`."""

import argparse
from pathlib import Path

from launcher.cli.quantities import parse_minutes

_ACTIONS = {
    "list": "list all engines of this computer: installed, yours, on PATH, in the usual places, built-in",
    "available": "list the newest official builds and their variants for this computer",
    "install": "download an official build, verify it, test it, and put it in use",
    "use": "put an engine in use: a name, auto (the usual choice) or built-in",
    "pin": "keep an engine in use whatever is installed later (the one in use by default)",
    "unpin": "end the pin",
    "rollback": "go back to the engine that was in use before",
    "remove": "remove an installed engine, or forget one of yours",
    "add": "add your own llama-server by its path, such as a fork's",
    "flags": "list the flags of an engine, from its own --help",
    "test": "test an engine: version, GPU, MTP on the demo model",
    "compare": "compare the engine in use with the one before it in pairs; a slower one is replaced by it",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", description="Without an action, the list.")
    for name, summary in _ACTIONS.items():
        action = actions.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        action.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON for programs")
        if name == "install":
            action.add_argument(
                "tag",
                nargs="?",
                metavar="TAG",
                help="b11434, v0.7.0, stable or nightly (default: stable, but nothing older than what is in use)",
            )
            action.add_argument("--anyway", action="store_true", help="even if the build is known to be bad")
        if name in ("install", "available"):
            action.add_argument(
                "--backend",
                metavar="B",
                help="cuda, cuda-12, vulkan, rocm, sycl, openvino or cpu (default: the best for this computer)",
            )
        if name in ("use", "remove"):
            action.add_argument("name", metavar="NAME", help="as `engine list` shows it, its tag, or its path")
        if name in ("pin", "test"):
            action.add_argument(
                "name", nargs="?", metavar="NAME", help="as `engine list` shows it (default: the one in use)"
            )
        if name == "flags":
            action.add_argument("search", nargs="*", metavar="WORD", help="only flags with these words")
            action.add_argument("--engine", type=Path, metavar="PATH", help="a llama-server, or an installed engine")
        if name == "compare":
            action.add_argument(
                "names", nargs="*", metavar="NAME", help="two engines to compare instead, of which none is put in use"
            )
            action.add_argument("--model", metavar="M", help="the model to serve (default: the one served last)")
            action.add_argument(
                "--minutes",
                type=parse_minutes,
                default=1.0,
                metavar="N",
                help="how long, at least three pairs (default 1)",
            )
        if name == "add":
            action.add_argument("path", type=Path, metavar="PATH", help="a llama-server, or the folder that has it")
            action.add_argument("--name", metavar="N", help="what to call it (default: its folder's name)")
