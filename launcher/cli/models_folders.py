"""`mtp-launcher models folders`: list, add and remove the folders that are searched for models."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.base.errors import BadOption
from launcher.base.paths import models_dir
from launcher.base.text import one_line
from launcher.cli.layout import format_table, wrap_text
from launcher.cli.output import Result
from launcher.models.added_places import add_place, read_added_places, remove_place
from launcher.models.library import describe_store, is_worth_showing
from launcher.models.stores import Store, find_store_folders

if TYPE_CHECKING:
    from collections.abc import Sequence


async def run(options: argparse.Namespace) -> Result:
    """List the folders that are searched for models, or add or remove some. Removing a folder deletes no file."""
    action, *places = options.which or ["list"]
    if action not in ("list", "add", "remove") or (action != "list") != bool(places):
        raise BadOption(
            "What should be done with the folders?", "Write `folders`, `folders add DIR` or `folders remove DIR`."
        )
    changed: list[str] = []
    lines: list[str] = []
    for place in places:
        is_changed = await asyncio.to_thread(add_place if action == "add" else remove_place, Path(place))
        if not is_changed and action == "remove":
            raise BadOption(f"{place} is not in the list.", "`mtp-launcher models folders` shows it.", path=place)
        if is_changed:
            changed.append(place)
        lines.append(f"{place}: {_describe_change(action, is_changed=is_changed)}")
        if action == "add":
            lines += await asyncio.to_thread(_describe_store, Path(place))
    added = await asyncio.to_thread(read_added_places)
    listed = await asyncio.to_thread(_list_folders, added)
    folders = [{"path": str(path), "kind": kind, "there": path.exists()} for path, kind in listed]
    if places:
        return Result({"folders": folders, "changed": changed}, lines)
    rows = [(str(each["kind"]), "" if each["there"] else "not there now", str(each["path"])) for each in folders]
    return Result({"folders": folders}, format_table([("WHOSE", "", "FOLDER"), *rows], indent=""))


def _describe_change(action: str, *, is_changed: bool) -> str:
    if action == "add":
        return "added." if is_changed else "is searched already."
    return "removed from the list; its files stay."


def _describe_store(folder: Path) -> list[str]:
    """Return lines about a folder that is another program's, and the models in it; none for any other folder."""
    described = describe_store(folder)
    if described is None:
        return []
    words, scan = described
    names = (f"  {one_line(each.name, 4_096)}" for each in scan.models)
    return [words, *names, *(wrap_text(one_line(each.reason, 4_096)) for each in scan.problems)]


def _list_folders(added: Sequence[Path]) -> list[tuple[Path, str]]:
    """Return the folders that are searched: of other programs' stores those that exist or that a setting names."""
    stores = [
        (each.path, "the hub's cache" if each.store is Store.HUB else each.store.title)
        for each in filter(is_worth_showing, find_store_folders())
    ]
    return [(models_dir(), "ours"), *stores, *((path, "added") for path in added)]
