"""Files on the Hugging Face hub: URLs, sizes, hashes and listings.

Contract: https://huggingface.co/docs/huggingface_hub (environment variables, `hf_hub_url`, `get_hf_file_metadata`), and
https://huggingface.co/docs/hub/api (`/api/models`, `/api/models/REPO/refs`, `/api/models/REPO/tree/REVISION`).
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlencode, urlsplit

from launcher.base.errors import BadOption, LauncherError, ModelMissing, Offline, Refused
from launcher.base.http import ResponseHead, error_for_status, fetch_json_pages, send_head_request
from launcher.base.messages import join_messages, message
from launcher.base.net import host_name, is_sent_token, redirect_target, strip_secrets
from launcher.base.paths import expand_user
from launcher.fetch.hub_cache import is_hub_offline

DEFAULT_ENDPOINT = "https://huggingface.co"
_ADDRESS = re.compile(
    r"(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(?:@(?P<revision>\w[\w./-]*))?:(?P<path>[^\\:*?\"<>|\0-\x1f]+)", re.ASCII
)
_REPO = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TOKEN = re.compile(r"[!-~]+")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_MOST_REDIRECTS = 5
_MOST_PAGES = 100
"""Limit for the pages of a listing; no model repository has as many."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file in a repository of the hub; `revision` is a branch, a tag or a commit."""

    repo: str
    path: str
    revision: str = "main"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `OWNER/NAME:FILE` or `OWNER/NAME@REVISION:FILE`. Raises BadOption for anything else."""
        found = _ADDRESS.fullmatch(text)
        segments = f"{found['path']}/{found['revision'] or 'main'}".split("/") if found else [""]
        if found is None or not {"", ".", ".."}.isdisjoint(segments):
            raise BadOption(
                message("{text!r} is not a Hugging Face file.", text=text),
                message("Write OWNER/NAME:FILE.gguf. For an older revision add @REVISION after NAME."),
            )
        return cls(found["repo"], found["path"], found["revision"] or "main")

    def __str__(self) -> str:
        """Return the same notation that `parse` reads."""
        revision = "" if self.revision == "main" else f"@{self.revision}"
        return f"{self.repo}{revision}:{self.path}"

    @property
    def url(self) -> str:
        """The download URL. Raises BadOption if HF_ENDPOINT is not a web address."""
        return f"{hub_endpoint()}/{self.repo}/resolve/{quote(self.revision, safe='')}/{quote(self.path)}"


@dataclass(frozen=True, slots=True)
class HubEntry:
    """A file's metadata on the hub: URL, size in bytes, SHA-256 if it is stored as a large file, and commit.

    `etag` identifies the content in every case: it is the SHA-256, or the git hash of a small file.
    """

    url: str
    bytes: int
    sha256: str | None
    etag: str
    revision: str


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file in a listing: its size in bytes, and its SHA-256 if it is stored as a large file."""

    bytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True)
class RepoListing:
    """All files of a repository at one commit, by path."""

    repo: str
    revision: str
    files: Mapping[str, ListedFile]


@dataclass(frozen=True, slots=True)
class FoundRepo:
    """A repository that a search has found.

    `downloads` are those of the last 30 days, `modified_s` is in seconds since 1970; None where the hub does not say.
    """

    repo: str
    downloads: int | None
    modified_s: float | None
    gated: bool


def is_hub_file(text: str) -> bool:
    """Return True if `text` has the form of a hub file. A local path may have it too, so check for that first."""
    try:
        HubFile.parse(text)
    except BadOption:
        return False
    return True


def hub_endpoint() -> str:
    """Return the hub's URL: HF_ENDPOINT, or huggingface.co. Raises BadOption if it is not a web address."""
    url = os.environ.get("HF_ENDPOINT", "").strip().rstrip("/") or DEFAULT_ENDPOINT
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
        raise BadOption(
            message("HF_ENDPOINT is not a web address: {without_user!r}.", without_user=_without_user(url)),
            message("Unset it, or set it to {default_endpoint}.", default_endpoint=DEFAULT_ENDPOINT),
        )
    return url


def _shown_endpoint() -> str:
    """Return the hub's URL for display, without the user name and password that it may contain."""
    return _without_user(hub_endpoint())


def _without_user(url: str) -> str:
    return re.sub(r"^([^/@]*//)?.*@", r"\1", url)


def hub_token() -> str | None:
    """Return the user's token as the hub's own tools find it: HF_TOKEN, or their token file.

    Raises BadOption if it contains characters that no token has; an empty or unreadable file means no token.
    """
    found = os.environ.get("HF_TOKEN", "").strip()
    if not found:
        try:
            found = _token_file().read_text("utf-8").strip()
        except (OSError, ValueError):
            return None
    if found and not _TOKEN.fullmatch(found):
        raise BadOption(message("The Hugging Face token contains invalid characters."), message("Set HF_TOKEN again."))
    return found or None


def _token_file() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    home = Path(os.environ.get("HF_HOME") or cache)
    return expand_user(os.environ.get("HF_TOKEN_PATH") or home / "token")


def resolve_file(file: HubFile) -> HubEntry:
    """Return a file's size, hash and commit from the hub. Takes one HEAD request, more if the repository was renamed.

    A mirror may redirect to another hub, which does not get the token. The entry's `url` names the commit, so a later
    download gets the same content. Raises Offline if HF_HUB_OFFLINE is set, ModelMissing if there is no such
    repository, revision or file, Refused if the hub denies access, and Unreachable if it does not respond.
    """
    _check_online(str(file), message("Unset it, or name a file on this disk."))
    token, url = hub_token(), file.url
    commit: dict[str, str] = {}
    for _ in range(_MOST_REDIRECTS):
        response = send_head_request(url, token=token if is_sent_token(file.url, url) else None)
        # The hub's redirect to its cache of small files names the commit, the cache does not (huggingface_hub #4637).
        commit |= {name: value for name, value in response.headers.items() if name == "x-repo-commit"}
        response = replace(response, headers={**response.headers, **commit})
        location = response.headers.get("location")
        # The redirect of a large file leads to its content, and carries the file's size.
        if location is None or "x-linked-size" in response.headers or not 300 <= response.status < 400:
            return _parse_entry(file, response, token is not None)
        url = redirect_target(url, location)
    raise Refused(
        message("Hugging Face redirects in a loop for {file}.", file=file),
        message("Check the repository's name on its page."),
    )


def list_files(repo: str, revision: str | None = None) -> RepoListing:
    """Return the sizes and hashes of all files of a repository at `revision`, by default the newest commit of `main`.

    The default is resolved first, so that the listing names the commit. Raises what `resolve_file` raises.
    """
    _check_online(repo, message("Unset it to go online."))
    revision = revision or _main_commit(repo)
    files: dict[str, ListedFile] = {}
    for page in _fetch_pages(f"/tree/{quote(revision, safe='')}?recursive=true", HubFile(repo, "", revision)):
        if not isinstance(page, list):
            raise _invalid_listing(repo)
        files |= dict(
            _parse_listed_file(repo, item) for item in page if not isinstance(item, dict) or item.get("type") == "file"
        )
    return RepoListing(repo, revision, files)


def search_repos(text: str, limit: int = 20) -> tuple[FoundRepo, ...]:
    """Return the repositories with GGUF files whose names match `text`, those with the most downloads first.

    Raises the errors of `resolve_file` that are not about a file.
    """
    _check_online(text, message("Unset it to go online."))
    query = {"search": text, "filter": "gguf", "sort": "downloads", "direction": "-1", "limit": str(limit)}
    fields = [("expand[]", name) for name in ("downloads", "lastModified", "gated")]
    url = f"{hub_endpoint()}/api/models?{urlencode([*query.items(), *fields])}"
    page = next(fetch_json_pages(url, token=hub_token()))
    if page.head.status >= 300:
        raise error_for_status(url, page.head)
    if not isinstance(page.data, list):
        raise Refused(
            message("The answer of Hugging Face to a search is invalid."),
            message("Check that HF_ENDPOINT is a Hugging Face hub."),
        )
    return tuple(found for item in page.data[:limit] if (found := _parse_found(item)) is not None)


def _parse_found(item: Any) -> FoundRepo | None:  # noqa: ANN401 -- what the hub sent
    """Return the repository in an entry of a search's result; None if the entry names no repository."""
    if not isinstance(item, dict) or not _REPO.fullmatch(str(item.get("id", ""))):
        return None
    downloads, modified = item.get("downloads"), item.get("lastModified")
    modified_s = None
    with suppress(ValueError):
        modified_s = datetime.fromisoformat(str(modified)).timestamp()
    count = downloads if type(downloads) is int and downloads >= 0 else None
    return FoundRepo(item["id"], count, modified_s, bool(item.get("gated")))


def _main_commit(repo: str) -> str:
    refs = next(_fetch_pages("/refs", HubFile(repo, "")))
    branches = refs.get("branches") if isinstance(refs, dict) else None
    if not isinstance(branches, list):
        raise _invalid_listing(repo)
    commits = [each.get("targetCommit") for each in branches if isinstance(each, dict) and each.get("name") == "main"]
    if not commits:
        raise ModelMissing(
            message("{repo} has no branch main.", repo=repo),
            message("Look at {endpoint}/{repo}.", endpoint=_shown_endpoint(), repo=repo),
            repo=repo,
        )
    if not isinstance(commits[0], str) or not _COMMIT.fullmatch(commits[0]):
        raise _invalid_listing(repo)
    return commits[0]


def _fetch_pages(api_path: str, repo_file: HubFile) -> Iterator[Any]:
    """Yield the content of each page of a path in the hub's API. `repo_file` names the repository, also in errors."""
    token = hub_token()
    url = f"{hub_endpoint()}/api/models/{repo_file.repo}{api_path}"
    for count, page in enumerate(fetch_json_pages(url, token=token)):
        if page.head.status >= 300:
            raise _error_for_response(repo_file, page.head, token is not None)
        if count == _MOST_PAGES:
            raise Refused(
                message("The file list of {repo} on Hugging Face does not end.", repo=repo_file.repo),
                message("Check that HF_ENDPOINT is a Hugging Face hub."),
            )
        yield page.data


def _parse_listed_file(repo: str, item: Any) -> tuple[str, ListedFile]:  # noqa: ANN401 -- what the hub sent
    """Return path, size and hash of an item. git stores a large file as a pointer; `lfs` describes the file itself."""
    lfs = item.get("lfs") if isinstance(item, dict) else None
    match item, lfs:
        case {"path": str(path)}, {"size": int(size), "oid": str(sha256)} if size >= 0 and _SHA256.fullmatch(sha256):
            return path, ListedFile(size, sha256)
        case {"path": str(path), "size": int(size)}, None if size >= 0:
            return path, ListedFile(size, None)
    raise _invalid_listing(repo)


def _invalid_listing(repo: str) -> Refused:
    return Refused(
        message("The file list of {repo} on Hugging Face is invalid.", repo=repo),
        message("Check that HF_ENDPOINT is a Hugging Face hub."),
        repo=repo,
    )


def _check_online(subject: str, hint: str) -> None:
    if is_hub_offline():
        raise Offline(message("{what} cannot be looked up: HF_HUB_OFFLINE is set.", what=subject), hint)


def _parse_entry(file: HubFile, response: ResponseHead, has_token: bool) -> HubEntry:
    headers = response.headers
    if response.status >= 400:
        raise _error_for_response(file, response, has_token)
    size = headers.get("x-linked-size") or headers.get("content-length", "")
    etag = (headers.get("x-linked-etag") or headers.get("etag", "")).removeprefix("W/").strip('"')
    is_size = size.isdecimal() and len(size) <= 19
    is_size_of_redirect = "x-linked-size" not in headers and response.status >= 300
    host, is_other_server = host_name(response.url), not is_sent_token(file.url, response.url)
    # Only a hub names the commit, so what another server sent without it may be any page.
    if not is_size or is_size_of_redirect or not etag or (is_other_server and "x-repo-commit" not in headers):
        raise Refused(
            message("{hostname} does not report the size of {file}.", hostname=host, file=file),
            _redirect_hint(response.url)
            if is_other_server
            else message("Check that HF_ENDPOINT is a Hugging Face hub."),
        )
    commit = headers.get("x-repo-commit") or file.revision
    sha256 = etag if _SHA256.fullmatch(etag) else None
    return HubEntry(replace(file, revision=commit).url, int(size), sha256, etag, commit)


def _redirect_hint(url: str) -> str:
    """Return the next step after a redirect of the hub to another server's `url` did not help."""
    return message(
        "{hub} redirects to it, without your token. Set HF_ENDPOINT to {server} if you trust it.",
        hub=host_name(hub_endpoint()),
        server=strip_secrets(url).removesuffix(urlsplit(url).path),
    )


def _error_for_response(file: HubFile, response: ResponseHead, has_token: bool) -> LauncherError:
    """Return the error for a status and the hub's X-Error-Code header. A `file` without a path means the listing."""
    if has_token and response.status in (401, 403) and not is_sent_token(hub_endpoint(), response.url):
        return Refused(
            message("{host} denies access to {repo}.", host=host_name(response.url), repo=file.repo),
            _redirect_hint(response.url),
            status=response.status,
            repo=file.repo,
        )
    error_code, page = response.headers.get("x-error-code", ""), f"{_shown_endpoint()}/{file.repo}"
    facts: dict[str, Any] = {"file": str(file)} if file.path else {"repo": file.repo}
    get_token = message(
        "Create a token at {endpoint}/settings/tokens and set HF_TOKEN to it.", endpoint=_shown_endpoint()
    )
    match response.status, error_code:
        case 404, "RevisionNotFound":
            return ModelMissing(
                message("{repo} has no revision {revision}.", repo=file.repo, revision=file.revision),
                message("Look at {page}.", page=page),
                **facts,
            )
        case 404, "RepoNotFound":
            return ModelMissing(
                message("Hugging Face has no repository {repo}.", repo=file.repo), message("Check its name."), **facts
            )
        case 404, _ if file.path:
            title = message(
                "{repo} has no file {path} at revision {revision}.",
                repo=file.repo,
                path=file.path,
                revision=file.revision,
            )
            return ModelMissing(title, message("Look at {page}.", page=page), **facts)
        case ((401 | 403), "GatedRepo") if has_token:
            hint = message("Open {page}, accept the terms, and use a token of the same account.", page=page)
        case ((401 | 403), "GatedRepo"):
            hint = join_messages(message("Open {page} and accept the terms.", page=page), get_token)
        case 401, _ if has_token:
            hint = join_messages(message("The token is wrong or expired, or the repository does not exist."), get_token)
        case 401, _:
            hint = message(
                "The repository does not exist or is private. If it is private: {get_token}", get_token=get_token
            )
        case 403, _:
            hint = message("Open {page}, accept the terms, and use a token with read access.", page=page)
        case _:
            error = error_for_status(file.url, response)
            if response.status == 429 and not has_token:
                error.hint = join_messages(error.hint, message("The limit is higher with a token in HF_TOKEN."))
            return error
    if error_code == "GatedRepo" or response.status == 403:
        title = message("{repo} is gated: you must accept its terms first.", repo=file.repo)
    else:
        title = message("Hugging Face denies access to {repo}.", repo=file.repo)
    return Refused(title, hint, status=response.status, **facts)
