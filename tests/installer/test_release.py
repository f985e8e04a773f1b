"""The manifest of a release. `.ci/release` tests the builds themselves."""

import subprocess
import sys
from pathlib import Path

import pytest

from launcher import __version__

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "installer"))
import manifest  # noqa: E402 -- a script in installer/, not a package

CHANGELOG = "# Changelog\n\n## 0.2.0 (not released yet)\n\n- New.\n- Better.\n\n## 0.1.0\n\n- First.\n"


def test_the_release_notes_are_those_of_the_newest_version() -> None:
    assert manifest.newest_notes(CHANGELOG, "0.2.0") == "- New.\n- Better."
    with pytest.raises(ValueError, match=r"0\.2\.0 .* not of 0\.3\.0"):
        manifest.newest_notes(CHANGELOG, "0.3.0")


def test_a_manifest_accepts_the_notes_of_our_changelog() -> None:
    notes = manifest.newest_notes((ROOT / "CHANGELOG.md").read_text("utf-8"), __version__)
    result = manifest.ReleaseManifest(version=__version__, notes=notes, artefacts=())
    assert "\n- " in result.notes


def test_packages_of_a_lock_file_are_listed_with_licences() -> None:
    lock = "PyYAML==6.0 \\\n    --hash=sha256:00\ntyping_extensions==4.1 ; os_name == 'nt' \\\n    --hash=sha256:11"
    known = [
        manifest.Piece(name="pyyaml", version="6.0", licence="MIT", source="here"),
        manifest.Piece(name="typing-extensions", version="4.1", licence="PSF-2.0", source="here"),
    ]
    received = [(each["name"], each["version"], each["licence"]) for each in manifest.list_locked_packages(lock, known)]
    assert received == [("PyYAML", "6.0", "MIT"), ("typing_extensions", "4.1", "PSF-2.0")]
    with pytest.raises(KeyError):
        manifest.list_locked_packages(lock, known[:1])


def test_the_contents_of_a_debian_package_are_read_from_its_list() -> None:
    [piece] = manifest.list_deb_contents("libpython3.11-minimal 3.11.2-6 | PSF-2.0 | Debian 12, sha256 00\n")
    assert piece == {
        "name": "libpython3.11-minimal",
        "version": "3.11.2-6",
        "licence": "PSF-2.0",
        "source": "Debian 12, sha256 00",
    }


def test_a_checkout_with_changes_is_refused(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    (checkout / "installer").mkdir(parents=True)
    script = checkout / "installer" / "release"
    script.write_bytes((ROOT / "installer" / "release").read_bytes())
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("cc", "make", "makensis", "objdump", "pkg-config"):
        (tools / name).write_text("#!/bin/sh\n")
        (tools / name).chmod(0o755)
    subprocess.run(["git", "init", "--quiet", checkout], check=True)
    done = subprocess.run(
        ["bash", script, tmp_path / "out"],
        env={"PATH": f"{tools}:/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "changes that are not committed" in done.stderr
    assert not (tmp_path / "out").exists()


def test_shellcheck_finds_nothing() -> None:
    scripts = (ROOT / "installer" / "release", ROOT / ".ci" / "release")
    done = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
