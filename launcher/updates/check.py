"""Whether there is a newer version: asked when the user wants to know, or once a week, and kept.

A check fetches one small file, and sends nothing but the request for it.
"""

import asyncio
import ipaddress
import logging
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from launcher import __version__, settings
from launcher.base.errors import LauncherError
from launcher.base.files import private_folder, write_atomically
from launcher.base.http import json_pages, refusal_of
from launcher.base.net import host_of
from launcher.base.paths import state_dir
from launcher.engine import registry
from launcher.settings_declared import WEEKLY_CHECK
from launcher.updates.errors import ManifestBroken, ReleasesUnknown
from launcher.updates.manifest import MANIFEST, Manifest

RELEASES = ""
"""The folder of the newest release: `manifest.json` and what it names lie there. Empty while there is none."""
VARIABLE = "MTP_LAUNCHER_RELEASES"
"""Set to an address, it is used in place of RELEASES."""
_MOST_BYTES = 2**20
_DAY_S = 86_400.0
_WEEK_S = 7 * _DAY_S
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest release as it was told, and the folder of its files."""

    manifest: Manifest
    folder: str

    @property
    def is_newer(self) -> bool:
        """Whether it is a later version than this program."""
        return self.manifest.newer_than(__version__)


class _Kept(BaseModel):
    """When was asked last, whether there was an answer then, and the last answer, None where there was none yet."""

    folder: str
    asked_s: float
    answered: bool
    manifest: Manifest | None


def releases() -> str:
    """Return the folder of the newest release, without a slash at its end. Raises ReleasesUnknown.

    Programs are only received over https, but from this computer itself.
    """
    address = (os.environ.get(VARIABLE) or RELEASES).rstrip("/")
    if not address:
        raise ReleasesUnknown(
            "This build does not say where its releases are, so newer versions cannot be looked for.",
            f"Look where you got it from, or set {VARIABLE} to the address of a folder with {MANIFEST}.",
        )
    try:
        parts = urlsplit(address)
        good = bool(parts.hostname) and (parts.scheme == "https" or _is_here(parts.scheme, parts.hostname or ""))
    except ValueError:
        good = False
    if not good:
        raise ReleasesUnknown(f"{VARIABLE} is no address of releases.", "It begins with https://.")
    return address


async def check() -> Newest:
    """Ask for the newest release, and keep the answer.

    Raises ReleasesUnknown, also where none lies there, ManifestBroken, and Unreachable or Refused when the server does
    not tell.
    """
    folder = releases()
    try:
        manifest = await asyncio.to_thread(_ask, folder)
    except LauncherError:
        await asyncio.to_thread(_keep, folder, None)
        raise
    await asyncio.to_thread(_keep, folder, manifest)
    return Newest(manifest, folder)


async def weekly() -> Newest | None:
    """Return the newest release as far as it is known, asked for when a week has gone by; None where it is not known.

    Nothing is asked when the user has switched that off, or while a model is served. An attempt that fails is only
    logged, and made again a day later.
    """
    try:
        folder = releases()
    except ReleasesUnknown:
        return None
    kept = await asyncio.to_thread(_read, folder)
    if settings.value(WEEKLY_CHECK) and _is_due(kept) and not await asyncio.to_thread(registry.running):
        try:
            return await check()
        except LauncherError as error:
            _log.info("Newer versions could not be looked for: %s", error)
    return Newest(kept.manifest, folder) if kept is not None and kept.manifest is not None else None


def _is_due(kept: _Kept | None) -> bool:
    if kept is None:
        return True
    age_s = time.time() - kept.asked_s
    return age_s < 0 or age_s >= (_WEEK_S if kept.answered else _DAY_S)


def _ask(folder: str) -> Manifest:
    url = f"{folder}/{MANIFEST}"
    page = next(json_pages(url, limit_bytes=_MOST_BYTES))
    if page.head.status in (404, 410):
        raise ReleasesUnknown(
            f"{host_of(url)} has no {MANIFEST}, so newer versions cannot be looked for.",
            "Try again later; if it stays so, get the newest version by hand.",
        )
    if page.data is None:
        raise refusal_of(url, page.head)
    try:
        return Manifest.model_validate(page.data)
    except ValidationError as error:
        raise ManifestBroken(
            f"What {host_of(url)} tells of the newest release is not understood.",
            "Try again later; if it stays so, get the newest version by hand.",
            problems=[".".join(map(str, each["loc"])) for each in error.errors()],
        ) from error


def _is_here(scheme: str, host: str) -> bool:
    with suppress(ValueError):
        return scheme == "http" and ipaddress.ip_address(host).is_loopback
    return False


def _file() -> Path:
    return state_dir() / "updates.json"


def _read(folder: str) -> _Kept | None:
    """Return what is kept of a folder; what cannot be read is asked anew."""
    try:
        kept = _Kept.model_validate_json(_file().read_bytes())
    except (OSError, ValueError):
        return None
    return kept if kept.folder == folder else None


def _keep(folder: str, manifest: Manifest | None) -> None:
    """Keep an answer, or with None that there was none now."""
    before = _read(folder) if manifest is None else None
    known = before.manifest if before is not None else manifest
    kept = _Kept(folder=folder, asked_s=time.time(), answered=manifest is not None, manifest=known)
    try:
        private_folder(_file().parent)
        write_atomically(_file(), kept.model_dump_json().encode())
    except (OSError, LauncherError) as error:
        _log.info("When newer versions were looked for cannot be kept: %s", error)
