"""Files on the hub: names, URLs, size and hash from the hub, and access to them."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Protocol

import httpx
import pytest

from launcher.base.errors import BadOption, LauncherError, ModelMissing, Offline, Refused, Unreachable
from launcher.base.http import fetch_json_pages
from launcher.fetch.hub import (
    FoundRepo,
    HubFile,
    ListedFile,
    hub_endpoint,
    hub_token,
    is_hub_file,
    list_files,
    resolve_file,
    search_repos,
)

COMMIT = "5bc3e238d916f48a861bac2f8a1990a0e9b7e98d"
CONTENT = b"GGUF and so on"


class Hub(Protocol):
    url: str
    folder: Path
    with_faults: Callable[..., str]
    requests: Callable[[], list[dict[str, Any]]]


@pytest.fixture(autouse=True)
def repositories(hub: Hub) -> None:
    for owner in ("new", "gated", "secret"):
        folder = hub.folder / owner / "model"
        (folder / "BF16").mkdir(parents=True, exist_ok=True)
        (folder / "file.gguf").write_bytes(CONTENT)
        (folder / "BF16" / "50% & more.gguf").write_bytes(CONTENT)
        (folder / "README.md").write_bytes(b"# Model\n")


class TestHubFileText:
    @pytest.mark.parametrize(
        ("text", "file"),
        [
            ("unsloth/Q-1.5:Q-UD-Q3_K_XL.gguf", HubFile("unsloth/Q-1.5", "Q-UD-Q3_K_XL.gguf")),
            ("a/b:BF16/x-00001-of-00002.gguf", HubFile("a/b", "BF16/x-00001-of-00002.gguf")),
            (f"a/b@{COMMIT}:x.gguf", HubFile("a/b", "x.gguf", COMMIT)),
            ("a/b@refs/pr/1:x y.gguf", HubFile("a/b", "x y.gguf", "refs/pr/1")),
        ],
    )
    def test_it_is_parsed_and_formatted(self, text: str, file: HubFile) -> None:
        assert HubFile.parse(text) == file
        assert str(file) == text
        assert is_hub_file(text)

    @pytest.mark.parametrize(
        "text",
        [
            "model.gguf",
            "folder/model.gguf",
            r"C:\models\model.gguf",
            "C:/models/model.gguf",
            "/models/a:b.gguf",
            "./a:b.gguf",
            "a/b/c:x.gguf",
            "a/b:",
            "a/b:/x.gguf",
            "a/b:../x.gguf",
            "a/b:x/../../y.gguf",
            "a/b:x//y.gguf",
            "a/b:x\n.gguf",
            "a/b@..:x.gguf",
            "a/b@x/../y:x.gguf",
            "https://huggingface.co/a/b",
            "a/b:https://x.gguf",
            "",
        ],
    )
    def test_other_texts_are_refused(self, text: str) -> None:
        assert not is_hub_file(text)
        with pytest.raises(BadOption, match="not a Hugging Face file"):
            HubFile.parse(text)


class TestHubAddress:
    def test_the_default_is_hugging_face(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("HF_ENDPOINT", raising=False)
        assert HubFile("a/b", "x.gguf").url == "https://huggingface.co/a/b/resolve/main/x.gguf"

    def test_every_segment_is_encoded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example/hf/")
        file = HubFile("a/b", "BF16/50% & more?#.gguf", "refs/pr/1")
        assert file.url == "https://mirror.example/hf/a/b/resolve/refs%2Fpr%2F1/BF16/50%25%20%26%20more%3F%23.gguf"

    @pytest.mark.parametrize("value", ["huggingface.co", "ftp://huggingface.co", "https://", "file:///etc"])
    def test_an_invalid_endpoint_is_refused(self, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_ENDPOINT", value)
        with pytest.raises(BadOption, match="HF_ENDPOINT is not a web address"):
            hub_endpoint()


class TestToken:
    def test_no_token_is_needed(self) -> None:
        assert hub_token() is None

    def test_the_variable_overrides_the_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "hf").mkdir()
        (tmp_path / "hf" / "token").write_text("hf_file\n")
        assert hub_token() == "hf_file"
        monkeypatch.setenv("HF_TOKEN", " hf_variable\n")
        assert hub_token() == "hf_variable"

    def test_the_token_file_of_the_hubs_tools_is_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        places = {"HOME": ".cache/huggingface/token", "XDG_CACHE_HOME": "huggingface/token", "HF_HOME": "token"}
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.delenv("HF_HOME")
        for variable, place in places.items():
            monkeypatch.setenv(variable, str(tmp_path / variable))
            file = tmp_path / variable / place
            file.parent.mkdir(parents=True)
            file.write_text(f"hf_{variable}")
            assert hub_token() == f"hf_{variable}"
        (tmp_path / "elsewhere").write_text("hf_elsewhere")
        monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "elsewhere"))
        assert hub_token() == "hf_elsewhere"

    def test_an_empty_or_unreadable_file_counts_as_no_token(self, tmp_path: Path) -> None:
        file = tmp_path / "hf" / "token"
        file.mkdir(parents=True)
        assert hub_token() is None
        file.rmdir()
        file.write_bytes(b"\xff\xfe")
        assert hub_token() is None
        file.write_text("\n")
        assert hub_token() is None

    def test_a_token_with_invalid_characters_is_refused_and_not_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_TOKEN", "hf_s3cret\r\nX: y")
        with pytest.raises(BadOption, match="contains invalid characters") as bad:
            hub_token()
        assert "s3cret" not in str(bad.value)


class TestFileMetadata:
    def test_size_hash_and_commit_of_a_large_file_need_one_request(self, hub: Hub) -> None:
        entry = resolve_file(HubFile("new/model", "file.gguf"))
        sha256 = hashlib.sha256(CONTENT).hexdigest()
        assert (entry.bytes, entry.sha256, entry.etag, entry.revision) == (len(CONTENT), sha256, sha256, COMMIT)
        assert entry.url == f"{hub.url}/new/model/resolve/{COMMIT}/file.gguf"
        assert [(request["method"], request["server"]) for request in hub.requests()] == [("HEAD", "hub")]

    def test_a_small_file_has_no_sha256(self) -> None:
        entry = resolve_file(HubFile("new/model", "README.md"))
        assert (entry.bytes, entry.sha256, len(entry.etag), entry.revision) == (8, None, 40, COMMIT)

    @pytest.mark.parametrize("path", ["BF16/50% & more.gguf", "file.gguf"])
    @pytest.mark.parametrize("revision", ["main", COMMIT, "refs/pr/1"])
    def test_any_file_name_and_revision_works(self, path: str, revision: str) -> None:
        assert resolve_file(HubFile("new/model", path, revision)).bytes == len(CONTENT)

    def test_redirects_of_a_renamed_repository_get_the_token(self, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_TOKEN", "hf_mine")
        assert resolve_file(HubFile("old/model", "file.gguf")).bytes == len(CONTENT)
        assert [request["Authorization"] for request in hub.requests()] == ["Bearer hf_mine"] * 2

    def test_a_redirect_loop_is_refused(self) -> None:
        with pytest.raises(Refused, match="redirects in a loop"):
            resolve_file(HubFile("round/model", "file.gguf"))

    def test_a_server_that_is_not_a_hub_is_refused(self, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_ENDPOINT", hub.with_faults("no-metadata"))
        with pytest.raises(Refused, match="does not report the size of new/model:file") as refused:
            resolve_file(HubFile("new/model", "file.gguf"))
        assert "HF_ENDPOINT" in refused.value.hint

    def test_the_redirect_of_a_mirror_is_followed_without_the_token(
        self, hub: Hub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_TOKEN", "hf_mine")
        monkeypatch.setenv("HF_ENDPOINT", f"{hub.store}/fault/mirror")
        entry = resolve_file(HubFile("new/model", "file.gguf"))
        assert (entry.sha256, entry.revision) == (hashlib.sha256(CONTENT).hexdigest(), COMMIT)
        assert list_files("new/model").files["file.gguf"].bytes == len(CONTENT)
        asked = {(request["server"], request.get("Authorization")) for request in hub.requests()}
        assert asked == {("store", "Bearer hf_mine"), ("hub", None)}

    def test_a_commit_is_known_from_any_redirect(self, monkeypatch: pytest.MonkeyPatch) -> None:
        hops = {
            "http://mirror.example/a/b/resolve/main/x.json": (308, {"Location": "http://hub.example/a/b/x.json"}),
            "http://hub.example/a/b/x.json": (307, {"Location": "/cache/x.json?etag=7", "X-Repo-Commit": COMMIT}),
            "http://hub.example/cache/x.json?etag=7": (200, {"Content-Length": "9", "ETag": '"7"'}),
        }

        def answer(_transport: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
            status, headers = hops[str(request.url)]
            return httpx.Response(status, headers=headers, request=request)

        monkeypatch.setattr(httpx.HTTPTransport, "handle_request", answer)
        monkeypatch.setenv("HF_ENDPOINT", "http://mirror.example")
        entry = resolve_file(HubFile("a/b", "x.json"))
        assert (entry.bytes, entry.revision, entry.etag) == (9, COMMIT, "7")

    def test_what_a_mirror_redirects_to_is_named_where_it_wants_the_token(
        self, hub: Hub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_TOKEN", "hf_consent")
        monkeypatch.setenv("HF_ENDPOINT", f"{hub.store}/fault/mirror")
        for ask in (lambda: resolve_file(HubFile("gated/model", "file.gguf")), lambda: list_files("gated/model")):
            with pytest.raises(Refused, match=r"127\.0\.0\.1 denies access to gated/model") as refused:
                ask()
            assert f"without your token. Set HF_ENDPOINT to {hub.url} if" in refused.value.hint

    @pytest.mark.parametrize(
        ("status", "headers"),
        [(302, {"Location": "http://[oops"}), (200, {"ETag": '"x"', "X-Linked-Size": "9" * 5000})],
    )
    def test_invalid_headers_are_refused(
        self, monkeypatch: pytest.MonkeyPatch, status: int, headers: dict[str, str]
    ) -> None:
        def answer(_transport: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
            return httpx.Response(status, headers=headers, request=request)

        monkeypatch.setattr(httpx.HTTPTransport, "handle_request", answer)
        with pytest.raises(Refused):
            resolve_file(HubFile("new/model", "file.gguf"))


class TestAccess:
    @pytest.mark.parametrize(
        ("file", "user", "kind", "title", "hint"),
        [
            ("gated/model:file.gguf", None, Refused, "is gated", "accept the terms. Create a token"),
            ("gated/model:file.gguf", "hf_other", Refused, "is gated", "of the same account"),
            ("secret/model:file.gguf", None, Refused, "denies access to secret/model", "or is private"),
            ("secret/model:file.gguf", "stale", Refused, "denies access to secret/model", "or expired"),
            ("no/model:file.gguf", None, Refused, "denies access to no/model", "does not exist"),
            (
                "no/model:file.gguf",
                "hf_mine",
                ModelMissing,
                "Hugging Face has no repository no/model",
                "Check its name",
            ),
            ("new/model:none.gguf", None, ModelMissing, "new/model has no file none.gguf at revision main", "Look at"),
            ("new/model@v9:file.gguf", None, ModelMissing, "new/model has no revision v9", "Look at"),
        ],
    )
    def test_each_reason_has_its_own_text(
        self,
        monkeypatch: pytest.MonkeyPatch,
        file: str,
        user: str | None,
        kind: type[LauncherError],
        title: str,
        hint: str,
    ) -> None:
        if user:
            monkeypatch.setenv("HF_TOKEN", user)
        with pytest.raises(kind, match=title) as refused:
            resolve_file(HubFile.parse(file))
        assert hint in refused.value.hint
        assert user is None or user not in str(refused.value)
        assert refused.value.facts["file"] == file

    def test_a_token_with_access_opens_a_gated_repository(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_TOKEN", "hf_consent")
        assert resolve_file(HubFile("gated/model", "file.gguf")).bytes == len(CONTENT)

    @pytest.mark.parametrize(("status", "what"), [("429", "too many requests"), ("502", "HTTP status 502")])
    def test_an_error_of_the_hub_is_reported(
        self, hub: Hub, monkeypatch: pytest.MonkeyPatch, status: str, what: str
    ) -> None:
        monkeypatch.setenv("HF_ENDPOINT", hub.with_faults(status))
        with pytest.raises(Refused, match=what) as refused:
            resolve_file(HubFile("new/model", "file.gguf"))
        assert refused.value.status == int(status)

    def test_the_limit_of_the_hub_is_higher_with_a_token(self, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_ENDPOINT", hub.with_faults("429"))
        for token, is_named in ((None, True), ("hf_x", False)):
            if token:
                monkeypatch.setenv("HF_TOKEN", token)
            with pytest.raises(Refused) as refused:
                resolve_file(HubFile("new/model", "file.gguf"))
            assert ("HF_TOKEN" in refused.value.hint) == is_named
            assert refused.value.hint.startswith("Try again")

    def test_a_403_without_details_counts_as_gated(self, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_ENDPOINT", hub.with_faults("403"))
        with pytest.raises(Refused, match="is gated"):
            resolve_file(HubFile("new/model", "file.gguf"))


class TestPasswordInAddress:
    @pytest.mark.parametrize("name", ["new/model:none.gguf", "new/none:file.gguf", "gated/model:file.gguf"])
    @pytest.mark.parametrize("faults", [[], ["401"], ["403"]], ids=str)
    def test_the_password_is_never_shown(
        self, hub: Hub, monkeypatch: pytest.MonkeyPatch, name: str, faults: list[str]
    ) -> None:
        url = hub.with_faults(*faults) if faults else hub.url
        monkeypatch.setenv("HF_ENDPOINT", url.replace("//", "//somebody:se:cr@t@"))
        with pytest.raises((ModelMissing, Refused)) as refused:
            resolve_file(HubFile.parse(name))
        text = f"{refused.value} {dict(refused.value.facts)}"
        assert "somebody" not in text
        assert "cr@t" not in text
        if "//" in text:
            assert url in text

    @pytest.mark.parametrize("value", ["somebody:secret@mirror.example", "ftp://somebody:secret@mirror.example"])
    def test_the_password_of_an_invalid_address_is_not_shown(self, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_ENDPOINT", value)
        with pytest.raises(BadOption, match=r"mirror\.example") as wrong:
            hub_endpoint()
        assert "secret" not in str(wrong.value)


class TestListing:
    LARGE = ListedFile(len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    ALL: ClassVar = {"file.gguf": LARGE, "BF16/50% & more.gguf": LARGE, "README.md": ListedFile(8, None)}

    def test_all_pages_are_read_at_the_commit_of_main(self, hub: Hub) -> None:
        listing = list_files("new/model")
        assert (listing.repo, listing.revision, listing.files) == ("new/model", COMMIT, self.ALL)
        refs, *pages = [request["target"] for request in hub.requests()]
        assert refs == "/api/models/new/model/refs"
        assert pages[0] == f"/api/models/new/model/tree/{COMMIT}?recursive=true"
        assert len(pages) == 2  # four entries, the folder among them

    def test_a_given_revision_is_requested_unchanged(self, hub: Hub) -> None:
        assert list_files("new/model", "refs/pr/1").revision == "refs/pr/1"
        assert hub.requests()[0]["target"] == "/api/models/new/model/tree/refs%2Fpr%2F1?recursive=true"

    def test_a_pointer_file_is_listed_with_the_size_of_its_target(self, hub: Hub) -> None:
        folder = hub.folder / "new" / "pointers"
        folder.mkdir(exist_ok=True)
        text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'ab' * 32}\nsize 71065942560\n"
        (folder / "huge.gguf").write_text(text)
        assert list_files("new/pointers").files == {"huge.gguf": ListedFile(71_065_942_560, "ab" * 32)}

    def test_redirects_of_a_renamed_repository_get_the_token(self, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_TOKEN", "hf_mine")
        assert list_files("old/model").files == self.ALL
        assert {request["Authorization"] for request in hub.requests()} == {"Bearer hf_mine"}

    def test_pages_on_another_server_are_requested_without_the_token(
        self, hub: Hub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_ENDPOINT", hub.with_faults("elsewhere"))
        monkeypatch.setenv("HF_TOKEN", "hf_mine")
        assert list_files("new/model").files == self.ALL
        sent = [(request["server"], request.get("Authorization")) for request in hub.requests()]
        assert sent == [("hub", "Bearer hf_mine"), ("hub", "Bearer hf_mine"), ("store", None)]

    @pytest.mark.parametrize(
        ("repo", "revision", "user", "kind", "title"),
        [
            ("new/none", None, "hf_mine", ModelMissing, "Hugging Face has no repository new/none"),
            ("new/none", None, None, Refused, "Hugging Face denies access to new/none"),
            ("new/model", "v9", None, ModelMissing, "new/model has no revision v9"),
            ("secret/model", None, None, Refused, "Hugging Face denies access to secret/model"),
            ("gated/model", None, "hf_mine", Refused, "gated/model is gated"),
        ],
    )
    def test_each_reason_has_its_own_text(
        self,
        monkeypatch: pytest.MonkeyPatch,
        repo: str,
        revision: str | None,
        user: str | None,
        kind: type[LauncherError],
        title: str,
    ) -> None:
        if user:
            monkeypatch.setenv("HF_TOKEN", user)
        with pytest.raises(kind, match=title) as refused:
            list_files(repo, revision)
        assert refused.value.hint
        assert refused.value.facts["repo"] == repo

    @pytest.mark.parametrize(
        ("fault", "kind", "title"),
        [
            ("no-json", Refused, "is not JSON"),
            ("odd-page", Refused, "file list of new/model on Hugging Face is invalid"),
            ("odd-entry", Refused, "file list of new/model on Hugging Face is invalid"),
            ("odd-hash", Refused, "file list of new/model on Hugging Face is invalid"),
            ("odd-refs", Refused, "file list of new/model on Hugging Face is invalid"),
            ("no-main", ModelMissing, "new/model has no branch main"),
            ("endless", Refused, "does not end"),
            ("breaks-off", Unreachable, "was lost"),
            ("404", Refused, "does not have this file"),
            ("429", Refused, "too many requests"),
            ("503", Refused, "HTTP status 503"),
        ],
    )
    def test_invalid_answers_are_refused(
        self, hub: Hub, monkeypatch: pytest.MonkeyPatch, fault: str, kind: type[LauncherError], title: str
    ) -> None:
        monkeypatch.setenv("HF_ENDPOINT", hub.with_faults(fault))
        with pytest.raises(kind, match=title):
            list_files("new/model")

    def test_the_size_of_an_answer_is_limited(self, hub: Hub) -> None:
        list_files("new/model")
        with pytest.raises(Refused, match="more than 40 bytes"):
            list(fetch_json_pages(f"{hub.url}/api/models/new/model/refs", limit_bytes=40))


class TestSearch:
    def test_repositories_with_models_are_found_by_words_of_their_names(self, hub: Hub) -> None:
        for name in ("Tiny-Qwen-GGUF", "Tiny-Llama-GGUF", "Tiny-Qwen"):
            (hub.folder / "search" / name).mkdir(parents=True, exist_ok=True)
        for name in ("Tiny-Qwen-GGUF", "Tiny-Llama-GGUF"):
            (hub.folder / "search" / name / "file.gguf").write_bytes(CONTENT)
        assert [each.repo for each in search_repos("tiny")] == ["search/Tiny-Llama-GGUF", "search/Tiny-Qwen-GGUF"]
        assert search_repos("search qwen") == (
            FoundRepo("search/Tiny-Qwen-GGUF", 10_000, 1_790_928_000.0, gated=False),
        )
        assert len(search_repos("tiny", limit=1)) == 1
        assert search_repos("nothing & of this name") == ()

    @pytest.mark.parametrize(
        ("fault", "title"),
        [("no-json", "is not JSON"), ("odd-page", "a search is invalid"), ("503", "HTTP status 503")],
    )
    def test_invalid_answers_are_refused(
        self, hub: Hub, monkeypatch: pytest.MonkeyPatch, fault: str, title: str
    ) -> None:
        monkeypatch.setenv("HF_ENDPOINT", hub.with_faults(fault))
        with pytest.raises(Refused, match=title):
            search_repos("tiny")

    def test_no_request_is_sent_when_offline(self, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        with pytest.raises(Offline, match="HF_HUB_OFFLINE is set"):
            search_repos("tiny")
        assert hub.requests() == []


class TestOffline:
    @pytest.mark.parametrize("value", ["1", "TRUE", "yes", "on"])
    def test_no_request_is_sent_when_the_variable_is_set(
        self, hub: Hub, monkeypatch: pytest.MonkeyPatch, value: str
    ) -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", value)
        with pytest.raises(Offline, match="HF_HUB_OFFLINE is set"):
            resolve_file(HubFile("new/model", "file.gguf"))
        with pytest.raises(Offline, match="HF_HUB_OFFLINE is set"):
            list_files("new/model")
        assert hub.requests() == []

    @pytest.mark.parametrize("value", ["0", "", "false"])
    def test_requests_are_sent_when_the_variable_is_off(self, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", value)
        assert resolve_file(HubFile("new/model", "file.gguf")).bytes == len(CONTENT)

    def test_a_missing_network_is_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1 cannot be reached"):
            resolve_file(HubFile("new/model", "file.gguf"))
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1 cannot be reached"):
            list_files("new/model")
