"""`mtp-launcher models folders`: the folders searched for models, and leftovers of downloads."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.cli.bar import format_size
from launcher.cli.layout import print_table, wrap_text
from launcher.cli.output import print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.models.leftovers import Leftover


async def run(options: argparse.Namespace) -> int:
    """List the folders that are searched for models, or add or remove some; files of removed folders stay."""
    from launcher.base.errors import BadOption
    from launcher.models.added_places import add_place, read_added_places, remove_place

    action, *places = options.which or ["list"]
    if action not in ("list", "add", "remove") or (action != "list") != bool(places):
        raise BadOption(
            "What is to be done with the folders?", "Write `folders`, `folders add DIR` or `folders remove DIR`."
        )
    changed: list[str] = []
    for text in places:
        done = await asyncio.to_thread(add_place if action == "add" else remove_place, Path(text))
        if not done and action == "remove":
            raise BadOption(f"{text} is not in the list.", "`mtp-launcher models folders` shows it.", path=text)
        changed += [text] if done else []
        if not options.json:
            print(f"{text}: {_done(action, done=done)}")
    added = await asyncio.to_thread(read_added_places)
    if options.json:
        told = [{"path": str(path), "kind": kind, "there": path.exists()} for path, kind in _all(added)]
        print_json({"folders": told, **({"changed": changed} if places else {})})
    elif not places:
        rows = [(kind, "" if path.exists() else "not there now", str(path)) for path, kind in _all(added)]
        print_table([("WHOSE", "", "FOLDER"), *rows], indent="")
    return 0


def _done(action: str, *, done: bool) -> str:
    if action == "add":
        return "added." if done else "looked at already."
    return "taken out of the list; its files stay."


def _all(added: Sequence[Path]) -> list[tuple[Path, str]]:
    from launcher.base.paths import models_dir
    from launcher.fetch.hub_cache import cache_roots

    return [
        (models_dir(), "ours"),
        *((root, "the hub's cache") for root in cache_roots()),
        *((path, "added") for path in added),
    ]


def leftover_json(left: Leftover) -> dict[str, Any]:
    """Return a leftover of a download as JSON."""
    return {
        "path": str(left.path),
        "kind": left.kind.value,
        "bytes": left.bytes,
        "done_bytes": left.done_bytes,
        "whole_bytes": left.whole_bytes,
        "reason": left.reason,
    }


def print_leftovers(found: Sequence[Leftover]) -> None:
    """Print the leftovers of downloads."""
    if not found:
        return
    print("\nLeft by downloads")
    print_table([(format_size(each.bytes), _about(each), str(each.path)) for each in found], right={0})
    for each in found:
        if each.reason:
            print(wrap_text(each.reason, f"  {each.path.name}: "))
    print("`mtp-launcher models remove leftovers`, or the name of one, deletes them.")


def _about(left: Leftover) -> str:
    if left.reason is not None or left.kind.value == "bad":
        return "not what it should be"
    whole = f" of {format_size(left.whole_bytes)}" if left.whole_bytes else ""
    return f"unfinished, {format_size(left.done_bytes)}{whole}" if left.done_bytes is not None else "unfinished"
