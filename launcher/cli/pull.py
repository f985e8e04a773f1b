"""`mtp-launcher pull`: download a model."""

from __future__ import annotations

import argparse
import asyncio
import shlex
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from launcher.app.models.downloads import choose_download
from launcher.app.settings import transfer_settings
from launcher.base.codec import JsonView, to_json
from launcher.base.progress import Phase
from launcher.cli.layout import wrap_text
from launcher.cli.output import Note
from launcher.cli.progress import Reporter, format_done_bytes, format_duration, format_size
from launcher.fetch.retries import call_with_retries
from launcher.models.catalogue_load import load_catalogue
from launcher.models.download_target import parse_target
from launcher.models.drafters import find_drafter
from launcher.models.plan import Status
from launcher.models.pull import pull_model, unfinished_bytes

if TYPE_CHECKING:
    from launcher.base.progress import Progress
    from launcher.models.choice import FileChoice
    from launcher.models.download_target import DownloadTarget
    from launcher.models.pull import PullResult

_COMPANION_LABELS = {"draft": "its draft", "mmproj": "its vision projector", "model": "the model"}

_CHOICE = JsonView("status=plan.status required_mib=plan.required_mib free_mib=plan.free_mib why")
_PROGRESS = JsonView("phase file=item number=item_number of=item_count resumed_bytes")
_RECEIVED = JsonView("path bytes sha256 seconds:3 resumed_bytes")
_FILES = JsonView(
    "files mtp_head=checked.head file_kind=record.file_kind notes",
    files=JsonView("path kind bytes sha256 origin"),
)


async def run(options: argparse.Namespace) -> int:
    """Download the model. Raises an error if that fails, or if the file is not what was expected."""
    catalogue = load_catalogue()
    model_name, choice = await choose_download(options.what, catalogue, vision=options.vision, drafter=options.drafter)
    settings = transfer_settings()
    if options.limit:
        settings = replace(settings, bytes_per_second=options.limit)
    reporter = Reporter(as_json=options.json)
    find_target = partial(
        parse_target,
        model_name,
        catalogue,
        sha256=options.sha256,
        revision=options.revision,
        vision=options.vision,
        drafter=options.drafter,
    )

    def show_waiting(note: str) -> None:
        reporter.show_event({"event": "waiting", "note": note}, [Note(f"Waiting: {note}")])

    target = await call_with_retries(find_target, settings, show_waiting)
    files = [piece.label for item in target.items for piece in item.files]
    data = {"event": "start", "what": target.label, "bytes": target.bytes, "files": files, **_CHOICE.write(choice)}
    reporter.show_event(data, _describe_target(target, choice, options))
    total = target.bytes

    def show_progress(progress: Progress) -> None:
        nonlocal total
        total = target.bytes or progress.bytes
        reporter.show_progress(
            _describe_phase(progress), progress, {"event": "progress", **to_json(progress, _PROGRESS)}
        )

    try:
        pulled = await pull_model(target, to=options.to, on_progress=show_progress, settings=settings)
    except asyncio.CancelledError:
        done = await asyncio.to_thread(unfinished_bytes, target, options.to)
        reporter.show_event({"event": "paused", "done_bytes": done, "bytes": total}, [_describe_pause(done, total)])
        raise
    finally:
        reporter.close()
    data = {"event": "done", **to_json(pulled, _RECEIVED), "what": target.label, **to_json(pulled, _FILES)}
    reporter.show_event(data, _describe_result(pulled, options.drafter))
    if pulled.checked.problem is not None:
        raise pulled.checked.problem
    return 0


def _describe_target(target: DownloadTarget, choice: FileChoice | None, options: argparse.Namespace) -> Iterator[str]:
    first = target.items[0].files[0]
    origin = f", from {first.hub.repo}" if choice and first.hub else ""
    yield Note(f"{target.label}{f', {format_size(target.bytes)}' if target.bytes else ''}{origin}")
    if choice:
        chosen = "" if ":" in options.what else "chosen for this machine: "
        yield Note(wrap_text(f"{chosen}{choice.why}", "  "))
    companions = [f"{_COMPANION_LABELS[item.kind]} {item.files[0].name}" for item in target.items[1:]]
    if companions:
        yield Note(wrap_text(f"with {' and '.join(companions)}", "  "))
    if choice and choice.plan and choice.plan.status is Status.TOO_BIG:
        yield Note("  It cannot run on this machine as it is now. You named it, so it is downloaded.")


def _describe_phase(progress: Progress) -> str:
    phases = {Phase.VERIFYING: "Verifying", Phase.WAITING: "Waiting"}
    part = f" {progress.item_number}/{progress.item_count}" if progress.item_count > 1 else ""
    return phases.get(progress.phase, "Downloading") + part


def _describe_pause(done_bytes: int, total_bytes: int | None) -> Note:
    if not done_bytes:
        return Note("Stopped before any data was received.")
    return Note(f"Paused: {format_done_bytes(done_bytes, total_bytes)} are kept. The same command resumes.")


def _describe_result(pulled: PullResult, drafter: str | None) -> Iterator[str]:
    origins = {file.origin for file in pulled.files}
    received = sum(file.received_bytes for file in pulled.files)
    if origins == {"here"}:
        yield Note("Already downloaded, and verified.")
    elif origins == {"cache"}:
        yield Note("Found in the Hugging Face cache: verified, and used there.")
    else:
        speed = f" at {format_size(int(received / pulled.seconds))}/s" if received and pulled.seconds > 0 else ""
        resumed = f" ({format_size(pulled.resumed_bytes)} were here already)" if pulled.resumed_bytes else ""
        duration = f"{format_duration(pulled.seconds)}{speed}"
        yield Note(f"Received {format_size(received)}{resumed} in {duration}, and verified.")
    for note in pulled.notes:
        yield Note(f"Note: {note}")
    for file in pulled.files:
        yield str(file.path)
    if pulled.checked.problem is None and pulled.record.kind == "model":
        beside = next((file.path.name for file in pulled.files if file.kind == "draft"), None)
        named = beside and not find_drafter(str(drafter)).uses_head
        is_head = pulled.checked.head == "present" or (beside and not named)
        head = "with an MTP head" if is_head else "without an MTP head"
        head += f", with {beside} for {drafter}" if named else f" ({beside})" if beside else ""
        start = f"mtp-launcher serve {shlex.quote(pulled.record.label)}{f' --drafter {drafter}' if named else ''}"
        yield Note(f"{pulled.checked.name}, {head}. Start it: {start}")
    elif pulled.checked.problem is None and pulled.checked.kind is not None:
        yield Note(pulled.checked.kind.sentence)
