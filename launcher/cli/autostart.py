"""`mtp-launcher autostart on|off|status`: serve a model from login on."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from launcher.app import autostart
from launcher.app.settings import switch_autostart_on
from launcher.base.errors import BadOption
from launcher.base.paths import expand_user
from launcher.cli.output import Result
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.last_start import load_last_model
from launcher.engine.server.launch import check_model

if TYPE_CHECKING:
    from launcher.app.autostart import Autostart


async def run(options: argparse.Namespace) -> Result:
    """Switch autostart on or off, or return its state."""
    if options.model is not None and options.action != "on":
        raise BadOption("--model goes with `autostart on` only.", "Leave it out.")
    if options.action == "off":
        removed = autostart.switch_off()
        lines = ["No server starts at login any more. Removed:", *removed] if removed else ["It was off already."]
        return Result({"on": False, "removed": removed}, lines)
    state = switch_autostart_on(_resolve_model(options.model)) if options.action == "on" else autostart.read_autostart()
    data = {"on": state.on, "places": state.places, "command": state.command}
    return Result(data, _format_state(state))


def _resolve_model(name: str | None) -> str | None:
    """Return the model's name, or its absolute path, because autostart runs in another folder.

    Raises the errors of `serve` for a model that it cannot serve.
    """
    from launcher.app.planning.start_settings import make_unresolved_options

    if name is None:
        return None
    check_model(make_unresolved_options(name, lambda path: ServeOptions(model=path)))
    path = expand_user(name)
    return str(path.absolute()) if path.exists() else name


def _format_state(state: Autostart) -> Iterator[str]:
    if not state.on:
        yield "Off: no server starts at login. `mtp-launcher autostart on` switches it on."
        return
    yield "On: at login this starts:"
    yield f"  {state.command}"
    yield "Registered in:"
    for place in state.places:
        yield f"  {place}"
    if state.command and "--last" in state.command and load_last_model() is None:
        yield "No model was loaded before, so nothing starts until you have loaded one."
