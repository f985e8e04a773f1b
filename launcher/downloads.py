"""The downloads of both faces: the queue, and the kinds of jobs in it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher.base.paths import expanded
from launcher.engine.install import InstallProgress, discard_downloads, install
from launcher.fetch.jobs import Added, Figures
from launcher.fetch.queue import Queue, Report, Work
from launcher.fetch.transfer import Phase, discard
from launcher.models.catalogue_load import load_catalogue
from launcher.models.pull import PullProgress, pull
from launcher.models.wanted import Wanted, named_model, target_of, wanted
from launcher.planner import choose_file
from launcher.settings import transfer

PULL, ENGINE = "pull", "engine"


def queue() -> Queue:
    """Return the queue of this user's downloads."""
    return Queue({PULL: Work(_pull, _discard_pull), ENGINE: Work(_install, _discard_install)})


async def add_pull(
    text: str,
    *,
    to: Path | None = None,
    sha256: str | None = None,
    revision: str | None = None,
    vision: bool = False,
) -> Added:
    """Put a model into the queue, as `pull` would take it: see `wanted`, which also raises what is wrong with it.

    Where the user leaves it open, the quantisation is the one that suits this machine: see `choose_file`.
    """
    catalogue = await asyncio.to_thread(load_catalogue)
    named = named_model(text, catalogue)
    if named is not None and named[1] is None and named[0].repo is not None:
        text = f"{named[0].id}:{(await choose_file(catalogue, named[0], vision=vision)).file.quant}"
    meant = await asyncio.to_thread(wanted, text, catalogue, sha256=sha256, revision=revision, vision=vision)
    folder = expanded(to).absolute() if to else None
    arguments = {
        "what": text,
        "to": str(folder) if folder else None,
        "sha256": sha256,
        "revision": revision,
        "vision": vision,
        "targets": [[str(path) for path in paths] for paths in _targets(meant, folder)],
    }
    return await asyncio.to_thread(queue().add, PULL, arguments, meant.words, size_bytes=meant.bytes)


async def add_engine(tag: str | None = None, backend: str | None = None) -> Added:
    """Put the installation of an engine into the queue: see `install`."""
    title = f"llama.cpp, {tag or 'the stable build'}" + (f" for {backend}" if backend else "")
    return await asyncio.to_thread(queue().add, ENGINE, {"tag": tag, "backend": backend}, title)


def _targets(meant: Wanted, to: Path | None) -> list[list[Path]]:
    return [[target_of(piece, meant.folder, to=to) for piece in item.pieces] for item in meant.items]


async def _pull(arguments: dict[str, Any], report: Report) -> dict[str, Any]:
    """Pull a model. A model that is not what it should be is kept, and the job has failed."""
    catalogue = await asyncio.to_thread(load_catalogue)
    meant = await asyncio.to_thread(
        wanted,
        arguments["what"],
        catalogue,
        sha256=arguments["sha256"],
        revision=arguments["revision"],
        vision=arguments["vision"],
    )
    to = Path(arguments["to"]) if arguments["to"] else None
    pulled = await pull(meant, to=to, on_progress=_pull_figures(report), settings=transfer())
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


def _pull_figures(report: Report) -> Callable[[PullProgress], None]:
    """Return how a pull's progress becomes the job's: what is verified after it arrived does not count back."""
    most = 0

    def told(progress: PullProgress) -> None:
        nonlocal most
        most = max(most, progress.done_bytes)
        if progress.phase is Phase.VERIFYING:
            share = f" {100 * progress.done_bytes // progress.bytes} %" if progress.bytes else ""
            report(Figures(most, progress.bytes, note=f"verifying{share}"))
        else:
            speed, left_s = progress.bytes_per_second, progress.seconds_left
            report(Figures(progress.done_bytes, progress.bytes, speed, left_s, progress.note))

    return told


def _discard_pull(arguments: dict[str, Any]) -> None:
    """Remove what arrived of a model that is not whole; one that is whole stays (`models remove` takes it away).

    Of a model in several files that includes those that are finished, but only in the folder for models: elsewhere
    they may be the user's own.
    """
    for files in arguments["targets"]:
        targets = [Path(file) for file in files]
        for target in targets:
            discard(target)
        if arguments["to"] is None and not all(target.exists() for target in targets):
            for target in targets:
                target.unlink(missing_ok=True)


async def _install(arguments: dict[str, Any], report: Report) -> dict[str, Any]:
    notes: list[str] = []
    done: int = 0
    size: int | None = None

    def told(progress: InstallProgress) -> None:
        nonlocal done, size
        transfer = progress.transfer
        if progress.note:
            notes.append(progress.text)
        elif transfer is None:  # a step without bytes
            report(Figures(done, size, note=progress.text))
        else:
            done, size = progress.done_bytes, progress.bytes
            left_s = transfer.seconds_left if transfer.bytes == size else None  # that of one of several files
            report(Figures(done, size, transfer.bytes_per_second, left_s, transfer.note))

    engine = await install(arguments["tag"], arguments["backend"], on_progress=told, settings=transfer())
    return {"engine": engine.name, "path": str(engine.program), "notes": notes}


def _discard_install(arguments: dict[str, Any]) -> None:
    discard_downloads(arguments["tag"], arguments["backend"])
