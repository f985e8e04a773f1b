"""Client for llama.cpp's releases on GitHub, with a cache that keeps requests within the rate limit.

Contract: https://docs.github.com/en/rest/releases (media type, version header, `digest` and `state` of an asset), and
"Rate limits for the REST API" and "Best practices" there. A reply is cached with its ETag, because conditional requests
for unchanged replies do not count. After a rate limit error no request is sent until the time that GitHub names.
"""

import asyncio
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlsplit

from launcher.base.errors import BadOption, RateLimited, Refused, Unreachable
from launcher.base.files import write_atomically
from launcher.base.http import JsonPage, ResponseHead, error_for_status, fetch_json_pages
from launcher.base.kept_files import KeptFile
from launcher.base.messages import Message, message, plural_message
from launcher.base.paths import cache_dir
from launcher.base.validation import AfterValidator, BaseModel, Field, ValidationError
from launcher.engine.builds.install_errors import ReleaseMissing
from launcher.fetch.transfer import DownloadSource, download_file

API_VARIABLE = "MTP_LAUNCHER_GITHUB_API"
"""Environment variable with the base address of another server to use in place of GitHub's API."""
REPOSITORY = "ggml-org/llama.cpp"
_API = "https://api.github.com"
_TOKEN_VARIABLES = ("GITHUB_TOKEN", "GH_TOKEN")
_HEADERS = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_NEXT = re.compile(r'<([^<>]+)>\s*;[^,]*\brel="next"')
_TOKEN = re.compile(r"[!-~]+")
_PAGE_RELEASES, _MOST_PAGES = 10, 5
STABLE, NIGHTLY = "stable", "nightly"
"""The two channels: the newest release with a version number, and the newest build."""
BUILD_TAG = re.compile(r"b[1-9]\d{0,8}")
_VERSION_TAG = re.compile(r"v\d[\w.-]{0,40}", re.ASCII)
_POINTER_FILE = "nightly-tag.txt"
"""The only file of a version release; it contains the tag of the corresponding build."""
_MINUTE_S, _DAY_S = 60.0, 86_400.0


@dataclass(frozen=True, slots=True)
class Asset:
    """A file of a release. `sha256` is None if GitHub has no checksum; it can be downloaded only once `uploaded`."""

    name: str
    url: str
    bytes: int
    sha256: str | None
    uploaded: bool


@dataclass(frozen=True, slots=True)
class Release:
    """A release: its tag, its publication time (ISO 8601, None for a draft), and its files by name."""

    tag: str
    published: str | None
    assets: dict[str, Asset] = field(repr=False)

    @property
    def is_build(self) -> bool:
        """Whether this is a numbered build (bNNNN); only those contain programs."""
        return BUILD_TAG.fullmatch(self.tag) is not None

    @property
    def uploaded_names(self) -> frozenset[str]:
        """Names of the files that can be downloaded."""
        return frozenset(asset.name for asset in self.assets.values() if asset.uploaded)


def _check_web_address(url: str) -> str:
    if not _is_web_address(url):
        raise ValueError("no web address")
    return url


class _Asset(BaseModel):
    name: str
    size: int = Field(ge=0)
    digest: str | None = None
    browser_download_url: Annotated[str, AfterValidator(_check_web_address)]
    state: str


class _Release(BaseModel):
    tag_name: str
    draft: bool = False
    published_at: str | None = None
    assets: list[_Asset] = []


class _CachedReply(BaseModel):
    """A cached reply of the API. `asked_s` is its time (seconds since the epoch), `following` the next page's URL."""

    url: str
    etag: str
    asked_s: float
    following: str | None
    data: Any


class _RateLimit(BaseModel):
    """A rate limit of the server `api` that lasts until `until_s` (seconds since the epoch).

    Requests with a token have a separate limit, so it is recorded whether one was sent.
    """

    api: str
    until_s: float
    token: bool


_REPLY_FILE: KeptFile[_CachedReply | None] = KeptFile(
    "A cached reply about releases",
    _CachedReply.model_validate_json,
    lambda: None,
    recreatable=True,
    consequence="it is requested again",
)
_RATE_LIMIT_FILE: KeptFile[_RateLimit | None] = KeptFile(
    "The record of GitHub's rate limit",
    _RateLimit.model_validate_json,
    lambda: None,
    recreatable=True,
    consequence="releases are requested now",
)


class ReleaseClient:
    """Client for llama.cpp's releases. If a reply comes from the cache, `notes` gets a message with the reason.

    Every method raises Unreachable, RateLimited or Refused if GitHub does not answer and no reply is cached.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.notes: list[str] = []
        self._now = now

    async def resolve_tag(self, tag: str) -> str:
        """Return the tag of the numbered build for b11434, v0.7.0 or `stable`.

        Raises BadOption for anything else, ReleaseMissing if there is no such release.
        """
        if BUILD_TAG.fullmatch(tag):
            return tag
        if tag == STABLE:
            return await self._read_pointer("latest")
        if _VERSION_TAG.fullmatch(tag):
            return await self._read_pointer(f"tags/{quote(tag)}")
        raise BadOption(
            message("{tag!r} is not a llama.cpp release.", tag=tag),
            message("Write b11434, v0.7.0, stable or nightly."),
            tag=tag,
        )

    def fetch_release(self, tag: str) -> Release:
        """Return the release with this tag. Raises ReleaseMissing if there is none."""
        reply = self._request(f"{_repository_url()}/releases/tags/{quote(tag)}", message("release {tag}", tag=tag))
        release = _parse_release(reply.data)
        if release.tag != tag:
            raise _malformed_reply()
        return release

    def fetch_builds(self) -> Iterator[Release]:
        """Yield the numbered builds, newest first, and fetch pages as needed (at most 50 releases)."""
        url: str | None = f"{_repository_url()}/releases?per_page={_PAGE_RELEASES}"
        for _ in range(_MOST_PAGES):
            if url is None:
                return
            reply = self._request(url, message("list of releases"))
            if not isinstance(reply.data, list):
                raise _malformed_reply()
            releases = map(_parse_release, reply.data)
            yield from (release for release in releases if release.is_build and release.published)
            url = reply.following

    async def _read_pointer(self, path: str) -> str:
        """Return the build tag of the version release at an API path, "latest" or "tags/TAG", from its pointer file."""
        tag = path.removeprefix("tags/")
        description = message("stable release") if path == "latest" else message("release {tag}", tag=tag)
        reply = await asyncio.to_thread(self._request, f"{_repository_url()}/releases/{path}", description)
        release = _parse_release(reply.data)
        if release.is_build:
            return release.tag
        pointer = release.assets.get(_POINTER_FILE)
        if pointer is None or not pointer.uploaded:
            raise ReleaseMissing(
                message("The release {tag} does not name its build number.", tag=release.tag),
                message("It may not be complete yet. Try again in a few minutes, or choose a build such as b11434."),
            )
        digest = pointer.sha256 or "unverified"
        target = _cache_folder() / f"{digest[:16]}-{hashlib.sha256(pointer.url.encode()).hexdigest()[:16]}.txt"
        fetched = await download_file(
            DownloadSource(pointer.url, pointer.bytes, pointer.sha256, name=pointer.name), target
        )
        text = fetched.path.read_text("ascii", "replace").strip()
        if not BUILD_TAG.fullmatch(text):
            fetched.path.unlink(missing_ok=True)
            raise ReleaseMissing(
                message("The release {tag} does not point to a build: {text!r}.", tag=release.tag, text=text[:40]),
                message("Choose a build."),
            )
        return text

    def _request(self, url: str, description: str) -> _CachedReply:
        """Return the reply for a URL: a new one, or the cached one if it is unchanged or the server does not answer.

        `description` names the requested thing in error messages, such as "list of releases".
        """
        cached = _load_reply(url)
        try:
            self._check_rate_limit(url)
            page = next(fetch_json_pages(url, token=_token_for(url), headers=_request_headers(cached)))
            if page.head.status == 304 and cached is not None:
                reply = cached.model_copy(update={"asked_s": self._now()})
            else:
                reply = self._parse_reply(url, page, description)
        except (RateLimited, Unreachable) as error:
            if cached is None:
                raise
            self.notes.append(
                message(
                    "{title} The list below was loaded {ago}.",
                    title=error.title,
                    ago=_format_age(self._now() - cached.asked_s),
                )
            )
            return cached
        _save_reply(reply)
        return reply

    def _parse_reply(self, url: str, page: JsonPage, description: str) -> _CachedReply:
        status, headers = page.head.status, page.head.headers
        if status in (403, 429) and (error := self._find_rate_limit(page.head)):
            raise error
        if status == 404:
            raise ReleaseMissing(
                message("{host} has no {what}.", what=description, host=_api_host()),
                message("`mtp-launcher engine available` lists the newest builds."),
            )
        if status == 401:
            name = (
                next(name for name in _TOKEN_VARIABLES if os.environ.get(name))
                if _token_for(url)
                else message("a token")
            )
            raise Refused(
                message("{host} rejected the token in {name}.", host=_api_host(), name=name),
                message("Unset it; no token is needed."),
                status=status,
            )
        if status >= 500:
            raise Unreachable(
                message("{host} has a server error (HTTP status {status}).", host=_api_host(), status=status),
                message("Try again later."),
            )
        if not 200 <= status < 300:
            raise error_for_status(url, page.head)
        following = _NEXT.search(headers.get("link", ""))
        if following and not _is_web_address(following[1]):
            raise _malformed_reply()
        return _CachedReply(
            url=url,
            etag=headers.get("etag", ""),
            asked_s=self._now(),
            following=following[1] if following else None,
            data=page.data,
        )

    def _find_rate_limit(self, head: ResponseHead) -> RateLimited | None:
        """Return the error if a refusal is a rate limit, and save when it ends; None for other refusals."""
        wait_s = head.headers.get("retry-after", "")
        used_up = head.headers.get("x-ratelimit-remaining") == "0"
        reset_s = head.headers.get("x-ratelimit-reset", "")
        if wait_s.isdecimal():
            until_s = self._now() + float(wait_s)
        elif used_up and reset_s.isdecimal():
            until_s = float(reset_s)
        elif used_up or head.status == 429:
            until_s = self._now() + _MINUTE_S  # GitHub's advice for replies that name no time
        else:
            return None
        until_s = min(until_s, self._now() + _DAY_S)
        limit = _RateLimit(api=_api_url(), until_s=until_s, token=_token_for(_api_url()) is not None)
        with suppress(OSError):
            write_atomically(_rate_limit_file(), limit.model_dump_json().encode())
        return self._rate_limit_error(until_s)

    def _check_rate_limit(self, url: str) -> None:
        try:
            limit = _RATE_LIMIT_FILE.load(_rate_limit_file())
        except OSError:
            return
        if limit is None or limit.api != _api_url() or limit.token != (_token_for(url) is not None):
            return
        if 0 < limit.until_s - self._now() <= _DAY_S:
            raise self._rate_limit_error(limit.until_s)

    def _rate_limit_error(self, until_s: float) -> RateLimited:
        minutes = max(1, round((until_s - self._now()) / 60))
        at = time.strftime("%H:%M", time.localtime(until_s))
        variable = None if _token_for(_api_url()) else _TOKEN_VARIABLES[0]
        return RateLimited(
            message("{host} refuses further requests from your address until {at}.", host=_api_host(), at=at),
            message(
                "Try again in {minutes} min[, or set {variable}, with which GitHub answers 5,000 times an hour].",
                minutes=minutes,
                variable=variable,
            ),
            until_s=until_s,
        )


def _format_age(seconds: float) -> Message:
    minutes = max(0, round(seconds / 60))
    if minutes < 2:
        return message("just now")
    if minutes < 120:
        return plural_message("1 minute ago", "{n} minutes ago", minutes)
    hours = minutes // 60
    if hours < 48:
        return plural_message("1 hour ago", "{n} hours ago", hours)
    return plural_message("1 day ago", "{n} days ago", hours // 24)


def _parse_release(data: Any) -> Release:  # noqa: ANN401 -- what the server sent
    try:
        parsed = _Release.model_validate(data)
    except ValidationError as error:
        raise _malformed_reply() from error
    assets = {}
    for each in parsed.assets:
        digest = _DIGEST.fullmatch(each.digest or "")
        sha256 = digest[1] if digest else None
        assets[each.name] = Asset(
            each.name, each.browser_download_url, each.size, sha256, each.state == "uploaded" and each.size > 0
        )
    return Release(parsed.tag_name, None if parsed.draft else parsed.published_at, assets)


def _malformed_reply() -> Refused:
    return Refused(
        message("The release list of {host} is invalid.", host=_api_host()),
        message("Check {api_variable}.", api_variable=API_VARIABLE),
    )


def _api_url() -> str:
    url = os.environ.get(API_VARIABLE, "").strip().rstrip("/") or _API
    if not _is_web_address(url):
        raise BadOption(
            message("{api_variable} is not a web address.", api_variable=API_VARIABLE),
            message("Unset it, or set it to {api}.", api=_API),
        )
    return url


def _is_web_address(url: str) -> bool:
    try:
        return urlsplit(url).scheme in ("http", "https") and bool(urlsplit(url).hostname)
    except ValueError:
        return False


def _repository_url() -> str:
    return f"{_api_url()}/repos/{REPOSITORY}"


def _api_host() -> str:
    return urlsplit(_api_url()).hostname or message("The server")


def _token_for(url: str) -> str | None:
    """Return the user's GitHub token, but only for URLs of the API server itself."""
    if urlsplit(url)[:2] != urlsplit(_api_url())[:2]:
        return None
    found = next(filter(None, (os.environ.get(name, "").strip() for name in _TOKEN_VARIABLES)), None)
    return found if found and _TOKEN.fullmatch(found) else None


def _request_headers(cached: _CachedReply | None) -> dict[str, str]:
    return _HEADERS | ({"If-None-Match": cached.etag} if cached and cached.etag else {})


def _cache_folder() -> Path:
    return cache_dir() / "releases"


def _rate_limit_file() -> Path:
    return _cache_folder() / "refused.json"


def _reply_file(url: str) -> Path:
    return _cache_folder() / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}.json"


def _load_reply(url: str) -> _CachedReply | None:
    try:
        reply = _REPLY_FILE.load(_reply_file(url))
    except OSError:
        return None
    return reply if reply is not None and reply.url == url else None


def _save_reply(reply: _CachedReply) -> None:
    with suppress(OSError):  # without a cache the request is sent again next time
        write_atomically(_reply_file(reply.url), reply.model_dump_json().encode())
