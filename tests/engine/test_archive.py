"""Archives, valid and malicious ones."""

import gzip
import io
import stat
import sys
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.engine.builds.archive import UnpackLimits, unpack_archive
from launcher.engine.builds.install_errors import ArchiveRefused

Entry = tuple[str, bytes | str | None]
TEXT = b"content\n"


def tar(path: Path, *members: tarfile.TarInfo | tuple[str, bytes]) -> Path:
    """Create a .tar.gz archive from entries, and from files by name and content."""
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size, info.mode = len(member[1]), 0o755
                archive.addfile(info, io.BytesIO(member[1]))
    return path


def link_member(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def write_zip(path: Path, *members: tuple[str, bytes], mode: int = stat.S_IFREG | 0o644) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            info = zipfile.ZipInfo(name)
            info.filename = name  # unchanged, because zipfile corrects names such as this
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, mode << 16
            with warnings.catch_warnings(action="ignore"):  # zipfile warns of duplicate names
                archive.writestr(info, content)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_tar_archive_is_unpacked_without_its_top_folder(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tar.gz", ("llama-b1/llama-server", TEXT), ("llama-b1/sub/LICENSE", b"MIT"))
    unpack_archive(archive, tmp_path / "out")
    assert contents(tmp_path / "out") == {"llama-server": TEXT, "sub/LICENSE": b"MIT"}


def test_a_top_folder_may_contain_a_file_of_its_own_name(tmp_path: Path) -> None:
    unpack_archive(tar(tmp_path / "a.tar.gz", ("llama/llama", TEXT)), tmp_path / "out")
    assert contents(tmp_path / "out") == {"llama": TEXT}


def test_a_zip_archive_without_a_top_folder_is_unpacked_unchanged(tmp_path: Path) -> None:
    unpack_archive(write_zip(tmp_path / "a.zip", ("llama-server.exe", TEXT), ("ggml.dll", b"")), tmp_path / "out")
    assert contents(tmp_path / "out") == {"llama-server.exe": TEXT, "ggml.dll": b""}


def test_executable_bits_are_kept_and_setuid_bits_dropped(tmp_path: Path) -> None:
    plain, program = tarfile.TarInfo("plain"), tarfile.TarInfo("program")
    plain.mode, program.mode = 0o666, 0o6777
    unpack_archive(tar(tmp_path / "a.tar.gz", plain, program), tmp_path / "out")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").iterdir()}
    assert modes == {"plain": 0o644, "program": 0o755}
    unpack_archive(write_zip(tmp_path / "b.zip", ("tool", TEXT), mode=stat.S_IFREG | 0o4755), tmp_path / "zip")
    assert stat.S_IMODE((tmp_path / "zip" / "tool").stat().st_mode) == 0o755


@pytest.mark.skipif(sys.platform == "win32", reason="links are copies there")
def test_links_to_library_versions_are_kept(tmp_path: Path) -> None:
    archive = tar(
        tmp_path / "a.tar.gz",
        link_member("llama/libggml.so", tarfile.SYMTYPE, "libggml.so.0"),
        link_member("llama/libggml.so.0", tarfile.SYMTYPE, "libggml.so.0.9"),
        ("llama/libggml.so.0.9", TEXT),
        link_member("llama/same", tarfile.LNKTYPE, "llama/libggml.so.0.9"),
    )
    unpack_archive(archive, tmp_path / "out")
    assert contents(tmp_path / "out") == dict.fromkeys(("libggml.so", "libggml.so.0", "libggml.so.0.9", "same"), TEXT)
    (tmp_path / "out").rename(tmp_path / "moved")
    assert (tmp_path / "moved" / "libggml.so").read_bytes() == TEXT


ESCAPES = [
    "../evil",
    "/evil",
    "llama/../../evil",
    "C:evil",
    "C:\\evil",
    "..\\evil",
    "llama\\..\\..\\evil",
    "\\\\server\\share\\evil",
    "file:stream",
    "nul",
    "COM1.txt",
    "trailing.",
    "trailing ",
    "new\nline",
    "x" * 300,
]


@pytest.mark.parametrize("name", ESCAPES)
@pytest.mark.parametrize("make", [tar, write_zip])
def test_names_outside_the_folder_are_refused(name: str, make: Callable[..., Path], tmp_path: Path) -> None:
    inside = tmp_path / "deep" / "inside"
    inside.parent.mkdir()
    with pytest.raises(ArchiveRefused, match="was not unpacked"):
        unpack_archive(make(tmp_path / ("a.tar.gz" if make is tar else "a.zip"), (name, TEXT)), inside)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a.tar.gz" if make is tar else "a.zip"], (
        "nothing was written"
    )


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "sub/../../outside", "missing", "folder", ".", "me"])
def test_links_to_other_files_than_those_of_the_archive_are_refused(kind: bytes, target: str, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("secret")
    archive = tar(tmp_path / "a.tar.gz", ("folder/file", TEXT), link_member("me", kind, target))
    with pytest.raises(ArchiveRefused):
        unpack_archive(archive, tmp_path / "out")
    assert not (tmp_path / "out" / "me").exists()


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    archive = tar(
        tmp_path / "a.tar.gz", link_member("way", tarfile.SYMTYPE, str(tmp_path / "outside")), ("way/evil", TEXT)
    )
    with pytest.raises(ArchiveRefused):
        unpack_archive(archive, tmp_path / "out")
    inner = tar(tmp_path / "b.tar.gz", ("real", b""), link_member("way", tarfile.SYMTYPE, "real"), ("way/evil", TEXT))
    with pytest.raises(ArchiveRefused, match="lies in a file or link"):
        unpack_archive(inner, tmp_path / "other")
    assert not list((tmp_path / "outside").iterdir())


def test_links_that_lead_to_each_other_are_refused(tmp_path: Path) -> None:
    links = link_member("one", tarfile.SYMTYPE, "two"), link_member("two", tarfile.SYMTYPE, "one")
    with pytest.raises(ArchiveRefused, match="which is not a file of the archive"):
        unpack_archive(tar(tmp_path / "a.tar.gz", *links), tmp_path / "out")


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE, b"9"])
def test_devices_and_pipes_are_refused(kind: bytes, tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tar.gz", ("first", TEXT), link_member("device", kind))
    if kind == tarfile.CONTTYPE:  # tarfile reads this type as an ordinary file
        unpack_archive(archive, tmp_path / "out")
        assert contents(tmp_path / "out") == {"first": TEXT, "device": b""}
        return
    with pytest.raises(ArchiveRefused, match="neither a file, a folder nor a link"):
        unpack_archive(archive, tmp_path / "out")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO])
def test_a_zip_archive_has_files_and_folders_only(kind: int, tmp_path: Path) -> None:
    with pytest.raises(ArchiveRefused, match="neither a file nor a folder"):
        unpack_archive(write_zip(tmp_path / "a.zip", ("link", b"/etc/passwd"), mode=kind | 0o777), tmp_path / "out")


@pytest.mark.parametrize(("first", "second"), [("a", "a"), ("Readme", "README"), ("a", "a/b"), ("a/b", "a")])
def test_duplicate_names_are_refused(first: str, second: str, tmp_path: Path) -> None:
    members = (first, b"one"), (second, b"two")
    with pytest.raises(ArchiveRefused):
        unpack_archive(tar(tmp_path / "a.tar.gz", *members), tmp_path / "tar")
    with pytest.raises(ArchiveRefused):
        unpack_archive(write_zip(tmp_path / "a.zip", *members), tmp_path / "zip")


def test_an_archive_bomb_is_stopped_while_unpacking(tmp_path: Path) -> None:
    zeros = bytes(2**22)
    limits = UnpackLimits(ratio=10, grace_bytes=2**20)
    for archive in (tar(tmp_path / "a.tar.gz", ("zeros", zeros)), write_zip(tmp_path / "a.zip", ("zeros", zeros))):
        out = tmp_path / archive.suffix
        with pytest.raises(ArchiveRefused, match="unpacks to more"):
            unpack_archive(archive, out, limits)
        assert sum(map(len, contents(out).values())) <= limits.grace_bytes + 2**20


def test_many_small_bombs_are_counted_together(tmp_path: Path) -> None:
    members = [(f"zeros{number}", bytes(2**18)) for number in range(16)]
    for archive in (tar(tmp_path / "a.tar.gz", *members), write_zip(tmp_path / "a.zip", *members)):
        with pytest.raises(ArchiveRefused, match="unpacks to more"):
            unpack_archive(archive, tmp_path / archive.suffix, UnpackLimits(ratio=1, grace_bytes=2**20))


def test_a_zip_archive_with_wrong_sizes_is_damaged(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "a.zip", ("zeros", bytes(2**20)))
    data = archive.read_bytes()
    archive.write_bytes(data.replace((2**20).to_bytes(4, "little"), (100).to_bytes(4, "little")))
    with pytest.raises(ArchiveRefused, match="damaged"):
        unpack_archive(archive, tmp_path / "out")
    assert sum(map(len, contents(tmp_path / "out").values())) <= 100


def test_endless_headers_do_not_fill_the_memory(tmp_path: Path) -> None:
    info = tarfile.TarInfo("file")
    info.pax_headers = {"comment": "x" * 2**23}
    with pytest.raises(ArchiveRefused, match="is damaged") as caught:
        unpack_archive(tar(tmp_path / "a.tar.gz", info), tmp_path / "out")
    assert "its headers hold more than names" in str(caught.value.facts["reason"])


def test_huge_counts_are_refused(tmp_path: Path) -> None:
    members = [(f"file{number}", b"") for number in range(60)]
    for archive in (tar(tmp_path / "a.tar.gz", *members), write_zip(tmp_path / "a.zip", *members)):
        with pytest.raises(ArchiveRefused, match="more than 50 entries"):
            unpack_archive(archive, tmp_path / archive.suffix, UnpackLimits(entries=50))


def test_truncated_and_other_files_are_damaged_archives(tmp_path: Path) -> None:
    whole = tar(tmp_path / "a.tar.gz", ("file", bytes(range(256)) * 999)).read_bytes()
    zip_whole = write_zip(tmp_path / "a.zip", ("file", bytes(range(256)) * 999)).read_bytes()
    bad = {
        "cut.tar.gz": whole[: len(whole) // 2],
        "page.tar.gz": b"<html>not found</html>",
        "empty.tar.gz": b"",
        "plain.tar.gz": gzip.compress(b"no tar at all" * 100),
        "cut.zip": zip_whole[: len(zip_whole) // 2],
        "page.zip": b"<html>not found</html>",
        "flipped.zip": zip_whole[:200] + bytes([zip_whole[200] ^ 255]) + zip_whole[201:],
    }
    for name, data in bad.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ArchiveRefused, match="damaged"):
            unpack_archive(tmp_path / name, tmp_path / f"out-{name}")


def test_a_zip_archive_with_an_invalid_name_or_offset_is_damaged(tmp_path: Path) -> None:
    whole = write_zip(tmp_path / "a.zip", ("f\u00e9.so", TEXT)).read_bytes()
    directory = whole.index(b"PK\1\2")
    end = whole.index(b"PK\5\6")
    before = (2**31).to_bytes(4, "little")  # the directory would begin before the file does
    bad = {
        "name.zip": whole[:directory] + whole[directory:].replace("\u00e9".encode(), b"\xc3\xc3"),
        "offset.zip": whole[: end + 16] + before + whole[end + 20 :],
        "size.zip": whole[: end + 12] + before + whole[end + 16 :],
    }
    for name, data in bad.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ArchiveRefused, match="damaged"):
            unpack_archive(tmp_path / name, tmp_path / f"out-{name}")


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_an_archive_with_any_changed_byte_is_unpacked_or_refused(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    base = tmp_path_factory.mktemp("turned")
    kind = data.draw(st.sampled_from(["a.zip", "a.tar"]))
    make = write_zip if kind == "a.zip" else tar
    whole = make(base / "whole", *((f"top/f\u00e9{number}.so", bytes(range(99))) for number in range(3))).read_bytes()
    content = bytearray(whole if kind == "a.zip" else gzip.decompress(whole))
    for place, value in data.draw(
        st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255)), min_size=1, max_size=4)
    ):
        content[place] = value
    archive = base / ("a.zip" if kind == "a.zip" else "a.tar.gz")
    archive.write_bytes(content if kind == "a.zip" else gzip.compress(content, 1))
    with suppress(ArchiveRefused):
        unpack_archive(archive, base / "out")


def test_an_entry_without_a_name_is_refused(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "a.zip", ("a.so", TEXT))
    archive.write_bytes(archive.read_bytes().replace(b"a.so", b"\0.so"))
    with pytest.raises(ArchiveRefused):
        unpack_archive(archive, tmp_path / "out")


@settings(max_examples=60, deadline=None)
@given(names=st.lists(st.text(st.sampled_from("ab./\\:~ \0"), min_size=1, max_size=12), min_size=1, max_size=4))
def test_no_names_write_outside_the_folder(names: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    base = tmp_path_factory.mktemp("names")
    archive = base / "a.tar.gz"
    try:
        tar(archive, *((name, TEXT) for name in names))
    except ValueError:  # tarfile itself cannot write such a name
        return
    with suppress(ArchiveRefused):
        unpack_archive(archive, base / "deep" / "out")
    outside = [path for path in base.rglob("*") if path.is_file() and not path.is_relative_to(base / "deep" / "out")]
    assert outside == [archive]
