"""Transfers over several connections, and repeated attempts."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import pytest

from launcher.base.errors import (
    BadOption,
    LauncherError,
    Refused,
)
from launcher.base.progress import Phase, Progress
from launcher.fetch import transfer
from launcher.fetch.partial_file import count_unfinished_bytes
from launcher.fetch.transfer import DownloadSource, TransferSettings, download_file
from tests.fetch.conftest import QUICK, FileOnServer


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> TransferSettings:
    """Settings with which a small file is fetched over several connections."""
    monkeypatch.setattr(transfer, "_SMALLEST_CHUNK", 50_000)
    monkeypatch.setattr(transfer, "TICK_S", 0.01)
    return replace(QUICK, least_parallel_bytes=100_000, connections=4)


class TestSeveralConnections:
    async def test_several_connections_are_used_if_each_is_limited(
        self, remote_file: FileOnServer, small_chunks: TransferSettings
    ) -> None:
        await download_file(
            remote_file.source("slow=1000000"), remote_file.target, settings=replace(small_chunks, connections=1)
        )
        assert len(remote_file.requests) == 1
        remote_file.target.unlink()
        await download_file(remote_file.source("slow=1000000"), remote_file.target, settings=small_chunks)
        assert remote_file.target.read_bytes() == remote_file.content
        assert len({each["Range"] for each in remote_file.requests}) > 2

    async def test_no_connection_is_opened_for_a_few_bytes(
        self, remote_file: FileOnServer, small_chunks: TransferSettings
    ) -> None:
        await download_file(remote_file.source("slow=1000000"), remote_file.target, settings=small_chunks)
        assert remote_file.target.read_bytes() == remote_file.content
        begins = sorted(int(each["Range"].removeprefix("bytes=").partition("-")[0]) for each in remote_file.requests)
        assert len(begins) > 2
        assert min(later - earlier for earlier, later in pairwise(begins)) >= 25_000  # half of a range, when it is cut

    @pytest.mark.parametrize("faults", ["busy=1", "503*3,only-ranges,after=1", "ignores-range", "etag=new"])
    async def test_a_server_without_ranges_still_serves_the_file(
        self, remote_file: FileOnServer, small_chunks: TransferSettings, faults: str
    ) -> None:
        await download_file(remote_file.source(f"slow=4000000,{faults}"), remote_file.target, settings=small_chunks)
        assert remote_file.target.read_bytes() == remote_file.content

    async def test_a_dropped_connection_is_repeated_alone(
        self, remote_file: FileOnServer, small_chunks: TransferSettings
    ) -> None:
        await download_file(remote_file.source("slow=1000000,drops=60000*6"), remote_file.target, settings=small_chunks)
        assert remote_file.target.read_bytes() == remote_file.content

    async def test_a_changed_file_restarts_all_connections(
        self, remote_file: FileOnServer, small_chunks: TransferSettings
    ) -> None:
        source = remote_file.source("slow=1000000,changes=2", bytes=None, sha256=None)
        got = await download_file(source, remote_file.target, settings=small_chunks)
        assert remote_file.target.read_bytes() == remote_file.content[::-1]
        begins = [int(each["Range"].removeprefix("bytes=").partition("-")[0]) for each in remote_file.requests]
        # The second one is the restart; the other connections of the first attempt did not restart separately.
        assert begins.count(0) == 2
        assert got.received_bytes > len(remote_file.content)

    async def test_cancelled_connections_resume_later(
        self, remote_file: FileOnServer, small_chunks: TransferSettings
    ) -> None:
        task = asyncio.create_task(
            download_file(remote_file.source("slow=1000000"), remote_file.target, settings=small_chunks)
        )
        while (count_unfinished_bytes(remote_file.target) or 0) < 300_000:
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        waiting = count_unfinished_bytes(remote_file.target)
        got = await download_file(remote_file.source(), remote_file.target, settings=small_chunks)
        assert got.resumed_bytes == waiting
        assert remote_file.target.read_bytes() == remote_file.content


class TestTrying:
    async def test_a_requested_pause_is_respected_up_to_the_limit(self, remote_file: FileOnServer) -> None:
        pauses: list[float] = []
        notes: list[str] = []

        async def pause(seconds: float) -> None:
            pauses.append(seconds)

        def watch(progress: Progress) -> None:
            if progress.phase is Phase.WAITING:
                notes.append(progress.note)

        await download_file(
            remote_file.source("429*1,retry=7"), remote_file.target, settings=QUICK, pause=pause, on_progress=watch
        )
        assert pauses == [7.0]
        assert notes == ["127.0.0.1 received too many requests. Next try in 7 s."]
        remote_file.target.unlink()
        remote_file.run += "b"
        await download_file(remote_file.source("503*1,retry=86400"), remote_file.target, settings=QUICK, pause=pause)
        assert pauses[1] == QUICK.longest_asked_pause_s

    async def test_progress_resets_the_count_of_attempts(self, remote_file: FileOnServer) -> None:
        await download_file(remote_file.source("drops=150000"), remote_file.target, settings=QUICK)
        assert len(remote_file.requests) == 7 > QUICK.attempts

    @pytest.mark.parametrize("status", [401, 403, 404, 410])
    async def test_a_refusal_is_reported_at_once(self, remote_file: FileOnServer, status: int) -> None:
        with pytest.raises(Refused) as caught:
            await download_file(remote_file.source(f"{status}"), remote_file.target, settings=QUICK)
        assert (caught.value.status, len(remote_file.requests)) == (status, 1)

    async def test_received_bytes_are_reported_with_the_error(self, remote_file: FileOnServer) -> None:
        with pytest.raises(LauncherError) as caught:
            await download_file(remote_file.source("503,after=1,drops=300000"), remote_file.target, settings=QUICK)
        assert "300,000 of 1,000,000 bytes" in caught.value.hint

    @pytest.mark.parametrize("url", ["nonsense", "ftp://example.org/x", "http://", "http://[::1", "http://a:b/"])
    async def test_an_invalid_address_is_reported(self, remote_file: FileOnServer, url: str) -> None:
        with pytest.raises(BadOption):
            await download_file(DownloadSource(url), remote_file.target, settings=QUICK)
