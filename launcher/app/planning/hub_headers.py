"""Reads headers of files on the hub, if the user agrees, so that plans for these files are exact instead of estimates.

The user's answer is the setting `models.read_headers`. Headers are kept in the cache folder.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.app import settings
from launcher.app.settings_declared import READ_HEADERS, VALUE_ASK, VALUE_OFF, VALUE_ON
from launcher.base.errors import LauncherError, Unreachable
from launcher.base.files import write_atomically
from launcher.base.paths import cache_dir
from launcher.fetch.hub_cache import is_hub_offline
from launcher.models.catalogue_load import figures_folder, load_catalogue

if TYPE_CHECKING:
    from launcher.models.catalogue import ModelEntry, ModelFile
    from launcher.models.plan import Plan

_MOST_FILES = 4
"""Files whose headers are read for one list of plans; each takes about 10 MB."""
_PAUSE_S = 600.0
"""Seconds without another attempt after the hub could not be reached: without a network a plan must not wait for it."""


def find_estimated_plans(plans: Sequence[Plan]) -> tuple[Plan, ...]:
    """Return the plans with estimated weights that a header on the hub would make exact, one for each file."""
    found: dict[tuple[str, str], Plan] = {}
    for plan in plans:
        if plan.entry.repo is None or plan.estimate.weights_exact or _is_replaced(plan.entry, plan.file):
            continue
        found.setdefault((plan.entry.id, plan.file.quant), plan)
    return tuple(found.values())[:_MOST_FILES]


def should_ask() -> bool:
    """Return whether the user was not asked yet; False without a network."""
    return settings.stored_value(READ_HEADERS) == VALUE_ASK and not is_hub_offline()


def may_read() -> bool:
    """Return whether the user agreed; False without a network, and for a while after the hub was unreachable."""
    return settings.stored_value(READ_HEADERS) == VALUE_ON and not is_hub_offline() and not _failed_recently()


def keep_answer(*, agreed: bool) -> None:
    """Keep the user's answer. Raises what `change_setting` raises."""
    settings.change_setting(READ_HEADERS, VALUE_ON if agreed else VALUE_OFF)


async def read_headers(plans: Sequence[Plan]) -> LauncherError | None:
    """Read the headers of the plans' files on the hub in parallel; return the first error. Headers read are kept."""
    results = await asyncio.gather(
        *(asyncio.to_thread(read_file_header, plan.entry, plan.file) for plan in plans), return_exceptions=True
    )
    for each in results:
        if isinstance(each, BaseException) and not isinstance(each, LauncherError | OSError):
            raise each
    error = next((each for each in results if isinstance(each, LauncherError)), None)
    if isinstance(error, Unreachable):
        with suppress(OSError):
            write_atomically(_failure_path(), b"")
    return error


def _failure_path() -> Path:
    """Return the path of the empty file that was written when the hub could not be reached last."""
    return cache_dir() / "hub-unreachable"


def _failed_recently() -> bool:
    try:
        return 0 <= time.time() - _failure_path().stat().st_mtime < _PAUSE_S
    except OSError:
        return False


def read_file_header(entry: ModelEntry, file: ModelFile) -> None:
    """Read a file's header. If the catalogue lacks the file's checksum, by which the header is kept, ask the hub.

    Raises the errors of requests to the hub, and OSError if the header cannot be kept.
    """
    from launcher.fetch.hub import HubFile
    from launcher.models.gguf_remote import read_remote_model
    from launcher.models.hub_figures import refresh_figures

    if _first_sha256(file) is None:
        listed = load_catalogue(hub_figures=False)
        if any(each.id == entry.id for each in listed.models):
            refresh_figures(listed.find(entry.id))
            entry = load_catalogue().find(entry.id)
            file = entry.file(file.quant) or file
    read_remote_model(HubFile(entry.repo or "", file.file, entry.revision or "main"))


def _first_sha256(file: ModelFile) -> str | None:
    return file.parts[0].sha256 if file.parts else file.sha256


def _is_replaced(entry: ModelEntry, file: ModelFile) -> bool:
    """Return whether the hub was asked and has another file under this name, so that its header would be wrong."""
    return _first_sha256(file) is None and (figures_folder() / f"{entry.id}.json").exists()
