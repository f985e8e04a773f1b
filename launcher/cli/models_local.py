"""`mtp-launcher models list`, `verify` and `remove`: the model files on this machine."""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import time
from typing import TYPE_CHECKING, Any

from launcher.base.text import one_line
from launcher.cli.bar import ProgressBar, format_size
from launcher.cli.layout import print_table, wrap_text
from launcher.cli.models_folders import leftover_json, print_leftovers
from launcher.cli.output import print_json
from launcher.cli.terminal import can_ask, confirm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from launcher.models.leftovers import Leftover
    from launcher.models.library import LocalModel, VerifiedFile

_UNKNOWN = "–"  # noqa: RUF001 -- the sign for an unknown value
_EVENT_S = 0.5
_PART = re.compile(r"-\d{5}-of-\d{5}$")
VERBS = {
    "list": "show the model files on this machine",
    "verify": "read model files again, and compare them with what they should be",
    "remove": "delete models of this machine, or what downloads have left, after asking",
    "folders": "list the folders that models are looked for in; with add or remove and a folder, change that",
}


def allow_any_order(parser: argparse.ArgumentParser) -> None:
    """Let options, none of which takes a value, stand anywhere; and give each of VERBS its own help.

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
        if verb in VERBS and not {"-h", "--help"}.isdisjoint(words[:cut]):
            _helping(parser.prog, verb).print_help()
            parser.exit()
        return parse(words, namespace)

    parser.parse_known_args = parse_reordered  # type: ignore[method-assign,assignment]


def _helping(prog: str, verb: str) -> argparse.ArgumentParser:
    summary = VERBS[verb]
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


async def run(options: argparse.Namespace) -> int:
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
        raise BadOption("Which model is to be removed?", "`mtp-launcher models list` names them: ID:QUANT, or a path.")
    found = await asyncio.to_thread(list_library, load_catalogue())
    if found.notice:
        print(f"Note: {found.notice}", file=sys.stderr)
    left = await asyncio.to_thread(find_leftovers) if verb != "verify" else ()
    meant = {text: select_leftovers(left, text) for text in which}
    chosen = [
        each
        for text in which or ["all"]
        if not meant.get(text) and text != "leftovers"
        for each in (select_models(found.models, text) if which or found.models else [])
    ]
    chosen = list(dict.fromkeys(chosen))
    its = list(dict.fromkeys(each for text in which for each in meant[text])) if which else list(left)
    if verb == "list":
        return _list(chosen, its, as_json=options.json)
    if verb == "verify":
        return await _verify(chosen, as_json=options.json)
    return await _remove(chosen, its, yes=options.yes, as_json=options.json)


def _as_json(local: LocalModel, used: Mapping[str, float]) -> dict[str, Any]:
    record = local.record
    return {
        "name": record.label,
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
        "repo": record.repo,
        "revision": record.revision,
        "file": record.file,
        "url": record.url,
        "problem": record.problem,
    }


def _list(models: Sequence[LocalModel], left: Sequence[Leftover], *, as_json: bool) -> int:
    if as_json:
        from launcher.engine.server.started import load_last_uses

        used = load_last_uses()
        told = [_as_json(local, used) for local in models]
        print_json({"models": told, "leftovers": [leftover_json(each) for each in left]})
        return 0
    if not models and left:
        print_leftovers(left)
        return 0
    if not models:
        print("No models are on this machine. `mtp-launcher plan` says what fits, `mtp-launcher pull ID` gets it.")
        return 0
    head = ("MODEL", "QUANT", "SIZE", "MTP HEAD", "VERIFIED", "FROM", "FILE")
    rows = [
        (
            local.record.model or _PART.sub("", local.path.stem),
            _kind_or_quant(local),
            format_size(local.record.bytes),
            _head(local),
            _verified(local),
            _from(local),
            str(local.path),
        )
        for local in models
    ]
    print_table([head, *rows], right={2}, indent="")
    for local in models:
        if local.record.problem:
            print("\n" + wrap_text(f"{local.record.label}: {local.record.problem}"))
    print_leftovers(left)
    total = format_size(sum(map(_bytes_here, models)))
    print(f"\n{total} in all. `mtp-launcher serve` starts one by its id, as REPO:FILE, or by its path.")
    return 0


def _bytes_here(local: LocalModel) -> int:
    """Return the size in bytes of its files that exist now."""
    return sum(path.stat().st_size for path in local.record.paths if path.is_file())


def _kind_or_quant(local: LocalModel) -> str:
    if local.record.kind == "model":
        return local.record.quant or _UNKNOWN
    return "vision" if local.record.kind == "mmproj" else local.record.kind


def _head(local: LocalModel) -> str:
    if local.record.kind != "model":
        return ""
    return {"present": "yes", "none": "no", "promised": "lost", None: _UNKNOWN}[local.record.head]


def _verified(local: LocalModel) -> str:
    from launcher.models.library import State

    words = {State.DAMAGED: "damaged", State.MISSING: "missing", State.UNVERIFIED: "never"}
    if local.state in words:
        return words[local.state]
    if local.state is State.TOUCHED:
        return "changed since"
    return time.strftime("%Y-%m-%d", time.localtime(local.verified_s))


def _from(local: LocalModel) -> str:
    from launcher.models.library import Place

    record = local.record
    origin = record.repo or (record.url or "").split("?")[0] or "found here"
    return f"{origin} (the hub's cache)" if local.place is Place.CACHE else origin


async def _verify(models: Sequence[LocalModel], *, as_json: bool) -> int:
    """Verify all files. Exit code 1 if one differs from what is expected, or is missing."""
    from launcher.models.library import Outcome, verify_model

    progress = _Progress(sum(map(_bytes_here, models)), as_json=as_json)
    bad = False
    if not models and not as_json:
        print("No models are on this machine.")
    told = []
    try:
        for local in models:
            results = await verify_model(local, lambda done, local=local: progress.show(local, done))  # type: ignore[misc]
            progress.next()
            bad = bad or any(each.outcome in (Outcome.CHANGED, Outcome.MISSING) for each in results)
            told += [_verified_json(local, each) for each in results]
            if not as_json:
                for each in results:
                    _tell_verified(local, each)
    finally:
        progress.close()
    if as_json:
        print_json({"event": "done", "verified": told})
    return 1 if bad else 0


class _Progress:
    """Progress of verifying, over all models."""

    def __init__(self, total: int, *, as_json: bool) -> None:
        self._bar = None if as_json else ProgressBar()
        self._total, self._before, self._read = total, 0, 0
        self._began_s, self._told_s = time.monotonic(), 0.0

    def show(self, local: LocalModel, done: int) -> None:
        self._read = done = self._before + done
        now_s = time.monotonic()
        speed = done / max(now_s - self._began_s, 1e-3)
        if self._bar is not None:
            left_s = (self._total - done) / speed
            self._bar.show_progress(f"Verifying {local.record.label}", done, self._total, speed=speed, left_s=left_s)
        elif now_s - self._told_s >= _EVENT_S:
            self._told_s = now_s
            what = {"event": "progress", "name": local.record.label, "done_bytes": done, "bytes": self._total}
            print_json({**what, "bytes_per_second": round(speed)})

    def next(self) -> None:
        self._before = self._read
        self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _verified_json(local: LocalModel, each: VerifiedFile) -> dict[str, Any]:
    about = {"name": local.record.label, "path": str(each.path), "outcome": each.outcome.value}
    return {**about, "sha256": each.sha256, "expected": each.expected}


def _tell_verified(local: LocalModel, each: VerifiedFile) -> None:
    from launcher.models.library import Outcome, Place

    again = "`mtp-launcher models remove` it and pull it again."
    if local.place is Place.CACHE:
        again = "It lies in a cache of other programs: delete it there and pull it again."
    found, wanted = (each.sha256 or "")[:12], (each.expected or "")[:12]
    words = {
        Outcome.CHANGED: f"It is not the file that it should be: its SHA-256 is {found}…, not {wanted}…. {again}",
        Outcome.MISSING: f"It is not there any more. {again}",
        Outcome.UNKNOWN: f"Nobody says what it should be. Its SHA-256, {found}…, is kept and compared the next time.",
    }
    print(f"{each.outcome.value:<8} {one_line(str(each.path), 4_096)}")
    if each.outcome in words:
        print(wrap_text(words[each.outcome], " " * 9))


async def _remove(models: Sequence[LocalModel], left: Sequence[Leftover], *, yes: bool, as_json: bool) -> int:
    """Delete models and leftovers after asking. Exit code 1 if the user declines."""
    from launcher.base.errors import BadOption, ModelInUse
    from launcher.engine.server.in_use import server_using
    from launcher.models.leftovers import remove_leftover
    from launcher.models.library import Place, remove_model

    for local in models:
        if local.place is Place.CACHE:
            raise BadOption(
                f"{local.record.label} lies in a cache of other programs, which may need it: {local.path}.",
                "Delete it with the program that got it, such as `hf cache`.",
                path=str(local.path),
            )
        if user := await asyncio.to_thread(server_using, local.record.paths):
            raise ModelInUse(
                f"The server at {user.url} uses {local.record.label}.",
                f"Stop it first: `mtp-launcher stop --url {user.url}`.",
                path=str(local.path),
            )
    if not models and not left:
        if as_json:
            print_json({"removed": [], "freed_bytes": 0})
        else:
            print("There is nothing to remove.")
        return 0
    paths = [*(path for local in models for path in local.record.paths), *(each.path for each in left)]
    if not yes and not await _agreed(paths, sum(map(_bytes_here, models)) + sum(each.bytes for each in left), as_json):
        return 1
    freed = {local: await asyncio.to_thread(remove_model, local) for local in models}
    cleared = {each: await asyncio.to_thread(remove_leftover, each) for each in left}
    if as_json:
        told = [
            {"name": each.record.label, "paths": [str(path) for path in each.record.paths], "freed_bytes": count}
            for each, count in freed.items()
        ]
        told += [{"name": each.path.name, "paths": [str(each.path)], "freed_bytes": n} for each, n in cleared.items()]
        print_json({"removed": told, "freed_bytes": sum(freed.values()) + sum(cleared.values())})
        return 0
    for local in models:
        outside = "" if local.place is Place.OURS else f" from {local.path.parent}"
        print(f"Removed {local.record.label}{outside}.")
    for each in left:
        print(f"Removed {each.path}.")
    print(f"{format_size(sum(freed.values()) + sum(cleared.values()))} are free now.")
    return 0


async def _agreed(paths: Sequence[Path], n_bytes: int, as_json: bool) -> bool:
    """Ask the user for consent. Raises BadOption if nobody can be asked."""
    from launcher.base.errors import BadOption

    if as_json or not can_ask():
        raise BadOption("Removing is asked about on a terminal, and this is none.", "Add --yes.")
    for path in paths:
        print(one_line(str(path), 4_096), file=sys.stderr)
    which = "these files" if len(paths) > 1 else "it"
    return await confirm(f"Delete {which}? {format_size(n_bytes)} become free.")
