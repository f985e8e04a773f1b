"""Manifests of releases: the file for each platform, the order of versions, and invalid manifests."""

from typing import Any

import pytest
from pydantic import ValidationError

from launcher.updates.check import ReleaseManifest, this_platform

HASH = "a" * 64


def artefact(name: str, platform: str) -> dict[str, Any]:
    return {"name": name, "platform": platform, "size": 1, "sha256": HASH}


def manifest(version: str = "1.2.0", *artefacts: dict[str, Any], **more: Any) -> ReleaseManifest:  # noqa: ANN401
    return ReleaseManifest.model_validate({"version": version, "notes": "", "artefacts": artefacts, **more})


def test_the_file_of_a_platform_is_found_by_the_end_of_its_name() -> None:
    result = manifest(
        "1.2.0",
        artefact("mtp-launcher-1.2.0-setup.exe", "windows-x64"),
        artefact("mtp-launcher_1.2.0_arm64.deb", "linux-arm64"),
        artefact("mtp-launcher_1.2.0_amd64.deb", "linux-x64"),
        artefact("mtp_launcher-1.2.0-py3-none-any.whl", "any"),
    )

    def name(suffix: str, platform: str) -> str | None:
        found = result.find_artefact(suffix, platform)
        return found.name if found else None

    assert name(".deb", "linux-x64") == "mtp-launcher_1.2.0_amd64.deb"
    assert name("-setup.exe", "windows-x64") == "mtp-launcher-1.2.0-setup.exe"
    assert name(".whl", "linux-riscv64") == "mtp_launcher-1.2.0-py3-none-any.whl"
    assert name("-setup.exe", "linux-x64") is None


@pytest.mark.parametrize(
    ("one", "other", "newer"),
    [
        ("0.10.0", "0.9.9", True),
        ("1.0", "1.0.0", False),
        ("1.0.0", "1.0", False),
        ("1.0.0.1", "1.0", True),
        ("0.1.0", "0.1.0", False),
        ("0.1.0", "0.2.0", False),
    ],
)
def test_versions_are_compared_as_numbers(one: str, other: str, *, newer: bool) -> None:
    assert manifest(one).is_newer_than(other) is newer


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": "1.2.0-rc1"},
        {"version": "newest"},
        {"notes": None},
        {"notes": "x" * 20_001},
        {"artefacts": [artefact("../x.deb", "any")]},
        {"artefacts": [artefact("a/b.deb", "any")]},
        {"artefacts": [artefact(".deb", "any")]},
        {"artefacts": [artefact("x.deb", "any") | {"sha256": "A" * 64}]},
        {"artefacts": [artefact("x.deb", "any") | {"size": 0}]},
        {"artefacts": [artefact("x.deb", "every/one")]},
    ],
)
def test_an_invalid_manifest_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        manifest(**{"version": "1.0.0", **wrong})  # type: ignore[arg-type]


def test_unknown_keys_of_a_manifest_are_ignored() -> None:
    assert manifest("1.0.0", licences={"numpy": "BSD"}).version == "1.0.0"


def test_a_manifest_can_name_this_platform() -> None:
    assert manifest("1.0.0", artefact("x.deb", this_platform())).find_artefact(".deb", this_platform()) is not None
