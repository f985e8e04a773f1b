"""llama.cpp's releases as GitHub's API tells them, asked as seldom as can be.

Contract: https://docs.github.com/en/rest/releases (media type, version header, `digest` and `state` of an asset), and
"Rate limits for the REST API" and "Best practices" there: an answer is kept with its ETag, so asking again costs
nothing while it is unchanged, and after a refusal nothing is asked until the time that GitHub names.
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

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from launcher.base.errors import BadOption, RateLimited, Refused, Unreachable
from launcher.base.files import write_atomically
from launcher.base.http import Head, Page, json_pages, refusal_of
from launcher.base.paths import cache_dir
from launcher.engine.install_errors import ReleaseMissing
from launcher.fetch.transfer import Source, fetch

API_VARIABLE = "MTP_LAUNCHER_GITHUB_API"
"""Set to an address, it is asked in place of GitHub's own."""
REPOSITORY = "ggml-org/llama.cpp"
_API = "https://api.github.com"
_TOKEN_VARIABLES = ("GITHUB_TOKEN", "GH_TOKEN")
_HEADERS = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_NEXT = re.compile(r'<([^<>]+)>\s*;[^,]*\brel="next"')
_TOKEN = re.compile(r"[!-~]+")
_PAGE, _PAGES = 10, 5
STABLE, NIGHTLY = "stable", "nightly"
"""The two channels: the newest version that the project has numbered, and the newest build of all."""
BUILD_TAG = re.compile(r"b[1-9]\d{0,8}")
_VERSION_TAG = re.compile(r"v\d[\w.-]{0,40}", re.ASCII)
_POINTER = "nightly-tag.txt"
"""The one file of a version's release: the tag of the build that it is."""
_MINUTE_S, _DAY_S = 60.0, 86_400.0


@dataclass(frozen=True, slots=True)
class Asset:
    """A file of a release. `sha256` is None where GitHub has none; only what is `uploaded` can be had."""

    name: str
    url: str
    bytes: int
    sha256: str | None
    uploaded: bool


@dataclass(frozen=True, slots=True)
class Release:
    """A release: its tag, when it was published (ISO 8601, None for a draft), and its files by name."""

    tag: str
    published: str | None
    assets: dict[str, Asset] = field(repr=False)

    @property
    def is_build(self) -> bool:
        """Whether this is one of the numbered builds, which alone have programs in them."""
        return BUILD_TAG.fullmatch(self.tag) is not None

    @property
    def ready(self) -> frozenset[str]:
        """The names of the files that can be had."""
        return frozenset(asset.name for asset in self.assets.values() if asset.uploaded)


def _address(url: str) -> str:
    if not _is_address(url):
        raise ValueError("no web address")
    return url


class _Asset(BaseModel):
    name: str
    size: int = Field(ge=0)
    digest: str | None = None
    browser_download_url: Annotated[str, AfterValidator(_address)]
    state: str


class _Release(BaseModel):
    tag_name: str
    draft: bool = False
    published_at: str | None = None
    assets: list[_Asset] = []


class _Kept(BaseModel):
    """An answer of the API as it is kept."""

    url: str
    etag: str
    asked_s: float
    following: str | None
    data: Any


class _Refusal(BaseModel):
    """Until when nothing may be asked of a server; with a token its limit is another one than without."""

    api: str
    until_s: float
    token: bool


class Releases:
    """Asks for releases. `notes` tells when an answer is an older one, and why.

    Every method raises Unreachable, RateLimited or Refused when GitHub does not answer and nothing is kept.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.notes: list[str] = []
        self._now = now

    async def build_tag(self, tag: str) -> str:
        """Return the numbered build for what a user writes: b11434 is itself, v0.7.0 and `stable` point at one.

        Raises BadOption for anything else, ReleaseMissing when there is none.
        """
        if BUILD_TAG.fullmatch(tag):
            return tag
        if tag == STABLE:
            return await self._pointed_at("latest")
        if _VERSION_TAG.fullmatch(tag):
            return await self._pointed_at(f"tags/{quote(tag)}")
        raise BadOption(f"{tag!r} is no release of llama.cpp.", "Write b11434, v0.7.0, stable or nightly.", tag=tag)

    def release(self, tag: str) -> Release:
        """Return the release of one tag. Raises ReleaseMissing when there is none."""
        kept = self._ask(f"{_repository()}/releases/tags/{quote(tag)}", f"release {tag}")
        release = _release(kept.data)
        if release.tag != tag:
            raise _odd()
        return release

    def builds(self) -> Iterator[Release]:
        """Yield the numbered builds, the newest first, page by page as they are needed."""
        url: str | None = f"{_repository()}/releases?per_page={_PAGE}"
        for _ in range(_PAGES):
            if url is None:
                return
            kept = self._ask(url, "list of releases")
            if not isinstance(kept.data, list):
                raise _odd()
            yield from (release for release in map(_release, kept.data) if release.is_build and release.published)
            url = kept.following

    async def _pointed_at(self, which: str) -> str:
        """Return the build that a version's release points at."""
        named = "stable release" if which == "latest" else f"release {which.removeprefix('tags/')}"
        kept = await asyncio.to_thread(self._ask, f"{_repository()}/releases/{which}", named)
        release = _release(kept.data)
        if release.is_build:
            return release.tag
        pointer = release.assets.get(_POINTER)
        if pointer is None or not pointer.uploaded:
            raise ReleaseMissing(
                f"The release {release.tag} does not say which build it is.",
                "It may just be in the making: try again in some minutes, or name a build such as b11434.",
            )
        digest = pointer.sha256 or "unverified"
        target = _folder() / f"{digest[:16]}-{hashlib.sha256(pointer.url.encode()).hexdigest()[:16]}.txt"
        fetched = await fetch(Source(pointer.url, pointer.bytes, pointer.sha256, name=pointer.name), target)
        text = fetched.path.read_text("ascii", "replace").strip()
        if not BUILD_TAG.fullmatch(text):
            fetched.path.unlink(missing_ok=True)
            raise ReleaseMissing(f"The release {release.tag} points at no build: {text[:40]!r}.", "Name a build.")
        return text

    def _ask(self, url: str, what: str) -> _Kept:
        """Return the answer for an address: a new one, or the kept one where it still holds or nothing else is had."""
        kept = _load(url)
        try:
            self._respect_refusal(url)
            page = next(json_pages(url, token=_token_for(url), headers=_headers(kept)))
            if page.head.status == 304 and kept is not None:
                kept = kept.model_copy(update={"asked_s": self._now()})
            else:
                kept = self._answer(url, page, what)
        except (RateLimited, Unreachable) as error:
            if kept is None:
                raise
            self.notes.append(f"{error.title} What follows was told {_ago(self._now() - kept.asked_s)}.")
            return kept
        _keep(kept)
        return kept

    def _answer(self, url: str, page: Page, what: str) -> _Kept:
        status, headers = page.head.status, page.head.headers
        if status in (403, 429) and (limited := self._rate_limit(page.head)):
            raise limited
        if status == 404:
            raise ReleaseMissing(
                f"There is no {what} at {_host()}.", "`mtp-launcher engine available` lists the newest builds."
            )
        if status == 401:
            name = next(name for name in _TOKEN_VARIABLES if os.environ.get(name)) if _token_for(url) else "a token"
            raise Refused(f"{_host()} does not accept the token in {name}.", "Unset it: none is needed.", status=status)
        if status >= 500:
            raise Unreachable(f"{_host()} is out of order (HTTP status {status}).", "Try again later.")
        if not 200 <= status < 300:
            raise refusal_of(url, page.head)
        following = _NEXT.search(headers.get("link", ""))
        if following and not _is_address(following[1]):
            raise _odd()
        return _Kept(
            url=url,
            etag=headers.get("etag", ""),
            asked_s=self._now(),
            following=following[1] if following else None,
            data=page.data,
        )

    def _rate_limit(self, answer: Head) -> RateLimited | None:
        """Return the error for a refusal that is about the number of requests, and keep until when it lasts."""
        wait, left = answer.headers.get("retry-after", ""), answer.headers.get("x-ratelimit-remaining")
        reset = answer.headers.get("x-ratelimit-reset", "")
        if wait.isdecimal():
            until_s = self._now() + float(wait)
        elif left == "0" and reset.isdecimal():
            until_s = float(reset)
        elif answer.status == 429 or left == "0":
            until_s = self._now() + _MINUTE_S  # what GitHub advises where it names no time
        else:
            return None
        until_s = min(until_s, self._now() + _DAY_S)
        refusal = _Refusal(api=_api(), until_s=until_s, token=_token_for(_api()) is not None)
        with suppress(OSError):
            write_atomically(_refusal_file(), refusal.model_dump_json().encode())
        return self._limited(until_s)

    def _respect_refusal(self, url: str) -> None:
        try:
            refusal = _Refusal.model_validate_json(_refusal_file().read_bytes())
        except (OSError, ValidationError):
            return
        same = refusal.api == _api() and refusal.token == (_token_for(url) is not None)
        if same and 0 < refusal.until_s - self._now() <= _DAY_S:
            raise self._limited(refusal.until_s)

    def _limited(self, until_s: float) -> RateLimited:
        minutes = max(1, round((until_s - self._now()) / 60))
        at = time.strftime("%H:%M", time.localtime(until_s))
        more = "" if _token_for(_api()) else ", or set GITHUB_TOKEN, with which GitHub answers 5,000 times an hour"
        return RateLimited(
            f"{_host()} answers no more questions from this address until {at}.",
            f"Try again in {minutes} min{more}.",
            until_s=until_s,
        )


def _ago(seconds: float) -> str:
    minutes = max(0, round(seconds / 60))
    if minutes < 2:
        return "just now"
    if minutes < 120:
        return f"{minutes} minutes ago"
    return f"{minutes // 60} hours ago" if minutes < 48 * 60 else f"{minutes // (24 * 60)} days ago"


def _release(data: Any) -> Release:  # noqa: ANN401 -- what the server sent
    try:
        told = _Release.model_validate(data)
    except ValidationError as error:
        raise _odd() from error
    assets = {}
    for each in told.assets:
        digest = _DIGEST.fullmatch(each.digest or "")
        sha256 = digest[1] if digest else None
        assets[each.name] = Asset(
            each.name, each.browser_download_url, each.size, sha256, each.state == "uploaded" and each.size > 0
        )
    return Release(told.tag_name, None if told.draft else told.published_at, assets)


def _odd() -> Refused:
    return Refused(f"What {_host()} says of releases makes no sense.", f"Is {API_VARIABLE} right?")


def _api() -> str:
    url = os.environ.get(API_VARIABLE, "").strip().rstrip("/") or _API
    if not _is_address(url):
        raise BadOption(f"{API_VARIABLE} is no web address.", f"Unset it, or set it to {_API}.")
    return url


def _is_address(url: str) -> bool:
    try:
        return urlsplit(url).scheme in ("http", "https") and bool(urlsplit(url).hostname)
    except ValueError:
        return False


def _repository() -> str:
    return f"{_api()}/repos/{REPOSITORY}"


def _host() -> str:
    return urlsplit(_api()).hostname or "The server"


def _token_for(url: str) -> str | None:
    """Return the user's token, for the API's own server only."""
    if urlsplit(url)[:2] != urlsplit(_api())[:2]:
        return None
    found = next(filter(None, (os.environ.get(name, "").strip() for name in _TOKEN_VARIABLES)), None)
    return found if found and _TOKEN.fullmatch(found) else None


def _headers(kept: _Kept | None) -> dict[str, str]:
    return _HEADERS | ({"If-None-Match": kept.etag} if kept and kept.etag else {})


def _folder() -> Path:
    return cache_dir() / "releases"


def _refusal_file() -> Path:
    return _folder() / "refused.json"


def _file(url: str) -> Path:
    return _folder() / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}.json"


def _load(url: str) -> _Kept | None:
    try:
        kept = _Kept.model_validate_json(_file(url).read_bytes())
    except (OSError, ValidationError):
        return None
    return kept if kept.url == url else None


def _keep(kept: _Kept) -> None:
    with suppress(OSError):  # it is asked again next time
        write_atomically(_file(kept.url), kept.model_dump_json().encode())
