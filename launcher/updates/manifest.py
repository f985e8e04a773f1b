"""A release as its `manifest.json` tells it; the release command writes what programs that look for updates read."""

import sys
from platform import machine

from pydantic import BaseModel, ConfigDict, Field

MANIFEST = "manifest.json"
"""The file's name, beside those that it names."""
ANY = "any"
"""The platform of a file that suits all of them."""
_ARCHITECTURES = {"amd64": "x64", "x86_64": "x64", "aarch64": "arm64", "arm64": "arm64"}


class Artefact(BaseModel):
    """One file of a release: its name, which platform it is for, its size in bytes, its SHA-256 in hexadecimal.

    `platform` is "windows-x64", "linux-x64", "linux-arm64" and the like, or "any".
    """

    model_config = ConfigDict(frozen=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,127}$")
    platform: str = Field(pattern=r"^(any|[a-z0-9]+-[a-z0-9]+)$")
    size: int = Field(gt=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Manifest(BaseModel):
    """A release: its version, what is new in it as plain text, and its files. What else a manifest says is left out."""

    model_config = ConfigDict(frozen=True)

    version: str = Field(pattern=r"^\d{1,6}(\.\d{1,6}){1,3}$")
    notes: str = Field(max_length=20_000)
    artefacts: tuple[Artefact, ...] = Field(max_length=100)

    def artefact(self, suffix: str, platform: str) -> Artefact | None:
        """Return the file for a platform whose name ends so, None where the release has none."""
        fitting = (each for each in self.artefacts if each.platform in (platform, ANY))
        return next((each for each in fitting if each.name.endswith(suffix)), None)

    def newer_than(self, version: str) -> bool:
        """Whether this is a later version than another."""
        return _numbers(self.version) > _numbers(version)


def this_platform() -> str:
    """Return what manifests call the platform of this computer."""
    system = "windows" if sys.platform == "win32" else "macos" if sys.platform == "darwin" else "linux"
    return f"{system}-{_ARCHITECTURES.get(machine().lower(), machine().lower())}"


def _numbers(version: str) -> tuple[int, ...]:
    """Return a version as numbers; 1.0 is 1.0.0."""
    numbers = [int(each) for each in version.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
