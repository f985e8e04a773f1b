"""Disks during a transfer: full, slow and failing ones, and two transfers to one file."""

import asyncio
import errno
import os
import resource
import threading
from dataclasses import replace

import pytest

from launcher.base.errors import (
    DiskFull,
    DownloadBusy,
    Refused,
    TargetUnusable,
)
from launcher.base.progress import Progress
from launcher.fetch.partial_file import FileHasher, PartialFile, free_bytes, lock_target
from launcher.fetch.transfer import discard_download, download_file
from tests.fetch.conftest import QUICK, FileOnServer


class TestDisk:
    async def test_no_request_is_sent_without_disk_space(self, remote_file: FileOnServer) -> None:
        # Other programs may free disk space.
        tight = replace(QUICK, reserve_bytes=free_bytes(remote_file.target.parent) + 2**40)
        with pytest.raises(DiskFull) as caught:
            await download_file(remote_file.source(), remote_file.target, settings=tight)
        assert caught.value.facts["needed_bytes"] == len(remote_file.content)
        assert (remote_file.requests, remote_file.other_names) == ([], [])

    async def test_a_disk_that_becomes_full_loses_nothing(self, remote_file: FileOnServer) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, hard))
        try:
            with pytest.raises(DiskFull):
                await download_file(remote_file.source(), remote_file.target, settings=QUICK)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert (await download_file(remote_file.source(), remote_file.target, settings=QUICK)).resumed_bytes == 600_000
        assert remote_file.target.read_bytes() == remote_file.content

    async def test_a_write_error_that_is_reported_once_is_not_ignored(
        self, remote_file: FileOnServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sync, failed = os.fdatasync, threading.Event()

        def fail_once(descriptor: int) -> None:
            if not failed.is_set():
                failed.set()
                raise OSError(errno.EIO, "Input/output error")
            sync(descriptor)

        monkeypatch.setattr(os, "fdatasync", fail_once)
        with pytest.raises(TargetUnusable, match="Input/output error"):
            await download_file(
                remote_file.source("slow=4000000"), remote_file.target, settings=replace(QUICK, sync_s=0.02)
            )
        assert failed.is_set()
        assert remote_file.other_names == []  # no byte was on the disk for certain, so nothing is resumed

    async def test_the_event_loop_runs_while_the_disk_is_slow(
        self, remote_file: FileOnServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loop, sync, went_on = asyncio.get_running_loop(), os.fsync, list[bool]()

        def sync_slowly(descriptor: int) -> None:
            turned = threading.Event()
            loop.call_soon_threadsafe(turned.set)
            went_on.append(turned.wait(120))
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", sync_slowly)
        await download_file(remote_file.source(), remote_file.target, settings=QUICK)
        assert went_on
        assert all(went_on)

    async def test_the_file_is_closed_before_it_is_deleted(
        self, remote_file: FileOnServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loop, remove, run, result = asyncio.get_running_loop(), PartialFile.remove, FileHasher.run, list[str]()

        def hash_slowly(follower: FileHasher) -> str:
            sha256, turned = run(follower), threading.Event()
            loop.call_soon_threadsafe(turned.set)
            turned.wait(120)
            result.append("closed")
            return sha256

        def note_removal(part: PartialFile) -> None:
            result.append("removed")
            remove(part)

        monkeypatch.setattr(FileHasher, "run", hash_slowly)
        monkeypatch.setattr(PartialFile, "remove", note_removal)
        with pytest.raises(Refused):
            await download_file(remote_file.source("404"), remote_file.target, settings=QUICK)
        assert result == ["closed", "removed"]
        assert remote_file.other_names == []

    async def test_an_error_of_the_listener_is_not_reported_as_a_disk_error(self, remote_file: FileOnServer) -> None:
        def fail_to_report(_progress: Progress) -> None:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

        with pytest.raises(BrokenPipeError):
            await download_file(remote_file.source(), remote_file.target, settings=QUICK, on_progress=fail_to_report)

    async def test_a_file_in_place_of_the_folder_is_reported(self, remote_file: FileOnServer) -> None:
        remote_file.target.write_bytes(b"")
        with pytest.raises(TargetUnusable):
            await download_file(remote_file.source(), remote_file.target / "model.gguf", settings=QUICK)

    async def test_two_transfers_to_one_file_are_refused(self, remote_file: FileOnServer) -> None:
        with lock_target(remote_file.target), pytest.raises(DownloadBusy):
            await download_file(remote_file.source(), remote_file.target, settings=QUICK)
        with lock_target(remote_file.target), pytest.raises(DownloadBusy):
            discard_download(remote_file.target)
        await download_file(remote_file.source(), remote_file.target, settings=QUICK)
