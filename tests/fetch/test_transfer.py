"""One file from a server: whole, resumed, cancelled, over several connections, and what is left beside it."""

import asyncio
import hashlib
import itertools
import random
import resource
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.base.errors import (
    BadOption,
    DiskFull,
    DownloadBroken,
    DownloadBusy,
    FileInTheWay,
    LauncherError,
    Refused,
    TargetUnusable,
)
from launcher.fetch import journal, transfer_run
from launcher.fetch.journal import Identity, Stretch
from launcher.fetch.ranges import Span, gaps, merged, n_bytes
from launcher.fetch.transfer import Fetched, Phase, Progress, Source, TransferSettings, discard, fetch, unfinished
from launcher.fetch.transfer_files import claimed, free_bytes
from tools.fault_matrix.server import FileServer

CONTENT = random.Random(2).randbytes(1_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
QUICK = TransferSettings(attempts=3, backoff_s=0.001, stall_s=5.0, reserve_bytes=0, settle_s=0.02)


_EXAMPLES = itertools.count()


class Place:
    """A file on the fake server, and where it goes."""

    def __init__(self, server: FileServer, run: str, folder: Path) -> None:
        self.server, self.run = server, run
        self.target = folder / "model.gguf"

    def source(self, faults: str = "none", *, name: str = "model.gguf", **known: object) -> Source:
        return replace(Source(self.server.url(self.run, faults, name), len(CONTENT), SHA256), **known)  # type: ignore[arg-type]

    async def interrupted(self, source: Source, after: int = 1) -> None:
        """Cancel a fetch once that many bytes are there."""
        enough = asyncio.Event()

        def watch(progress: Progress) -> None:
            if progress.done_bytes >= after:
                enough.set()

        task = asyncio.create_task(fetch(source, self.target, settings=QUICK, on_progress=watch))
        await asyncio.wait_for(enough.wait(), 10)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    @property
    def requests(self) -> list[dict[str, str]]:
        return self.server.told(self.run).requests

    @property
    def beside(self) -> list[str]:
        return sorted(path.name for path in self.target.parent.iterdir() if path != self.target)


@pytest.fixture
def place(file_server: FileServer, run_name: str, tmp_path: Path) -> Place:
    (file_server.folder / "model.gguf").write_bytes(CONTENT)
    (file_server.folder / "empty").write_bytes(b"")
    folder = tmp_path / "models"
    folder.mkdir()
    return Place(file_server, run_name, folder)


class TestAFile:
    async def test_arrives_whole_and_nothing_stays_beside_it(self, place: Place) -> None:
        got = await fetch(place.source(), place.target, settings=QUICK)
        assert got == Fetched(place.target, len(CONTENT), SHA256, got.seconds, 0, len(CONTENT))
        assert place.target.read_bytes() == CONTENT
        assert place.beside == []

    async def test_of_unknown_size_and_hash_arrives_with_its_hash(self, place: Place) -> None:
        got = await fetch(place.source(bytes=None, sha256=None), place.target, settings=QUICK)
        assert (got.bytes, got.sha256) == (len(CONTENT), SHA256)

    async def test_of_no_bytes_arrives(self, place: Place) -> None:
        for size in (0, None):
            got = await fetch(place.source(name="empty", bytes=size, sha256=None), place.target, settings=QUICK)
            assert (got.bytes, got.sha256) == (0, hashlib.sha256(b"").hexdigest())
            place.target.unlink()

    async def test_goes_into_a_folder_that_is_made_for_it(self, place: Place) -> None:
        target = place.target.parent / "new" / "er" / "model.gguf"
        assert (await fetch(place.source(), target, settings=QUICK)).path.read_bytes() == CONTENT

    async def test_a_hash_in_capitals_is_the_same(self, place: Place) -> None:
        assert (await fetch(place.source(sha256=SHA256.upper()), place.target, settings=QUICK)).sha256 == SHA256

    async def test_progress_grows_and_ends_with_all(self, place: Place) -> None:
        told: list[tuple[float, Progress]] = []
        thread = threading.get_ident()

        def watch(progress: Progress) -> None:
            assert threading.get_ident() == thread
            told.append((time.monotonic(), progress))

        await fetch(place.source("slow=3000000"), place.target, settings=QUICK, on_progress=watch)
        received = [each.done_bytes for _, each in told if each.phase is Phase.RECEIVING]
        assert received == sorted(received)
        assert told[-1][1].phase is Phase.VERIFYING
        assert told[-1][1].done_bytes == told[-1][1].bytes == len(CONTENT)
        times = [when for when, _ in told[:-1]]
        assert all(later - sooner > 0.08 for sooner, later in itertools.pairwise(times))

    async def test_is_received_no_faster_than_allowed(self, place: Place) -> None:
        slow = replace(QUICK, bytes_per_second=2_000_000)
        assert (await fetch(place.source(), place.target, settings=slow)).seconds > 0.3

    async def test_comes_through_the_environments_proxy(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HTTP_PROXY", place.server.origin.replace("://", "://me:secret@"))
        monkeypatch.setenv("http_proxy", place.server.origin.replace("://", "://me:secret@"))
        source = replace(place.source(), url=f"http://hub.invalid/{place.run}/none/model.gguf")
        await fetch(source, place.target, settings=QUICK)
        asked = place.requests
        assert asked[0]["target"] == source.url
        assert asked[0]["Proxy-Authorization"].startswith("Basic ")


class TestSecrets:
    async def test_the_token_goes_to_the_first_server_only(self, place: Place) -> None:
        await fetch(place.source("redirect", token="hf_secret"), place.target, settings=QUICK)
        told = [(each["server"], each.get("Authorization")) for each in place.requests]
        assert told == [("origin", "Bearer hf_secret"), ("store", None)]

    async def test_the_journal_holds_no_signature_and_no_token(self, place: Place) -> None:
        source = place.source("redirect,stalls=300000", token="hf_secret")
        source = replace(source, url=source.url.replace("://", "://me:password@") + "?signature=s3cret")
        await place.interrupted(source)
        text = place.target.with_name("model.gguf.part.journal").read_text()
        assert "model.gguf" in text
        assert not any(secret in text for secret in ("s3cret", "hf_secret", "password"))


class TestResuming:
    async def test_only_what_is_missing_is_asked_for(self, place: Place) -> None:
        await place.interrupted(place.source("stalls=300000*1"), after=300_000)
        assert unfinished(place.target) == 300_000
        got = await fetch(place.source("stalls=300000*1"), place.target, settings=QUICK)
        assert (got.resumed_bytes, got.received_bytes) == (300_000, 700_000)
        assert place.target.read_bytes() == CONTENT
        last = place.requests[-1]
        assert last["Range"] == "bytes=300000-999999"
        assert last["If-Range"].startswith('"')

    async def test_at_another_address_that_promises_the_same_hash(self, place: Place) -> None:
        await place.interrupted(place.source("stalls=300000"), after=300_000)
        assert (await fetch(place.source("redirect"), place.target, settings=QUICK)).resumed_bytes == 300_000

    async def test_not_for_another_hash(self, place: Place) -> None:
        await place.interrupted(place.source("stalls=300000,wrong", sha256="0" * 64), after=300_000)
        got = await fetch(place.source(), place.target, settings=QUICK)
        assert (got.resumed_bytes, got.received_bytes) == (0, len(CONTENT))

    async def test_not_without_a_journal(self, place: Place) -> None:
        await place.interrupted(place.source("stalls=300000"), after=300_000)
        place.target.with_name("model.gguf.part.journal").unlink()
        assert unfinished(place.target) is None
        assert (await fetch(place.source(), place.target, settings=QUICK)).resumed_bytes == 0

    async def test_a_part_that_was_cut_short_counts_as_far_as_it_goes(self, place: Place) -> None:
        await place.interrupted(place.source("stalls=300000"), after=300_000)
        with place.target.with_name("model.gguf.part").open("r+b") as file:
            file.truncate(100_000)
        assert (await fetch(place.source(), place.target, settings=QUICK)).resumed_bytes == 100_000

    async def test_after_a_power_cut_what_was_synced_counts(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await place.interrupted(place.source("stalls=300000"), after=300_000)
        monkeypatch.setattr(journal, "boot", lambda: "the next boot")
        got = await fetch(place.source(), place.target, settings=QUICK)
        assert got.resumed_bytes < 300_000
        assert place.target.read_bytes() == CONTENT

    async def test_what_was_complete_needs_no_server(self, place: Place) -> None:
        part, size = place.target.with_name("model.gguf.part"), len(CONTENT)
        part.write_bytes(CONTENT)
        identity = Identity("http://nobody.invalid/", size, SHA256, None)
        journal.create(part.with_name("model.gguf.part.journal"), identity, [Stretch(0, size, size)])
        got = await fetch(Source("http://nobody.invalid/", size, SHA256), place.target, settings=QUICK)
        assert (got.resumed_bytes, got.received_bytes) == (size, 0)
        assert place.beside == []

    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.lists(st.tuples(st.integers(0, 999_999), st.integers(1, 400_000)), max_size=6))
    def test_whatever_is_there_the_gaps_are_fetched_and_no_byte_more(
        self, place: Place, pieces: list[tuple[int, int]]
    ) -> None:
        place.run = f"gaps{next(_EXAMPLES)}"
        finished = merged(Span(begin, min(begin + length, len(CONTENT))) for begin, length in pieces)
        data = bytearray(b"?" * len(CONTENT))
        for begin, end in finished:
            data[begin:end] = CONTENT[begin:end]
        place.target.unlink(missing_ok=True)
        place.target.with_name("model.gguf.part").write_bytes(data)
        journal.create(
            place.target.with_name("model.gguf.part.journal"),
            Identity(place.source().url, len(CONTENT), SHA256),
            [Stretch(begin, end, end) for begin, end in finished],
        )
        got = asyncio.run(fetch(place.source(), place.target, settings=QUICK))
        assert place.target.read_bytes() == CONTENT
        assert got.resumed_bytes == n_bytes(finished)
        told = place.server.told(place.run)
        assert told.sent_bytes == got.received_bytes == n_bytes(gaps(finished, len(CONTENT)))
        assert len(told.requests) == len(gaps(finished, len(CONTENT)))


class TestCancelling:
    async def test_it_returns_at_once_while_the_server_is_silent(self, place: Place) -> None:
        task = asyncio.create_task(fetch(place.source("stalls=0"), place.target, settings=QUICK))
        while not place.requests:
            await asyncio.sleep(0)
        began_s = time.monotonic()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert time.monotonic() - began_s < 1.0

    async def test_no_thread_stays(self, place: Place) -> None:
        await place.interrupted(place.source("stalls=300000"))
        ours = {"receive", "hash", "sync", "disk"}
        deadline_s = time.monotonic() + 3
        while ours & {each.name for each in threading.enumerate()} and time.monotonic() < deadline_s:
            await asyncio.sleep(0)
        assert not ours & {each.name for each in threading.enumerate()}

    async def test_the_next_fetch_may_begin_at_once(self, place: Place) -> None:
        for _ in range(5):
            await place.interrupted(place.source("slow=2000000"))
        assert (await fetch(place.source(), place.target, settings=QUICK)).resumed_bytes > 0
        assert place.target.read_bytes() == CONTENT

    async def test_it_ends_a_pause(self, place: Place) -> None:
        waiting = asyncio.Event()

        async def pause(_seconds: float) -> None:
            waiting.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(fetch(place.source("500"), place.target, settings=QUICK, pause=pause))
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert place.beside == []

    async def test_giving_up_leaves_nothing(self, place: Place) -> None:
        await place.interrupted(place.source("stalls=300000"))
        assert place.beside == ["model.gguf.part", "model.gguf.part.journal"]
        discard(place.target)
        assert place.beside == []
        assert unfinished(place.target) is None
        discard(place.target.parent / "nowhere" / "model.gguf")


class TestATargetThatIsThere:
    async def test_is_verified_and_returned_without_a_request(self, place: Place) -> None:
        place.target.write_bytes(CONTENT)
        got = await fetch(place.source(), place.target, settings=QUICK)
        assert (got.sha256, got.received_bytes, place.requests) == (SHA256, 0, [])

    @pytest.mark.parametrize("there", [CONTENT[::-1], b"mine"])
    async def test_is_not_overwritten_when_it_is_another_file(self, place: Place, there: bytes) -> None:
        place.target.write_bytes(there)
        with pytest.raises(FileInTheWay):
            await fetch(place.source(), place.target, settings=QUICK)
        assert place.target.read_bytes() == there

    async def test_is_not_taken_for_a_file_that_nothing_is_known_of(self, place: Place) -> None:
        place.target.write_bytes(CONTENT)
        with pytest.raises(FileInTheWay):
            await fetch(place.source(bytes=None, sha256=None), place.target, settings=QUICK)

    async def test_a_folder_is_in_the_way_too(self, place: Place) -> None:
        place.target.mkdir()
        with pytest.raises(FileInTheWay):
            await fetch(place.source(), place.target, settings=QUICK)


class TestWrongBytes:
    async def test_they_are_kept_aside_with_the_reason_and_the_next_fetch_begins_anew(self, place: Place) -> None:
        with pytest.raises(DownloadBroken) as told:
            await fetch(place.source("wrong"), place.target, settings=QUICK)
        assert place.beside == ["model.gguf.bad", "model.gguf.bad.txt"]
        assert SHA256 in place.target.with_name("model.gguf.bad.txt").read_text()
        assert told.value.facts["path"] == str(place.target.with_name("model.gguf.bad"))
        assert not place.target.exists()
        assert (await fetch(place.source(), place.target, settings=QUICK)).resumed_bytes == 0


class TestTheDisk:
    async def test_without_room_nothing_is_asked_for(self, place: Place) -> None:
        tight = replace(QUICK, reserve_bytes=free_bytes(place.target.parent) - 500_000)
        with pytest.raises(DiskFull) as told:
            await fetch(place.source(), place.target, settings=tight)
        assert told.value.facts["needed_bytes"] == len(CONTENT)
        assert (place.requests, place.beside) == ([], [])

    async def test_full_in_the_middle_loses_nothing(self, place: Place) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, hard))
        try:
            with pytest.raises(DiskFull):
                await fetch(place.source(), place.target, settings=QUICK)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert (await fetch(place.source(), place.target, settings=QUICK)).resumed_bytes == 600_000
        assert place.target.read_bytes() == CONTENT

    async def test_a_file_in_place_of_the_folder_is_told(self, place: Place) -> None:
        place.target.write_bytes(b"")
        with pytest.raises(TargetUnusable):
            await fetch(place.source(), place.target / "model.gguf", settings=QUICK)

    async def test_one_at_a_time(self, place: Place) -> None:
        with claimed(place.target), pytest.raises(DownloadBusy):
            await fetch(place.source(), place.target, settings=QUICK)
        with claimed(place.target), pytest.raises(DownloadBusy):
            discard(place.target)
        await fetch(place.source(), place.target, settings=QUICK)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> TransferSettings:
    """Let a small file be worth several connections."""
    monkeypatch.setattr(transfer_run, "_SMALLEST_CHUNK", 50_000)
    monkeypatch.setattr(transfer_run, "TICK_S", 0.01)
    return replace(QUICK, least_parallel_bytes=100_000, connections=4)


def overlap(requests: list[dict[str, str]]) -> int:
    return len({each["Range"] for each in requests})


class TestSeveralConnections:
    async def test_they_are_faster_where_each_is_limited(self, place: Place, small_chunks: TransferSettings) -> None:
        alone = await fetch(place.source("slow=1000000"), place.target, settings=replace(small_chunks, connections=1))
        place.target.unlink()
        together = await fetch(place.source("slow=1000000"), place.target, settings=small_chunks)
        assert place.target.read_bytes() == CONTENT
        assert together.seconds < alone.seconds / 1.5

    @pytest.mark.parametrize("faults", ["busy=1", "503*3,only-ranges,after=1", "ignores-range", "etag=new"])
    async def test_a_server_that_wants_none_of_it_still_gives_the_file(
        self, place: Place, small_chunks: TransferSettings, faults: str
    ) -> None:
        await fetch(place.source(f"slow=4000000,{faults}"), place.target, settings=small_chunks)
        assert place.target.read_bytes() == CONTENT

    async def test_a_drop_costs_only_itself(self, place: Place, small_chunks: TransferSettings) -> None:
        await fetch(place.source("slow=1000000,drops=60000*6"), place.target, settings=small_chunks)
        assert place.target.read_bytes() == CONTENT

    async def test_a_changed_file_stops_all(self, place: Place, small_chunks: TransferSettings) -> None:
        source = place.source("slow=1000000,changes=3", bytes=None, sha256=None)
        await fetch(source, place.target, settings=small_chunks)
        assert place.target.read_bytes() in (CONTENT, CONTENT[::-1])

    async def test_cancelled_they_go_on_later(self, place: Place, small_chunks: TransferSettings) -> None:
        task = asyncio.create_task(fetch(place.source("slow=1000000"), place.target, settings=small_chunks))
        while (unfinished(place.target) or 0) < 300_000:
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        waiting = unfinished(place.target)
        got = await fetch(place.source(), place.target, settings=small_chunks)
        assert got.resumed_bytes == waiting
        assert place.target.read_bytes() == CONTENT


class TestTrying:
    async def test_a_server_that_asks_to_wait_is_obeyed_up_to_the_longest_pause(self, place: Place) -> None:
        pauses: list[float] = []
        notes: list[str] = []

        async def pause(seconds: float) -> None:
            pauses.append(seconds)

        def watch(progress: Progress) -> None:
            if progress.phase is Phase.WAITING:
                notes.append(progress.note)

        await fetch(place.source("429*1,retry=7"), place.target, settings=QUICK, pause=pause, on_progress=watch)
        assert pauses == [7.0]
        assert notes == ["127.0.0.1 has had too many requests. The next try is in 7 s."]
        place.target.unlink()
        place.run += "b"
        await fetch(place.source("503*1,retry=86400"), place.target, settings=QUICK, pause=pause)
        assert pauses[1] == QUICK.longest_pause_s

    async def test_progress_starts_the_count_of_attempts_anew(self, place: Place) -> None:
        await fetch(place.source("drops=150000"), place.target, settings=QUICK)
        assert len(place.requests) == 7 > QUICK.attempts

    @pytest.mark.parametrize("status", [401, 403, 404, 410])
    async def test_a_refusal_is_told_at_once(self, place: Place, status: int) -> None:
        with pytest.raises(Refused) as told:
            await fetch(place.source(f"{status}"), place.target, settings=QUICK)
        assert (told.value.status, len(place.requests)) == (status, 1)

    async def test_what_has_arrived_is_told_with_the_error(self, place: Place) -> None:
        with pytest.raises(LauncherError) as told:
            await fetch(place.source("503,after=1,drops=300000"), place.target, settings=QUICK)
        assert "300,000 of 1,000,000 bytes" in told.value.hint

    @pytest.mark.parametrize("url", ["nonsense", "ftp://example.org/x", "http://", "http://[::1", "http://a:b/"])
    async def test_what_is_no_address_is_told(self, place: Place, url: str) -> None:
        with pytest.raises(BadOption):
            await fetch(Source(url), place.target, settings=QUICK)


def test_the_programs_end_waits_for_no_thread(place: Place, run_child: Callable[[str], float]) -> None:
    """A loop that is closed while the server is silent leaves nothing that holds the interpreter."""
    url = place.source("stalls=0").url
    assert (
        run_child(
            "import asyncio, pathlib, sys\n"
            "from launcher.fetch.transfer import Source, fetch\n"
            f"work = fetch(Source({url!r}), pathlib.Path({str(place.target)!r}))\n"
            "try: asyncio.run(asyncio.wait_for(work, 0.3))\n"
            "except TimeoutError: pass\n"
        )
        < 5
    )


@pytest.fixture
def run_child() -> Callable[[str], float]:
    """Run Python, and return its seconds."""
    import subprocess
    import sys

    def run(text: str) -> float:
        began_s = time.monotonic()
        subprocess.run([sys.executable, "-c", text], check=True, cwd=Path(__file__).parents[2], timeout=20)
        return time.monotonic() - began_s

    return run
