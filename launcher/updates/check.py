"""Checks for a newer version, on request or once a week, and stores the result.

A check fetches one small file, and sends nothing about the user.
"""

import asyncio
import ipaddress
import logging
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from platform import machine
from urllib.parse import urlsplit

from launcher import __version__
from launcher.app import settings
from launcher.app.settings_declared import WEEKLY_CHECK
from launcher.base.errors import LauncherError
from launcher.base.files import make_private_folder, write_atomically
from launcher.base.http import error_for_status, fetch_file
from launcher.base.kept_files import KeptFile
from launcher.base.messages import message
from launcher.base.net import host_name
from launcher.base.paths import state_dir
from launcher.base.validation import BaseModel, ConfigDict, Field, ValidationError
from launcher.engine.server import registry
from launcher.updates.before_update import version_numbers
from launcher.updates.signature import MANIFEST, RELEASE_KEY_VARIABLE, release_key, verify_manifest


class ReleasesUnknown(LauncherError):
    """This build has no address for its releases, or an invalid one was set."""

    code = "releases_unknown"


class ManifestBroken(LauncherError):
    """The manifest of a release is invalid."""

    code = "manifest_broken"


class ReleaseReplayed(LauncherError):
    """A server offers an older release than it did before."""

    code = "release_replayed"


class NotOffered(LauncherError):
    """The newest release has no file for this computer, or the program cannot update this kind of installation."""

    code = "update_not_offered"


class UpdateWaits(LauncherError):
    """Updates are not installed while the program is in use."""

    code = "update_waits"


class UpdateFailed(LauncherError):
    """A newer version was downloaded but could not be installed."""

    code = "update_failed"


# The release's `manifest.json`. The release command writes it, and installed programs read it.

ANY_PLATFORM = "any"
"""The platform of a file that suits all platforms."""
_ARCHITECTURES = {"amd64": "x64", "x86_64": "x64", "aarch64": "arm64", "arm64": "arm64"}


class Artefact(BaseModel):
    """One file of a release: its name, platform, size in bytes, and SHA-256 in hexadecimal.

    `platform` is "windows-x64", "linux-x64", "linux-arm64" and the like, or "any".
    """

    model_config = ConfigDict(frozen=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,127}$")
    platform: str = Field(pattern=r"^(any|[a-z0-9]+-[a-z0-9]+)$")
    size: int = Field(gt=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class ReleaseManifest(BaseModel):
    """A release: its version, its release notes as plain text, and its files. Other keys are ignored."""

    model_config = ConfigDict(frozen=True)

    version: str = Field(pattern=r"^\d{1,6}(\.\d{1,6}){1,3}$")
    notes: str = Field(max_length=20_000)
    artefacts: tuple[Artefact, ...] = Field(max_length=100)

    def find_artefact(self, suffix: str, platform: str) -> Artefact | None:
        """Return the file for `platform` whose name ends in `suffix`; None if the release has none."""
        for artefact in self.artefacts:
            if artefact.platform in (platform, ANY_PLATFORM) and artefact.name.endswith(suffix):
                return artefact
        return None

    def is_newer_than(self, version: str) -> bool:
        """Return True if this is a later version than `version`."""
        return version_numbers(self.version) > version_numbers(version)


def this_platform() -> str:
    """Return this computer's platform as manifests name it."""
    system = {"win32": "windows", "darwin": "macos"}.get(sys.platform, "linux")
    return f"{system}-{_ARCHITECTURES.get(machine().lower(), machine().lower())}"


RELEASES = ""
"""URL of the folder with the newest release's manifest and files. Empty while nothing is published."""
RELEASES_VARIABLE = "MTP_LAUNCHER_RELEASES"
"""Environment variable with a URL to use instead of RELEASES."""
_MAX_MANIFEST_BYTES = 2**20
_DAY_S = 86_400.0
_WEEK_S = 7 * _DAY_S
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NewestRelease:
    """The newest release, and the URL of the folder with its files."""

    manifest: ReleaseManifest
    folder: str

    @property
    def is_newer(self) -> bool:
        """True if it is a later version than this program."""
        return self.manifest.is_newer_than(__version__)


class _StoredCheck(BaseModel):
    """The last check of a release folder: its Unix time, whether it got a manifest, and the newest manifest so far."""

    folder: str
    asked_s: float
    answered: bool
    manifest: ReleaseManifest | None


_KEPT_FILE: KeptFile[_StoredCheck | None] = KeptFile(
    "The result of the last check for updates",
    _StoredCheck.model_validate_json,
    lambda: None,
    consequence="the next check replaces it",
)


def find_releases_url() -> str:
    """Return the URL of the newest release's folder, without a trailing slash. Raises ReleasesUnknown.

    Programs are downloaded over https only, except from this computer, and only if this build has a key to verify them.
    """
    address = (os.environ.get(RELEASES_VARIABLE) or RELEASES).rstrip("/")
    if not address:
        raise ReleasesUnknown(
            message("This build has no release address, so it cannot check for updates."),
            message(
                "Check where you downloaded it, or set {variable} to the URL of a folder with {manifest}.",
                variable=RELEASES_VARIABLE,
                manifest=MANIFEST,
            ),
        )
    if not release_key():
        raise ReleasesUnknown(
            message("This build has no key to verify releases with, so it cannot check for updates."),
            message("Check where you downloaded it, or set {variable} to a public key.", variable=RELEASE_KEY_VARIABLE),
        )
    try:
        parts = urlsplit(address)
        is_allowed = bool(parts.hostname) and (parts.scheme == "https" or _is_local(parts.scheme, parts.hostname or ""))
    except ValueError:
        is_allowed = False
    if not is_allowed:
        raise ReleasesUnknown(
            message("{variable} is not a release address.", variable=RELEASES_VARIABLE),
            message("Use an address that begins with https://."),
        )
    return address


async def check_for_update() -> NewestRelease:
    """Fetch the newest release's manifest, and store it.

    Raises ReleasesUnknown if no address or key is set or there is no manifest, SignatureWrong if the maintainer has not
    signed it, ReleaseReplayed if a later one is known, ManifestBroken if it is invalid, and Unreachable or Refused if
    the server does not deliver it.
    """
    folder = find_releases_url()
    try:
        manifest = await asyncio.to_thread(_fetch_manifest, folder)
        await asyncio.to_thread(_check_not_older, manifest, folder)
    except LauncherError:
        await asyncio.to_thread(_store_check, folder, None)
        raise
    await asyncio.to_thread(_store_check, folder, manifest)
    return NewestRelease(manifest, folder)


async def check_weekly() -> NewestRelease | None:
    """Return the newest known release, after a check if a week has passed; None if none is known.

    No check is made if the user has switched it off, or while a model is served. A failed check is only logged, and
    repeated a day later.
    """
    try:
        folder = find_releases_url()
    except ReleasesUnknown:
        return None
    check = await asyncio.to_thread(_read_check, folder)
    if settings.stored_value(WEEKLY_CHECK) and _is_due(check) and not await asyncio.to_thread(registry.list_entries):
        try:
            return await check_for_update()
        except LauncherError as error:
            _log.info("Cannot check for updates: %s", error)
    if check is None or check.manifest is None:
        return None
    return NewestRelease(check.manifest, folder)


def _is_due(check: _StoredCheck | None) -> bool:
    if check is None:
        return True
    age_s = time.time() - check.asked_s
    return age_s < 0 or age_s >= (_WEEK_S if check.answered else _DAY_S)


def _fetch_manifest(folder: str) -> ReleaseManifest:
    """Return the manifest of a release folder. Raises what `check_for_update` raises."""

    content = _fetch_file(f"{folder}/{MANIFEST}")
    if content is None:
        raise ReleasesUnknown(
            message(
                "{url} has no {manifest}, so updates cannot be checked.",
                url=host_name(folder),
                manifest=MANIFEST,
            ),
            message("Try again later. If it keeps failing, download the newest version yourself."),
        )
    verify_manifest(content, lambda name: _fetch_file(f"{folder}/{name}"))
    try:
        return ReleaseManifest.model_validate_json(content)
    except ValidationError as error:
        raise ManifestBroken(
            message("The release information of {url} is invalid.", url=host_name(folder)),
            message("Try again later. If it keeps failing, download the newest version yourself."),
            problems=[".".join(map(str, each["loc"])) for each in error.errors()],
        ) from error


def _fetch_file(url: str) -> bytes | None:
    """Return a small file; None if there is none."""
    head, content = fetch_file(url, limit_bytes=_MAX_MANIFEST_BYTES)
    if content is None and head.status not in (404, 410):
        raise error_for_status(url, head)
    return content


def _check_not_older(manifest: ReleaseManifest, folder: str) -> None:
    """Raise ReleaseReplayed if a later version of the same release folder is known."""
    before = _read_check(folder)
    if before is not None and before.manifest is not None and before.manifest.is_newer_than(manifest.version):
        raise ReleaseReplayed(
            message(
                "{url} offers version {version}, though version {known} is known from there.",
                url=host_name(folder),
                version=manifest.version,
                known=before.manifest.version,
            ),
            message(
                "Somebody may be keeping newer versions from you. Try another network, or report it to the project."
            ),
        )


def _is_local(scheme: str, host: str) -> bool:
    with suppress(ValueError):
        return scheme == "http" and ipaddress.ip_address(host).is_loopback
    return False


def _check_file() -> Path:
    return state_dir() / "updates.json"


def _read_check(folder: str) -> _StoredCheck | None:
    """Return the stored check of a release folder; None if it is unreadable or of another folder."""
    try:
        kept = _KEPT_FILE.load(_check_file())
    except OSError:
        return None
    return kept if kept is not None and kept.folder == folder else None


def _store_check(folder: str, manifest: ReleaseManifest | None) -> None:
    """Store a check. `manifest` is None if the check failed; the manifest of the check before then stays."""
    before = _read_check(folder) if manifest is None else None
    known = before.manifest if before is not None else manifest
    kept = _StoredCheck(folder=folder, asked_s=time.time(), answered=manifest is not None, manifest=known)
    try:
        make_private_folder(_check_file().parent)
        write_atomically(_check_file(), kept.model_dump_json().encode())
    except (OSError, LauncherError) as error:
        _log.info("Cannot store the result of the check for updates: %s", error)
