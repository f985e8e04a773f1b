"""Reads the header of a model file, and deletes the file, on the core's thread, for the Models page."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher.base.errors import LauncherError, ModelInUse
from launcher.gui.late import last_start, library
from launcher.gui.translation import render, tr
from launcher.models.geometry import read_geometry
from launcher.models.gguf import read_model

if TYPE_CHECKING:
    from launcher.models.library import LocalModel


@dataclass(frozen=True, slots=True)
class FileFigures:
    """Figures of a local file, read when it is selected.

    `header` are pairs of name and value, `sha256` is that of each part, `used_s` its last use in seconds since 1970.
    """

    header: tuple[tuple[str, str], ...]
    sha256: tuple[str | None, ...]
    used_s: float | None


async def read_figures(local: LocalModel) -> FileFigures:
    """Read a file's figures. If its header is unreadable, its only figure is the reason."""
    return await asyncio.to_thread(_read_figures, local)


def _read_figures(local: LocalModel) -> FileFigures:
    hashes, used_s = library.list_hashes(local), last_start.load_last_uses().get(str(local.path))
    try:
        model = read_model(local.path)
    except (LauncherError, OSError) as error:
        reason = render(error.message) if isinstance(error, LauncherError) else str(error)
        return FileFigures(((tr("Header"), reason),), hashes, used_s)
    rows = [(tr("Architecture"), model.architecture), (tr("Tensors"), f"{len(model.tensors):,}")]
    if model.trained_context:
        rows.append((tr("Trained context"), tr("{count} tokens", count=f"{model.trained_context:,}")))
    try:
        geometry = read_geometry(model)
    except LauncherError:
        return FileFigures(tuple(rows), hashes, used_s)
    layers = tr("{count}, {attention} with attention", count=geometry.layers, attention=geometry.attention_layers)
    rows += [(tr("Layers"), layers), (tr("MTP layers"), f"{geometry.mtp_layers}")]
    rows.append((tr("Hidden size"), f"{geometry.hidden:,}"))
    rows.append((tr("Heads"), tr("{count}, {kv} for keys and values", count=geometry.heads, kv=geometry.kv_heads)))
    if geometry.experts:
        rows.append(
            (tr("Experts"), tr("{count}, {used} active per token", count=geometry.experts, used=geometry.experts_used))
        )
    return FileFigures(tuple(rows), hashes, used_s)


async def delete_model(local: LocalModel) -> int:
    """Delete a model's files. Returns the number of bytes freed.

    Raises BadOption for files of other programs, ModelInUse while a server of ours uses the file, and OSError.
    """
    from launcher.engine.server.in_use import find_server_using

    library.check_removable(local)
    server = await asyncio.to_thread(find_server_using, local.record.paths)
    if server is not None:
        raise ModelInUse(tr("The server at {url} uses this file.", url=server.url), tr("Stop it first."))
    return await asyncio.to_thread(library.remove_model, local)
