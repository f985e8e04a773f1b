"""Pins another CPython for the Windows setup program: .venv/bin/python installer/windows/lock.py ZIP

ZIP is python-3.X.Y-embed-amd64.zip of python.org, or an archive with its files in one folder. Writes python.lock, file
by file, and wheels.lock, the Windows wheels of requirements.lock for that 3.X. build.py then takes the same ZIP by
--python, and a Linux CPython 3.X by --compiler, such as python/bin/python3.X of linux/build-python's archive.
"""

import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from bundle import HERE, ROOT, BuildError, minor_version, product_version, sha256

sys.path.insert(0, str(HERE.parent / "linux"))
from lock_for import WINDOWS, holding

BUILD_TOOLS = frozenset({"babel", "hatchling", "packaging", "pathspec", "pluggy", "tomlkit", "trove-classifiers"})
"""Packages of requirements.lock that are only for building the wheel."""


def lock_python(archive: Path) -> tuple[str, str]:
    """Return the name of the library of the Python in an archive, such as "python313", and its python.lock."""
    with zipfile.ZipFile(archive) as opened:
        names = [name for name in opened.namelist() if re.search(r"(^|/)python3\d+\.dll$", name)]
        if len(names) != 1:
            raise BuildError(f"{archive} does not hold one copy of CPython.")
        folder, _, dll = names[0].rpartition("/")
        inside = [name for name in opened.namelist() if name.rpartition("/")[0] == folder and not name.endswith("/")]
        version = product_version(opened.read(names[0]))
        hashes = {name.rpartition("/")[2]: hashlib.sha256(opened.read(name)).hexdigest() for name in inside}
    lines = [f"{hashes[name]}  {name}" for name in sorted(hashes, key=str.lower)]
    head = f"# CPython {version}, the embeddable package for 64-bit Windows, file by file (as sha256sum writes it)."
    return dll.removesuffix(".dll"), "\n".join([head, *lines, ""])


def lock_wheels(minor: str, old: str, folder: Path) -> str:
    """Return the text of wheels.lock for a Python, and download the wheels into a folder.

    The line for Microsoft's runtime, which requirements.lock does not have, is taken from `old`.
    """
    wanted = holding((ROOT / "requirements.lock").read_text("utf-8"), minor, WINDOWS)
    lines = [line for line in wanted if re.split("=", line)[0] not in BUILD_TOOLS]
    requirements = folder / "requirements.txt"
    requirements.write_text("\n".join(lines) + "\n", "utf-8")
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps"]
    command += ["--require-hashes", "--only-binary=:all:", "--platform", "win_amd64", "--python-version", minor]
    subprocess.run([*command, "-d", str(folder), "-r", str(requirements)], check=True)
    digests = {sha256(wheel) for wheel in folder.glob("*.whl")}
    locked = [line for line in old.splitlines() if line.startswith("msvc-runtime==")]
    for line in lines:
        [digest] = set(re.findall(r"sha256:([0-9a-f]{64})", line)) & digests
        locked.append(f"{line.split(' ')[0]} --hash=sha256:{digest}")
    head = [re.sub(r"CPython 3\.\d+", f"CPython {minor}", line) for line in old.splitlines() if line.startswith("#")]
    return "\n".join([*head, *sorted(locked, key=lambda line: line.partition("==")[0]), ""])


def main(archive: Path) -> None:
    """Write both files."""
    library, python = lock_python(archive)
    wheels = HERE / "wheels.lock"
    with tempfile.TemporaryDirectory() as folder:
        text = lock_wheels(minor_version(library), wheels.read_text("utf-8"), Path(folder))
    (HERE / "python.lock").write_text(python, "utf-8")
    wheels.write_text(text, "utf-8")
    sys.stdout.write(python.splitlines()[0] + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
