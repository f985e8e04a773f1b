"""The download of one file: resumable, verified, cancellable, limited only by the network or the disk."""

import asyncio
import math
import os
import random
import re
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from stat import S_ISREG

from launcher.base.errors import DownloadBroken, FileInTheWay, LauncherError, Refused, Unreachable
from launcher.base.http import ResponseHead, error_for_status
from launcher.base.http_stream import RangeStream
from launcher.base.messages import join_messages, message
from launcher.base.net import host_name, strip_secrets
from launcher.base.progress import Phase, Progress
from launcher.base.threads import run_in_thread, wait_to_end
from launcher.fetch import journal
from launcher.fetch.digest import hash_file
from launcher.fetch.journal import DownloadIdentity, Span
from launcher.fetch.partial_file import (
    UNKNOWN_END,
    FileHasher,
    PartialFile,
    Segment,
    count_unfinished_bytes,
    disk_full_error,
    free_bytes,
    journal_path,
    keep_as_bad,
    lock_target,
    move_to_target,
    part_path,
    write_error,
)

# Input and result of a transfer.


@dataclass(frozen=True, slots=True)
class DownloadSource:
    """A file on a server, with its size and SHA-256 if known. `token` is sent only to the server of `url`; `name` is
    shown in messages."""

    url: str
    bytes: int | None = None
    sha256: str | None = None
    token: str | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class DownloadedFile:
    """A finished file. `received_bytes` came over the network now, `resumed_bytes` in earlier attempts."""

    path: Path
    bytes: int
    sha256: str
    seconds: float
    resumed_bytes: int
    received_bytes: int


@dataclass(frozen=True, slots=True)
class TransferSettings:
    """Settings of a transfer. Times are in seconds.

    `connections` is the maximum number of connections; more than one are used only while that is faster and more than
    `least_parallel_bytes` are missing. `bytes_per_second` limits the rate. A server that sends nothing for `stall_s`
    is disconnected. The download fails after `attempts` attempts in a row without new data. The pauses between them
    grow from `backoff_s` to `longest_pause_s`; a server may ask for more, up to `longest_asked_pause_s`.
    `reserve_bytes` stay free on the disk. `settle_s` is how long the speed of a number of connections is measured
    before more are tried. `sync_s` is the interval at which data is flushed to disk; a power cut loses no more.
    """

    connections: int = 8
    bytes_per_second: int | None = None
    stall_s: float = 30.0
    attempts: int = 10
    backoff_s: float = 1.0
    longest_pause_s: float = 60.0
    longest_asked_pause_s: float = 600.0
    reserve_bytes: int = 2**28
    settle_s: float = 0.5
    sync_s: float = 1.0
    least_parallel_bytes: int = 2**26


# Speed: the rate limit, pauses before retries, and the number of connections.


class TokenBucket:
    """A token bucket shared by several threads: at most `bytes_per_second`, with a burst of a quarter second after a
    pause.
    """

    def __init__(self, bytes_per_second: int, now: Callable[[], float] = time.monotonic) -> None:
        self._rate = bytes_per_second
        self._now = now
        self._lock = threading.Lock()
        self._free_from_s = now()

    def take_bytes(self, n_bytes: int) -> float:
        """Account for received bytes; return for how many seconds to receive nothing."""
        with self._lock:
            now = self._now()
            self._free_from_s = max(self._free_from_s, now - 0.25) + n_bytes / self._rate
            return max(0.0, self._free_from_s - now)


def backoff_s(
    failures: int, first_s: float, longest_s: float, random_share: Callable[[], float] = random.random
) -> float:
    """Return the pause in seconds after that many failures in a row: doubled each time, then reduced at random by up to
    half.

    Random pauses keep clients that lost their server at the same moment from all retrying at the same moment ("equal
    jitter" in Exponential Backoff And Jitter, AWS Architecture Blog, 2015).
    """
    return min(longest_s, first_s * 2.0 ** min(failures - 1, 60)) * (0.5 + random_share() / 2)


def retry_pause_s(failures: int, asked_s: float | None, settings: TransferSettings) -> float:
    """Return the pause in seconds after that many failures in a row; a server may ask for more, up to a limit."""
    seconds = backoff_s(failures, settings.backoff_s, settings.longest_pause_s)
    return seconds if asked_s is None else max(seconds, min(asked_s, settings.longest_asked_pause_s))


def waiting_note(error: LauncherError, seconds: float) -> str:
    """Return the text to show while waiting for a retry."""
    whole_s = max(1, math.ceil(seconds))
    duration = f"{whole_s} s" if whole_s < 120 else f"{round(whole_s / 60)} minutes"
    return join_messages(error.title, message("Next try in {duration}.", duration=duration))


class SpeedMeter:
    """Bytes per second over the last seconds, from samples of the byte count."""

    def __init__(self, window_s: float = 5.0) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, int]] = deque()

    def sample(self, now_s: float, done_bytes: int) -> float | None:
        """Add a sample and return the speed in bytes per second, None until the samples span a quarter second."""
        samples = self._samples
        if samples and done_bytes < samples[-1][1]:
            samples.clear()
        samples.append((now_s, done_bytes))
        while len(samples) > 2 and samples[1][0] <= now_s - self._window_s:
            samples.popleft()
        oldest_s, oldest_bytes = samples[0]
        seconds = now_s - oldest_s
        return (done_bytes - oldest_bytes) / seconds if seconds >= 0.25 else None


_MIN_SPEEDUP = 1.2
"""If doubling the connections raises the speed by less than a fifth, the server or the line is at its limit."""
_FAST_STREAM = 250e6
"""Bytes per second (2 Gbit/s) above which connections are not doubled: more threads would only cost CPU time."""


class ConnectionGrowth:
    """Finds the number of connections: starts at one and doubles it as long as that raises the speed."""

    def __init__(self, most: int, settle_s: float) -> None:
        self.connections = 1
        self._most = most
        self._settle_s = settle_s
        self._measurement_start: tuple[float, int] | None = None
        """The time and the received bytes at which the measurement of the current number began."""
        self._speed_before = 0.0

    def stop_growing(self, connections: int) -> None:
        """Use this number of connections, at least one, from now on."""
        self.connections = self._most = max(1, connections)

    def record_bytes(self, now_s: float, received_bytes: int, *, settled: bool) -> None:
        """Record the bytes received so far. `settled` means that as many connections as wanted have received some."""
        if self.connections >= self._most:
            return
        if self._measurement_start is None:
            self._measurement_start = (now_s, received_bytes) if settled else None
        elif (seconds := now_s - self._measurement_start[0]) >= self._settle_s:
            speed = (received_bytes - self._measurement_start[1]) / seconds
            self._measurement_start = None
            if speed < _MIN_SPEEDUP * self._speed_before or speed > _FAST_STREAM * self.connections:
                self._most = self.connections
            else:
                self._speed_before = speed
                self.connections = min(2 * self.connections, self._most)


# The response to a range request, and what follows from it: continue, retry, start over, or give up.

_CONTENT_RANGE = re.compile(r"bytes (?:(?P<first>\d{1,19})-(?P<last>\d{1,19})|\*)/(?P<size>\d{1,19}|\*)")
_TEMPORARY_STATUSES = (408, 423, 425, 429)
_DENIED_STATUSES = (401, 403, 404, 410)


class NextStep(Enum):
    """The next step after a connection that did not deliver the requested data."""

    RETRY = "retry"
    """Try again later; the data stays."""
    START_OVER = "start over"
    """The data belongs to another version of the file: start from the first byte."""
    WITHOUT_CONDITION = "without condition"
    """The ETag differs, but size and hash are known: continue without If-Range, the hash decides."""
    UNSURE = "unsure"
    """Neither length nor ETag shows that the response is of this file: retry once, then continue as for NO_RANGES."""
    NO_RANGES = "no ranges"
    """The server does not support ranges: use one connection, from the first byte."""
    GIVE_UP = "give up"
    """A retry would fail in the same way."""
    WRONG_DATA = "wrong data"
    """The data that arrived is not the file."""


class ConnectionTrouble(Exception):
    """A connection ended before its range was complete. Holds the error to show if retries fail, and the next step.

    `wait_s` is the pause in seconds that the server asked for.
    """

    def __init__(
        self, error: LauncherError, next_step: NextStep = NextStep.RETRY, *, wait_s: float | None = None
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.next_step = next_step
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class AcceptedResponse:
    """An accepted response: its body begins at the requested offset. `size` is that of the whole file in bytes."""

    size: int
    etag: str | None
    supports_ranges: bool


def check_response(
    response: ResponseHead, begin: int, expected: DownloadIdentity, *, host: str, requested_host: str, name: str
) -> AcceptedResponse:
    """Check the response to a request for the bytes from `begin`. Raises ConnectionTrouble if it has other bytes.

    `host` sent the response, `requested_host` is the host in the URL: a redirect may lead to another one. RFC 9110: 14
    (ranges), 13.1.5 (If-Range).
    """
    match response.status:
        case 206:
            return _check_part(response, begin, expected, host, name)
        case 200:
            return _check_whole_file(response, begin, expected, host, name)
        case 416:
            return _check_refused_range(response, begin, expected, host, name)
    raise _status_trouble(response, host, requested_host)


def _check_part(
    response: ResponseHead, begin: int, expected: DownloadIdentity, host: str, name: str
) -> AcceptedResponse:
    etag = response.headers.get("etag")
    sent_range = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
    first = int(sent_range["first"]) if sent_range and sent_range["first"] else None
    if sent_range is None or first is None or not begin == first <= int(sent_range["last"]):
        other_part = Refused(
            message("{host} sent a different part of {name} than requested.", host=host, name=name),
            _TRY_ELSEWHERE,
        )
        raise ConnectionTrouble(other_part, NextStep.NO_RANGES)
    size = _parse_size(sent_range["size"], expected.bytes)
    if size is None:
        raise ConnectionTrouble(_no_size_error(host, name), NextStep.NO_RANGES)
    if size != expected.bytes:
        _refuse_web_page(response.headers.get("content-type", ""), host, name)
    _check_size(size, expected, host, name, begin)
    if begin and expected.etag and etag and etag != expected.etag and expected.sha256 is None:
        raise ConnectionTrouble(_changed_error(host, name), NextStep.START_OVER)
    return AcceptedResponse(size, etag, supports_ranges=True)


def _check_whole_file(
    response: ResponseHead, begin: int, expected: DownloadIdentity, host: str, name: str
) -> AcceptedResponse:
    headers = response.headers
    etag = headers.get("etag")
    announced = None if "transfer-encoding" in headers else _parse_size(headers.get("content-length", ""), None)
    if announced is None or announced != expected.bytes:
        _refuse_web_page(headers.get("content-type", ""), host, name)
    size = expected.bytes if announced is None else announced
    if size is None:
        raise ConnectionTrouble(_no_size_error(host, name), NextStep.GIVE_UP)
    if begin and etag and expected.etag and etag != expected.etag:
        same_by_hash = expected.sha256 is not None and expected.bytes == size
        next_step = NextStep.WITHOUT_CONDITION if same_by_hash else NextStep.START_OVER
        raise ConnectionTrouble(_changed_error(host, name), next_step)
    _check_size(size, expected, host, name, begin)
    if begin:
        unsure = announced is None and (etag is None or etag != expected.etag)
        not_in_parts = Refused(message("{host} cannot send {name} in parts.", host=host, name=name), _TRY_ELSEWHERE)
        raise ConnectionTrouble(not_in_parts, NextStep.UNSURE if unsure else NextStep.NO_RANGES)
    return AcceptedResponse(size, etag, supports_ranges=False)


def _check_refused_range(
    response: ResponseHead, begin: int, expected: DownloadIdentity, host: str, name: str
) -> AcceptedResponse:
    """Accept the refusal of a range only for an empty file."""
    sent_range = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
    size = _parse_size(sent_range["size"] if sent_range else "", expected.bytes)
    if size == 0 and expected.bytes in (None, 0):
        return AcceptedResponse(0, response.headers.get("etag"), supports_ranges=True)
    refused = Refused(
        message("{host} refuses to send {name} from byte {begin:,}.", host=host, name=name, begin=begin),
        _TRY_ELSEWHERE,
        status=416,
    )
    raise ConnectionTrouble(refused, NextStep.START_OVER if begin else NextStep.GIVE_UP)


def _no_size_error(host: str, name: str) -> Refused:
    return Refused(message("{host} does not report the size of {name}.", host=host, name=name), _TRY_ELSEWHERE)


def _changed_error(host: str, name: str) -> Refused:
    return Refused(
        message("{name} was changed on {host} during the download.", name=name, host=host), message("Try again.")
    )


_TRY_ELSEWHERE = message("Try again later, or download it from another server.")


def _parse_size(text: str, default: int | None) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 20 else default


def _refuse_web_page(content_type: str, host: str, name: str) -> None:
    """Raise ConnectionTrouble if the server sent a web page, such as the login page of a hotel's network."""
    is_page = content_type.partition(";")[0].strip().lower() in ("text/html", "application/xhtml+xml")
    if is_page and not name.lower().endswith((".html", ".htm")):
        raise ConnectionTrouble(
            Refused(
                message("{host} sent a web page instead of {name}.", host=host, name=name),
                message("Your network may require a login. Open any page in a browser, then try again."),
            ),
            NextStep.GIVE_UP,
        )


def _check_size(size: int, expected: DownloadIdentity, host: str, name: str, begin: int) -> None:
    if expected.bytes is not None and size != expected.bytes:
        other_size = Refused(
            message(
                "{host} has a different {name}: {size:,} bytes instead of {bytes:,}.",
                host=host,
                name=name,
                size=size,
                bytes=expected.bytes,
            ),
            message("It was replaced there, or the catalogue is out of date."),
            expected_bytes=expected.bytes,
            bytes=size,
        )
        may_have_changed = begin > 0 and expected.sha256 is None
        raise ConnectionTrouble(other_size, NextStep.START_OVER if may_have_changed else NextStep.GIVE_UP)
    if size > UNKNOWN_END:
        raise ConnectionTrouble(
            Refused(
                message("{host} reports {size:,} bytes for {name}.", host=host, name=name, size=size), _TRY_ELSEWHERE
            ),
            NextStep.GIVE_UP,
        )


def _status_trouble(response: ResponseHead, host: str, requested_host: str) -> ConnectionTrouble:
    status = response.status
    error = error_for_status(f"https://{host}", response)
    if status >= 500 or status in _TEMPORARY_STATUSES:
        return ConnectionTrouble(error, wait_s=error.wait_s)
    if status in _DENIED_STATUSES and host != requested_host:
        return ConnectionTrouble(error)  # a signed link that has expired: the next request gets a new one
    return ConnectionTrouble(error, NextStep.GIVE_UP)


# One connection of a transfer: a thread that requests a range, checks the response and writes the data.

_BUFFER = 2**20
_SMALL_BUFFER = 2**14
"""A smaller buffer for a limited rate, so that the rate is even."""


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """The parameters of a range request; `with_range` and `with_condition` control `Range` and `If-Range`."""

    url: str
    token: str | None
    name: str
    host: str
    silence_s: float
    with_range: bool
    with_condition: bool


class ConnectionWorker:
    """A connection that fills a segment. `bucket` limits its rate; None means no limit.

    The future `ended` gets the ConnectionTrouble, or None if the segment is complete. A disk error, an OSError, is the
    future's exception.
    """

    def __init__(self, part: PartialFile, segment: Segment, request: RangeRequest, bucket: TokenBucket | None) -> None:
        self.segment = segment
        self.accepted: AcceptedResponse | None = None
        self.received_bytes = 0
        self.mixed = False
        """Whether its data continues data with another ETag, so that the file may mix two versions."""
        self._part = part
        self._request = request
        self._bucket = bucket
        self._stopped = threading.Event()
        self._stream = RangeStream(request.url, token=request.token, silence_s=request.silence_s)
        self.ended = run_in_thread(self._run, "receive")

    def abort(self) -> None:
        """End the connection without waiting for it; none of its data is written any more."""
        self._stopped.set()
        self._part.release_segment(self.segment)
        self._stream.abort()

    def _run(self) -> ConnectionTrouble | None:
        try:
            self._receive()
        except ConnectionTrouble as trouble:
            return trouble
        except LauncherError as error:
            temporary = isinstance(error, Unreachable) and error.retry_helps
            return ConnectionTrouble(error, NextStep.RETRY if temporary else NextStep.GIVE_UP)
        finally:
            self._stream.close()
            self._part.release_segment(self.segment)
        return None

    def _receive(self) -> None:
        part, segment, request = self._part, self.segment, self._request
        begin, known = segment.position, part.identity
        etag = known.etag if begin and request.with_condition and (known.etag or "").startswith('"') else None
        end = segment.end if segment.end < UNKNOWN_END and known.bytes is not None else None
        response = self._stream.open(begin if request.with_range else None, end, if_range=etag)
        accepted = check_response(
            response, begin, known, host=self._stream.host, requested_host=request.host, name=request.name
        )
        self.mixed = begin > 0 and accepted.etag != known.etag
        part.set_identity(size=accepted.size, etag=accepted.etag)
        self.accepted = accepted
        view = memoryview(bytearray(_BUFFER if self._bucket is None else _SMALL_BUFFER))
        wanted = segment.position < segment.end
        while wanted:
            n_bytes = self._stream.readinto(view)
            if not n_bytes:
                raise ConnectionTrouble(
                    Unreachable(
                        message(
                            "{host} closed the connection after {done_bytes:,} of {size:,} bytes.",
                            host=self._stream.host,
                            done_bytes=part.done_bytes,
                            size=accepted.size,
                        ),
                        message("Try again. The downloaded part is kept."),
                    )
                )
            wanted = part.write(segment, view[:n_bytes])
            self.received_bytes += n_bytes
            if self._bucket is not None:
                self._stopped.wait(self._bucket.take_bytes(n_bytes))
        if known.sha256 is None and segment.position == accepted.size and self._stream.readinto(view[:1]):
            raise ConnectionTrouble(
                DownloadBroken(
                    message(
                        "{host} sent more than the {size:,} bytes of {name}.",
                        host=self._stream.host,
                        size=accepted.size,
                        name=request.name,
                    )
                ),
                NextStep.WRONG_DATA,
            )


# A running transfer: manages connections, retries and free disk space, verifies, and reports progress.

TICK_S = 0.1
"""Interval in seconds at which connections are checked and progress is reported."""
_SPACE_CHECK_S = 1.0
_MOST_RESTARTS = 3
"""Number of times that a transfer restarts from the first byte before it fails."""
_SMALLEST_CHUNK, _LARGEST_CHUNK = 2**25, 2**28
"""Limits in bytes of the range that one of several connections fetches."""
_GOOD_CONNECTION_BYTES = 2**20
"""A connection that delivered this many bytes before it broke off is replaced at once while others go on."""


class Transfer:
    """One attempt to download a file. The target is locked, and does not exist yet."""

    def __init__(
        self,
        source: DownloadSource,
        target: Path,
        settings: TransferSettings,
        on_progress: Callable[[Progress], None],
        pause: Callable[[float], Awaitable[object]],
    ) -> None:
        self._source = source
        self._target = target
        self._settings = settings
        self._on_progress = on_progress
        self._pause = pause
        self._began_s = time.monotonic()
        self._name = source.name or target.name
        self._bucket = TokenBucket(settings.bytes_per_second) if settings.bytes_per_second else None
        self._growth = ConnectionGrowth(settings.connections, settings.settle_s)
        self._speed = SpeedMeter()
        self._phase = Phase.CONNECTING
        self._reported_s = self._space_checked_s = 0.0
        self._workers: list[ConnectionWorker] = []
        self._hashers: list[asyncio.Future[str]] = []
        self._with_range = self._with_condition = True
        self._mixed = False
        """Whether the data may mix two versions of the file."""
        self._unsure = False
        """Whether the last connection ended with NextStep.UNSURE."""
        self._failures = self._restarts = 0
        self._received_at_last_failure = 0

    async def run(self) -> DownloadedFile:
        """Fetch the missing data, verify the file, and rename it to its final name."""
        source = self._source
        sha256 = source.sha256.lower() if source.sha256 else None
        identity = DownloadIdentity(strip_secrets(source.url), source.bytes, sha256)
        opening = run_in_thread(lambda: PartialFile(self._target, identity, self._is_same_file), "disk")
        try:
            self._part = await wait_to_end(opening)
            return await self._fetch_and_verify(sha256)
        finally:
            if opening.exception() is None:
                await self._clean_up(opening.result())

    async def _fetch_and_verify(self, sha256: str | None) -> DownloadedFile:
        """Fetch and verify the data, and rename the file; a wrong file is fetched again if versions were mixed."""
        part, ended = self._part, threading.Event()
        try:
            self._check_free_space()
            self._start_hasher()
            threading.Thread(target=self._sync_regularly, args=(ended,), name="sync", daemon=True).start()
            while True:
                await self._receive()
                actual_sha256 = await self._verify()
                if sha256 in (None, actual_sha256):
                    break
                reason = self._wrong_hash_message(actual_sha256)
                if not self._mixed:
                    part.close()
                    raise keep_as_bad(self._target, reason, sha256=actual_sha256, expected_sha256=sha256)
                self._mixed = False
                self._start_over(DownloadBroken(reason, message("Try again.")))
            part.close()
            await wait_to_end(run_in_thread(lambda: move_to_target(self._target), "disk"))
            size = part.size or 0
            self._report_progress(Phase.VERIFYING, size, size, part.resumed_bytes, force=True)
            seconds = time.monotonic() - self._began_s
            return DownloadedFile(self._target, size, actual_sha256, seconds, part.resumed_bytes, part.received_bytes)
        except OSError as error:
            needed = (part.size or 0) - part.done_bytes
            raise write_error(error, self._target, needed) from error
        finally:
            ended.set()

    async def _clean_up(self, part: PartialFile) -> None:
        """Stop all threads, and delete the unfinished file if nothing has arrived."""
        for worker in self._workers:
            worker.abort()
        part.close()
        if not part.done_bytes and part.size != 0:
            if self._hashers:  # Windows cannot delete an open file
                await asyncio.wait(self._hashers)
            part.remove()

    async def _receive(self) -> None:
        """Fetch the missing data with as many connections as pay off."""
        trouble: ConnectionTrouble | None = None
        while not self._part.is_complete:
            if trouble is not None and not self._workers:
                await self._wait_for_retry(trouble)
                trouble = None
            self._start_workers()
            await asyncio.wait([each.ended for each in self._workers], timeout=TICK_S, return_when="FIRST_COMPLETED")
            self._check_connections()
            for worker in [each for each in self._workers if each.ended.done()]:
                if worker not in self._workers:  # the end of another worker made the transfer start over
                    continue
                self._workers.remove(worker)
                self._mixed |= worker.mixed
                trouble = self._handle_end(worker, worker.ended.result())
        for worker in self._workers:
            worker.abort()
        self._workers.clear()

    def _start_workers(self) -> None:
        source, settings = self._source, self._settings
        request = RangeRequest(
            source.url,
            source.token,
            self._name,
            host_name(source.url),
            settings.stall_s,
            self._with_range,
            self._with_condition,
        )
        wanted = 1 if self._part.size is None else self._growth.connections
        while len(self._workers) < wanted and (span := self._next_span(wanted)) is not None:
            self._workers.append(ConnectionWorker(self._part, self._part.claim_segment(span), request, self._bucket))

    def _next_span(self, connections: int) -> Span | None:
        """Return the range for another connection: the first gap, or a part of a range that another connection has yet
        to fetch.

        Several connections all fetch near the front of the missing data, so that hashing can follow while the data is
        still in the page cache.
        """
        gaps = self._part.find_gaps()
        if connections == 1:
            return gaps[0] if gaps else None
        running = self._part.open_spans()
        missing = sum(span.length for span in (*gaps, *running))
        chunk = min(max(missing // (2 * connections), _SMALLEST_CHUNK), _LARGEST_CHUNK)
        if not gaps:
            longest = max(running, key=lambda span: span.length, default=None)
            if longest is None or longest.length < _SMALLEST_CHUNK:
                return None
            cut = longest.begin + min(chunk, longest.length // 2)
            gaps = [Span(cut, longest.end)]
            self._part.cut_segment(gaps[0])
        return Span(gaps[0].begin, min(gaps[0].end, gaps[0].begin + chunk))

    def _handle_end(self, worker: ConnectionWorker, trouble: ConnectionTrouble | None) -> ConnectionTrouble | None:
        """Take the next step after a connection has ended. Returns the trouble after which a retry waits, None to go on
        at once.
        """
        unsure_before = self._unsure
        self._unsure = trouble is not None and trouble.next_step is NextStep.UNSURE and not self._workers
        if trouble is None:
            return None
        step = trouble.next_step
        if step is NextStep.START_OVER:
            self._start_over(trouble.error)
            return None
        if step is NextStep.WRONG_DATA:
            self._part.close()
            raise keep_as_bad(self._target, trouble.error.title)
        if step is NextStep.WITHOUT_CONDITION and self._with_condition:
            self._with_condition = False
            return None
        if self._workers:  # the other connections go on
            if worker.received_bytes < _GOOD_CONNECTION_BYTES or step is not NextStep.RETRY:
                self._growth.stop_growing(len(self._workers))
                self._part.extend_into_gaps()
            return trouble
        if self._with_range and (step is NextStep.NO_RANGES or (self._unsure and unsure_before)):
            self._with_range = False
            self._growth.stop_growing(1)
            self._start_over(trouble.error)
            return None
        if step in (NextStep.GIVE_UP, NextStep.WITHOUT_CONDITION):
            raise self._with_resume_hint(trouble.error)
        if self._part.done_bytes and not (self._with_range and self._proves_identity(self._part.identity.etag)):
            self._start_over(trouble.error)
        return trouble

    def _start_over(self, error: LauncherError) -> None:
        """Discard all data and begin from the first byte. Raises `error` if that was done too often."""
        self._restarts += 1
        if self._restarts > _MOST_RESTARTS:
            raise error
        for worker in self._workers:
            worker.abort()
        self._workers.clear()
        self._part.discard_data()
        self._start_hasher()

    def _start_hasher(self) -> None:
        self._hasher = FileHasher(self._part)
        self._hashers.append(run_in_thread(self._hasher.run, "hash"))

    async def _verify(self) -> str:
        """Flush the file to disk and return its hash."""
        part, hashed = self._part, self._hashers[-1]
        synced = run_in_thread(part.sync, "disk")
        while not (synced.done() and hashed.done()):
            self._report_progress(Phase.VERIFYING, self._hasher.hashed_bytes, part.size, part.resumed_bytes)
            await asyncio.wait([each for each in (synced, hashed) if not each.done()], timeout=TICK_S)
        synced.result()
        return hashed.result()

    def _wrong_hash_message(self, sha256: str) -> str:
        host = host_name(self._source.url)
        return message(
            "The file {name} from {host} is wrong: its SHA-256 is {sha256} instead of {expected}.",
            host=host,
            name=self._name,
            sha256=sha256,
            expected=self._source.sha256,
        )

    def _sync_regularly(self, ended: threading.Event) -> None:
        with suppress(OSError):  # the next write or the last sync raises the same error
            while not ended.wait(self._settings.sync_s):
                self._part.sync()

    async def _wait_for_retry(self, trouble: ConnectionTrouble) -> None:
        """Wait before a retry, longer each time. Raises the error after the last attempt."""
        settings, part = self._settings, self._part
        if part.received_bytes > self._received_at_last_failure:
            self._failures = 0
        self._received_at_last_failure = part.received_bytes
        self._failures += 1
        if self._failures >= settings.attempts:
            raise self._with_resume_hint(trouble.error)
        seconds = retry_pause_s(self._failures, trouble.wait_s, settings)
        note = waiting_note(trouble.error, seconds)
        self._report_progress(Phase.WAITING, part.done_bytes, part.size, part.resumed_bytes, note=note, force=True)
        await self._pause(seconds)

    def _with_resume_hint(self, error: LauncherError) -> LauncherError:
        """Return the error with a hint about the data that is kept."""
        part = self._part
        if not part.done_bytes:
            return error
        if part.size:
            resume_hint = message(
                "The downloaded {done_bytes:,} of {size:,} bytes are kept. Run the same command to continue.",
                done_bytes=part.done_bytes,
                size=part.size,
            )
        else:
            resume_hint = message(
                "The downloaded {done_bytes:,} bytes are kept. Run the same command to continue.",
                done_bytes=part.done_bytes,
            )
        error.hint = join_messages(error.hint, resume_hint)
        return error

    def _check_connections(self) -> None:
        part, workers, now_s = self._part, self._workers, time.monotonic()
        done = part.done_bytes
        if now_s - self._space_checked_s > _SPACE_CHECK_S:
            self._check_free_space()
        accepted = [each.accepted for each in workers if each.accepted is not None]
        much_missing = (part.size or 0) - done > self._settings.least_parallel_bytes
        in_parts = bool(accepted) and all(
            each.supports_ranges and self._proves_identity(each.etag) for each in accepted
        )
        if much_missing and in_parts and self._bucket is None:
            receiving = sum(each.received_bytes > 0 for each in workers)
            self._growth.record_bytes(now_s, part.received_bytes, settled=receiving >= self._growth.connections)
        self._report_progress(Phase.RECEIVING if accepted else Phase.CONNECTING, done, part.size, part.resumed_bytes)

    def _proves_identity(self, etag: str | None) -> bool:
        """Return True if a known hash, or this strong ETag, can prove that separately fetched parts are of one file."""
        return self._source.sha256 is not None or (etag or "").startswith('"')

    def _check_free_space(self) -> None:
        """Raise DiskFull if the disk has no room for the missing bytes and the reserve."""
        self._space_checked_s = time.monotonic()
        part, reserve, folder = self._part, self._settings.reserve_bytes, self._target.parent
        needed, free = max((part.size or 0) - part.done_bytes, 0), free_bytes(folder)
        if needed and free < needed + reserve:
            raise disk_full_error(folder, needed=needed, free=free, reserve=reserve)

    def _is_same_file(self, earlier: DownloadIdentity) -> bool:
        """Return True if the data of an earlier attempt belongs to this file."""
        source = self._source
        if source.bytes is not None and earlier.bytes not in (None, source.bytes):
            return False
        if source.sha256 and earlier.sha256:
            return source.sha256.lower() == earlier.sha256  # equal hashes mean equal content, also from another mirror
        return earlier.url == strip_secrets(source.url) and self._proves_identity(earlier.etag)

    def _report_progress(
        self,
        phase: Phase,
        done_bytes: int,
        total_bytes: int | None,
        resumed_bytes: int,
        *,
        note: str = "",
        force: bool = False,
    ) -> None:
        now_s = time.monotonic()
        if not force and now_s - self._reported_s < TICK_S * 0.9:
            return
        if phase is not self._phase:
            self._phase, self._speed = phase, SpeedMeter()
        self._reported_s = now_s
        speed = self._speed.sample(now_s, done_bytes)
        left = (total_bytes - done_bytes) / speed if speed and total_bytes is not None else None
        self._on_progress(Progress(done_bytes, total_bytes, speed, left, note, phase, resumed_bytes))


class _ListenerFailed(Exception):
    """Wraps an OSError that `on_progress` raised, so that it is not taken for a disk error."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


async def download_file(
    source: DownloadSource,
    target: Path,
    *,
    settings: TransferSettings = TransferSettings(),
    on_progress: Callable[[Progress], None] | None = None,
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> DownloadedFile:
    """Download `source` to `target`, verify it by size and SHA-256, and return the result.

    Cancelling pauses: the data stays in the target's folder (.part and a journal), and the next download of the same
    file resumes. `on_progress` is called on the loop, 10 times a second at most; `pause` waits before a retry. An
    existing target is returned if it is this file; files of the user are never overwritten.

    Raises Unreachable, Untrusted, Refused or RateLimited if the server does not deliver the file; DownloadBroken if it
    delivered another one (kept as .bad); DiskFull; DownloadBusy if another process downloads to the same path;
    FileInTheWay if another file has the target's name; TargetUnusable if the target cannot be written; ProxyUnusable;
    BadOption for an invalid URL.
    """

    def report(progress: Progress) -> None:
        try:
            if on_progress is not None:
                on_progress(progress)
        except OSError as error:
            raise _ListenerFailed(error) from error

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with lock_target(target):
            if await asyncio.to_thread(os.path.lexists, target):
                return await _verify_existing(source, target, report)
            return await Transfer(source, target, settings, report, pause).run()
    except _ListenerFailed as failed:
        raise failed.error from None
    except OSError as error:
        needed = max((source.bytes or 0) - (count_unfinished_bytes(target) or 0), 0)
        raise write_error(error, target, needed) from error


def discard_download(target: Path) -> None:
    """Delete the data of an unfinished download. Raises DownloadBusy while it is running."""
    if target.parent.is_dir():
        with lock_target(target):
            part_path(target).unlink(missing_ok=True)
            journal.remove_journal(journal_path(target))


async def _verify_existing(
    source: DownloadSource, target: Path, on_progress: Callable[[Progress], None]
) -> DownloadedFile:
    """Return the existing target if it is the file of `source`. Raises FileInTheWay if not."""
    began_s = reported_s = time.monotonic()
    status = await asyncio.to_thread(target.stat)
    size = status.st_size
    if source.bytes in (None, size) and (source.bytes, source.sha256) != (None, None) and S_ISREG(status.st_mode):

        def report_verified(done_bytes: int) -> None:
            nonlocal reported_s
            if (now_s := time.monotonic()) - reported_s >= TICK_S:
                reported_s = now_s
                speed = done_bytes / (now_s - began_s)
                on_progress(Progress(done_bytes, size, speed, (size - done_bytes) / speed, phase=Phase.VERIFYING))

        sha256 = await hash_file(target, report_verified)
        if source.sha256 is None or sha256 == source.sha256.lower():
            part_path(target).unlink(missing_ok=True)
            journal.remove_journal(journal_path(target))
            on_progress(Progress(size, size, phase=Phase.VERIFYING))
            return DownloadedFile(target, size, sha256, time.monotonic() - began_s, 0, 0)
    raise FileInTheWay(
        message(
            "{target} already exists and is not the same file as {name} at {url}.",
            target=target,
            name=source.name or target.name,
            url=host_name(source.url),
        ),
        message("Move or rename it, or choose another folder."),
        path=str(target),
        bytes=size,
        expected_bytes=source.bytes,
    )
