"""The API of releases, asked over real sockets."""

import json
import time
from pathlib import Path

import pytest

from launcher.base.errors import BadOption, RateLimited, Refused, Unreachable
from launcher.engine.builds.install_errors import ReleaseMissing
from launcher.engine.builds.releases import API_VARIABLE, ReleaseClient
from tests.conftest import ReleaseServer


def tags(client: ReleaseClient) -> list[str]:
    return [release.tag for release in client.fetch_builds()]


def test_builds_are_listed_newest_first_over_all_pages(releases: ReleaseServer) -> None:
    for number in range(11400, 11423):
        releases.publish(f"b{number}", "cpu")
    releases.publish("v0.7.0", points_at="b11420")
    assert tags(ReleaseClient()) == [f"b{number}" for number in range(11422, 11399, -1)]
    targets = [request["target"] for request in releases.requests()]
    assert [target.partition("?")[2] for target in targets] == [
        "per_page=10",
        "per_page=10&page=2",
        "per_page=10&page=3",
    ]


def test_further_pages_are_read_when_needed(releases: ReleaseServer) -> None:
    for number in range(11400, 11430):
        releases.publish(f"b{number}", "cpu")
    assert next(ReleaseClient().fetch_builds()).tag == "b11429"
    assert len(releases.requests()) == 1


def test_draft_releases_and_other_tags_are_ignored(releases: ReleaseServer) -> None:
    releases.publish("b11434", "cpu")
    for tag in ("gguf-v0.17", "b11435-test", "master-b1", "b0"):
        releases.publish(tag, "cpu")
    releases.publish("b11436", "cpu", published_at=None)
    assert tags(ReleaseClient()) == ["b11434"]


def test_a_release_lists_its_files(releases: ReleaseServer) -> None:
    name = "llama-b11434-bin-ubuntu-x64.tar.gz"
    changes = {"llama-b11434-bin-ubuntu-vulkan-x64.tar.gz": {"state": "starter", "digest": None}}
    releases.publish("b11434", "cpu", "vulkan", asset=changes)
    release = ReleaseClient().fetch_release("b11434")
    asset = release.assets[name]
    assert asset.uploaded
    assert asset.sha256
    assert len(asset.sha256) == 64
    assert asset.url == f"{releases.api}/download/b11434/{name}"
    assert release.uploaded_names == {name}
    assert release.assets["llama-b11434-bin-ubuntu-vulkan-x64.tar.gz"].sha256 is None


async def test_the_stable_release_and_a_version_refer_to_a_build(releases: ReleaseServer) -> None:
    releases.publish("b11400", "cpu")
    releases.publish("v0.6.0", points_at="b11300")
    releases.publish("v0.7.0", points_at="b11400")
    releases.publish("b11434", "cpu")
    client = ReleaseClient()
    assert await client.resolve_tag("stable") == "b11400"
    assert await client.resolve_tag("v0.6.0") == "b11300"
    assert await client.resolve_tag("b11434") == "b11434"


@pytest.mark.parametrize("tag", ["", "11434", "b", "b11434x", "../b1", "latest/../..", "v", "release", "b 1", "B11434"])
async def test_an_invalid_tag_is_refused_without_a_request(releases: ReleaseServer, tag: str) -> None:
    with pytest.raises(BadOption, match="is not a llama"):
        await ReleaseClient().resolve_tag(tag)
    assert releases.requests() == []


async def test_a_stable_release_without_a_build_is_reported(releases: ReleaseServer) -> None:
    releases.publish("v0.7.0", points_at="master")
    with pytest.raises(ReleaseMissing, match=r"does not point to a build: 'master'"):
        await ReleaseClient().resolve_tag("stable")
    releases.publish("v0.8.0", points_at="b1", asset={"nightly-tag.txt": {"state": "starter"}})
    with pytest.raises(ReleaseMissing, match=r"v0\.8\.0 does not name its build number") as caught:
        await ReleaseClient().resolve_tag("stable")
    assert "not be complete yet" in caught.value.hint


async def test_a_missing_tag_is_reported(releases: ReleaseServer) -> None:
    with pytest.raises(ReleaseMissing, match="no release b99"):
        ReleaseClient().fetch_release("b99")
    with pytest.raises(ReleaseMissing, match="no release v9"):
        await ReleaseClient().resolve_tag("v9")
    with pytest.raises(ReleaseMissing, match="no stable release"):
        await ReleaseClient().resolve_tag("stable")


def test_an_unchanged_answer_does_not_count_against_the_limit(releases: ReleaseServer) -> None:
    releases.publish("b11434", "cpu")
    assert tags(ReleaseClient()) == ["b11434"]
    (first,) = releases.requests()
    assert "if-none-match" not in first
    assert tags(ReleaseClient()) == ["b11434"]
    (second,) = releases.requests()
    assert second["if-none-match"].startswith('W/"')
    releases.publish("b11435", "cpu")
    assert tags(ReleaseClient()) == ["b11435", "b11434"]


def test_the_token_goes_to_the_api_only(releases: ReleaseServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GH_TOKEN", "ghp_second")
    tags(ReleaseClient())
    assert [request["authorization"] for request in releases.requests()] == ["Bearer ghp_second"]
    monkeypatch.setenv("GITHUB_TOKEN", "ghp_first")
    tags(ReleaseClient())
    assert [request["authorization"] for request in releases.requests()] == ["Bearer ghp_first"]


async def test_the_token_is_not_sent_to_download_servers(
    releases: ReleaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "ghp_first")
    releases.publish("v0.7.0", points_at="b11400")
    assert await ReleaseClient().resolve_tag("stable") == "b11400"
    downloads = [request for request in releases.requests() if "/repos/" not in request["target"]]
    assert [request["server"] for request in downloads] == ["api", "store"]
    assert not any("authorization" in request for request in downloads)


def test_a_wrong_token_is_reported(releases: ReleaseServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GH_TOKEN", "ghp_old")
    monkeypatch.setenv(API_VARIABLE, releases.with_faults("bad-token"))
    with pytest.raises(Refused, match=r"rejected the token in GH_TOKEN\. Unset it; no token is needed"):
        tags(ReleaseClient())


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


def test_an_exhausted_limit_is_an_error_with_the_retry_time(
    releases: ReleaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(API_VARIABLE, releases.with_faults("limited"))
    with pytest.raises(RateLimited, match=r"refuses further requests from your address until \d\d:\d\d") as caught:
        tags(ReleaseClient())
    assert caught.value.hint.startswith("Try again in 30 min, or set GITHUB_TOKEN")


def test_a_limit_is_respected_until_its_end(releases: ReleaseServer, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    releases.publish("b11434", "cpu")
    monkeypatch.setenv(API_VARIABLE, releases.with_faults("slow-down"))
    for _ in range(2):
        with pytest.raises(RateLimited):
            tags(ReleaseClient(clock))
    assert len(releases.requests()) == 1, "the second time nothing was asked"
    clock.now += 8
    with pytest.raises(RateLimited):
        tags(ReleaseClient(clock))
    assert len(releases.requests()) == 1
    monkeypatch.setenv(API_VARIABLE, releases.api)
    assert tags(ReleaseClient(clock)) == ["b11434"], "it is another server's refusal"


@pytest.mark.parametrize("seconds", ["31536000", "9" * 20, "9" * 5_000])
def test_no_limit_lasts_longer_than_a_day(
    seconds: str, releases: ReleaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    releases.publish("b11434", "cpu")
    monkeypatch.setenv(API_VARIABLE, releases.with_faults(f"slow-down={seconds}"))
    for _ in range(2):
        with pytest.raises(RateLimited) as caught:
            tags(ReleaseClient(clock))
        assert caught.value.facts["until_s"] == clock.now + 86_400
    assert len(releases.requests()) == 1


def test_a_token_has_its_own_limit(releases: ReleaseServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_VARIABLE, releases.with_faults("limited"))
    for token, requests in ((None, 1), (None, 0), ("ghp_x", 1), ("ghp_x", 0)):
        if token:
            monkeypatch.setenv("GITHUB_TOKEN", token)
        with pytest.raises(RateLimited) as caught:
            tags(ReleaseClient())
        assert len(releases.requests()) == requests
        assert ("or set GITHUB_TOKEN" in caught.value.hint) == (token is None)


def test_a_stored_answer_is_used_with_its_age_when_the_limit_is_exhausted(
    releases: ReleaseServer, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    clock = Clock()
    releases.publish("b11434", "cpu")
    assert tags(ReleaseClient(clock)) == ["b11434"]
    (kept,) = (home / "cache" / "releases").glob("*.json")
    refused = {"api": releases.api, "until_s": clock.now + 3 * 3600 + 600, "token": False}
    (kept.parent / "refused.json").write_text(json.dumps(refused))
    clock.now += 3 * 3600
    later = ReleaseClient(clock)
    assert tags(later) == ["b11434"]
    (note,) = later.notes
    assert note.startswith("127.0.0.1 refuses further requests from your address until ")
    assert note.endswith("The list below was loaded 3 hours ago.")


@pytest.mark.parametrize("fault", ["500", "503"])
def test_a_server_error_is_reported_and_the_stored_answer_used(
    fault: str, releases: ReleaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(API_VARIABLE, releases.with_faults(fault))
    with pytest.raises(Unreachable, match=f"has a server error .HTTP status {fault}"):
        tags(ReleaseClient())


def test_without_a_network_the_stored_answer_is_used(
    releases: ReleaseServer, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setenv(API_VARIABLE, "http://127.0.0.1:9")
    with pytest.raises(Unreachable, match="cannot be reached"):
        tags(ReleaseClient())
    monkeypatch.setenv(API_VARIABLE, releases.api)
    releases.publish("b11434", "cpu")
    tags(ReleaseClient())
    (kept,) = (home / "cache" / "releases").glob("*.json")
    moved = kept.read_text().replace(releases.api, "http://127.0.0.1:9")
    monkeypatch.setenv(API_VARIABLE, "http://127.0.0.1:9")
    url = json.loads(moved)["url"]
    from launcher.engine.builds.releases import _reply_file

    _reply_file(url).write_text(moved)
    offline = ReleaseClient()
    assert tags(offline) == ["b11434"]
    assert "cannot be reached" in offline.notes[0]


@pytest.mark.parametrize(
    ("fault", "what"), [("no-json", "not JSON"), ("odd", "is invalid"), ("418", "HTTP status 418")]
)
def test_invalid_answers_are_refused(
    fault: str, what: str, releases: ReleaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(API_VARIABLE, releases.with_faults(fault))
    with pytest.raises(Refused, match=what):
        tags(ReleaseClient())


@pytest.mark.parametrize("fault", ["other-tag", "odd-address", "odd-link"])
def test_answers_with_foreign_addresses_are_refused(
    fault: str, releases: ReleaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 12):
        releases.publish(f"b{number}", "cpu")
    monkeypatch.setenv(API_VARIABLE, releases.with_faults(fault))
    with pytest.raises(Refused, match="is invalid"):
        tags(ReleaseClient()) if fault == "odd-link" else ReleaseClient().fetch_release("b11")


def test_a_damaged_stored_answer_is_requested_again(releases: ReleaseServer, home: Path) -> None:
    releases.publish("b11434", "cpu")
    tags(ReleaseClient())
    for kept in (home / "cache" / "releases").iterdir():
        kept.write_text("{")
    assert tags(ReleaseClient()) == ["b11434"]


@pytest.mark.parametrize("address", ["github", "ftp://x", "https://", "file:///etc"])
def test_an_invalid_api_address_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_VARIABLE, address)
    with pytest.raises(BadOption, match="is not a web address"):
        tags(ReleaseClient())
