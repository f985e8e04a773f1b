"""`mtp-launcher models list`, `verify` and `remove`: the model files on this machine."""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from launcher.base.text import one_line
from launcher.cli.bar import Reporter, format_size
from launcher.cli.layout import format_table, wrap_text
from launcher.cli.models_folders import format_leftovers, leftover_json
from launcher.cli.output import Result
from launcher.cli.terminal import can_ask, confirm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from launcher.models.leftovers import Leftover
    from launcher.models.library import LocalModel, VerifiedFile

_UNKNOWN = "–"  # noqa: RUF001 -- the sign for an unknown value
_PART = re.compile(r"-\d{5}-of-\d{5}$")
ACTIONS = {
    "list": "show the model files on this machine",
    "verify": "check model files against their checksums",
    "remove": "delete models, or leftovers of downloads, after asking",
    "folders": "list the folders that are searched for models; add or remove folders",
}


def allow_any_order(parser: argparse.ArgumentParser) -> None:
    """Let options, none of which takes a value, stand anywhere; and give each of ACTIONS its own help.

    argparse by itself accepts no more positional arguments after an option among them.
    """
    parse = parser.parse_known_args

    def parse_reordered(
        args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        words = list(args or ())
        cut = words.index("--") if "--" in words else len(words)
        words[:cut] = sorted(words[:cut], key=lambda word: not word.startswith("-"))
        verb = next((word for word in words if not word.startswith("-")), None)
        if verb in ACTIONS and not {"-h", "--help"}.isdisjoint(words[:cut]):
            _make_help_parser(parser.prog, verb).print_help()
            parser.exit()
        return parse(words, namespace)

    parser.parse_known_args = parse_reordered  # type: ignore[method-assign,assignment]


def _make_help_parser(prog: str, verb: str) -> argparse.ArgumentParser:
    summary = ACTIONS[verb]
    helping = argparse.ArgumentParser(prog=f"{prog} {verb}", description=f"{summary[0].upper()}{summary[1:]}.")
    if verb == "folders":
        helping.add_argument(
            "which", nargs="*", metavar="add | remove DIR", help="a folder or a GGUF file (default: list)"
        )
        helping.add_argument("--json", action="store_true", help="print JSON for programs")
        return helping
    few = "+" if verb == "remove" else "*"
    default = "" if verb == "remove" else " (default: all)"
    helping.add_argument("which", nargs=few, metavar="MODEL", help=f"ID[:QUANT], REPO:FILE, a path, or all{default}")
    if verb == "remove":
        helping.add_argument("--yes", action="store_true", help="do not ask")
    helping.add_argument("--json", action="store_true", help="print JSON for programs")
    return helping


async def run(options: argparse.Namespace) -> Result | int:
    """Run the action `options.model` on the models in `options.which`."""
    from launcher.base.errors import BadOption
    from launcher.models.catalogue_load import load_catalogue
    from launcher.models.leftovers import find_leftovers, select_leftovers
    from launcher.models.library import list_library, select_models

    verb, which = options.model, options.which
    if verb == "folders":
        from launcher.cli.models_folders import run as run_folders

        return await run_folders(options)
    if verb == "remove" and not which:
        raise BadOption("Which model should be removed?", "`mtp-launcher models list` names them: ID:QUANT, or a path.")
    library = await asyncio.to_thread(list_library, load_catalogue())
    for note in filter(None, (library.notice, *(each.reason for each in library.problems))):
        print(wrap_text(one_line(note, 4_096), "Note: "), file=sys.stderr)
    models = library.models
    if verb == "remove" and "all" in which:  # meant are those that may be removed
        models = tuple(each for each in models if each.store is None)
        if stay := len(library.models) - len(models):
            print(f"Note: {stay} of other programs stay{'s' if stay == 1 else ''}.", file=sys.stderr)
    left = await asyncio.to_thread(find_leftovers) if verb != "verify" else ()
    meant = {text: select_leftovers(left, text) for text in which}
    chosen = [
        each
        for text in which or ["all"]
        if not meant.get(text) and text != "leftovers"
        for each in (select_models(models, text) if which or models else [])
    ]
    chosen = list(dict.fromkeys(chosen))
    its = list(dict.fromkeys(each for text in which for each in meant[text])) if which else list(left)
    if verb == "list":
        return await asyncio.to_thread(_list_models, chosen, its)
    if verb == "verify":
        return await _verify_models(chosen, as_json=options.json)
    return await _remove_models(chosen, its, yes=options.yes, as_json=options.json)


def _as_json(local: LocalModel, used: Mapping[str, float]) -> dict[str, Any]:
    record = local.record
    return {
        "name": local.label,
        "kind": record.kind,
        "model": record.model,
        "quant": record.quant,
        "paths": [str(path) for path in record.paths],
        "bytes": record.bytes,
        "sha256": list(record.sha256) or None,
        "mtp_head": record.head,
        "state": local.state.value,
        "verified_s": local.verified_s,
        "used_s": used.get(str(local.path)),
        "place": local.place.value,
        "store": local.store.value if local.store else None,
        "repo": record.repo,
        "revision": record.revision,
        "file": record.file,
        "url": record.url,
        "problem": record.problem,
    }


def _list_models(models: Sequence[LocalModel], left: Sequence[Leftover]) -> Result:
    from launcher.engine.server.started import load_last_uses

    used = load_last_uses()
    data = {"models": [_as_json(local, used) for local in models], "leftovers": [leftover_json(each) for each in left]}
    return Result(data, _format_list(models, left))


def _format_list(models: Sequence[LocalModel], left: Sequence[Leftover]) -> Iterator[str]:
    if not models and not left:
        yield "No models are on this machine. `mtp-launcher plan` says what fits, `mtp-launcher pull ID` gets it."
    if not models:
        yield from format_leftovers(left)
        return
    head = ("MODEL", "QUANT", "SIZE", "MTP HEAD", "VERIFIED", "FROM", "FILE")
    rows = [
        (
            local.record.model or (local.stored.name if local.stored else _PART.sub("", local.path.stem)),
            _kind_or_quant(local),
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
        if local.record.problem:
            yield "\n" + wrap_text(f"{local.record.label}: {local.record.problem}")
    yield from format_leftovers(left)
    total = format_size(sum(map(_bytes_here, models)))
    yield f"\n{total} in all. `mtp-launcher serve` starts one by its id, as REPO:FILE, or by its path."


def _bytes_here(local: LocalModel) -> int:
    """Return the size in bytes of its files that exist now."""
    return sum(path.stat().st_size for path in local.record.paths if path.is_file())


def _kind_or_quant(local: LocalModel) -> str:
    if local.record.kind == "model":
        return local.record.quant or _UNKNOWN
    return "vision" if local.record.kind == "mmproj" else local.record.kind


def _describe_head(local: LocalModel) -> str:
    if local.record.kind != "model":
        return ""
    return {"present": "yes", "none": "no", "promised": "lost", None: _UNKNOWN}[local.record.head]


def _describe_verification(local: LocalModel) -> str:
    from launcher.models.library import State

    words = {State.DAMAGED: "damaged", State.MISSING: "missing", State.UNVERIFIED: "never"}
    if local.state in words:
        return words[local.state]
    if local.state is State.TOUCHED:
        return "changed since"
    return time.strftime("%Y-%m-%d", time.localtime(local.verified_s))


def _describe_origin(local: LocalModel) -> str:
    from launcher.models.library import Place

    record = local.record
    if local.place is Place.STORE and local.store is not None:
        return local.store.title
    origin = record.repo or (record.url or "").split("?")[0] or "found here"
    return f"{origin} (the hub's cache)" if local.place is Place.CACHE else origin


async def _verify_models(models: Sequence[LocalModel], *, as_json: bool) -> Result:
    """Verify all files. Exit code 1 if one differs from what is expected, or is missing."""
    from launcher.models.library import Outcome, verify_model

    reporter = Reporter(as_json=as_json)
    show_progress = _show_verifying(reporter, sum(map(_bytes_here, models)))
    verified: list[dict[str, Any]] = []
    bad = False
    read_bytes = 0
    try:
        for local in models:
            results = await verify_model(local, partial(show_progress, local.record.label, read_bytes))
            read_bytes += _bytes_here(local)
            bad = bad or any(each.outcome in (Outcome.CHANGED, Outcome.MISSING) for each in results)
            verified += [_verified_json(local, each) for each in results]
            for each in results:
                reporter.show_event(None, _describe_verified(local, each))
    finally:
        reporter.close()
    lines = [] if models else ["No models are on this machine."]
    return Result({"event": "done", "verified": verified}, lines, exit_code=1 if bad else 0)


def _show_verifying(reporter: Reporter, total: int) -> Callable[[str, int, int], None]:
    """Return a function that shows how far a model is read, after the bytes `before` of others."""
    from launcher.base.progress import Progress

    began_s = time.monotonic()

    def show_progress(name: str, before: int, done: int) -> None:
        done += before
        speed = done / max(time.monotonic() - began_s, 1e-3)
        progress = Progress(done, total, round(speed), (total - done) / speed if speed else None)
        reporter.show_progress(f"Verifying {name}", progress, {"event": "progress", "name": name})

    return show_progress


def _verified_json(local: LocalModel, each: VerifiedFile) -> dict[str, Any]:
    about = {"name": local.record.label, "path": str(each.path), "outcome": each.outcome.value}
    return {**about, "sha256": each.sha256, "expected": each.expected}


def _describe_verified(local: LocalModel, each: VerifiedFile) -> Iterator[str]:
    from launcher.models.library import Outcome

    again = "`mtp-launcher models remove` it and pull it again."
    if local.store is not None:
        again = f"It belongs to {local.store.title}: delete it there, then get it again."
    sha256, expected = (each.sha256 or "")[:12], (each.expected or "")[:12]
    words = {
        Outcome.CHANGED: f"The file is not as expected: its SHA-256 is {sha256}…, not {expected}…. {again}",
        Outcome.MISSING: f"The file is missing. {again}",
        Outcome.UNKNOWN: f"No published checksum is known. Its SHA-256, {sha256}…, is saved and compared next time.",
    }
    yield f"{each.outcome.value:<8} {one_line(str(each.path), 4_096)}"
    if each.outcome in words:
        yield wrap_text(words[each.outcome], " " * 9)


async def _remove_models(
    models: Sequence[LocalModel], left: Sequence[Leftover], *, yes: bool, as_json: bool
) -> Result | int:
    """Delete models and leftovers after asking. Exit code 1 if the user declines."""
    from launcher.base.errors import ModelInUse
    from launcher.engine.server.in_use import server_using
    from launcher.models.leftovers import remove_leftover
    from launcher.models.library import Place, check_removable, remove_model

    for local in models:
        check_removable(local)
        if user := await asyncio.to_thread(server_using, local.record.paths):
            raise ModelInUse(
                f"The server at {user.url} uses {local.record.label}.",
                f"Stop it first: `mtp-launcher stop --url {user.url}`.",
                path=str(local.path),
            )
    if not models and not left:
        return Result({"removed": [], "freed_bytes": 0}, ["There is nothing to remove."])
    paths = [*(path for local in models for path in local.record.paths), *(each.path for each in left)]
    if not yes and not await _confirm_removal(
        paths, sum(map(_bytes_here, models)) + sum(each.bytes for each in left), as_json
    ):
        return 1
    freed = {local: await asyncio.to_thread(remove_model, local) for local in models}
    cleared = {each: await asyncio.to_thread(remove_leftover, each) for each in left}
    removed = [
        {"name": each.record.label, "paths": [str(path) for path in each.record.paths], "freed_bytes": count}
        for each, count in freed.items()
    ]
    removed += [{"name": each.path.name, "paths": [str(each.path)], "freed_bytes": n} for each, n in cleared.items()]
    freed_bytes = sum(freed.values()) + sum(cleared.values())
    lines = []
    for local in models:
        outside = "" if local.place is Place.OURS else f" from {local.path.parent}"
        lines.append(f"Removed {local.record.label}{outside}.")
    lines += [f"Removed {each.path}." for each in left]
    lines.append(f"{format_size(freed_bytes)} are free now.")
    return Result({"removed": removed, "freed_bytes": freed_bytes}, lines)


async def _confirm_removal(paths: Sequence[Path], n_bytes: int, as_json: bool) -> bool:
    """Ask the user for consent. Raises BadOption if nobody can be asked."""
    from launcher.base.errors import BadOption

    if as_json or not can_ask():
        raise BadOption("Removing needs a confirmation, but this is not a terminal.", "Add --yes.")
    for path in paths:
        print(one_line(str(path), 4_096), file=sys.stderr)
    which = "these files" if len(paths) > 1 else "it"
    return await confirm(f"Delete {which}? {format_size(n_bytes)} become free.")
