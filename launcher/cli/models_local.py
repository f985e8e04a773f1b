"""`mtp-launcher models list`, `verify` and `remove`: the model files on this machine, and leftovers of downloads."""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.base.codec import JsonView, to_json
from launcher.base.errors import BadOption, ModelInUse
from launcher.base.progress import Progress
from launcher.base.text import one_line
from launcher.cli.layout import UNKNOWN, format_path, format_table, wrap_text
from launcher.cli.output import Result
from launcher.cli.progress import Reporter, format_size
from launcher.cli.terminal import can_ask, confirm
from launcher.engine.server.in_use import find_server_using
from launcher.engine.server.last_start import load_last_uses
from launcher.models.catalogue_load import load_catalogue
from launcher.models.leftovers import find_leftovers, remove_leftover, select_leftovers
from launcher.models.library import (
    Outcome,
    Place,
    State,
    check_removable,
    list_library,
    remove_model,
    select_models,
    verify_model,
)
from launcher.models.stores import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from launcher.models.leftovers import Leftover
    from launcher.models.library import LocalModel, VerifiedFile

_PART_SUFFIX = re.compile(r"-\d{5}-of-\d{5}$")
"""The number of the part, in the name of a model that is split into several files."""


async def run(options: argparse.Namespace) -> Result | int:
    """Run the action `options.model` on the models in `options.which`."""
    action, names = options.model, options.which
    if action == "remove" and not names:
        raise BadOption("Which model should be removed?", "`mtp-launcher models list` names them: ID:QUANT, or a path.")
    library = await asyncio.to_thread(list_library, load_catalogue())
    for note in filter(None, (library.notice, *(each.reason for each in library.problems))):
        print(wrap_text(one_line(note, 4_096), "Note: "), file=sys.stderr)
    leftovers = list(await asyncio.to_thread(find_leftovers)) if action != "verify" else []
    models = list(library.models)
    if action == "remove" and "all" in names:  # models of other programs are never removed by "all"
        models = [each for each in models if each.store is None]
        if staying := len(library.models) - len(models):
            print(f"Note: {staying} of other programs stay{'s' if staying == 1 else ''}.", file=sys.stderr)
    if names:
        models, leftovers = _select_named(names, models, leftovers)
    if action == "list":
        return await asyncio.to_thread(_list_models, models, leftovers)
    if action == "verify":
        return await _verify_models(models, as_json=options.json)
    return await _remove_models(models, leftovers, yes=options.yes, as_json=options.json)


def _select_named(
    names: Sequence[str], models: Sequence[LocalModel], leftovers: Sequence[Leftover]
) -> tuple[list[LocalModel], list[Leftover]]:
    """Return the models and leftovers with these names. Raises ModelMissing for a name that nothing has."""
    selected_models: list[LocalModel] = []
    selected_leftovers: list[Leftover] = []
    for name in names:  # a name of both leftovers and models means the leftovers
        named_leftovers = select_leftovers(leftovers, name)
        selected_leftovers += named_leftovers
        if not named_leftovers and name != "leftovers":
            selected_models += select_models(models, name)
    return list(dict.fromkeys(selected_models)), list(dict.fromkeys(selected_leftovers))


_MODEL = JsonView(
    "name=label kind=record.kind file_kind=record.file_kind about=kind.sentence model=record.model "
    "quant=record.quant paths=record.paths bytes=record.bytes sha256=record.sha256? mtp_head=record.head "
    "state verified_s"
)
_ORIGIN = JsonView(
    "place store repo=record.repo revision=record.revision file=record.file url=record.url problem? missing_bytes"
)
_VERIFIED = JsonView("path outcome sha256 expected")
_LEFTOVER = JsonView("path kind bytes done_bytes whole_bytes reason")


def _list_models(models: Sequence[LocalModel], leftovers: Sequence[Leftover]) -> Result:
    last_uses = load_last_uses()
    data = {
        "models": [
            {**to_json(local, _MODEL), "used_s": last_uses.get(str(local.path)), **to_json(local, _ORIGIN)}
            for local in models
        ],
        "leftovers": to_json(leftovers, _LEFTOVER),
    }
    return Result(data, _format_list(models, leftovers))


def _format_list(models: Sequence[LocalModel], leftovers: Sequence[Leftover]) -> Iterator[str]:
    if not models and not leftovers:
        yield (
            "No models are on this machine. `mtp-launcher plan` shows the models that fit, `mtp-launcher pull ID`"
            " downloads one."
        )
    if not models:
        yield from _format_leftovers(leftovers)
        return
    head = ("MODEL", "QUANT", "SIZE", "MTP HEAD", "VERIFIED", "FROM", "FILE")
    rows = [
        (
            local.record.model or (local.stored.name if local.stored else _PART_SUFFIX.sub("", local.path.stem)),
            _describe_kind(local),
            format_size(local.record.bytes),
            _describe_head(local),
            _describe_verification(local),
            _describe_origin(local),
            str(local.path),
        )
        for local in models
    ]
    yield from format_table([head, *rows], right={2}, indent="")
    for local in models:
        if local.problem:
            yield "\n" + wrap_text(f"{local.record.label}: {local.problem}")
        elif local.kind is not None and local.record.kind == "other":
            yield "\n" + wrap_text(f"{local.record.label}: {local.kind.sentence}")
    yield from _format_leftovers(leftovers)
    total = format_size(sum(map(_bytes_here, models)))
    yield f"\n{total} in all. `mtp-launcher serve` starts one by its id, as REPO:FILE, or by its path."


def _format_leftovers(leftovers: Sequence[Leftover]) -> Iterator[str]:
    """Yield a table of the leftovers of downloads, and how to delete them; nothing if there are none."""
    if not leftovers:
        return
    yield "\nLeft by downloads"
    rows = [(format_size(each.bytes), _describe_leftover(each), str(each.path)) for each in leftovers]
    yield from format_table(rows, right={0})
    for each in leftovers:
        if each.reason:
            yield wrap_text(each.reason, f"  {each.path.name}: ")
    yield "`mtp-launcher models remove leftovers`, or the name of one, deletes them."


def _describe_leftover(leftover: Leftover) -> str:
    if leftover.reason is not None or leftover.kind.value == "bad":
        return "not what it should be"
    if leftover.done_bytes is None:
        return "unfinished"
    total = f" of {format_size(leftover.whole_bytes)}" if leftover.whole_bytes else ""
    return f"unfinished, {format_size(leftover.done_bytes)}{total}"


def _bytes_here(local: LocalModel) -> int:
    """Return the size in bytes of the model's files that exist now."""
    return sum(path.stat().st_size for path in local.record.paths if path.is_file())


def _describe_kind(local: LocalModel) -> str:
    """Return the quantisation of a model, or the kind of another file."""
    if local.kind is None:
        return local.record.quant or UNKNOWN
    return "vision" if local.record.kind == "mmproj" else local.kind.label


def _describe_head(local: LocalModel) -> str:
    if local.record.kind != "model":
        return ""
    return {"present": "yes", "none": "no", "promised": "lost", None: UNKNOWN}[local.record.head]


def _describe_verification(local: LocalModel) -> str:
    words = {
        State.DAMAGED: "damaged",
        State.INCOMPLETE: "incomplete",
        State.MISSING: "missing",
        State.UNVERIFIED: "never",
    }
    if local.state in words:
        return words[local.state]
    if local.state is State.TOUCHED:
        return "changed since"
    return time.strftime("%Y-%m-%d", time.localtime(local.verified_s))


def _describe_origin(local: LocalModel) -> str:
    record = local.record
    if local.place is Place.STORE and local.store is not None:
        return local.store.title
    origin = record.repo or (record.url or "").split("?")[0] or "found here"
    if local.place is not Place.CACHE:
        return origin
    store = local.stored.store if local.stored else Store.HUB
    return f"{origin} ({'the hub' if store is Store.HUB else store.title}'s cache)"


async def _verify_models(models: Sequence[LocalModel], *, as_json: bool) -> Result:
    """Verify all files. Exit code 1 if one differs from what is expected, or is missing."""
    reporter = Reporter(as_json=as_json)
    show_progress = _make_progress_callback(reporter, sum(map(_bytes_here, models)))
    verified: list[dict[str, Any]] = []
    is_bad = False
    read_bytes = 0
    try:
        for local in models:
            results = await verify_model(local, partial(show_progress, local.record.label, read_bytes))
            read_bytes += _bytes_here(local)
            is_bad = is_bad or any(each.outcome in (Outcome.CHANGED, Outcome.MISSING) for each in results)
            verified += [{"name": local.record.label, **each} for each in to_json(results, _VERIFIED)]
            for each in results:
                reporter.show_event(None, _describe_verified(local, each))
    finally:
        reporter.close()
    lines = [] if models else ["No models are on this machine."]
    return Result({"event": "done", "verified": verified}, lines, exit_code=1 if is_bad else 0)


def _make_progress_callback(reporter: Reporter, total: int) -> Callable[[str, int, int], None]:
    """Return a function that shows progress by a model's name, the bytes read before it, and the bytes read of it."""
    began_s = time.monotonic()

    def show_progress(name: str, read_before: int, read_now: int) -> None:
        done = read_before + read_now
        speed = done / max(time.monotonic() - began_s, 1e-3)
        progress = Progress(done, total, round(speed), (total - done) / speed if speed else None)
        reporter.show_progress(f"Verifying {name}", progress, {"event": "progress", "name": name})

    return show_progress


def _describe_verified(local: LocalModel, each: VerifiedFile) -> Iterator[str]:
    remedy = "`mtp-launcher models remove` it and pull it again."
    if local.store is not None:
        remedy = f"It belongs to {local.store.title}: delete it there, then get it again."
    sha256, expected = (each.sha256 or "")[:12], (each.expected or "")[:12]
    explanations = {
        Outcome.CHANGED: f"The file is not as expected: its SHA-256 is {sha256}…, not {expected}…. {remedy}",
        Outcome.MISSING: f"The file is missing. {remedy}",
        Outcome.UNKNOWN: f"No published checksum is known. Its SHA-256, {sha256}…, is saved and compared next time.",
    }
    yield f"{each.outcome.value:<8} {format_path(each.path)}"
    if each.outcome in explanations:
        yield wrap_text(explanations[each.outcome], " " * 9)


async def _remove_models(
    models: Sequence[LocalModel], leftovers: Sequence[Leftover], *, yes: bool, as_json: bool
) -> Result | int:
    """Delete models and leftovers after asking. Exit code 1 if the user declines."""
    for local in models:
        check_removable(local)
        if user := await asyncio.to_thread(find_server_using, local.record.paths):
            raise ModelInUse(
                f"The server at {user.url} uses {local.record.label}.",
                f"Stop it first: `mtp-launcher stop --url {user.url}`.",
                path=str(local.path),
            )
    if not models and not leftovers:
        return Result({"removed": [], "freed_bytes": 0}, ["There is nothing to remove."])
    paths = [*(path for local in models for path in local.record.paths), *(each.path for each in leftovers)]
    total_bytes = sum(map(_bytes_here, models)) + sum(each.bytes for each in leftovers)
    if not yes and not await _ask_removal(paths, total_bytes, as_json):
        return 1
    removed: list[dict[str, Any]] = []
    lines = []
    freed_bytes = 0
    for local in models:
        count = await asyncio.to_thread(remove_model, local)
        freed_bytes += count
        model_paths = [str(path) for path in local.record.paths]
        removed.append({"name": local.record.label, "paths": model_paths, "freed_bytes": count})
        outside = "" if local.place is Place.OURS else f" from {local.path.parent}"
        lines.append(f"Removed {local.record.label}{outside}.")
    for each in leftovers:
        count = await asyncio.to_thread(remove_leftover, each)
        freed_bytes += count
        removed.append({"name": each.path.name, "paths": [str(each.path)], "freed_bytes": count})
        lines.append(f"Removed {each.path}.")
    lines.append(f"{format_size(freed_bytes)} are free now.")
    return Result({"removed": removed, "freed_bytes": freed_bytes}, lines)


async def _ask_removal(paths: Sequence[Path], n_bytes: int, as_json: bool) -> bool:
    """List the files, and return True if the user agrees to delete them. Raises BadOption if nobody can be asked."""
    if as_json or not can_ask():
        raise BadOption("Removing needs a confirmation, but this is not a terminal.", "Add --yes.")
    for path in paths:
        print(format_path(path), file=sys.stderr)
    files = "these files" if len(paths) > 1 else "it"
    return await confirm(f"Delete {files}? {format_size(n_bytes)} become free.")
