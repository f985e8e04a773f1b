"""The journal of a download: its contents, and what counts after a kill, a power failure, or damage."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.fetch import journal
from launcher.fetch.journal import DownloadIdentity, Span, Stretch, count_bytes
from launcher.fetch.partial_file import PartialFile, journal_path, part_path

IDENTITY = DownloadIdentity("https://example.org/model.gguf", 10_000, "ab" * 32, '"etag"')
STRETCHES = [Stretch(0, 4_000, 3_000), Stretch(6_000, 7_000, 6_000)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf.part.journal"


def test_a_journal_is_read_as_written(path: Path) -> None:
    journal.create_journal(path, IDENTITY, STRETCHES)
    record = journal.read_journal(path)
    assert record
    assert record.identity == IDENTITY
    assert record.finished == [Span(0, 4_000), Span(6_000, 7_000)]


def test_a_line_is_overwritten_in_place(path: Path) -> None:
    first = journal.create_journal(path, IDENTITY, STRETCHES)
    with path.open("r+b") as file:
        file.seek(journal.line_offset(first, 1))
        file.write(journal.format_line(Stretch(6_000, 9_999, 6_000)))
    record = journal.read_journal(path)
    assert record
    assert record.finished == [Span(0, 4_000), Span(6_000, 9_999)]


def test_after_a_reboot_only_synced_data_counts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "boot_id", lambda: "the boot before")
    journal.create_journal(path, IDENTITY, STRETCHES)
    monkeypatch.undo()
    record = journal.read_journal(path)
    assert record
    assert record.finished == [Span(0, 3_000)]


@pytest.mark.parametrize(
    "text",
    [b"", b"{}\n", b"[1]\n", b"\xff\n", b"[" * 10_000, b'{"format": 2, "url": "x"}\n', b'{"format": 1, "url": 7}\n'],
)
def test_an_invalid_journal_is_ignored(path: Path, text: bytes) -> None:
    path.write_bytes(text)
    assert journal.read_journal(path) is None


def test_a_missing_journal_is_none(path: Path) -> None:
    assert journal.read_journal(path) is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 400), st.binary(min_size=1, max_size=30))
def test_a_damaged_journal_never_claims_more_data(path: Path, at: int, damage: bytes) -> None:
    journal.create_journal(path, IDENTITY, STRETCHES)
    sound = path.read_bytes()
    path.write_bytes(sound[:at] + damage + sound[at + len(damage) :])
    record = journal.read_journal(path)
    if record is not None:
        assert count_bytes([*record.finished, Span(0, 4_000), Span(6_000, 7_000)]) == 5_000


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 400))
def test_a_truncated_journal_never_claims_more_data(path: Path, length: int) -> None:
    journal.create_journal(path, IDENTITY, STRETCHES)
    path.write_bytes(path.read_bytes()[:length])
    record = journal.read_journal(path)
    if record is not None:
        assert set(record.finished) <= {Span(0, 4_000), Span(6_000, 7_000)}


def test_resumed_data_is_synced_before_it_is_recorded_as_synced(tmp_path: Path) -> None:
    target = tmp_path / "model.gguf"
    part_path(target).write_bytes(bytes(10_000))
    journal.create_journal(journal_path(target), IDENTITY, STRETCHES)
    part = PartialFile(target, IDENTITY, lambda known: known == IDENTITY)
    assert part.resumed_bytes == 5_000
    there = journal.read_journal(journal_path(target))
    assert there
    assert there.stretches == STRETCHES
    part.sync()
    there = journal.read_journal(journal_path(target))
    assert there
    assert [each.synced for each in there.stretches] == [4_000, 7_000]
    part.close()


def test_a_sync_that_ends_after_a_new_start_records_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "model.gguf"
    part = PartialFile(target, IDENTITY, lambda _: False)
    segment = part.claim_segment(Span(0, 10_000))
    assert part.write(segment, memoryview(bytes(4_000)))
    monkeypatch.setattr(os, "fdatasync", lambda _: part.discard_data())
    part.sync()
    assert not part.write(segment, memoryview(bytes(4_000)))
    record = journal.read_journal(journal_path(target))
    assert record
    assert record.finished == []
    part.close()


def test_a_kill_while_a_journal_is_replaced_leaves_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "model.gguf"
    path = journal_path(target)
    journal.create_journal(path, IDENTITY, STRETCHES)
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_bytes(b"half of a jour")
    record = journal.read_journal(path)
    assert record
    assert record.stretches == STRETCHES
    journal.create_journal(path, IDENTITY, STRETCHES)
    assert not temporary.exists()
    temporary.write_bytes(b"half of a jour")
    journal.remove_journal(path)
    assert list(tmp_path.iterdir()) == []
