"""The check for a newer version: the request over HTTP, its stored result, and the automatic check once a week."""

import json
import time
from pathlib import Path

import pytest

from launcher import __version__
from launcher.app import settings
from launcher.app.settings_declared import WEEKLY_CHECK
from launcher.base.errors import Refused, Unreachable
from launcher.engine.server import registry
from launcher.updates import check
from launcher.updates.check import (
    RELEASES_VARIABLE,
    ManifestBroken,
    ReleasesUnknown,
    check_for_update,
    check_weekly,
    find_releases_url,
)
from tests.updates.published import Release

DAY_S = 86_400


def age_last_check(home: Path, seconds: float) -> None:
    """Change the stored result as if the last check had been `seconds` ago."""
    path = home / "state" / "updates.json"
    kept = json.loads(path.read_text())
    path.write_text(json.dumps(kept | {"asked_s": time.time() - seconds}))


def count_manifest_requests(release: Release) -> int:
    """The number of requests for a manifest."""
    return sum(each["target"].endswith("/manifest.json") for each in release.record.requests)


async def test_a_newer_version_is_reported_with_its_notes(release: Release) -> None:
    newest = await check_for_update()
    assert (newest.manifest.version, newest.is_newer) == ("7.0.0", True)
    assert newest.manifest.notes == "Faster.\nQuieter."
    assert newest.folder == release.use_address()


async def test_the_running_version_is_not_newer(release: Release) -> None:
    release.publish(__version__)
    assert not (await check_for_update()).is_newer


async def test_manifest_and_signature_are_requested_with_the_version_of_the_program_only(release: Release) -> None:
    await check_for_update()
    requests = release.record.requests
    assert [each["target"].rpartition("/")[2] for each in requests] == ["manifest.json", "manifest.json.minisig"]
    for request in requests:
        assert set(request) <= {"server", "target", "Host", "User-Agent", "Accept", "Accept-Encoding", "Connection"}
        assert request["User-Agent"] == f"mtp-launcher/{__version__}"


def test_tests_send_no_request_to_the_real_address() -> None:
    assert find_releases_url() == "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("address", "good"),
    [
        ("", False),
        ("https://example.org/latest/", True),
        ("http://example.org/latest", False),
        ("http://127.0.0.1:8080/x", True),
        ("http://[::1]:8080/x", True),
        ("http://127.0.0.1.example.org/x", False),
        ("ftp://example.org", False),
        ("https://", False),
        ("https://[oops", False),
        ("/srv/releases", False),
    ],
)
def test_programs_are_downloaded_by_https_or_from_this_computer(
    address: str, *, good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "RELEASES", "")
    monkeypatch.setenv(RELEASES_VARIABLE, address)
    if good:
        assert find_releases_url() == address.rstrip("/")
    else:
        with pytest.raises(ReleasesUnknown):
            find_releases_url()


@pytest.mark.parametrize(("faults", "error"), [("404", ReleasesUnknown), ("500", Refused), ("drops=10", Unreachable)])
async def test_a_server_error_is_reported(release: Release, faults: str, error: type[Exception]) -> None:
    release.use_address(faults)
    with pytest.raises(error):
        await check_for_update()


@pytest.mark.parametrize("expected", [[], {"version": "7.0.0"}, {"version": 7, "notes": "", "artefacts": []}])
async def test_an_invalid_manifest_is_named(release: Release, expected: object) -> None:
    release.publish_manifest(expected)
    with pytest.raises(ManifestBroken, match=r"The release information of 127.0.0.1 is invalid"):
        await check_for_update()


async def test_the_automatic_check_runs_once_a_week(release: Release, home: Path) -> None:
    for days, count in ((0, 1), (6.9, 1), (7.1, 2), (-1, 3)):  # after the clock was set back it asks again
        if days:
            age_last_check(home, days * DAY_S)
        newest = await check_weekly()
        assert newest is not None
        assert newest.is_newer
        assert count_manifest_requests(release) == count


async def test_without_the_setting_no_request_is_sent_and_the_known_version_is_shown(
    release: Release, home: Path
) -> None:
    settings.change_setting(WEEKLY_CHECK, False)
    assert await check_weekly() is None
    await check_for_update()
    age_last_check(home, 30 * DAY_S)
    newest = await check_weekly()
    assert newest is not None
    assert newest.manifest.version == "7.0.0"
    assert count_manifest_requests(release) == 1


async def test_no_request_is_sent_while_a_model_is_served(release: Release) -> None:
    _, registration = registry.register_server(None, registry.ServedModel(model="m", engine="e", draft=0))
    try:
        assert await check_weekly() is None
    finally:
        registration.remove()
    assert release.record.requests == []


async def test_after_a_failure_the_check_runs_a_day_later(release: Release, home: Path) -> None:
    address = release.use_address()
    await check_for_update()
    manifest = release.server.folder / "manifest.json"
    good = manifest.read_bytes()
    release.put_signed(manifest.name, b"{", release.maintainer)
    age_last_check(home, 8 * DAY_S)
    for age_days, count in ((None, 2), (0.9, 2), (1.1, 3)):
        if age_days:
            age_last_check(home, age_days * DAY_S)
        newest = await check_weekly()
        assert newest is not None
        assert (newest.manifest.version, newest.folder) == ("7.0.0", address)
        assert count_manifest_requests(release) == count
    release.put_signed(manifest.name, good, release.maintainer)


async def test_without_a_release_address_no_check_runs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "RELEASES", "")
    monkeypatch.delenv(RELEASES_VARIABLE, raising=False)
    assert await check_weekly() is None
    assert not (home / "state" / "updates.json").exists()


@pytest.mark.parametrize("kept", ["", "[]", '{"folder": 1}'])
async def test_an_unreadable_stored_result_is_requested_again(release: Release, home: Path, kept: str) -> None:
    (home / "state").mkdir(parents=True)
    (home / "state" / "updates.json").write_text(kept)
    assert await check_weekly() is not None
    assert count_manifest_requests(release) == 1


async def test_the_result_of_another_server_does_not_count(release: Release) -> None:
    await check_for_update()
    release.use_address("redirect")
    assert await check_weekly() is not None
    assert len(release.record.requests) == 6  # both files, and where these two were redirected to
