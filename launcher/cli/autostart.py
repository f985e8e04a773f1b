"""`mtp-launcher autostart on|off|status`: serve from login on, or not."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from launcher.cli.output import print_json

if TYPE_CHECKING:
    from launcher.autostart import Autostart


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("what", choices=("on", "off", "status"), nargs="?", default="status", help="default: status")
    parser.add_argument(
        "--model", metavar="ID[:QUANT] | FILE", help="with on: what to serve (default: what was served last)"
    )


async def run(options: argparse.Namespace) -> int:
    """Switch it, or say how it is."""
    from launcher import autostart
    from launcher.base.errors import BadOption

    if options.model is not None and options.what != "on":
        raise BadOption("--model goes with `autostart on` only.", "Leave it out.")
    if options.what == "off":
        removed = autostart.switch_off()
        if options.json:
            print_json({"on": False, "removed": removed})
        else:
            print("\n".join(["No server starts at login any more. Removed:", *removed]) if removed else "It was off.")
        return 0
    state = autostart.switch_on(_model(options.model)) if options.what == "on" else autostart.look()
    _tell(state, as_json=options.json)
    return 0


def _model(name: str | None) -> str | None:
    """Return the model as a command that runs elsewhere must name it. Raises what naming it for `serve` raises."""
    from launcher import app
    from launcher.base.paths import expanded
    from launcher.engine.launch import ServeOptions, check_model

    if name is None:
        return None
    check_model(app.options_for(name, lambda path: ServeOptions(model=path), draft=None))
    path = expanded(name)
    return str(path.absolute()) if path.exists() else name


def _tell(state: Autostart, *, as_json: bool) -> None:
    if as_json:
        print_json({"on": state.on, "places": state.places, "command": state.command})
    elif not state.on:
        print("Off: no server starts at login. `mtp-launcher autostart on` switches it on.")
    else:
        print("On: at login this starts:")
        print(f"  {state.command}")
        print("It is written here:")
        for place in state.places:
            print(f"  {place}")
