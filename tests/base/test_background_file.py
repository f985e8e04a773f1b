"""Files that are written in the background, on a disk that is slow or fails."""

import threading
from pathlib import Path

import pytest

from launcher.base import background_file
from launcher.base.background_file import BackgroundFile
from launcher.base.files import write_atomically


class Disk:
    """Writes once a test allows it, and records what it wrote."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.written: list[bytes] = []

    def write(self, path: Path, data: bytes) -> None:
        self.begun.set()
        assert self.go.wait(60)
        write_atomically(path, data)
        self.written.append(data)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    slow = Disk()
    monkeypatch.setattr(background_file, "write_atomically", slow.write)
    return slow


def test_writes_do_not_block_and_the_newest_content_is_written(tmp_path: Path, disk: Disk) -> None:
    file = BackgroundFile(tmp_path / "file", "The file")
    file.write(b"0")
    assert disk.begun.wait(60)
    for number in range(1, 100):
        file.write(str(number).encode())
    assert not file.wait_written(0.0)
    disk.go.set()
    assert file.wait_written(60)
    assert disk.written == [b"0", b"99"]
    assert (tmp_path / "file").read_bytes() == b"99"


def test_a_failed_write_is_repeated_and_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "folder"
    folder.write_text("in the way")
    file = BackgroundFile(folder / "file", "The file", retry_s=0.01)
    file.write(b"kept")
    assert not file.wait_written(0.05)
    folder.unlink()
    assert file.wait_written(60)
    assert (folder / "file").read_bytes() == b"kept"
    assert caplog.text.count("The file cannot be written") == 1
    assert not file.was_deleted()
    (folder / "file").unlink()
    assert file.was_deleted()


def test_closing_waits_for_a_write_in_progress_and_nothing_is_written_after_it(tmp_path: Path, disk: Disk) -> None:
    file = BackgroundFile(tmp_path / "file", "The file")
    file.write(b"late")
    assert disk.begun.wait(60)
    threading.Timer(0.05, disk.go.set).start()
    file.remove()
    assert disk.written == [b"late"]
    assert not (tmp_path / "file").exists()
    file.write(b"after the end")
    (tmp_path / "file").write_bytes(b"somebody else's")
    file.remove()
    assert (tmp_path / "file").read_bytes() == b"somebody else's"
