"""The Windows setup program, as far as it can be tested without building it (.ci/windows-setup does that)."""

import hashlib
import importlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from launcher.app import autostart
from launcher.base import paths, running_mark
from launcher.updates.install_method import InstallMethod, find_install_method

ROOT = Path(__file__).parents[2]
HERE = ROOT / "installer" / "windows"
STARTER = next(Path(sys.prefix).glob("lib/python3*/site-packages/pip/_vendor/distlib/t64.exe"), None)
"""A small 64-bit Windows program that comes with pip, but not with Debian's."""


@pytest.fixture
def bundle(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """installer/windows/bundle.py, which decides the contents of the setup program."""
    monkeypatch.syspath_prepend(str(HERE))
    return importlib.import_module("bundle")


@pytest.fixture
def build(bundle: ModuleType) -> ModuleType:
    """The build script."""
    return importlib.import_module("build")


def read_lock(path: Path) -> dict[str, tuple[str, set[str]]]:
    """Return what a lock file names for CPython 3.11: the version and the hashes of each package."""
    packages = {}
    for block in re.split(r"\n(?=[a-z])", path.read_text()):
        found = re.match(r"([a-z0-9-]+)==([^\s;]+)(?: ; (.*))?", block)
        if found and ">=" not in (found[3] or ""):
            packages[found[1]] = found[2], set(re.findall(r"sha256:([0-9a-f]{64})", block))
    return packages


@pytest.mark.usefixtures("bundle")
def test_the_wheels_equal_those_of_the_lock_file() -> None:
    build_tools = importlib.import_module("lock").BUILD_TOOLS
    everywhere, here = read_lock(ROOT / "requirements.lock"), read_lock(HERE / "wheels.lock")
    runtime_version, _ = here.pop("msvc-runtime")
    assert runtime_version
    assert set(here) == set(everywhere) - build_tools
    for name, (version, hashes) in here.items():
        assert (version, len(hashes)) == (everywhere[name][0], 1), name
        assert hashes <= everywhere[name][1], name


def test_setup_and_program_use_the_same_names() -> None:
    script = (HERE / "setup.nsi").read_text("utf-8")
    defined = dict(re.findall(r'^!define (\w+) "([^"]*)"', script, re.MULTILINE))
    defined = {name: value.replace("${APP}", defined["APP"]) for name, value in defined.items()}
    assert (defined["RUNNING"], defined["END"]) == (running_mark.RUNNING_MUTEX, running_mark.END_EVENT)
    assert defined["APP_ID"] == running_mark.APP_ID
    assert defined["UNINSTALLER"] == running_mark.UNINSTALLER
    assert (defined["RUN_KEY"], defined["RUN_VALUE"]) == (autostart.RUN_KEY, autostart.RUN_VALUE)
    assert defined["DATA"] == f"$LOCALAPPDATA\\{paths._APP}"


def test_cancelling_setup_is_not_reported_as_a_failure() -> None:
    """Every abort sets $Failed. Otherwise .onInstFailed would report a full disk in the log and the exit code."""
    script = (HERE / "setup.nsi").read_text("utf-8")
    aborts = re.findall(r"((?:^  .*\n)*?)^ +Abort \"", script, re.MULTILINE)
    assert len(aborts) == 2
    assert all("StrCpy $Failed 1" in before for before in aborts)


def test_an_installed_copy_knows_that_setup_installed_it(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / running_mark.UNINSTALLER).touch()
    assert find_install_method(tmp_path / "app", tmp_path, tmp_path) is InstallMethod.SETUP


def test_all_texts_exist_in_both_languages() -> None:
    words = (HERE / "words.nsh").read_text("utf-8")
    values = {
        (name, language): text for name, language, text in re.findall(r'LangString (\w+) \$\{(\w+)\} "(.*)"', words)
    }
    names = {name for name, _ in values}
    assert set(values) == {(name, language) for name in names for language in ("EN", "ZH")}
    scripts = "".join((HERE / name).read_text("utf-8") for name in ("setup.nsi", "uninstall.nsh"))
    used = set(re.findall(r"\$\((\w+)\)", scripts))
    assert used == names
    for name in names:
        english, chinese = (re.findall(r"\$\{?\w+\}?", values[name, language]) for language in ("EN", "ZH"))
        assert set(english) == set(chinese), name


def test_an_archive_with_other_files_of_python_is_refused(bundle: ModuleType, tmp_path: Path) -> None:
    lines = [line for line in (HERE / "python.lock").read_text().splitlines() if not line.startswith("#")]
    assert len(lines) == 34
    archive = tmp_path / "python.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        for line in lines:
            opened.writestr("folder/" + line.split("  ")[1], b"another file")
    with pytest.raises(bundle.BuildError, match="is not the file that"):
        bundle.unpack_python(archive, tmp_path)
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("something", b"else")
    with pytest.raises(bundle.BuildError, match="does not hold one copy"):
        bundle.unpack_python(archive, tmp_path)


def test_the_parts_of_qt_that_the_window_imports_are_kept(bundle: ModuleType) -> None:
    sources = "\n".join(path.read_text("utf-8") for path in (ROOT / "launcher" / "gui").rglob("*.py"))
    modules = set(re.findall(r"^\s*from PySide6\.(Qt\w+) import", sources, re.MULTILINE))
    assert {"QtCore", "QtWidgets"} <= modules
    for module in modules - {"QtDBus"}:  # launcher.gui.motion imports it on Linux only
        assert bundle.is_kept(f"PySide6/{module}.pyd"), module
        assert bundle.is_kept(f"PySide6/Qt6{module[2:]}.dll"), module
    assert not bundle.is_kept("PySide6/QtQuick.pyd")


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("numpy/_core/_multiarray_umath.cp311-win_amd64.pyd", True),
        ("numpy/_core/tests/test_umath.py", False),
        ("numpy/testing/__init__.py", True),
        ("numpy.libs/msvcp140-a4c2229bdc2a2a630acdc095b4d86008.dll", True),
        ("shiboken6/msvcp140.dll", False),
        ("launcher/_data/resources/demo/demo.gguf.xz", True),
        ("launcher/engine/builtin.py", True),
        ("pyqtgraph/examples/Plotting.py", False),
        ("numpy-2.4.6.dist-info/licenses/LICENSE.txt", True),
        ("numpy-2.4.6.dist-info/RECORD", False),
    ],
)
def test_files_of_wheels_are_selected(bundle: ModuleType, name: str, kept: bool) -> None:
    assert bundle.is_kept(name) is kept


def test_unused_files_of_a_wheel_are_left_out(bundle: ModuleType, tmp_path: Path) -> None:
    wheel, tree = tmp_path / "thing-1.0-py3-none-any.whl", tmp_path / "tree"
    with zipfile.ZipFile(wheel, "w") as opened:
        opened.writestr("thing/__init__.py", "value = 1\n")
        opened.writestr("thing/tests/test_it.py", "")
        opened.writestr("thing-1.0.data/scripts/thing", "")
        opened.writestr("thing-1.0.dist-info/METADATA", "Name: thing\nVersion: 1.0\nLicense-Expression: MIT\n\nText")
    package, left_out = bundle.unpack_wheel(wheel, tree)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert package == bundle.Package("thing", "1.0", "MIT", wheel.name, digest)
    assert left_out == ["thing-1.0.data/scripts/thing", "thing/tests/test_it.py"]
    bundle.compile_modules(tree, Path(sys.executable))
    files = bundle.settle(tree, 1_700_000_000)
    names = [path.relative_to(tree / "Lib" / "site-packages").as_posix() for path in files]
    compiled = f"thing/__pycache__/__init__.{sys.implementation.cache_tag}.pyc"
    assert names == ["thing-1.0.dist-info/METADATA", "thing/__init__.py", compiled]
    assert {path.stat().st_mtime for path in files} == {1_700_000_000}
    assert str(tmp_path).encode() not in files[2].read_bytes()


@pytest.mark.skipif(STARTER is None, reason="this pip comes without Windows programs")
def test_a_needed_library_cannot_be_left_out(bundle: ModuleType) -> None:
    assert STARTER is not None
    assert "KERNEL32.dll" in list(bundle.imported(STARTER.read_bytes()))
    bundle.check_libraries([STARTER], ["somewhere/other.dll"])
    with pytest.raises(bundle.BuildError, match=r"t64.exe wants KERNEL32.dll"):
        bundle.check_libraries([STARTER], ["somewhere/kernel32.dll"])
    with pytest.raises(bundle.BuildError, match="64-bit"):
        list(bundle.imported(STARTER.with_name("t32.exe").read_bytes()))


def test_files_are_unpacked_in_a_fixed_order_beside_the_old_ones(build: ModuleType, tmp_path: Path) -> None:
    names = ["b.txt", "Lib/a$b.py", "Lib/c.py"]
    lines = list(build.instructions(tmp_path, [tmp_path / name for name in names]))
    assert lines == [
        'SetOutPath "$INSTDIR\\app.new"',
        f'File "{tmp_path}/b.txt"',
        'SetOutPath "$INSTDIR\\app.new\\Lib"',
        f'File "{tmp_path}/Lib/a$$b.py"',
        f'File "{tmp_path}/Lib/c.py"',
    ]


def test_a_missing_program_is_named(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    compiler = tmp_path / "python"
    for version, error in (("3.11.7", "makensis is missing"), ("3.10.1", "Run this with CPython 3.11")):
        compiler.write_text(f"#!/bin/sh\necho CPython {version}\n")
        compiler.chmod(0o755)
        assert build.main([str(tmp_path / "folder"), "--compiler", str(compiler)]) == 1
        assert error in capsys.readouterr().err


def test_a_signed_program_replaces_the_unsigned_one_only_on_success(tmp_path: Path) -> None:
    signer, program = tmp_path / "osslsigncode", tmp_path / "setup.exe"
    signer.write_text(
        "#!/bin/sh\n"
        'echo "$*" >"${0%/*}/words"\n'
        '[ -z "$REFUSES" ] || exit 3\n'
        'while [ "$1" != -out ]; do shift; done\n'
        'printf signed >"$2"\n'
    )
    signer.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "SIGN_WITH": '["mine.pfx", "secret.txt", ""]',
        "SOURCE_DATE_EPOCH": "1700000000",
    }
    for refuses, code, content in (("yes", 3, "plain"), ("", 0, "signed")):
        program.write_text("plain")
        ended = subprocess.run(
            [sys.executable, str(HERE / "sign.py"), str(program)], env=environment | {"REFUSES": refuses}, check=False
        )
        assert (ended.returncode, program.read_text()) == (code, content)
    words = (tmp_path / "words").read_text()
    assert "-pkcs12 mine.pfx -readpass secret.txt -time 1700000000" in words


def test_the_icon_has_the_sizes_that_windows_shows() -> None:
    icon = (HERE / "mtp-launcher.ico").read_bytes()
    sizes = [icon[6 + 16 * each] or 256 for each in range(icon[4])]
    assert sizes == [16, 24, 32, 48, 64, 256]


def test_the_version_of_a_library_is_read(bundle: ModuleType) -> None:
    """A version resource holds name and value as UTF-16, with zeros between them for alignment."""
    image = b"MZ..." + "ProductVersion\0\0003.11.9\0OriginalFilename\0".encode("utf-16-le")
    assert bundle.product_version(image) == "3.11.9"
    with pytest.raises(bundle.BuildError, match="does not tell its version"):
        bundle.product_version(b"MZ...")


def test_another_python_is_locked_by_file(bundle: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = importlib.import_module("lock")
    library = b"MZ" + "ProductVersion\0\0003.14.1\0".encode("utf-16-le")
    archive = tmp_path / "python.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        for name in ("python314.dll", "python3.dll", "python.exe", "other/file"):
            opened.writestr(name, library)
    name, text = lock.lock_python(archive)
    assert (name, bundle.minor_version(name)) == ("python314", "3.14")
    assert text.startswith("# CPython 3.14.1, the embeddable package")
    monkeypatch.setattr(bundle, "HERE", tmp_path)
    (tmp_path / "python.lock").write_text(text)
    (tmp_path / "tree").mkdir()
    assert bundle.unpack_python(archive, tmp_path / "tree") == "3.14.1"
    assert {each.name for each in (tmp_path / "tree").iterdir()} == {
        "python314.dll", "python3.dll", "python.exe", "python314._pth"
    }  # fmt: skip
    assert (tmp_path / "tree" / "python314._pth").read_text().startswith("python314.zip")
