"""One file from a server: whole, resumed, cancelled, over several connections, and the files that it leaves."""

import asyncio
import hashlib
import itertools
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
    DownloadBroken,
    FileInTheWay,
)
from launcher.base.progress import Phase, Progress
from launcher.fetch import journal
from launcher.fetch.journal import DownloadIdentity, Span, Stretch, count_bytes, find_gaps, merge_spans
from launcher.fetch.partial_file import PartialFile, count_unfinished_bytes
from launcher.fetch.transfer import DownloadedFile, DownloadSource, discard_download, download_file
from tests.fetch.conftest import QUICK, Place

_EXAMPLES = itertools.count()


class TestFile:
    async def test_a_file_arrives_completely_and_nothing_else_is_left(self, place: Place) -> None:
        got = await download_file(place.source(), place.target, settings=QUICK)
        assert got == DownloadedFile(place.target, len(place.content), place.sha256, got.seconds, 0, len(place.content))
        assert place.target.read_bytes() == place.content
        assert place.beside == []

    async def test_a_file_of_unknown_size_and_hash_gets_its_hash(self, place: Place) -> None:
        got = await download_file(place.source(bytes=None, sha256=None), place.target, settings=QUICK)
        assert (got.bytes, got.sha256) == (len(place.content), place.sha256)

    async def test_an_empty_file_arrives(self, place: Place) -> None:
        for size in (0, None):
            got = await download_file(place.source(name="empty", bytes=size, sha256=None), place.target, settings=QUICK)
            assert (got.bytes, got.sha256) == (0, hashlib.sha256(b"").hexdigest())
            place.target.unlink()

    async def test_missing_folders_are_created(self, place: Place) -> None:
        target = place.target.parent / "new" / "er" / "model.gguf"
        assert (await download_file(place.source(), target, settings=QUICK)).path.read_bytes() == place.content

    async def test_a_hash_in_capitals_is_accepted(self, place: Place) -> None:
        assert (
            await download_file(place.source(sha256=place.sha256.upper()), place.target, settings=QUICK)
        ).sha256 == place.sha256

    async def test_progress_grows_to_the_whole_size(self, place: Place) -> None:
        collected: list[tuple[float, Progress]] = []
        thread = threading.get_ident()

        def watch(progress: Progress) -> None:
            assert threading.get_ident() == thread
            collected.append((time.monotonic(), progress))

        await download_file(place.source("slow=3000000"), place.target, settings=QUICK, on_progress=watch)
        received = [each.done_bytes for _, each in collected if each.phase is Phase.RECEIVING]
        assert received == sorted(received)
        assert collected[-1][1].phase is Phase.VERIFYING
        assert collected[-1][1].done_bytes == collected[-1][1].bytes == len(place.content)
        assert len(collected) <= (collected[-1][0] - collected[0][0]) / 0.09 + 2

    async def test_the_speed_limit_holds(self, place: Place) -> None:
        slow = replace(QUICK, bytes_per_second=2_000_000)
        assert (await download_file(place.source(), place.target, settings=slow)).seconds > 0.3

    async def test_the_proxy_of_the_environment_is_used(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HTTP_PROXY", place.server.origin.replace("://", "://me:secret@"))
        monkeypatch.setenv("http_proxy", place.server.origin.replace("://", "://me:secret@"))
        source = replace(place.source(), url=f"http://hub.invalid/{place.run}/none/model.gguf")
        await download_file(source, place.target, settings=QUICK)
        requests = place.requests
        assert requests[0]["target"] == source.url
        assert requests[0]["Proxy-Authorization"].startswith("Basic ")


class TestSecrets:
    async def test_the_token_is_sent_to_the_first_server_only(self, place: Place) -> None:
        await download_file(place.source("redirect", token="hf_secret"), place.target, settings=QUICK)
        received = [(each["server"], each.get("Authorization")) for each in place.requests]
        assert received == [("origin", "Bearer hf_secret"), ("store", None)]

    async def test_the_journal_has_no_signature_and_no_token(self, place: Place) -> None:
        source = place.source("redirect,stalls=300000", token="hf_secret")
        source = replace(source, url=source.url.replace("://", "://me:password@") + "?signature=s3cret")
        await place.interrupted(source)
        text = place.target.with_name("model.gguf.part.journal").read_text()
        assert "model.gguf" in text
        assert not any(secret in text for secret in ("s3cret", "hf_secret", "password"))


class TestResuming:
    async def test_only_missing_bytes_are_requested(self, place: Place) -> None:
        await place.interrupted(place.source("stalls=300000*1"), after=300_000)
        assert count_unfinished_bytes(place.target) == 300_000
        got = await download_file(place.source("stalls=300000*1"), place.target, settings=QUICK)
        assert (got.resumed_bytes, got.received_bytes) == (300_000, 700_000)
        assert place.target.read_bytes() == place.content
        last = place.requests[-1]
        assert last["Range"] == "bytes=300000-999999"
        assert last["If-Range"].startswith('"')

    async def test_another_address_with_the_same_hash_resumes(self, place: Place) -> None:
        await place.interrupted(place.source("stalls=300000"), after=300_000)
        assert (await download_file(place.source("redirect"), place.target, settings=QUICK)).resumed_bytes == 300_000

    async def test_another_hash_does_not_resume(self, place: Place, caplog: pytest.LogCaptureFixture) -> None:
        await place.interrupted(place.source("stalls=300000,wrong", sha256="0" * 64), after=300_000)
        got = await download_file(place.source(), place.target, settings=QUICK)
        assert (got.resumed_bytes, got.received_bytes) == (0, len(place.content))
        assert "model.gguf: 300,000 bytes of an earlier download belong to another file" in caplog.text

    async def test_a_missing_journal_does_not_resume(self, place: Place) -> None:
        await place.interrupted(place.source("stalls=300000"), after=300_000)
        place.target.with_name("model.gguf.part.journal").unlink()
        assert count_unfinished_bytes(place.target) is None
        assert (await download_file(place.source(), place.target, settings=QUICK)).resumed_bytes == 0

    async def test_a_truncated_partial_file_counts_up_to_its_end(self, place: Place) -> None:
        await place.interrupted(place.source("stalls=300000"), after=300_000)
        with place.target.with_name("model.gguf.part").open("r+b") as file:
            file.truncate(100_000)
        assert (await download_file(place.source(), place.target, settings=QUICK)).resumed_bytes == 100_000

    async def test_after_a_power_failure_synced_data_counts(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await place.interrupted(place.source("stalls=300000"), after=300_000)
        part = PartialFile(
            place.target, DownloadIdentity(place.source().url, len(place.content), place.sha256), lambda _: True
        )
        part.sync()
        part.write(part.claim_segment(Span(300_000, 400_000)), memoryview(place.content)[300_000:400_000])
        part.close()
        assert count_unfinished_bytes(place.target) == 400_000
        monkeypatch.setattr(journal, "boot_id", lambda: "the next boot")
        assert count_unfinished_bytes(place.target) == 300_000
        got = await download_file(place.source(), place.target, settings=QUICK)
        assert got.resumed_bytes == 300_000
        assert place.target.read_bytes() == place.content

    async def test_a_complete_partial_file_needs_no_request(self, place: Place) -> None:
        part, size = place.target.with_name("model.gguf.part"), len(place.content)
        part.write_bytes(place.content)
        identity = DownloadIdentity("http://nobody.invalid/", size, place.sha256, None)
        journal.create_journal(part.with_name("model.gguf.part.journal"), identity, [Stretch(0, size, size)])
        got = await download_file(
            DownloadSource("http://nobody.invalid/", size, place.sha256), place.target, settings=QUICK
        )
        assert (got.resumed_bytes, got.received_bytes) == (size, 0)
        assert place.beside == []

    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.lists(st.tuples(st.integers(0, 999_999), st.integers(1, 400_000)), max_size=6))
    def test_exactly_the_gaps_are_fetched(self, place: Place, pieces: list[tuple[int, int]]) -> None:
        place.run = f"gaps{next(_EXAMPLES)}"
        finished = merge_spans(Span(begin, min(begin + length, len(place.content))) for begin, length in pieces)
        data = bytearray(b"?" * len(place.content))
        for begin, end in finished:
            data[begin:end] = place.content[begin:end]
        place.target.unlink(missing_ok=True)
        place.target.with_name("model.gguf.part").write_bytes(data)
        journal.create_journal(
            place.target.with_name("model.gguf.part.journal"),
            DownloadIdentity(place.source().url, len(place.content), place.sha256),
            [Stretch(begin, end, end) for begin, end in finished],
        )
        got = asyncio.run(download_file(place.source(), place.target, settings=QUICK))
        assert place.target.read_bytes() == place.content
        assert got.resumed_bytes == count_bytes(finished)
        result = place.server.read_record(place.run)
        assert result.sent_bytes == got.received_bytes == count_bytes(find_gaps(finished, len(place.content)))
        assert len(result.requests) == len(find_gaps(finished, len(place.content)))


class TestCancelling:
    async def test_cancelling_returns_at_once_while_the_server_is_silent(self, place: Place) -> None:
        patient = replace(QUICK, stall_s=600.0)
        task = asyncio.create_task(download_file(place.source("stalls=0"), place.target, settings=patient))
        while not await asyncio.to_thread(lambda: place.requests):
            pass
        began_s = time.monotonic()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert time.monotonic() - began_s < 300

    async def test_cancelling_before_the_first_byte_leaves_no_file(self, place: Place) -> None:
        task = asyncio.create_task(download_file(place.source("stalls=0"), place.target, settings=QUICK))
        while "disk" not in {each.name for each in threading.enumerate()}:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert place.beside == []

    async def test_no_thread_is_left(self, place: Place) -> None:
        await place.interrupted(place.source("stalls=300000"))
        ours = {"receive", "hash", "sync", "disk"}
        deadline_s = time.monotonic() + 120
        while ours & {each.name for each in threading.enumerate()} and time.monotonic() < deadline_s:
            await asyncio.sleep(0)
        assert not ours & {each.name for each in threading.enumerate()}

    async def test_the_next_download_may_start_at_once(self, place: Place) -> None:
        for _ in range(5):
            await place.interrupted(place.source("slow=2000000"))
        assert (await download_file(place.source(), place.target, settings=QUICK)).resumed_bytes > 0
        assert place.target.read_bytes() == place.content

    async def test_cancelling_ends_a_pause(self, place: Place) -> None:
        waiting = asyncio.Event()

        async def pause(_seconds: float) -> None:
            waiting.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(download_file(place.source("500"), place.target, settings=QUICK, pause=pause))
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert place.beside == []

    async def test_discarding_leaves_no_file(self, place: Place) -> None:
        await place.interrupted(place.source("stalls=300000"))
        assert place.beside == ["model.gguf.part", "model.gguf.part.journal"]
        discard_download(place.target)
        assert place.beside == []
        assert count_unfinished_bytes(place.target) is None
        discard_download(place.target.parent / "nowhere" / "model.gguf")


class TestExistingTarget:
    async def test_an_existing_file_is_verified_and_returned_without_a_request(self, place: Place) -> None:
        place.target.write_bytes(place.content)
        got = await download_file(place.source(), place.target, settings=QUICK)
        assert (got.sha256, got.received_bytes, place.requests) == (place.sha256, 0, [])

    @pytest.mark.parametrize("there", [None, b"mine"])
    async def test_a_different_existing_file_is_not_overwritten(self, place: Place, there: bytes | None) -> None:
        there = there or place.content[::-1]
        place.target.write_bytes(there)
        with pytest.raises(FileInTheWay):
            await download_file(place.source(), place.target, settings=QUICK)
        assert place.target.read_bytes() == there

    async def test_an_existing_file_is_not_accepted_without_a_known_size_or_hash(self, place: Place) -> None:
        place.target.write_bytes(place.content)
        with pytest.raises(FileInTheWay):
            await download_file(place.source(bytes=None, sha256=None), place.target, settings=QUICK)

    async def test_a_folder_in_place_of_the_file_is_an_error(self, place: Place) -> None:
        place.target.mkdir()
        with pytest.raises(FileInTheWay):
            await download_file(place.source(), place.target, settings=QUICK)

    async def test_a_file_that_appears_meanwhile_is_not_overwritten(self, place: Place) -> None:
        with pytest.raises(FileInTheWay):
            await download_file(
                place.source(), place.target, settings=QUICK, on_progress=lambda _: place.target.write_bytes(b"mine")
            )
        assert place.target.read_bytes() == b"mine"
        assert count_unfinished_bytes(place.target) == len(place.content)


class TestWrongBytes:
    async def test_wrong_bytes_are_renamed_with_the_reason_and_downloaded_again(self, place: Place) -> None:
        with pytest.raises(DownloadBroken) as caught:
            await download_file(place.source("wrong"), place.target, settings=QUICK)
        assert place.beside == ["model.gguf.bad", "model.gguf.bad.txt"]
        assert place.sha256 in place.target.with_name("model.gguf.bad.txt").read_text()
        assert caught.value.facts["path"] == str(place.target.with_name("model.gguf.bad"))
        assert not place.target.exists()
        assert (await download_file(place.source(), place.target, settings=QUICK)).resumed_bytes == 0


def test_the_end_of_the_program_waits_for_no_thread(place: Place, run_child: Callable[[str], float]) -> None:
    """An event loop that is closed while the server is silent leaves no thread that blocks the end of the
    interpreter."""
    url = place.source("stalls=0").url
    assert (
        run_child(
            "import asyncio, pathlib, sys\n"
            "from launcher.fetch.transfer import DownloadSource, download_file\n"
            f"work = download_file(DownloadSource({url!r}), pathlib.Path({str(place.target)!r}))\n"
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
        subprocess.run([sys.executable, "-c", text], check=True, cwd=Path(__file__).parents[2], timeout=120)
        return time.monotonic() - began_s

    return run
