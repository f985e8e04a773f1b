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
from tests.fetch.conftest import QUICK, FileOnServer

_EXAMPLES = itertools.count()


class TestFile:
    async def test_a_file_arrives_completely_and_nothing_else_is_left(self, remote_file: FileOnServer) -> None:
        got = await download_file(remote_file.source(), remote_file.target, settings=QUICK)
        assert got == DownloadedFile(
            remote_file.target, len(remote_file.content), remote_file.sha256, got.seconds, 0, len(remote_file.content)
        )
        assert remote_file.target.read_bytes() == remote_file.content
        assert remote_file.other_names == []

    async def test_a_file_of_unknown_size_and_hash_gets_its_hash(self, remote_file: FileOnServer) -> None:
        got = await download_file(remote_file.source(bytes=None, sha256=None), remote_file.target, settings=QUICK)
        assert (got.bytes, got.sha256) == (len(remote_file.content), remote_file.sha256)

    async def test_an_empty_file_arrives(self, remote_file: FileOnServer) -> None:
        for size in (0, None):
            got = await download_file(
                remote_file.source(name="empty", bytes=size, sha256=None), remote_file.target, settings=QUICK
            )
            assert (got.bytes, got.sha256) == (0, hashlib.sha256(b"").hexdigest())
            remote_file.target.unlink()

    async def test_missing_folders_are_created(self, remote_file: FileOnServer) -> None:
        target = remote_file.target.parent / "new" / "er" / "model.gguf"
        assert (
            await download_file(remote_file.source(), target, settings=QUICK)
        ).path.read_bytes() == remote_file.content

    async def test_a_hash_in_capitals_is_accepted(self, remote_file: FileOnServer) -> None:
        assert (
            await download_file(
                remote_file.source(sha256=remote_file.sha256.upper()), remote_file.target, settings=QUICK
            )
        ).sha256 == remote_file.sha256

    async def test_progress_grows_to_the_whole_size(self, remote_file: FileOnServer) -> None:
        collected: list[tuple[float, Progress]] = []
        thread = threading.get_ident()

        def watch(progress: Progress) -> None:
            assert threading.get_ident() == thread
            collected.append((time.monotonic(), progress))

        await download_file(remote_file.source("slow=3000000"), remote_file.target, settings=QUICK, on_progress=watch)
        received = [each.done_bytes for _, each in collected if each.phase is Phase.RECEIVING]
        assert received == sorted(received)
        assert collected[-1][1].phase is Phase.VERIFYING
        assert collected[-1][1].done_bytes == collected[-1][1].bytes == len(remote_file.content)
        assert len(collected) <= (collected[-1][0] - collected[0][0]) / 0.09 + 2

    async def test_the_speed_limit_holds(self, remote_file: FileOnServer) -> None:
        slow = replace(QUICK, bytes_per_second=2_000_000)
        assert (await download_file(remote_file.source(), remote_file.target, settings=slow)).seconds > 0.3

    async def test_the_proxy_of_the_environment_is_used(
        self, remote_file: FileOnServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HTTP_PROXY", remote_file.server.origin.replace("://", "://me:secret@"))
        monkeypatch.setenv("http_proxy", remote_file.server.origin.replace("://", "://me:secret@"))
        source = replace(remote_file.source(), url=f"http://hub.invalid/{remote_file.run}/none/model.gguf")
        await download_file(source, remote_file.target, settings=QUICK)
        requests = remote_file.requests
        assert requests[0]["target"] == source.url
        assert requests[0]["Proxy-Authorization"].startswith("Basic ")


class TestSecrets:
    async def test_the_token_is_sent_to_the_first_server_only(self, remote_file: FileOnServer) -> None:
        await download_file(remote_file.source("redirect", token="hf_secret"), remote_file.target, settings=QUICK)
        received = [(each["server"], each.get("Authorization")) for each in remote_file.requests]
        assert received == [("origin", "Bearer hf_secret"), ("store", None)]

    async def test_the_journal_has_no_signature_and_no_token(self, remote_file: FileOnServer) -> None:
        source = remote_file.source("redirect,stalls=300000", token="hf_secret")
        source = replace(source, url=source.url.replace("://", "://me:password@") + "?signature=s3cret")
        await remote_file.start_and_interrupt(source)
        text = remote_file.target.with_name("model.gguf.part.journal").read_text()
        assert "model.gguf" in text
        assert not any(secret in text for secret in ("s3cret", "hf_secret", "password"))


class TestResuming:
    async def test_only_missing_bytes_are_requested(self, remote_file: FileOnServer) -> None:
        await remote_file.start_and_interrupt(remote_file.source("stalls=300000*1"), after=300_000)
        assert count_unfinished_bytes(remote_file.target) == 300_000
        got = await download_file(remote_file.source("stalls=300000*1"), remote_file.target, settings=QUICK)
        assert (got.resumed_bytes, got.received_bytes) == (300_000, 700_000)
        assert remote_file.target.read_bytes() == remote_file.content
        last = remote_file.requests[-1]
        assert last["Range"] == "bytes=300000-999999"
        assert last["If-Range"].startswith('"')

    async def test_another_address_with_the_same_hash_resumes(self, remote_file: FileOnServer) -> None:
        await remote_file.start_and_interrupt(remote_file.source("stalls=300000"), after=300_000)
        assert (
            await download_file(remote_file.source("redirect"), remote_file.target, settings=QUICK)
        ).resumed_bytes == 300_000

    async def test_another_hash_does_not_resume(
        self, remote_file: FileOnServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        await remote_file.start_and_interrupt(remote_file.source("stalls=300000,wrong", sha256="0" * 64), after=300_000)
        got = await download_file(remote_file.source(), remote_file.target, settings=QUICK)
        assert (got.resumed_bytes, got.received_bytes) == (0, len(remote_file.content))
        assert "model.gguf: 300,000 bytes of an earlier download belong to another file" in caplog.text

    async def test_a_missing_journal_does_not_resume(self, remote_file: FileOnServer) -> None:
        await remote_file.start_and_interrupt(remote_file.source("stalls=300000"), after=300_000)
        remote_file.target.with_name("model.gguf.part.journal").unlink()
        assert count_unfinished_bytes(remote_file.target) is None
        assert (await download_file(remote_file.source(), remote_file.target, settings=QUICK)).resumed_bytes == 0

    async def test_a_truncated_partial_file_counts_up_to_its_end(self, remote_file: FileOnServer) -> None:
        await remote_file.start_and_interrupt(remote_file.source("stalls=300000"), after=300_000)
        with remote_file.target.with_name("model.gguf.part").open("r+b") as file:
            file.truncate(100_000)
        assert (await download_file(remote_file.source(), remote_file.target, settings=QUICK)).resumed_bytes == 100_000

    async def test_after_a_power_failure_synced_data_counts(
        self, remote_file: FileOnServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await remote_file.start_and_interrupt(remote_file.source("stalls=300000"), after=300_000)
        part = PartialFile(
            remote_file.target,
            DownloadIdentity(remote_file.source().url, len(remote_file.content), remote_file.sha256),
            lambda _: True,
        )
        part.sync()
        part.write(part.claim_segment(Span(300_000, 400_000)), memoryview(remote_file.content)[300_000:400_000])
        part.close()
        assert count_unfinished_bytes(remote_file.target) == 400_000
        monkeypatch.setattr(journal, "boot_id", lambda: "the next boot")
        assert count_unfinished_bytes(remote_file.target) == 300_000
        got = await download_file(remote_file.source(), remote_file.target, settings=QUICK)
        assert got.resumed_bytes == 300_000
        assert remote_file.target.read_bytes() == remote_file.content

    async def test_a_complete_partial_file_needs_no_request(self, remote_file: FileOnServer) -> None:
        part, size = remote_file.target.with_name("model.gguf.part"), len(remote_file.content)
        part.write_bytes(remote_file.content)
        identity = DownloadIdentity("http://nobody.invalid/", size, remote_file.sha256, None)
        journal.create_journal(part.with_name("model.gguf.part.journal"), identity, [Stretch(0, size, size)])
        got = await download_file(
            DownloadSource("http://nobody.invalid/", size, remote_file.sha256), remote_file.target, settings=QUICK
        )
        assert (got.resumed_bytes, got.received_bytes) == (size, 0)
        assert remote_file.other_names == []

    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.lists(st.tuples(st.integers(0, 999_999), st.integers(1, 400_000)), max_size=6))
    def test_exactly_the_gaps_are_fetched(self, remote_file: FileOnServer, pieces: list[tuple[int, int]]) -> None:
        remote_file.run = f"gaps{next(_EXAMPLES)}"
        finished = merge_spans(Span(begin, min(begin + length, len(remote_file.content))) for begin, length in pieces)
        data = bytearray(b"?" * len(remote_file.content))
        for begin, end in finished:
            data[begin:end] = remote_file.content[begin:end]
        remote_file.target.unlink(missing_ok=True)
        remote_file.target.with_name("model.gguf.part").write_bytes(data)
        journal.create_journal(
            remote_file.target.with_name("model.gguf.part.journal"),
            DownloadIdentity(remote_file.source().url, len(remote_file.content), remote_file.sha256),
            [Stretch(begin, end, end) for begin, end in finished],
        )
        got = asyncio.run(download_file(remote_file.source(), remote_file.target, settings=QUICK))
        assert remote_file.target.read_bytes() == remote_file.content
        assert got.resumed_bytes == count_bytes(finished)
        result = remote_file.server.read_record(remote_file.run)
        assert result.sent_bytes == got.received_bytes == count_bytes(find_gaps(finished, len(remote_file.content)))
        assert len(result.requests) == len(find_gaps(finished, len(remote_file.content)))


class TestCancelling:
    async def test_cancelling_returns_at_once_while_the_server_is_silent(self, remote_file: FileOnServer) -> None:
        patient = replace(QUICK, stall_s=600.0)
        task = asyncio.create_task(download_file(remote_file.source("stalls=0"), remote_file.target, settings=patient))
        while not await asyncio.to_thread(lambda: remote_file.requests):
            pass
        began_s = time.monotonic()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert time.monotonic() - began_s < 300

    async def test_cancelling_before_the_first_byte_leaves_no_file(self, remote_file: FileOnServer) -> None:
        task = asyncio.create_task(download_file(remote_file.source("stalls=0"), remote_file.target, settings=QUICK))
        while "disk" not in {each.name for each in threading.enumerate()}:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert remote_file.other_names == []

    async def test_no_thread_is_left(self, remote_file: FileOnServer) -> None:
        await remote_file.start_and_interrupt(remote_file.source("stalls=300000"))
        ours = {"receive", "hash", "sync", "disk"}
        deadline_s = time.monotonic() + 120
        while ours & {each.name for each in threading.enumerate()} and time.monotonic() < deadline_s:
            await asyncio.sleep(0)
        assert not ours & {each.name for each in threading.enumerate()}

    async def test_the_next_download_may_start_at_once(self, remote_file: FileOnServer) -> None:
        for _ in range(5):
            await remote_file.start_and_interrupt(remote_file.source("slow=2000000"))
        assert (await download_file(remote_file.source(), remote_file.target, settings=QUICK)).resumed_bytes > 0
        assert remote_file.target.read_bytes() == remote_file.content

    async def test_cancelling_ends_a_pause(self, remote_file: FileOnServer) -> None:
        waiting = asyncio.Event()

        async def pause(_seconds: float) -> None:
            waiting.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(
            download_file(remote_file.source("500"), remote_file.target, settings=QUICK, pause=pause)
        )
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert remote_file.other_names == []

    async def test_discarding_leaves_no_file(self, remote_file: FileOnServer) -> None:
        await remote_file.start_and_interrupt(remote_file.source("stalls=300000"))
        assert remote_file.other_names == ["model.gguf.part", "model.gguf.part.journal"]
        discard_download(remote_file.target)
        assert remote_file.other_names == []
        assert count_unfinished_bytes(remote_file.target) is None
        discard_download(remote_file.target.parent / "nowhere" / "model.gguf")


class TestExistingTarget:
    async def test_an_existing_file_is_verified_and_returned_without_a_request(self, remote_file: FileOnServer) -> None:
        remote_file.target.write_bytes(remote_file.content)
        got = await download_file(remote_file.source(), remote_file.target, settings=QUICK)
        assert (got.sha256, got.received_bytes, remote_file.requests) == (remote_file.sha256, 0, [])

    @pytest.mark.parametrize("there", [None, b"mine"])
    async def test_a_different_existing_file_is_not_overwritten(
        self, remote_file: FileOnServer, there: bytes | None
    ) -> None:
        there = there or remote_file.content[::-1]
        remote_file.target.write_bytes(there)
        with pytest.raises(FileInTheWay):
            await download_file(remote_file.source(), remote_file.target, settings=QUICK)
        assert remote_file.target.read_bytes() == there

    async def test_an_existing_file_is_not_accepted_without_a_known_size_or_hash(
        self, remote_file: FileOnServer
    ) -> None:
        remote_file.target.write_bytes(remote_file.content)
        with pytest.raises(FileInTheWay):
            await download_file(remote_file.source(bytes=None, sha256=None), remote_file.target, settings=QUICK)

    async def test_a_folder_in_place_of_the_file_is_an_error(self, remote_file: FileOnServer) -> None:
        remote_file.target.mkdir()
        with pytest.raises(FileInTheWay):
            await download_file(remote_file.source(), remote_file.target, settings=QUICK)

    async def test_a_file_that_appears_meanwhile_is_not_overwritten(self, remote_file: FileOnServer) -> None:
        with pytest.raises(FileInTheWay):
            await download_file(
                remote_file.source(),
                remote_file.target,
                settings=QUICK,
                on_progress=lambda _: remote_file.target.write_bytes(b"mine"),
            )
        assert remote_file.target.read_bytes() == b"mine"
        assert count_unfinished_bytes(remote_file.target) == len(remote_file.content)


class TestWrongBytes:
    async def test_wrong_bytes_are_renamed_with_the_reason_and_downloaded_again(
        self, remote_file: FileOnServer
    ) -> None:
        with pytest.raises(DownloadBroken) as caught:
            await download_file(remote_file.source("wrong"), remote_file.target, settings=QUICK)
        assert remote_file.other_names == ["model.gguf.bad", "model.gguf.bad.txt"]
        assert remote_file.sha256 in remote_file.target.with_name("model.gguf.bad.txt").read_text()
        assert caught.value.facts["path"] == str(remote_file.target.with_name("model.gguf.bad"))
        assert not remote_file.target.exists()
        assert (await download_file(remote_file.source(), remote_file.target, settings=QUICK)).resumed_bytes == 0


def test_the_end_of_the_program_waits_for_no_thread(
    remote_file: FileOnServer, run_child: Callable[[str], float]
) -> None:
    """An event loop that is closed while the server is silent leaves no thread that blocks the end of the
    interpreter."""
    url = remote_file.source("stalls=0").url
    assert (
        run_child(
            "import asyncio, pathlib, sys\n"
            "from launcher.fetch.transfer import DownloadSource, download_file\n"
            f"work = download_file(DownloadSource({url!r}), pathlib.Path({str(remote_file.target)!r}))\n"
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
