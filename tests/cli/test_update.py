"""`mtp-launcher update` as a user types it."""

import json
from pathlib import Path

import pytest

from launcher import __version__
from launcher.updates import check
from launcher.updates.check import RELEASES_VARIABLE
from tests.cli.in_process import run
from tests.updates.published import Release


def test_a_newer_version_is_reported_with_notes_and_the_install_command(release: Release, by_script: Path) -> None:
    result = run("update")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"MTP Launcher 7.0.0 is available; this is {__version__}.\n\nFaster.\nQuieter.\n\n")
    assert "`mtp-launcher update --install` downloads and installs it (install.sh, 500 kB)." in " ".join(
        result.stdout.split()
    )


def test_control_characters_in_notes_are_not_printed(release: Release) -> None:
    release.publish_manifest({"version": "7.0.0", "notes": "\x1b]0;title\x07new", "artefacts": []})
    assert "\x1b" not in run("update").stdout
    assert json.loads(run("update", "--json").stdout)["notes"] == "\x1b]0;title\x07new"


def test_in_a_checkout_git_pull_is_recommended(release: Release) -> None:
    assert "git pull" in run("update").stdout
    result = run("update", "--install")
    assert result.returncode == 1
    assert "git pull" in result.stderr


@pytest.mark.parametrize(("version", "expected"), [(__version__, "the newest version"), ("0.0.1", "newer than 0.0.1")])
def test_nothing_is_installed_without_a_newer_version(
    release: Release, by_script: Path, home: Path, version: str, expected: str
) -> None:
    release.publish(version)
    for arguments in ((), ("--install",)):
        assert run("update", *arguments).stdout == f"This is {__version__}, {expected}.\n"
    assert not (home / "cache").exists()


def test_an_update_is_installed_on_request(release: Release, by_script: Path, home: Path) -> None:
    result = run("update", "--install")
    assert result.returncode == 0, result.stderr
    assert "Faster." in result.stdout
    assert result.stdout.endswith("Version 7.0.0 is installed. The next start uses it.\n")
    assert (home / "cache" / "updates" / "7.0.0" / "ran").exists()
    in_json = json.loads(run("update", "--install", "--json").stdout)
    assert (in_json["newest"], in_json["newer"], in_json["installed"], in_json["way"]) == (
        "7.0.0",
        True,
        True,
        "script",
    )


def test_a_build_without_a_release_address_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "RELEASES", "")
    monkeypatch.delenv(RELEASES_VARIABLE, raising=False)
    result = run("update")
    assert result.returncode == 1
    assert result.stderr.startswith("Error: This build has no release address")
    assert json.loads(run("update", "--json").stdout)["error"]["code"] == "releases_unknown"


def test_copies_from_before_an_update_are_listed_with_restore_instructions(home: Path) -> None:
    assert run("update", "--copies").stdout == "No update has changed your files: there are no copies.\n"
    copy = home / "config" / "settings.toml.old-0.0.9"
    copy.parent.mkdir(parents=True)
    copy.touch()
    result = run("update", "--copies")
    assert str(copy) in result.stdout
    assert "rename settings.toml.old-0.0.9 to settings.toml." in " ".join(result.stdout.split())
    (listed,) = json.loads(run("update", "--copies", "--json").stdout)
    assert (listed["copy"], listed["of"]) == (str(copy), str(home / "config" / "settings.toml"))
