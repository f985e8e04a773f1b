"""Files on the Hugging Face hub: their addresses, and what the hub says of them without sending them.

Contract: https://huggingface.co/docs/huggingface_hub (environment variables, `hf_hub_url`, `get_hf_file_metadata`), and
https://huggingface.co/docs/hub/api (`/api/models/REPO/refs`, `/api/models/REPO/tree/REVISION`).
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlsplit

from launcher.base.errors import BadOption, LauncherError, ModelMissing, Offline, Refused
from launcher.base.http import Head, head, json_pages, refusal_of
from launcher.base.net import origin, redirected
from launcher.base.paths import expanded

DEFAULT_ENDPOINT = "https://huggingface.co"
_ADDRESS = re.compile(
    r"(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(?:@(?P<revision>\w[\w./-]*))?:(?P<path>[^\\:*?\"<>|\0-\x1f]+)", re.ASCII
)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TOKEN = re.compile(r"[!-~]+")
_ON = ("1", "on", "yes", "true")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REDIRECTS = 5
_PAGES = 100
"""A longer listing is none of a repository of models."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file in a repository of the hub; `revision` is a branch, a tag or a commit."""

    repo: str
    path: str
    revision: str = "main"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `OWNER/NAME:FILE` or `OWNER/NAME@REVISION:FILE`. Raises BadOption for anything else."""
        found = _ADDRESS.fullmatch(text)
        segments = f"{found['path']}/{found['revision'] or 'main'}".split("/") if found else [""]
        if found is None or not {"", ".", ".."}.isdisjoint(segments):
            raise BadOption(
                f"{text!r} is no file on the hub.",
                "Write OWNER/NAME:FILE.gguf, with @REVISION behind NAME if it is not the newest.",
            )
        return cls(found["repo"], found["path"], found["revision"] or "main")

    def __str__(self) -> str:
        """Return it as it was written."""
        revision = "" if self.revision == "main" else f"@{self.revision}"
        return f"{self.repo}{revision}:{self.path}"

    @property
    def url(self) -> str:
        """Where the hub gives it out. Raises BadOption when HF_ENDPOINT is no web address."""
        return f"{endpoint()}/{self.repo}/resolve/{quote(self.revision, safe='')}/{quote(self.path)}"


@dataclass(frozen=True, slots=True)
class HubEntry:
    """What the hub says of a file: its address, its size, its hash where it is kept as a large file, the commit.

    `etag` stands for the content in every case: the sha256, or the git hash of a small file.
    """

    url: str
    bytes: int
    sha256: str | None
    etag: str
    revision: str


@dataclass(frozen=True, slots=True)
class ListedFile:
    """What a listing says of one file: its size, and its hash where it is kept as a large file."""

    bytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Listing:
    """All files of a repository at one commit, by their paths."""

    repo: str
    revision: str
    files: Mapping[str, ListedFile]


def is_hub_file(text: str) -> bool:
    """Return whether `text` is written like a file on the hub. A path of this computer may be, so look there first."""
    try:
        HubFile.parse(text)
    except BadOption:
        return False
    return True


def endpoint() -> str:
    """Return the hub's address: HF_ENDPOINT, or huggingface.co. Raises BadOption when it is no web address."""
    url = os.environ.get("HF_ENDPOINT", "").strip().rstrip("/") or DEFAULT_ENDPOINT
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
        raise BadOption(
            f"HF_ENDPOINT is no web address: {_without_user(url)!r}.", f"Unset it, or set it to {DEFAULT_ENDPOINT}."
        )
    return url


def _shown_endpoint() -> str:
    """Return the hub's address as it may be shown: without the name and password that it may hold."""
    return _without_user(endpoint())


def _without_user(url: str) -> str:
    return re.sub(r"^([^/@]*//)?.*@", r"\1", url)


def token() -> str | None:
    """Return the user's token, as the hub's own tools find it: HF_TOKEN, or the file they keep it in.

    Raises BadOption when it holds characters that no token has; an empty or unreadable file is no token.
    """
    found = os.environ.get("HF_TOKEN", "").strip()
    if not found:
        try:
            found = _token_file().read_text("utf-8").strip()
        except (OSError, ValueError):
            return None
    if found and not _TOKEN.fullmatch(found):
        raise BadOption("The Hugging Face token holds characters that no token has.", "Set HF_TOKEN anew.")
    return found or None


def _token_file() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    home = Path(os.environ.get("HF_HOME") or cache)
    return expanded(os.environ.get("HF_TOKEN_PATH") or home / "token")


def resolve(file: HubFile) -> HubEntry:
    """Ask the hub for a file's size, hash and commit; one HEAD, more when the repository was renamed.

    The entry's `url` names the commit, so what is fetched from it later is this very content.
    Raises Offline when HF_HUB_OFFLINE is set, ModelMissing when there is no such repository, revision or file, Refused
    when the hub does not let this user have it, and Unreachable when it does not answer.
    """
    _check_online(str(file), "Unset it, or name a file on this disk.")
    bearer, url = token(), file.url
    for _ in range(_REDIRECTS):
        answer = head(url, token=bearer)
        target = redirected(url, answer.headers.get("location", ""))
        if not 300 <= answer.status < 400 or "x-linked-size" in answer.headers or origin(url) != origin(target):
            return _entry(file, answer, bearer is not None)
        url = target  # a renamed repository; a large file's redirect leads to another server and has its size in it
    raise Refused(f"The hub sends us in a circle for {file}.", "Check the repository's name on its page.")


def list_files(repo: str, revision: str | None = None) -> Listing:
    """Ask the hub for sizes and hashes of all files that a repository has at `revision`, or now when that is None.

    In the latter case the listing names the commit that its main branch is at. Raises what `resolve` raises.
    """
    _check_online(repo, "Unset it to ask the hub.")
    at = revision or _main_commit(repo)
    files: dict[str, ListedFile] = {}
    for page in _pages(f"/tree/{quote(at, safe='')}?recursive=true", HubFile(repo, "", at)):
        if not isinstance(page, list):
            raise _odd(repo)
        files |= dict(_listed(repo, item) for item in page if not isinstance(item, dict) or item.get("type") == "file")
    return Listing(repo, at, files)


def _main_commit(repo: str) -> str:
    refs = next(_pages("/refs", HubFile(repo, "")))
    branches = refs.get("branches") if isinstance(refs, dict) else None
    if not isinstance(branches, list):
        raise _odd(repo)
    commits = [each.get("targetCommit") for each in branches if isinstance(each, dict) and each.get("name") == "main"]
    if not commits:
        raise ModelMissing(f"{repo} has no branch main.", f"Look at {_shown_endpoint()}/{repo}.", repo=repo)
    if not isinstance(commits[0], str) or not _COMMIT.fullmatch(commits[0]):
        raise _odd(repo)
    return commits[0]


def _pages(path: str, asked: HubFile) -> Iterator[Any]:
    """Yield the content of each page of the hub's interface for a repository."""
    bearer = token()
    for count, page in enumerate(json_pages(f"{endpoint()}/api/models/{asked.repo}{path}", token=bearer)):
        if page.head.status >= 300:
            raise _refusal(asked, page.head, bearer is not None)
        if count == _PAGES:
            raise Refused(f"The hub's listing of {asked.repo} does not end.", "Is HF_ENDPOINT a Hugging Face hub?")
        yield page.data


def _listed(repo: str, item: Any) -> tuple[str, ListedFile]:  # noqa: ANN401 -- what the hub sent
    """Return path, size and hash. A large file is known to git by a pointer, and `lfs` tells what that points to."""
    lfs = item.get("lfs") if isinstance(item, dict) else None
    match item, lfs:
        case {"path": str(path)}, {"size": int(size), "oid": str(sha256)} if size >= 0 and _SHA256.fullmatch(sha256):
            return path, ListedFile(size, sha256)
        case {"path": str(path), "size": int(size)}, None if size >= 0:
            return path, ListedFile(size, None)
    raise _odd(repo)


def _odd(repo: str) -> Refused:
    return Refused(f"The hub's listing of {repo} makes no sense.", "Is HF_ENDPOINT a Hugging Face hub?", repo=repo)


def _check_online(what: str, hint: str) -> None:
    if os.environ.get("HF_HUB_OFFLINE", "").strip().lower() in _ON:
        raise Offline(f"{what} cannot be looked up: HF_HUB_OFFLINE is set.", hint)


def _entry(file: HubFile, answer: Head, has_token: bool) -> HubEntry:
    headers = answer.headers
    if answer.status >= 400:
        raise _refusal(file, answer, has_token)
    size = headers.get("x-linked-size") or headers.get("content-length", "")
    etag = (headers.get("x-linked-etag") or headers.get("etag", "")).removeprefix("W/").strip('"')
    if not size.isdecimal() or len(size) > 19 or not etag or ("x-linked-size" not in headers and answer.status >= 300):
        raise Refused(
            f"{urlsplit(file.url).hostname} does not say how large {file} is.", "Is HF_ENDPOINT a Hugging Face hub?"
        )
    commit = headers.get("x-repo-commit") or file.revision
    sha256 = etag if _SHA256.fullmatch(etag) else None
    return HubEntry(replace(file, revision=commit).url, int(size), sha256, etag, commit)


def _refusal(file: HubFile, answer: Head, has_token: bool) -> LauncherError:
    """Return the error for a status, with what the hub adds to it in X-Error-Code; without a path for the listing."""
    why, page = answer.headers.get("x-error-code", ""), f"{_shown_endpoint()}/{file.repo}"
    told = {"file": str(file)} if file.path else {"repo": file.repo}
    get_token = f"Make a token at {_shown_endpoint()}/settings/tokens and set HF_TOKEN to it."
    match answer.status, why:
        case 404, "RevisionNotFound":
            return ModelMissing(f"{file.repo} has no revision {file.revision}.", f"Look at {page}.", **told)
        case 404, "RepoNotFound":
            return ModelMissing(f"There is no repository {file.repo} on the hub.", "Check its name.", **told)
        case 404, _ if file.path:
            title = f"{file.repo} has no file {file.path} at revision {file.revision}."
            return ModelMissing(title, f"Look at {page}.", **told)
        case ((401 | 403), "GatedRepo") if has_token:
            hint = f"Open {page}, accept its terms, and use a token of the account that did."
        case ((401 | 403), "GatedRepo"):
            hint = f"Open {page} and accept its terms. {get_token}"
        case 401, _ if has_token:
            hint = f"The token is wrong or has run out, or there is no such repository. {get_token}"
        case 401, _:
            hint = f"There is no such repository, or it is private. In that case: {get_token}"
        case 403, _:
            hint = f"Open {page}, accept its terms, and use a token that may read it."
        case _:
            return refusal_of(file.url, answer)
    gated = why == "GatedRepo" or answer.status == 403
    title = f"{file.repo} is gated: its owner asks for consent." if gated else f"The hub does not show {file.repo}."
    return Refused(title, hint, status=answer.status, **told)
