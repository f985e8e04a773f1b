"""`mtp-launcher pull`: get a model onto this machine."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.cli.bar import Bar, duration, share, size
from launcher.cli.layout import filled
from launcher.cli.output import finite, print_json, rounded

if TYPE_CHECKING:
    from launcher.models.catalogue import Catalogue
    from launcher.models.choice import Choice
    from launcher.models.pull import Pulled, PullProgress
    from launcher.models.wanted import Wanted

_EVENT_S = 0.5
_BESIDE = {"draft": "its draft", "mmproj": "its vision projector", "model": "the model"}
_MB = 10**6


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument(
        "what",
        metavar="ID[:QUANT] | REPO:FILE | URL",
        help="a model of the catalogue, a file on the hub (OWNER/NAME:FILE.gguf), or an address with --sha256",
    )
    parser.add_argument("--to", type=Path, metavar="DIR", help="the folder for it (default: the one for models)")
    parser.add_argument("--revision", metavar="REV", help="a branch, tag or commit, in place of the catalogue's")
    parser.add_argument("--sha256", metavar="HEX", help="what the file's SHA-256 must be")
    parser.add_argument("--vision", action="store_true", help="with the model's vision projector")
    parser.add_argument("--limit", type=_rate, metavar="MB/S", help="receive no faster than this")
    parser.epilog = "Interrupt it whenever you like: the same command goes on where it was."


def _rate(text: str) -> int:
    rate = finite(text)
    if not rate > 0:
        raise argparse.ArgumentTypeError(f"{text} is no speed; write it in MB per second, like 5 or 0.5")
    return max(int(rate * _MB), 1)


async def run(options: argparse.Namespace) -> int:
    """Pull it. Exit code 1 when it could not be had or is not what it should be; 130 when it was interrupted."""
    from dataclasses import replace

    from launcher.models.catalogue_load import load_catalogue
    from launcher.models.pull import pull, unfinished_bytes
    from launcher.models.wanted import wanted
    from launcher.settings import transfer

    catalogue = load_catalogue()
    text, choice = await _choose(options, catalogue)
    meant = await asyncio.to_thread(
        wanted, text, catalogue, sha256=options.sha256, revision=options.revision, vision=options.vision
    )
    _begin(meant, choice, options)
    settings = replace(transfer(), bytes_per_second=options.limit) if options.limit else transfer()
    show = _JsonLines() if options.json else _Lines()
    try:
        pulled = await pull(meant, to=options.to, on_progress=show.progress, settings=settings)
    except asyncio.CancelledError:
        show.close()
        show.paused(await asyncio.to_thread(unfinished_bytes, meant, options.to), meant.bytes or show.bytes)
        raise
    finally:
        show.close()
    show.done(pulled, meant.words)
    if pulled.checked.problem is not None:
        raise pulled.checked.problem
    return 0


async def _choose(options: argparse.Namespace, catalogue: Catalogue) -> tuple[str, Choice | None]:
    """Return what to pull, with the quantisation that suits this machine where the user leaves that open."""
    from launcher.models.wanted import named_model
    from launcher.planner import choose_file

    named = named_model(options.what, catalogue)
    if named is None or named[0].repo is None:
        return options.what if named is None or named[1] else f"{options.what}:{named[0].files[0].quant}", None
    entry, file = named
    choice = await choose_file(catalogue, entry, file.quant if file else None, vision=options.vision)
    return f"{entry.id}:{choice.file.quant}", choice


def _begin(meant: Wanted, choice: Choice | None, options: argparse.Namespace) -> None:
    from launcher.models.plan import Status

    plan = choice.plan if choice else None
    if options.json:
        told: dict[str, Any] = {"event": "start", "what": meant.words, "bytes": meant.bytes}
        told["files"] = [piece.words for item in meant.items for piece in item.pieces]
        told["status"] = plan.status.value if plan else None
        told["required_mib"], told["free_mib"] = (plan.required_mib, plan.free_mib) if plan else (None, None)
        print_json(told | {"why": choice.why if choice else None})
        return
    first = meant.items[0].pieces[0]
    origin = f", from {first.hub.repo}" if choice and first.hub else ""
    print(f"{meant.words}{f', {size(meant.bytes)}' if meant.bytes else ''}{origin}", file=sys.stderr)
    if choice:
        chosen = "chosen for this machine: " if options.what.find(":") < 0 else ""
        print(filled(f"{chosen}{choice.why}", "  "), file=sys.stderr)
    beside = [f"{_BESIDE[item.kind]} {item.pieces[0].name}" for item in meant.items[1:]]
    if beside:
        print(filled(f"with {' and '.join(beside)}", "  "), file=sys.stderr)
    if plan and plan.status is Status.TOO_BIG:
        print("  It cannot run on this machine as it is now. You named it, so it is downloaded.", file=sys.stderr)


class _Lines:
    """What a person sees."""

    bytes: int | None = None

    def __init__(self) -> None:
        self._bar = Bar()

    def progress(self, told: PullProgress) -> None:
        from launcher.fetch.transfer import Phase

        self.bytes = told.bytes
        what = {Phase.VERIFYING: "Verifying", Phase.WAITING: "Waiting"}.get(told.phase, "Downloading")
        part = f" {told.number}/{told.of}" if told.of > 1 else ""
        self._bar.show(
            what + part,
            told.done_bytes,
            told.bytes,
            speed=told.bytes_per_second,
            left_s=told.seconds_left,
            note=told.note,
        )

    def close(self) -> None:
        self._bar.close()

    def paused(self, done: int, total: int | None) -> None:
        kept = f"{share(done, total)} are kept. The same command goes on from there."
        print(f"Paused: {kept}" if done else "Ended before anything arrived. The same command begins.", file=sys.stderr)

    def done(self, pulled: Pulled, _words: str) -> None:
        origins = {file.origin for file in pulled.files}
        received = sum(file.received_bytes for file in pulled.files)
        if origins == {"here"}:
            print("It is here already, and verified.", file=sys.stderr)
        elif origins == {"cache"}:
            print("It is in the cache of the hub's tools already: verified, and used there.", file=sys.stderr)
        else:
            speed = f" at {size(int(received / pulled.seconds))}/s" if received and pulled.seconds > 0 else ""
            kept = f" beside {size(pulled.resumed_bytes)} from before" if pulled.resumed_bytes else ""
            told = f"Received {size(received)}{kept} in {duration(pulled.seconds)}{speed}, and verified."
            print(told, file=sys.stderr)
        for note in pulled.notes:
            print(f"Note: {note}", file=sys.stderr)
        for file in pulled.files:
            print(file.path)
        if pulled.checked.problem is None and pulled.record.kind == "model":
            head = "with an MTP head" if pulled.checked.head == "present" else "without an MTP head"
            what = pulled.record.words
            start = f"mtp-launcher serve {shlex.quote(what)}"
            print(f"{pulled.checked.name}, {head}. Start it: {start}", file=sys.stderr)


class _JsonLines:
    """What a program sees: one object a line."""

    bytes: int | None = None

    def __init__(self) -> None:
        self._told_s: float | None = None
        self._note = ""

    def progress(self, told: PullProgress) -> None:
        self.bytes = told.bytes
        now_s, news = time.monotonic(), told.note not in ("", self._note)
        self._note = told.note
        if self._told_s is not None and now_s - self._told_s < _EVENT_S and not news:
            return
        self._told_s = now_s
        print_json(
            {
                "event": "progress",
                "phase": told.phase.name.lower(),
                "file": told.file,
                "number": told.number,
                "of": told.of,
                "done_bytes": told.done_bytes,
                "bytes": told.bytes,
                "resumed_bytes": told.resumed_bytes,
                "bytes_per_second": rounded(told.bytes_per_second),
                "seconds_left": rounded(told.seconds_left),
                "note": told.note or None,
            }
        )

    def close(self) -> None:
        """Nothing is left open."""

    def paused(self, done: int, total: int | None) -> None:
        print_json({"event": "paused", "done_bytes": done, "bytes": total})

    def done(self, pulled: Pulled, words: str) -> None:
        files = [
            {
                "path": str(file.path),
                "kind": file.kind,
                "bytes": file.bytes,
                "sha256": file.sha256,
                "origin": file.origin,
            }
            for file in pulled.files
        ]
        print_json(
            {
                "event": "done",
                "path": str(pulled.path),
                "bytes": pulled.bytes,
                "sha256": pulled.files[0].sha256,
                "seconds": rounded(pulled.seconds, 3),
                "resumed_bytes": pulled.resumed_bytes,
                "what": words,
                "files": files,
                "mtp_head": pulled.checked.head,
                "notes": pulled.notes,
            }
        )
