"""What a server's answer to the request for a range means: go on, try again, begin anew, or give up."""

import email.utils
import re
import time
from dataclasses import dataclass
from enum import Enum

from launcher.base.errors import LauncherError, RateLimited, Refused
from launcher.base.http import Head, refusal_of
from launcher.fetch.journal import Identity
from launcher.fetch.part import UNKNOWN

_CONTENT_RANGE = re.compile(r"bytes (?:(?P<first>\d{1,19})-(?P<last>\d{1,19})|\*)/(?P<size>\d{1,19}|\*)")
_PASSING = (408, 423, 425, 429)
_TURNED_AWAY = (401, 403, 404, 410)


class Next(Enum):
    """What to do after a connection that did not bring what it should."""

    AGAIN = "again"
    """Try again later; what is there stays."""
    ANEW = "anew"
    """What is there belongs to another file: begin from the first byte."""
    WITHOUT_CONDITION = "without condition"
    """The ETag differs, but size and hash are known: go on, the hash decides."""
    UNSURE = "unsure"
    """Neither length nor ETag tells that the answer is of this file: try again, and the second time in a row ALONE."""
    ALONE = "alone"
    """This server sends no ranges: one connection, from the first byte."""
    NEVER = "never"
    WRONG = "wrong"
    """What arrived is not the file."""


class Trouble(Exception):
    """A connection ended before its range was complete: the error to show if that stays so, and what to do next."""

    def __init__(self, error: LauncherError, then: Next = Next.AGAIN, *, wait_s: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.then = then
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class Accepted:
    """The answer's body begins where it should; the file has this size and ETag. `ranges`: the server sends ranges."""

    size: int
    etag: str | None
    ranges: bool


def judge(answer: Head, begin: int, known: Identity, *, host: str, asked_host: str, name: str) -> Accepted:
    """Return what the answer to a request for the bytes from `begin` on tells. Raises Trouble when it brings others.

    RFC 9110: 14 (ranges), 13.1.5 (If-Range), 10.2.3 (Retry-After).
    """
    headers = answer.headers
    etag = headers.get("etag")
    told = _CONTENT_RANGE.fullmatch(headers.get("content-range", ""))
    if answer.status == 206:
        if not told or not told["first"] or not begin == int(told["first"]) <= int(told["last"]):
            odd = Refused(f"{host} sent another part of {name} than it was asked for.", _ELSEWHERE)
            raise Trouble(odd, Next.ALONE)
        size = _size(told["size"], known.bytes)
        if size is None:
            raise Trouble(Refused(f"{host} does not say how large {name} is.", _ELSEWHERE), Next.ALONE)
        if size != known.bytes:
            _check_page(headers.get("content-type", ""), host, name)
        _check_size(size, known, host, name, begin)
        if begin and known.etag and etag and etag != known.etag and known.sha256 is None:
            raise Trouble(Refused(f"{name} was changed on {host} while it was fetched.", "Try again."), Next.ANEW)
        return Accepted(size, etag, ranges=True)
    if answer.status == 200:
        announced = None if "transfer-encoding" in headers else _size(headers.get("content-length", ""), None)
        if announced is None or announced != known.bytes:
            _check_page(headers.get("content-type", ""), host, name)
        size = known.bytes if announced is None else announced
        if size is None:
            raise Trouble(Refused(f"{host} does not say how large {name} is.", _ELSEWHERE), Next.NEVER)
        if begin and etag and known.etag and etag != known.etag:
            same_by_hash = known.sha256 is not None and known.bytes == size
            changed = Refused(f"{name} was changed on {host} while it was fetched.", "Try again.")
            raise Trouble(changed, Next.WITHOUT_CONDITION if same_by_hash else Next.ANEW)
        _check_size(size, known, host, name, begin)
        if begin:
            unsure = announced is None and (etag is None or etag != known.etag)
            whole = Refused(f"{host} cannot send a part of {name}.", _ELSEWHERE)
            raise Trouble(whole, Next.UNSURE if unsure else Next.ALONE)
        return Accepted(size, etag, ranges=False)
    if answer.status == 416:
        size = _size(told["size"] if told else "", known.bytes)
        if size == 0 and known.bytes in (None, 0):
            return Accepted(0, etag, ranges=True)
        shrunk = Refused(f"{host} refuses to send {name} from byte {begin:,} on.", _ELSEWHERE, status=416)
        raise Trouble(shrunk, Next.ANEW if begin else Next.NEVER)
    raise _refused(answer, host, asked_host)


_ELSEWHERE = "Try again later, or get it from another server."


def _size(text: str, otherwise: int | None) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 20 else otherwise


def _check_page(content_type: str, host: str, name: str) -> None:
    page = content_type.partition(";")[0].strip().lower() in ("text/html", "application/xhtml+xml")
    if page and not name.lower().endswith((".html", ".htm")):
        raise Trouble(
            Refused(
                f"{host} sent a web page in place of {name}.",
                "A hotel's or company's network may want you to log in: open any page in a browser, then try again.",
            ),
            Next.NEVER,
        )


def _check_size(size: int, known: Identity, host: str, name: str, begin: int) -> None:
    if known.bytes is not None and size != known.bytes:
        other = Refused(
            f"{host} has another {name}: {size:,} bytes in place of {known.bytes:,}.",
            "It was replaced there, or the catalogue is out of date.",
            expected_bytes=known.bytes,
            bytes=size,
        )
        raise Trouble(other, Next.ANEW if begin and known.sha256 is None else Next.NEVER)
    if size > UNKNOWN:
        raise Trouble(Refused(f"{host} says that {name} has {size:,} bytes.", _ELSEWHERE), Next.NEVER)


def _refused(answer: Head, host: str, asked_host: str) -> Trouble:
    status = answer.status
    error: Refused = refusal_of(f"https://{host}", answer)
    wait_s = retry_after_s(answer.headers.get("retry-after", ""))
    if status == 429:
        error = RateLimited(error.title, error.hint, status=status)
    if status >= 500 or status in _PASSING:
        return Trouble(error, wait_s=wait_s)
    if status in _TURNED_AWAY and host != asked_host:  # a signed link that has run out: the next request gets a new one
        return Trouble(error)
    return Trouble(error, Next.NEVER)


def retry_after_s(text: str) -> float | None:
    """Return the seconds that a Retry-After header asks for, given as seconds or as a date; None when it is neither."""
    if text.strip().isdecimal():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None
