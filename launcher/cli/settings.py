"""`mtp-launcher settings`: show and change the app settings."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from launcher.app import settings
from launcher.base.text import one_line
from launcher.cli.layout import wrap_text
from launcher.cli.output import Note, Result

if TYPE_CHECKING:
    from launcher.app.settings import SettingsSnapshot, SettingState

_APPLIES_SENTENCES = {
    "now": "It applies from now on; an open window uses it once it is reopened.",
    "next window": "It applies when a window is next opened.",
    "next download": "It applies to the next download; an open window uses it once it is reopened.",
    "next login": "It applies at the next login.",
}


async def run(options: argparse.Namespace) -> Result:
    """Run the action `options.action`."""
    return await asyncio.to_thread(_run_action, options)


def _run_action(options: argparse.Namespace) -> Result:
    if options.action == "list":
        return _list_settings()
    declared = settings.find_setting(options.name)
    if options.action == "get":
        snapshot = settings.read_app_settings()
        state = next(each for each in snapshot.states if each.setting is declared)
        return Result(_as_json(state), [*_format_notices(snapshot.notices), _format_value(state, state.value)])
    if options.action == "set":
        state = settings.change_setting(declared.name, settings.parse_value(declared, options.value))
    else:
        state = settings.reset_setting(declared.name)
    lines = [f"{declared.name} is {_format_value(state, state.value)}. {_APPLIES_SENTENCES[declared.applies]}"]
    if state.overridden:
        lines.append(f"As long as {declared.variable} is set, it overrides this.")
    return Result(_as_json(state), lines)


def _list_settings() -> Result:
    snapshot = settings.read_app_settings()
    token = settings.hub_token_source()
    data = [_as_json(each) for each in snapshot.states]
    return Result(
        {"file": str(snapshot.path), "settings": data, "hub_token": token, "notices": snapshot.notices},
        _format_settings(snapshot, token),
    )


def _format_settings(snapshot: SettingsSnapshot, token: str | None) -> Iterator[str]:
    yield from _format_notices(snapshot.notices)
    group = ""
    for each in snapshot.states:
        if each.setting.group != group:
            group = each.setting.group
            yield f"{group}:"
        changed = f" (default {_format_value(each, settings.default_value(each.setting))})" if each.changed else ""
        yield f"  {each.setting.name} = {_format_value(each, each.value)}{changed}"
        yield wrap_text(f"{each.setting.sentence}{_format_limits(each)}", "    ")
        if each.overridden:
            yield wrap_text(f"{each.setting.variable} is set, and overrides the file.", "    ")
        if each.note:
            yield f"    {one_line(each.note)}"
    token_source = {"HF_TOKEN": "from HF_TOKEN", "file": "from `hf auth login`"}.get(token or "", "none")
    yield f"Hugging Face token: {token_source}. It is never shown."
    yield f"The settings are in {snapshot.path}, which may be edited by hand."


def _as_json(state: SettingState) -> dict[str, Any]:
    declared = state.setting
    data: dict[str, Any] = {
        "name": declared.name,
        "kind": declared.kind,
        "value": state.value,
        "default": settings.default_value(declared),
        "source": state.source,
        "changed": state.changed,
        "applies": declared.applies,
    }
    if declared.choices:
        data["choices"] = [value for value, _ in declared.choices]
    if declared.kind == "number":
        data |= {"least": declared.least, "most": declared.most, "unit": declared.unit}
    if state.note:
        data["note"] = state.note
    return data


def _format_value(state: SettingState, value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    unit = "" if isinstance(value, str) else state.setting.unit
    return one_line(f"{value} {unit}".strip(), 4_096)


def _format_limits(state: SettingState) -> str:
    limits = state.setting.limits
    return f" {limits[0].upper()}{limits[1:]}." if limits else ""


def _format_notices(notices: tuple[str, ...]) -> Iterator[Note]:
    for notice in notices:
        yield Note(f"Note: {one_line(notice, 2_000)}")
