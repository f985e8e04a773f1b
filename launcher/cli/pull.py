"""`mtp-launcher pull`: download a model."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.cli.bar import ProgressBar, format_duration, format_share, format_size
from launcher.cli.layout import wrap_text
from launcher.cli.output import parse_number, print_json, round_figure

if TYPE_CHECKING:
    from launcher.models.catalogue import Catalogue
    from launcher.models.choice import FileChoice
    from launcher.models.download_target import DownloadTarget
    from launcher.models.pull import PullProgress, PullResult

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
    rate = parse_number(text)
    if not rate > 0:
        raise argparse.ArgumentTypeError(f"{text} is no speed; write it in MB per second, like 5 or 0.5")
    return max(int(rate * _MB), 1)


async def run(options: argparse.Namespace) -> int:
    """Download the model. Exit code 1 if that failed or the file is not what was expected; 130 if interrupted."""
    from dataclasses import replace

    from launcher.app.settings import transfer_settings
    from launcher.fetch.asking_again import ask_again_later
    from launcher.models.catalogue_load import load_catalogue
    from launcher.models.download_target import parse_target
    from launcher.models.pull import pull, unfinished_bytes

    catalogue = load_catalogue()
    text, choice = await _choose(options, catalogue)
    settings = replace(transfer_settings(), bytes_per_second=options.limit) if options.limit else transfer_settings()
    show = _JsonOutput() if options.json else _TextOutput()
    ask = partial(
        parse_target, text, catalogue, sha256=options.sha256, revision=options.revision, vision=options.vision
    )
    meant = await ask_again_later(ask, settings, show.waiting)
    _begin(meant, choice, options)
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


async def _choose(options: argparse.Namespace, catalogue: Catalogue) -> tuple[str, FileChoice | None]:
    """Return the model to download, with the quantisation that suits this machine if the user left it open."""
    from launcher.app.planner import choose_file
    from launcher.models.download_target import find_catalogue_model

    named = find_catalogue_model(options.what, catalogue)
    if named is None or named[0].repo is None:
        return options.what if named is None or named[1] else f"{options.what}:{named[0].files[0].quant}", None
    entry, file = named
    choice = await choose_file(catalogue, entry, file.quant if file else None, vision=options.vision)
    return f"{entry.id}:{choice.file.quant}", choice


def _begin(meant: DownloadTarget, choice: FileChoice | None, options: argparse.Namespace) -> None:
    from launcher.models.plan import Status

    plan = choice.plan if choice else None
    if options.json:
        told: dict[str, Any] = {"event": "start", "what": meant.words, "bytes": meant.bytes}
        told["files"] = [piece.label for item in meant.items for piece in item.pieces]
        told["status"] = plan.status.value if plan else None
        told["required_mib"], told["free_mib"] = (plan.required_mib, plan.free_mib) if plan else (None, None)
        print_json(told | {"why": choice.why if choice else None})
        return
    first = meant.items[0].pieces[0]
    origin = f", from {first.hub.repo}" if choice and first.hub else ""
    print(f"{meant.words}{f', {format_size(meant.bytes)}' if meant.bytes else ''}{origin}", file=sys.stderr)
    if choice:
        chosen = "chosen for this machine: " if options.what.find(":") < 0 else ""
        print(wrap_text(f"{chosen}{choice.why}", "  "), file=sys.stderr)
    beside = [f"{_BESIDE[item.kind]} {item.pieces[0].name}" for item in meant.items[1:]]
    if beside:
        print(wrap_text(f"with {' and '.join(beside)}", "  "), file=sys.stderr)
    if plan and plan.status is Status.TOO_BIG:
        print("  It cannot run on this machine as it is now. You named it, so it is downloaded.", file=sys.stderr)


class _TextOutput:
    """Text output."""

    bytes: int | None = None

    def __init__(self) -> None:
        self._bar = ProgressBar()

    def progress(self, told: PullProgress) -> None:
        from launcher.fetch.transfer import TransferPhase

        self.bytes = told.bytes
        what = {TransferPhase.VERIFYING: "Verifying", TransferPhase.WAITING: "Waiting"}.get(told.phase, "Downloading")
        part = f" {told.number}/{told.of}" if told.of > 1 else ""
        self._bar.show_progress(
            what + part,
            told.done_bytes,
            told.bytes,
            speed=told.bytes_per_second,
            left_s=told.seconds_left,
            note=told.note,
        )

    def waiting(self, note: str) -> None:
        print(f"Waiting: {note}", file=sys.stderr, flush=True)

    def close(self) -> None:
        self._bar.close()

    def paused(self, done: int, total: int | None) -> None:
        kept = f"{format_share(done, total)} are kept. The same command goes on from there."
        print(f"Paused: {kept}" if done else "Ended before anything arrived. The same command begins.", file=sys.stderr)

    def done(self, pulled: PullResult, _words: str) -> None:
        origins = {file.origin for file in pulled.files}
        received = sum(file.received_bytes for file in pulled.files)
        if origins == {"here"}:
            print("It is here already, and verified.", file=sys.stderr)
        elif origins == {"cache"}:
            print("It is in the cache of the hub's tools already: verified, and used there.", file=sys.stderr)
        else:
            speed = f" at {format_size(int(received / pulled.seconds))}/s" if received and pulled.seconds > 0 else ""
            kept = f" beside {format_size(pulled.resumed_bytes)} from before" if pulled.resumed_bytes else ""
            told = f"Received {format_size(received)}{kept} in {format_duration(pulled.seconds)}{speed}, and verified."
            print(told, file=sys.stderr)
        for note in pulled.notes:
            print(f"Note: {note}", file=sys.stderr)
        for file in pulled.files:
            print(file.path)
        if pulled.checked.problem is None and pulled.record.kind == "model":
            head = "with an MTP head" if pulled.checked.head == "present" else "without an MTP head"
            what = pulled.record.label
            start = f"mtp-launcher serve {shlex.quote(what)}"
            print(f"{pulled.checked.name}, {head}. Start it: {start}", file=sys.stderr)


class _JsonOutput:
    """JSON output: one object per line."""

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
                "bytes_per_second": round_figure(told.bytes_per_second),
                "seconds_left": round_figure(told.seconds_left),
                "note": told.note or None,
            }
        )

    def waiting(self, note: str) -> None:
        print_json({"event": "waiting", "note": note})

    def close(self) -> None:
        """Do nothing: no line is open."""

    def paused(self, done: int, total: int | None) -> None:
        print_json({"event": "paused", "done_bytes": done, "bytes": total})

    def done(self, pulled: PullResult, words: str) -> None:
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
                "seconds": round_figure(pulled.seconds, 3),
                "resumed_bytes": pulled.resumed_bytes,
                "what": words,
                "files": files,
                "mtp_head": pulled.checked.head,
                "notes": pulled.notes,
            }
        )
