"""A transfer at work: it starts and ends connections, waits, watches the disk, verifies, and tells how far it is."""

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from launcher.base.errors import DownloadBroken, LauncherError
from launcher.base.net import host_of, without_secrets
from launcher.base.threads import in_thread, settled
from launcher.fetch.journal import Identity
from launcher.fetch.part import Follower, Part
from launcher.fetch.ranges import Span
from launcher.fetch.transfer_answer import Next, Trouble
from launcher.fetch.transfer_files import disk_full, free_bytes, keep_aside, put_in_place, writing_failed
from launcher.fetch.transfer_pace import Bucket, Growth, Speed, backoff_s
from launcher.fetch.transfer_types import Fetched, Phase, Progress, Source, TransferSettings
from launcher.fetch.transfer_worker import Ask, Worker

TICK_S = 0.1
_ROOM_S = 1.0
_NEW_STARTS = 3
_SMALLEST_CHUNK, _LARGEST_CHUNK = 2**25, 2**28
_WORKED = 2**20
"""A connection that brought that much and broke off is replaced at once while others go on."""


class Transfer:
    """One run of one transfer; its target is claimed and not there yet."""

    def __init__(
        self,
        source: Source,
        target: Path,
        settings: TransferSettings,
        on_progress: Callable[[Progress], None],
        pause: Callable[[float], Awaitable[object]],
    ) -> None:
        self._source = source
        self._target = target
        self._settings = settings
        self._on_progress = on_progress
        self._pause_for = pause
        self._began_s = time.monotonic()
        self._name = source.name or target.name
        self._bucket = Bucket(settings.bytes_per_second) if settings.bytes_per_second else None
        self._growth = Growth(settings.connections, settings.settle_s)
        self._speed = Speed()
        self._phase = Phase.CONNECTING
        self._told_s = self._room_s = 0.0
        self._workers: list[Worker] = []
        self._hashers: list[asyncio.Future[str]] = []
        self._with_range = self._with_condition = True
        self._mixed = self._unsure = False
        self._failures = self._new_starts = 0
        self._received_before = 0

    async def run(self) -> Fetched:
        """Fetch what is missing, verify all, and give it its name."""
        source = self._source
        sha256 = source.sha256.lower() if source.sha256 else None
        identity = Identity(without_secrets(source.url), source.bytes, sha256)
        opening = in_thread(lambda: Part(self._target, identity, self._same), "disk")
        try:
            self._part = await settled(opening)
            return await self._fetched(sha256)
        finally:
            if opening.exception() is None:
                await self._leave(opening.result())

    async def _fetched(self, sha256: str | None) -> Fetched:
        part, ended = self._part, threading.Event()
        try:
            self._check_room()
            self._follow()
            threading.Thread(target=self._sync_now_and_then, args=(ended,), name="sync", daemon=True).start()
            while True:
                await self._receive()
                received = await self._verify()
                if sha256 in (None, received):
                    break
                wrong = self._wrong_because(received)
                if not self._mixed:
                    part.close()
                    raise keep_aside(self._target, wrong, sha256=received, expected_sha256=sha256)
                self._mixed = False
                self._start_anew(Trouble(DownloadBroken(wrong, "Try again."), Next.ANEW))
            part.close()
            await settled(in_thread(lambda: put_in_place(self._target), "disk"))
            size = part.size or 0
            self._tell(Phase.VERIFYING, size, size, part.resumed_bytes, force=True)
            seconds = time.monotonic() - self._began_s
            return Fetched(self._target, size, received, seconds, part.resumed_bytes, part.received_bytes)
        except OSError as error:
            needed = (part.size or 0) - part.done_bytes
            raise writing_failed(error, self._target, needed) from error
        finally:
            ended.set()

    async def _leave(self, part: Part) -> None:
        """End all, and leave nothing behind where nothing has arrived."""
        for worker in self._workers:
            worker.abort()
        part.close()
        if not part.done_bytes and part.size != 0:
            if self._hashers:  # Windows deletes no file that is open
                await asyncio.wait(self._hashers)
            part.remove()

    async def _receive(self) -> None:
        """Fetch what is missing, with as many connections as are worth their while."""
        trouble: Trouble | None = None
        while not self._part.complete:
            if trouble is not None and not self._workers:
                await self._wait_after(trouble)
                trouble = None
            self._start_workers()
            await asyncio.wait([each.ended for each in self._workers], timeout=TICK_S, return_when="FIRST_COMPLETED")
            self._tick()
            for worker in [each for each in self._workers if each.ended.done()]:
                if worker not in self._workers:  # another one's end has ended all
                    continue
                self._workers.remove(worker)
                self._mixed |= worker.mixed
                trouble = self._ended(worker, worker.ended.result())
        for worker in self._workers:
            worker.abort()
        self._workers.clear()

    def _start_workers(self) -> None:
        source, settings = self._source, self._settings
        ask = Ask(
            source.url,
            source.token,
            self._name,
            host_of(source.url),
            settings.stall_s,
            self._with_range,
            self._with_condition,
        )
        wanted = 1 if self._part.size is None else self._growth.wanted
        while len(self._workers) < wanted and (span := self._next_span(wanted)) is not None:
            self._workers.append(Worker(self._part, self._part.claim(span), ask, self._bucket))

    def _next_span(self, wanted: int) -> Span | None:
        """Return what another connection should fetch: the first gap, or a part of what the others still have to.

        With several connections all fetch near the front of what is missing, so that the hash can follow while what
        they wrote is still in the page cache.
        """
        gaps = self._part.gaps()
        if wanted == 1:
            return gaps[0] if gaps else None
        running = self._part.running()
        missing = sum(span.length for span in (*gaps, *running))
        chunk = min(max(missing // (2 * wanted), _SMALLEST_CHUNK), _LARGEST_CHUNK)
        if not gaps:
            longest = max(running, key=lambda span: span.length, default=None)
            if longest is None or longest.length < _SMALLEST_CHUNK:
                return None
            cut = longest.begin + min(chunk, longest.length // 2)
            gaps = [Span(cut, longest.end)]
            self._part.shorten(gaps[0])
        return Span(gaps[0].begin, min(gaps[0].end, gaps[0].begin + chunk))

    def _ended(self, worker: Worker, trouble: Trouble | None) -> Trouble | None:
        """Draw the conclusions from how a connection ended; return what is to be told of if all end so."""
        unsure_before, self._unsure = self._unsure, bool(trouble and trouble.then is Next.UNSURE and not self._workers)
        if trouble is None:
            return None
        if trouble.then is Next.ANEW:
            self._start_anew(trouble)
            return None
        if trouble.then is Next.WRONG:
            self._part.close()
            raise keep_aside(self._target, trouble.error.title)
        if trouble.then is Next.WITHOUT_CONDITION and self._with_condition:
            self._with_condition = False
            return None
        if self._workers:  # the others go on
            if worker.received_bytes < _WORKED or trouble.then is not Next.AGAIN:
                self._growth.stop(len(self._workers))
                self._part.rejoin()
        elif self._with_range and (trouble.then is Next.ALONE or (self._unsure and unsure_before)):
            self._with_range = False
            self._growth.stop(1)
            self._start_anew(trouble)
            return None
        elif trouble.then in (Next.NEVER, Next.WITHOUT_CONDITION):
            raise self._told(trouble.error)
        elif self._part.done_bytes and not (self._with_range and self._resumable(self._part.identity.etag)):
            self._start_anew(trouble)
        return trouble

    def _start_anew(self, trouble: Trouble) -> None:
        self._new_starts += 1
        if self._new_starts > _NEW_STARTS:
            raise trouble.error
        for worker in self._workers:
            worker.abort()
        self._workers.clear()
        self._part.start_anew()
        self._follow()

    def _follow(self) -> None:
        self._follower = Follower(self._part)
        self._hashers.append(in_thread(self._follower.run, "hash"))

    async def _verify(self) -> str:
        """Bring the whole file to the disk, and return its hash."""
        part, follower, hashed = self._part, self._follower, self._hashers[-1]
        synced = in_thread(part.sync, "disk")
        while not (synced.done() and hashed.done()):
            self._tell(Phase.VERIFYING, follower.hashed_bytes, part.size, part.resumed_bytes)
            await asyncio.wait([each for each in (synced, hashed) if not each.done()], timeout=TICK_S)
        synced.result()
        return hashed.result()

    def _wrong_because(self, sha256: str) -> str:
        host = host_of(self._source.url)
        return (
            f"What {host} sent as {self._name} is not that file: its SHA-256 is {sha256}, "
            f"in place of {self._source.sha256}."
        )

    def _sync_now_and_then(self, ended: threading.Event) -> None:
        with suppress(OSError):  # whoever writes next, or syncs at last, meets the same
            while not ended.wait(self._settings.sync_s):
                self._part.sync()

    async def _wait_after(self, trouble: Trouble) -> None:
        """Wait before another try, longer each time. Raises what went wrong when there were enough of them."""
        settings, part = self._settings, self._part
        if part.received_bytes > self._received_before:
            self._failures = 0
        self._received_before = part.received_bytes
        self._failures += 1
        if self._failures >= settings.attempts:
            raise self._told(trouble.error)
        seconds = backoff_s(self._failures, settings.backoff_s, settings.longest_pause_s)
        if trouble.wait_s is not None:
            seconds = max(seconds, min(trouble.wait_s, settings.longest_asked_pause_s))
        again = f"The next try is in {_duration(seconds)}."
        note = f"{trouble.error.title} {again}"
        self._tell(Phase.WAITING, part.done_bytes, part.size, part.resumed_bytes, note=note, force=True)
        await self._pause_for(seconds)

    def _told(self, error: LauncherError) -> LauncherError:
        """Return the error with what it leaves behind."""
        part = self._part
        if part.done_bytes:
            of = f" of {part.size:,}" if part.size else ""
            kept = f"The {part.done_bytes:,}{of} bytes that have arrived are kept: the same command goes on from there."
            error.hint = f"{error.hint} {kept}".lstrip()
        return error

    def _tick(self) -> None:
        part, workers, now_s = self._part, self._workers, time.monotonic()
        done = part.done_bytes
        if now_s - self._room_s > _ROOM_S:
            self._check_room()
        accepted = [each.accepted for each in workers if each.accepted is not None]
        large = (part.size or 0) - done > self._settings.least_parallel_bytes
        if (
            large
            and self._bucket is None
            and accepted
            and all(each.ranges and self._resumable(each.etag) for each in accepted)
        ):
            busy = sum(each.received_bytes > 0 for each in workers)
            self._growth.observe(now_s, part.received_bytes, settled=busy >= self._growth.wanted)
        self._tell(Phase.RECEIVING if accepted else Phase.CONNECTING, done, part.size, part.resumed_bytes)

    def _resumable(self, etag: str | None) -> bool:
        """Return whether parts that came one by one can be known to be of one file: a weak ETag does not tell that."""
        return self._source.sha256 is not None or (etag or "").startswith('"')

    def _check_room(self) -> None:
        """Raise DiskFull when what is missing has no room besides the reserve."""
        self._room_s = time.monotonic()
        part, reserve, folder = self._part, self._settings.reserve_bytes, self._target.parent
        needed, free = max((part.size or 0) - part.done_bytes, 0), free_bytes(folder)
        if needed and free < needed + reserve:
            raise disk_full(folder, needed=needed, free=free, reserve=reserve)

    def _same(self, known: Identity) -> bool:
        """Return whether what waits from an earlier run belongs to this file."""
        source = self._source
        if source.bytes is not None and known.bytes not in (None, source.bytes):
            return False
        if source.sha256 and known.sha256:
            return source.sha256.lower() == known.sha256  # from whichever mirror
        return known.url == without_secrets(source.url) and self._resumable(known.etag)

    def _tell(
        self, phase: Phase, done: int, size: int | None, resumed: int, *, note: str = "", force: bool = False
    ) -> None:
        now_s = time.monotonic()
        if not force and now_s - self._told_s < TICK_S * 0.9:
            return
        if phase is not self._phase:
            self._phase, self._speed = phase, Speed()
        self._told_s = now_s
        speed = self._speed.sample(now_s, done)
        left = (size - done) / speed if speed and size is not None else None
        self._on_progress(Progress(phase, done, size, resumed, speed, left, note))


def _duration(seconds: float) -> str:
    whole = max(1, math.ceil(seconds))
    return f"{whole} s" if whole < 120 else f"{round(whole / 60)} minutes"
