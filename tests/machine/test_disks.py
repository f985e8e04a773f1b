"""The disks below folders, by mount points as Linux and WSL have them."""

import shutil
from pathlib import Path

import psutil
import pytest

from launcher.machine.disks import read_disks

WSL = [("/", "ext4"), ("/mnt/c", "9p"), ("/mnt/wsl", "tmpfs"), ("/home/me/win", "drvfs")]


def test_a_missing_folder_is_on_the_disk_of_its_parent(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "of tomorrow"
    (disk,) = read_disks([folder])
    total, _, free = shutil.disk_usage(tmp_path)
    assert disk.folder == folder
    assert disk.total_bytes == total
    assert disk.free_bytes == pytest.approx(free, rel=0.05)
    assert disk.absent == {}


def test_the_file_system_is_that_of_the_deepest_mount_point(tmp_path: Path) -> None:
    for name in ("a", "ab"):
        (tmp_path / name).mkdir()
    mounts = [("/", "ext4"), (str(tmp_path), "btrfs"), (str(tmp_path / "a"), "xfs")]
    folders = [tmp_path / "a" / "deep", tmp_path / "ab", Path("/")]
    assert [disk.file_system for disk in read_disks(folders, mounts)] == ["xfs", "btrfs", "ext4"]


def test_an_unreadable_folder_is_on_the_disk_of_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exists = Path.exists

    def exists_unless_refused(path: Path) -> bool:  # as Python 3.11 does below a folder of mode 0700, but for root
        if path.is_relative_to(tmp_path / "secret" / "models"):
            raise PermissionError(13, "Permission denied")
        return exists(path)

    monkeypatch.setattr(Path, "exists", exists_unless_refused)
    (disk,) = read_disks([tmp_path / "secret" / "models" / "mine"])
    assert disk.free_bytes is not None
    assert disk.absent == {}


def test_an_unknown_file_system_has_a_reason(tmp_path: Path) -> None:
    (disk,) = read_disks([tmp_path], [])
    assert disk.file_system is None
    assert disk.absent == {"file_system": "The system does not list its mounts."}


def test_mounts_of_this_computer_are_read() -> None:
    (disk,) = read_disks([Path("/")])
    assert disk.file_system == next(each.fstype for each in psutil.disk_partitions(all=True) if each.mountpoint == "/")


@pytest.mark.parametrize(
    ("folder", "mounts", "windows"),
    [
        ("/mnt/c/models", [("/", "ext4")], True),
        ("/mnt/c", WSL, True),
        ("/mnt/cache", WSL, False),
        ("/mnt/wsl/models", WSL, False),
        ("/home/me/models", WSL, False),
        ("/", [("/", "9p")], True),
        ("/", [("/", "virtiofs")], True),
    ],
)
def test_a_windows_drive_is_recognised_by_its_path_or_file_system(
    folder: str, mounts: list[tuple[str, str]], windows: bool
) -> None:
    (disk,) = read_disks([Path(folder)], mounts)
    assert disk.holds_windows_files is windows
