"""Files written completely or not at all, with real failures: no permission, a full disk, a folder in their place."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.base.files import write_atomically

PROLOGUE = "import ctypes, resource, signal, struct, sys; from pathlib import Path; from launcher.base.files import *; "
WITHOUT_ROOTS_PRIVILEGE = (
    "libc = ctypes.CDLL(None, use_errno=True); "
    "assert libc.capset(struct.pack('Ii', 0x20080522, 0), struct.pack('6I', *[0] * 6)) == 0; "
)
ON_A_DISK_THAT_IS_FULL_AFTER_4_KIB = (
    "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); "
)


def write_elsewhere(circumstance: str, path: Path, size: int) -> str:
    """Write `size` bytes in a process of its own and return the name of the error that ended it."""
    script = PROLOGUE + circumstance + "write_atomically(Path(sys.argv[1]), b'n' * int(sys.argv[2]))"
    done = subprocess.run(
        [sys.executable, "-c", script, str(path), str(size)], capture_output=True, text=True, check=False, timeout=120
    )
    return done.stderr.strip().rpartition("\n")[2].partition(":")[0]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def existing_file(tmp_path: Path) -> Path:
    """An existing file, alone in its folder."""
    path = tmp_path / "settings" / "server.json"
    path.parent.mkdir()
    path.write_bytes(b"old")
    return path


def test_a_new_file_and_its_folders_are_created(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "key"
    write_atomically(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    assert names_in(path.parent) == ["key"]


def test_an_old_file_is_replaced_completely(existing_file: Path) -> None:
    write_atomically(existing_file, b"n")
    assert existing_file.read_bytes() == b"n"
    assert names_in(existing_file.parent) == [existing_file.name]


def test_an_open_old_file_keeps_its_content(existing_file: Path) -> None:
    with existing_file.open("rb") as reader:
        write_atomically(existing_file, b"new")
        assert reader.read() == b"old"


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_a_file_is_readable_by_its_owner_only_for_every_umask(existing_file: Path, mask: int) -> None:
    existing_file.chmod(0o666)
    before = os.umask(mask)
    try:
        write_atomically(existing_file, b"secret")
    finally:
        os.umask(before)
    assert stat.S_IMODE(existing_file.stat().st_mode) == 0o600


def test_another_mode_can_be_chosen(existing_file: Path) -> None:
    write_atomically(existing_file, b"program", mode=0o755)
    assert stat.S_IMODE(existing_file.stat().st_mode) == 0o755


def test_a_full_disk_leaves_the_old_content_and_no_temporary_file(existing_file: Path) -> None:
    assert write_elsewhere(ON_A_DISK_THAT_IS_FULL_AFTER_4_KIB, existing_file, 4096) == ""
    assert existing_file.read_bytes() == b"n" * 4096
    assert write_elsewhere(ON_A_DISK_THAT_IS_FULL_AFTER_4_KIB, existing_file, 4097) == "OSError"
    assert existing_file.read_bytes() == b"n" * 4096
    assert names_in(existing_file.parent) == [existing_file.name]


def test_a_read_only_folder_leaves_the_old_content(existing_file: Path) -> None:
    existing_file.parent.chmod(0o555)
    try:
        assert write_elsewhere(WITHOUT_ROOTS_PRIVILEGE, existing_file, 3) == "PermissionError"
    finally:
        existing_file.parent.chmod(0o755)
    assert write_elsewhere(WITHOUT_ROOTS_PRIVILEGE, existing_file.with_name("other"), 3) == ""
    assert existing_file.read_bytes() == b"old"
    assert names_in(existing_file.parent) == ["other", existing_file.name]


def test_a_folder_in_place_of_the_file_is_not_changed(existing_file: Path) -> None:
    with pytest.raises(OSError, match="directory"):
        write_atomically(existing_file.parent, b"new")
    assert existing_file.read_bytes() == b"old"
    assert names_in(existing_file.parent.parent) == [existing_file.parent.name]


def test_a_file_in_place_of_the_folder_is_not_changed(existing_file: Path) -> None:
    with pytest.raises(OSError):
        write_atomically(existing_file / "inner", b"new")
    assert existing_file.read_bytes() == b"old"


def test_a_temporary_file_of_a_killed_program_is_deleted_later(existing_file: Path) -> None:
    killed = (
        "import os, sys, launcher.base.files as files; files.replace_file = lambda *_: os._exit(9); "
        "files.write_atomically(files.Path(sys.argv[1]), b'new')"
    )
    assert subprocess.run([sys.executable, "-c", killed, str(existing_file)], check=False, timeout=120).returncode == 9
    (temporary,) = [path for path in existing_file.parent.iterdir() if path != existing_file]
    write_atomically(existing_file, b"another")
    assert temporary.exists()  # another process may be writing a young temporary file now
    os.utime(temporary, (0, 0))
    write_atomically(existing_file, b"a third")
    assert names_in(existing_file.parent) == [existing_file.name]


@pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX's")
def test_new_folders_are_private_for_every_umask(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; os.umask(0)\n"
        "from launcher.base.control import _bind_socket\n"
        "from launcher.base.files import make_private_folder, write_atomically\n"
        "from launcher.engine.server.last_start import save_last_model\n"
        "from launcher.engine.settings import save_model_settings\n"
        "home = Path(sys.argv[1])\n"
        "write_atomically(home / 'a' / 'b' / 'file', b'')\n"
        "make_private_folder(home / 'c' / 'd')\n"
        "_bind_socket(home / 'e' / 'f' / 'line').close()\n"
        "os.environ['MTP_LAUNCHER_HOME'] = str(home / 'g')\n"
        "save_model_settings(Path('model'), {'draft': 1})\n"
        "os.environ['MTP_LAUNCHER_HOME'] = str(home / 'h')\n"
        "save_last_model('model')\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    made = {path.relative_to(tmp_path).as_posix(): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*/")}
    folders = {name: mode for name, mode in made.items() if (tmp_path / name).is_dir()}
    assert set(folders) == {"a", "a/b", "c", "c/d", "e", "e/f", "g", "g/state", "h", "h/state"}
    assert set(folders.values()) == {0o700}
