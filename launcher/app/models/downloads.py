"""The queue of downloads, with its two kinds of jobs: a model, and an engine."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from launcher.app.planning.planner import choose_file
from launcher.app.settings import transfer_settings
from launcher.base.paths import expand_user
from launcher.base.progress import Phase, Progress
from launcher.engine.builds.install import discard_downloads, install_build
from launcher.fetch.jobs import AddedJob
from launcher.fetch.queue import DownloadQueue, JobKind, ReportProgress
from launcher.fetch.retries import call_with_retries
from launcher.fetch.transfer import discard_download
from launcher.models.catalogue import Catalogue
from launcher.models.catalogue_load import load_catalogue
from launcher.models.choice import FileChoice
from launcher.models.download_target import DownloadTarget, find_catalogue_model, local_target, parse_target
from launcher.models.pull import pull_model

PULL, ENGINE = "pull", "engine"


def download_queue() -> DownloadQueue:
    """Return the queue of this user's downloads."""
    return DownloadQueue({PULL: JobKind(_run_pull, _discard_pull), ENGINE: JobKind(_run_install, _discard_install)})


async def add_pull(
    text: str,
    *,
    to: Path | None = None,
    sha256: str | None = None,
    revision: str | None = None,
    vision: bool = False,
    drafter: str | None = None,
) -> AddedJob:
    """Add a model to the queue, with the arguments of `pull`. Raises what `parse_target` raises.

    For a model of the catalogue without a quantisation, the file is chosen for this machine: see `choose_file`.
    """
    catalogue = await asyncio.to_thread(load_catalogue)
    text, _ = await choose_download(text, catalogue, vision=vision, drafter=drafter)
    details: dict[str, Any] = {"sha256": sha256, "revision": revision, "vision": vision}
    details |= {"drafter": drafter} if drafter else {}  # else it is the same job as one of an earlier version
    target = await asyncio.to_thread(parse_target, text, catalogue, **details)
    folder = expand_user(to).absolute() if to else None
    arguments = {
        "what": text,
        "to": str(folder) if folder else None,
        **details,
        "targets": [[str(path) for path in paths] for paths in _target_paths(target, folder)],
    }
    return await asyncio.to_thread(download_queue().add_job, PULL, arguments, target.label, size_bytes=target.bytes)


async def choose_download(
    text: str, catalogue: Catalogue, *, vision: bool, drafter: str | None
) -> tuple[str, FileChoice | None]:
    """Return the name of the download, and how its file was chosen; None for a model that is not on the hub.

    A name of the catalogue without a quantisation gets the one that suits this machine.
    """
    found = find_catalogue_model(text, catalogue)
    if found is None:
        return text, None
    entry, file = found
    if entry.repo is None:  # not on the hub: `parse_target` refuses it, if a file is named
        return text if file else f"{text}:{entry.files[0].quant}", None
    choice = await choose_file(catalogue, entry, file.quant if file else None, vision=vision, drafter=drafter)
    return choice.name, choice


async def add_engine(tag: str | None = None, backend: str | None = None) -> AddedJob:
    """Add the installation of an engine to the queue: see `install_build`."""
    title = f"llama.cpp, {tag or 'the stable build'}" + (f" for {backend}" if backend else "")
    return await asyncio.to_thread(download_queue().add_job, ENGINE, {"tag": tag, "backend": backend}, title)


def _target_paths(target: DownloadTarget, to: Path | None) -> list[list[Path]]:
    return [[local_target(file, target.folder, to=to) for file in item.files] for item in target.items]


async def _run_pull(arguments: dict[str, Any], report: ReportProgress) -> dict[str, Any]:
    """Pull a model. If it fails verification, the file is kept and the job fails."""
    catalogue = await asyncio.to_thread(load_catalogue)
    settings = transfer_settings()
    details = {name: arguments[name] for name in ("sha256", "revision", "vision", "drafter") if name in arguments}
    query_target = partial(parse_target, arguments["what"], catalogue, **details)
    target = await call_with_retries(query_target, settings, lambda note: report(Progress(0, None, note=note)))
    to = Path(arguments["to"]) if arguments["to"] else None
    pulled = await pull_model(target, to=to, on_progress=_report_pull(report), settings=settings)
    if pulled.checked.problem is not None:
        raise pulled.checked.problem
    return {
        "path": str(pulled.path),
        "bytes": pulled.bytes,
        "sha256": pulled.files[0].sha256,
        "seconds": round(pulled.seconds, 3),
        "resumed_bytes": pulled.resumed_bytes,
        "notes": list(pulled.notes),
    }


def _report_pull(report: ReportProgress) -> Callable[[Progress], None]:
    """Return a callback that reports a pull's progress as the job's. While it verifies, the bytes done do not fall."""
    done_bytes = 0

    def report_transfer(progress: Progress) -> None:
        nonlocal done_bytes
        done_bytes = max(done_bytes, progress.done_bytes)
        if progress.phase is Phase.VERIFYING:
            share = f" {100 * progress.done_bytes // progress.bytes} %" if progress.bytes else ""
            report(Progress(done_bytes, progress.bytes, note=f"verifying{share}"))
        else:
            report(progress)

    return report_transfer


def _discard_pull(arguments: dict[str, Any]) -> None:
    """Remove the partial files of a model. A complete model stays (`models remove` deletes it).

    Finished parts of an incomplete model are removed, too, but only in the models folder: elsewhere they may be the
    user's own.
    """
    for files in arguments["targets"]:
        targets = [Path(file) for file in files]
        for target in targets:
            discard_download(target)
        if arguments["to"] is None and not all(target.exists() for target in targets):
            for target in targets:
                target.unlink(missing_ok=True)


async def _run_install(arguments: dict[str, Any], report: ReportProgress) -> dict[str, Any]:
    notes: list[str] = []
    done: int = 0
    size: int | None = None

    def report_step(progress: Progress) -> None:
        nonlocal done, size
        if progress.phase is Phase.WORKING:
            report(Progress(done, size, note=progress.item))
        else:
            done, size = progress.done_bytes, progress.bytes
            report(progress)

    engine = await install_build(
        arguments["tag"],
        arguments["backend"],
        on_progress=report_step,
        on_note=notes.append,
        settings=transfer_settings(),
    )
    return {"engine": engine.name, "path": str(engine.program), "notes": notes}


def _discard_install(arguments: dict[str, Any]) -> None:
    discard_downloads(arguments["tag"], arguments["backend"])
