"""Installation on Linux: scripts, menu entry, icon, lists. In real systems: .ci/deb, .ci/install-sh."""

import importlib.util
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest

from launcher.machine.libraries import known_libraries
from launcher.updates.check import RELEASES, RELEASES_VARIABLE
from launcher.updates.signature import RELEASE_KEY, RELEASE_KEY_VARIABLE

ROOT = Path(__file__).parents[2]
LINUX = ROOT / "installer" / "linux"
sys.path[:0] = [str(LINUX), str(ROOT / "installer")]
import prune  # noqa: E402 -- a script beside its modules, not a package
from manifest import manifest_text  # noqa: E402 -- a script beside its modules, not a package

DESKTOP = ROOT / "resources" / "desktop"
POSIX = (
    LINUX / "install.sh",
    LINUX / "verify.sh",
    LINUX / "validate",
    LINUX / "debian" / "running",
    ROOT / ".ci" / "deb.d" / "prove",
    ROOT / ".ci" / "install-sh.d" / "bare",
    Path(__file__).with_name("fake_uv"),
    Path(__file__).with_name("fake_python"),
)
BASH = (
    LINUX / "build-wheel",
    LINUX / "build-deb",
    LINUX / "build-install",
    LINUX / "build-python",
    ROOT / "installer" / "release",
    ROOT / ".ci" / "completion",
    ROOT / ".ci" / "release-gate",
    ROOT / ".ci" / "stores",
    ROOT / ".ci" / "signed-files",
    ROOT / ".ci" / "site",
    ROOT / ".ci" / "tag-is-version",
    ROOT / ".ci" / "workflows",
    ROOT / ".ci" / "deb",
    ROOT / ".ci" / "install-sh",
    ROOT / ".ci" / "install-sh.d" / "prove",
)


def run(*words: str | Path) -> str:
    """Return what a program prints; if it fails, the test fails and shows that."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_shellcheck_finds_nothing() -> None:
    run("shellcheck", *POSIX, *BASH)


def test_a_posix_shell_parses_the_scripts() -> None:
    for script in POSIX:
        run("dash", "-n", script)


def test_the_main_cases_of_install_sh() -> None:
    """.ci/install-sh tests all cases, which takes a minute."""
    result = run("bats", "--tap", "--filter-tags", "essential", Path(__file__).parent)
    assert "# skip" not in result
    assert "1..7" in result


def test_the_menu_entry_and_its_metadata_are_valid() -> None:
    run(LINUX / "validate", DESKTOP)
    (metainfo,) = DESKTOP.glob("*.metainfo.xml")
    assert '<launchable type="desktop-id">mtp-launcher.desktop</launchable>' in metainfo.read_text("utf-8")


def test_gguf_files_open_with_the_program() -> None:
    """The file's name and its first bytes each lead to the type that the menu entry opens."""
    space = {"m": "http://www.freedesktop.org/standards/shared-mime-info"}
    (kind,) = ElementTree.parse(DESKTOP / "mtp-launcher.mime.xml").getroot().findall("m:mime-type", space)
    assert [each.get("pattern") for each in kind.findall("m:glob", space)] == ["*.gguf"]
    assert [(each.get("offset"), each.get("value")) for each in kind.findall("m:magic/m:match", space)] == [
        ("0", "GGUF")
    ]
    entry = (DESKTOP / "mtp-launcher.desktop").read_text("utf-8").splitlines()
    assert f"MimeType={kind.get('type')};" in entry
    assert "Exec=mtp-launcher gui %f" in entry


def test_wslg_accepts_the_menu_entry() -> None:
    """WSLg would leave out an entry for a terminal, a hidden one, and one for certain desktops only."""
    lines = (DESKTOP / "mtp-launcher.desktop").read_text("utf-8").splitlines()
    assert "Terminal=false" in lines
    assert not [line for line in lines if line.startswith(("NoDisplay", "Hidden", "OnlyShowIn", "NotShowIn"))]


def read_packages_by_soname() -> dict[str, str]:
    """Return the Debian packages of dependencies.txt by soname."""
    lines = (LINUX / "dependencies.txt").read_text("utf-8").splitlines()
    return dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))


def test_the_package_depends_on_all_libraries_that_the_program_loads() -> None:
    listed = read_packages_by_soname()
    for library in known_libraries():
        if library.purpose != "official":
            assert library.package in listed[library.soname].split(" | ")


def find_load_error(library: Path) -> str:
    """Return the loader's complaints about a shared object, or an empty text."""
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, library], capture_output=True, text=True, check=False)
    return done.stderr.strip().rpartition("\n")[2]


def test_wheels_can_be_loaded_after_pruning(tmp_path: Path) -> None:
    """numpy's OpenBLAS is not stripped, because the loader would refuse it afterwards."""
    (numpy,) = importlib.util.find_spec("numpy").submodule_search_locations or ()  # type: ignore[union-attr]
    site = tmp_path / "site-packages"
    libraries = shutil.copytree(Path(numpy).with_name("numpy.libs"), site / "numpy.libs")
    (site / "PySide6" / "Qt" / "lib").mkdir(parents=True)
    prune.prune(tmp_path)
    (library,) = libraries.glob("libscipy_openblas*")
    assert find_load_error(library) == ""


def test_a_library_that_cannot_be_loaded_fails_the_build(tmp_path: Path) -> None:
    library = tmp_path / "broken.so"
    image = bytearray(Path(psutil._psutil_linux.__file__).read_bytes())
    assert prune.is_aligned(bytes(image))
    table, size, count = struct.unpack_from("<32xQ14xHH", image)
    last = max(at for at in range(table, table + size * count, size) if image[at : at + 4] == b"\1\0\0\0")
    (offset,) = struct.unpack_from("<Q", image, last + 8)
    struct.pack_into("<Q", image, last + 8, offset + 8)
    library.write_bytes(image)
    assert "not page-aligned" in find_load_error(library)
    with pytest.raises(SystemExit, match=r"not page-aligned: broken\.so"):
        prune.check_load_commands(tmp_path)


def test_an_interpreter_is_built_from_the_named_source_only(tmp_path: Path) -> None:
    pins = dict(re.findall(r"^(\w+)=(\S+)$", (LINUX / "python.txt").read_text("utf-8"), re.MULTILINE))
    assert re.fullmatch(r"3\.\d+\.\d+", pins["version"])
    assert re.fullmatch(r"[0-9a-f]{64}", pins["sha256"])
    source = tmp_path / f"Python-{pins['version']}.tar.xz"
    source.write_bytes(b"another source")
    command = [LINUX / "build-python", tmp_path / "python.tar.gz", source]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert refused.stderr == f"Error: {source} is not the Python {pins['version']} that python.txt names.\n"
    assert [*tmp_path.iterdir()] == [source]


def test_unneeded_libraries_of_the_interpreter_may_be_listed(tmp_path: Path) -> None:
    """In an empty tree no library is needed. A listed library that only the interpreter would need is then no error."""
    with pytest.raises(SystemExit, match="names what nothing needs") as caught:
        prune.depends(tmp_path)
    assert "libX11.so.6" in str(caught.value)
    assert "libssl.so.3" not in str(caught.value)


def test_install_sh_is_stamped_with_the_values_of_the_build() -> None:
    text = (LINUX / "install.sh").read_text("utf-8")
    build = (LINUX / "build-install").read_text("utf-8")
    for name in ("version", "wheel", "wheel_sha256", "lock_sha256", "releases", "release_key", "default_index"):
        assert re.search(rf"^{name}=$", text, re.MULTILINE)
        assert re.search(rf" {name}=\"\$", build)
    assert RELEASES_VARIABLE in text
    assert RELEASE_KEY_VARIABLE in text
    found = re.findall(r"^(\w+)=\$\(sed -n '(s/[^']*)' \"\$source/(\S+)\"\)", build, re.MULTILINE)
    received = {name: run("sed", "-n", how, ROOT / where) for name, how, where in found}
    assert received == {"releases": f"{RELEASES}\n", "release_key": f"{RELEASE_KEY}\n"}


def test_a_script_without_a_line_for_a_value_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "script"
    for text in ("version=1\n", "version=\nversion=\n", "# version=\n"):
        script.write_text(text)
        command = [sys.executable, ROOT / "installer" / "stamp.py", script, "version=2"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        assert "lines for version" in done.stderr


def test_install_sh_accepts_the_manifest_of_the_release_command(tmp_path: Path) -> None:
    """install.sh reads the manifest without a JSON parser, so manifest.py has to write the lines that it expects."""
    sums = {name: digit * 64 for name, digit in (("install.sh", "a"), ("install.ps1", "b"), ("x_1.2_amd64.deb", "c"))}
    pieces = [{"name": "install.sh", "version": "9", "source": 'sha256 0, "sha256": "0"'}]
    artefacts = [
        {"name": name, "platform": "any", "size": 1, "sha256": sha256, "holds": pieces} for name, sha256 in sums.items()
    ]
    notes = '{"version": "9", {"name": "install.sh", "sha256": "0"}\n'
    manifest = tmp_path / "manifest.json"
    manifest.write_text(manifest_text({"version": "1.2", "notes": notes, "built": "now", "artefacts": artefacts}))
    ask = (
        f'. "{LINUX / "verify.sh"}"; manifest_version "$1"; shift; for name; do manifest_sum "{manifest}" "$name"; done'
    )
    assert run("dash", "-c", ask, "-", manifest, *sums, "none").split() == ["1.2", *sums.values()]


def test_the_manual_fills_an_offline_folder_as_documented() -> None:
    script = LINUX / "install.sh"
    lock = "mtp_launcher-X-requirements.txt"
    received = [line.replace(lock, lock.replace("X", "*")) for line in run("sh", script, "--help").splitlines()]
    lines = [line for line in received if line.startswith("    ")]
    assert len(lines) == 3
    assert "\n".join(lines) in (ROOT / "docs" / "platforms.md").read_text("utf-8")


def test_calls_of_install_sh_into_the_program_work() -> None:
    code = re.search(r"bin/python\" -I -c '\n(.*?)'", (LINUX / "install.sh").read_text("utf-8"), re.DOTALL)
    assert code
    without = """
import launcher.machine.libraries as libraries
libraries.missing_libraries = lambda purpose: [each for each in libraries.known_libraries() if each.purpose == purpose]
"""
    result = run(sys.executable, "-c", without + code[1])
    engine, window, install = result.splitlines()
    assert engine == "The engine needs libraries that are not here: libgomp.so.1"
    assert window.startswith("The window needs libraries that are not here: libEGL.so.1, ")
    assert install.startswith("Install them: ")


def test_the_lock_file_is_complete_for_each_python() -> None:
    lock = "requirements.lock"
    received = {python: run(sys.executable, LINUX / "lock_for.py", lock, python) for python in ("3.11", "3.12", "3.14")}
    for lines in received.values():
        names = [line.split("==")[0] for line in lines.splitlines()]
        assert {"numpy", "pyside6-essentials", "xllamacpp"} <= set(names)
        assert len(names) == len(set(names))
        assert all("--hash=sha256:" in line and ";" not in line for line in lines.splitlines())
    assert received["3.11"] != received["3.12"]
    assert received["3.12"] == received["3.14"]
