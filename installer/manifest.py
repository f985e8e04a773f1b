"""Writes manifest.json and SHA256SUMS beside the files of a release: what they are, and what is in them.

    python manifest.py DIST CHANGELOG DEB_CONTENTS WINDOWS_CONTENTS

DEB_CONTENTS is the file that linux/contents.py wrote, WINDOWS_CONTENTS the file of windows/build.py. Runs where the
release's own wheel and all requirements are installed: their metadata name their licences. Programs that look for a
newer version read the part that launcher.updates.check declares.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TypedDict

from linux.contents import wheels
from packaging.utils import canonicalize_name

from launcher import __version__
from launcher.updates.check import ANY_PLATFORM, ReleaseManifest
from launcher.updates.signature import MANIFEST

_PLATFORMS = {".deb": "linux-x64", ".sh": "linux-x64", ".exe": "windows-x64", ".ps1": "windows-x64"}
_SUMS = "SHA256SUMS"


class Piece(TypedDict):
    """Something that a file holds or installs, the short name of its licence, and where it comes from."""

    name: str
    version: str
    licence: str
    source: str


def newest_notes(changelog: str, version: str) -> str:
    """Return the changelog's text about a version. Raises ValueError unless that is its first section."""
    head, _, rest = changelog.partition("\n## ")[2].partition("\n")
    if head.split(" ")[0] != version:
        raise ValueError(f"The first section of the changelog is of {head!r}, and not of {version}.")
    return rest.partition("\n## ")[0].strip()


def list_deb_contents(lines: str) -> list[Piece]:
    """Return what the Debian package holds, from its own list: a line `NAME VERSION | LICENCE | SOURCE` each."""
    found: list[Piece] = []
    for line in lines.splitlines():
        named, licence, source = line.split(" | ")
        name, version = named.rsplit(" ", 1)
        found.append(Piece(name=name, version=version, licence=licence, source=source))
    return found


def list_setup_contents(contents: Mapping[str, object]) -> list[Piece]:
    """Return what the Windows setup program holds, from its own list."""
    packages = contents["packages"]
    assert isinstance(packages, list)
    version = str(contents["python"])
    python = Piece(name="CPython", version=version, licence="PSF-2.0", source="python.org's embeddable files")
    return [python] + [
        Piece(
            name=each["name"],
            version=each["version"],
            licence=each["licence"],
            source=f"{each['wheel']}, sha256 {each['sha256']}",
        )
        for each in packages
    ]


def list_locked_packages(lock: str, known: Iterable[Piece]) -> list[Piece]:
    """Return the packages that a list of requirements installs. Raises KeyError for a package whose licence is
    unknown."""
    licences = {canonicalize_name(each["name"]): each["licence"] for each in known}
    named = [line.split(" ")[0] for line in lock.splitlines() if line[:1].isalnum()]
    pins = [each.partition("==") for each in named]
    return [
        Piece(
            name=name,
            version=version,
            licence=licences[canonicalize_name(name)],
            source="the package index, by its hash",
        )
        for name, _, version in pins
    ]


def _platform(name: str) -> str:
    return _PLATFORMS.get(Path(name).suffix, ANY_PLATFORM)


def _installed() -> list[Piece]:
    [site] = [Path(each) for each in sys.path if each.endswith("site-packages")]
    return [
        Piece(name=each.name, version=each.version, licence=each.licence, source=each.source) for each in wheels(site)
    ]


def manifest_text(manifest: Mapping[str, object]) -> str:
    """Return a manifest as JSON, in the form that linux/verify.sh reads without a parser."""
    return json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"


def main(dist: Path, changelog: Path, deb: Path, windows: Path) -> None:
    """Write both files. Raises ValueError or KeyError if the inputs contradict each other."""
    epoch_s = int(os.environ["SOURCE_DATE_EPOCH"])
    setup, here = list_setup_contents(json.loads(windows.read_text("utf-8"))), _installed()
    own = [each for each in here if each["name"] == "mtp-launcher"]
    held = {".deb": list_deb_contents(deb.read_text("utf-8")), ".exe": setup}
    artefacts = []
    for path in sorted(dist.iterdir()):
        installs = list_locked_packages(path.read_text("utf-8"), [*here, *setup]) if path.suffix == ".txt" else []
        artefacts.append(
            {
                "name": path.name,
                "platform": _platform(path.name),
                "size": path.stat().st_size,
                "sha256": sha256(path.read_bytes()).hexdigest(),
                "installs" if installs else "holds": installs or held.get(path.suffix, own),
            }
        )
    manifest = {
        "version": __version__,
        "notes": newest_notes(changelog.read_text("utf-8"), __version__),
        "built": datetime.fromtimestamp(epoch_s, UTC).isoformat(),
        "artefacts": artefacts,
    }
    text = manifest_text(manifest)
    ReleaseManifest.model_validate_json(text)
    (dist / MANIFEST).write_text(text, "utf-8")
    lines = [f"{sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(dist.iterdir())]
    (dist / _SUMS).write_text("".join(lines), "utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:5]))
