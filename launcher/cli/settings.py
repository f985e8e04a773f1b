"""`mtp-launcher settings`: show and change the app settings."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING, Any

from launcher.base.text import one_line
from launcher.cli.actions import add_actions
from launcher.cli.layout import wrap_text
from launcher.cli.output import print_json

if TYPE_CHECKING:
    from launcher.app.settings import SettingState

_ACTIONS = {
    "list": "show all settings, what they are and what they may be",
    "get": "print the value of one",
    "set": "choose a value",
    "reset": "go back to the default",
}
_APPLIES = {
    "now": "It applies from now on; a window that is open takes it when it is opened again.",
    "next window": "It applies when a window is opened the next time.",
    "next download": "It applies to the next download; a window that is open takes it when it is opened again.",
    "next login": "It applies at the next login.",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    actions = add_actions(parser, _ACTIONS)
    for name, action in actions.items():
        if name != "list":
            action.add_argument("name", metavar="NAME", help="such as window.theme, or theme alone")
    actions["set"].add_argument("value", metavar="VALUE", help="as `settings list` tells")


async def run(options: argparse.Namespace) -> int:
    """Run the action `options.action`."""
    return await asyncio.to_thread(_run, options)


def _run(options: argparse.Namespace) -> int:
    from launcher.app import settings

    if options.action == "list":
        _list(as_json=options.json)
        return 0
    declared = settings.find_setting(options.name)
    if options.action == "get":
        found = settings.read_app_settings()
        _print_notices(found.notices)
        standing = next(each for each in found.standings if each.setting is declared)
        if options.json:
            print_json(_as_json(standing))
        else:
            print(_words(standing))
        return 0
    if options.action == "set":
        standing = settings.change_setting(declared.name, settings.parse_value(declared, options.value))
    else:
        standing = settings.reset_setting(declared.name)
    if options.json:
        print_json(_as_json(standing))
        return 0
    print(f"{declared.name} is {_words(standing)}. {_APPLIES[declared.applies]}")
    if standing.overridden:
        print(f"Until then {declared.variable} goes before it, as long as that is set.")
    return 0


def _list(*, as_json: bool) -> None:
    from launcher.app import settings

    found = settings.read_app_settings()
    token = settings.hub_token_source()
    if as_json:
        told = [_as_json(each) for each in found.standings]
        print_json({"file": str(found.path), "settings": told, "hub_token": token, "notices": found.notices})
        return
    _print_notices(found.notices)
    group = ""
    for each in found.standings:
        if each.setting.group != group:
            group = each.setting.group
            print(f"{group}:")
        changed = f" (default {_said(each, settings.default_of(each.setting))})" if each.changed else ""
        print(f"  {each.setting.name} = {_words(each)}{changed}")
        print(wrap_text(f"{each.setting.sentence}{_limits(each)}", "    "))
        if each.overridden:
            print(wrap_text(f"{each.setting.variable} is set, and goes before the file.", "    "))
        if each.note:
            print(f"    {one_line(each.note)}")
    where = {"HF_TOKEN": "found in HF_TOKEN", "file": "found where the hub's own tools keep it"}.get(
        token or "", "none"
    )
    print(f"Hugging Face token: {where}. It is never shown.")
    print(f"They are kept in {found.path}, which may be edited by hand.")


def _as_json(standing: SettingState) -> dict[str, Any]:
    from launcher.app import settings

    declared = standing.setting
    told: dict[str, Any] = {
        "name": declared.name,
        "kind": declared.kind,
        "value": standing.value,
        "default": settings.default_of(declared),
        "source": standing.source,
        "changed": standing.changed,
        "applies": declared.applies,
    }
    if declared.choices:
        told["choices"] = [each for each, _ in declared.choices]
    if declared.kind == "number":
        told |= {"least": declared.least, "most": declared.most, "unit": declared.unit}
    return told | ({"note": standing.note} if standing.note else {})


def _words(standing: SettingState) -> str:
    return _said(standing, standing.value)


def _said(standing: SettingState, value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    unit = "" if isinstance(value, str) else standing.setting.unit
    return one_line(f"{value} {unit}".strip(), 4_096)


def _limits(standing: SettingState) -> str:
    limits = standing.setting.limits
    return f" {limits[0].upper()}{limits[1:]}." if limits else ""


def _print_notices(notices: tuple[str, ...]) -> None:
    for notice in notices:
        print(f"Note: {one_line(notice, 2_000)}", file=sys.stderr)
