"""Makes a second release from a first one, which differs only in its version: python next.py ONE TWO.

Both get a manifest of their files; the caller signs them.
"""

import base64
import json
import sys
import zipfile
from hashlib import sha256
from pathlib import Path

NEXT = "0.2.99"


def main(one: Path, two: Path) -> None:
    """Write the wheel with another version, and stamp its install.sh."""
    two.mkdir()
    (wheel,) = one.glob("mtp_launcher-*.whl")
    version = wheel.name.split("-")[1]
    renamed = two / wheel.name.replace(version, NEXT, 1)
    lines = []
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(renamed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "launcher/__init__.py":
                data = data.replace(version.encode(), NEXT.encode())
            if name.endswith("/METADATA"):
                data = data.replace(f"Version: {version}\n".encode(), f"Version: {NEXT}\n".encode(), 1)
            name = name.replace(f"-{version}.dist-info", f"-{NEXT}.dist-info")
            if name.endswith("/RECORD"):
                data = "".join([*lines, f"{name},,\n"]).encode()
            else:
                digest = base64.urlsafe_b64encode(sha256(data).digest()).rstrip(b"=").decode()
                lines.append(f"{name},sha256={digest},{len(data)}\n")
            new.writestr(name, data)
    (lock,) = one.glob("*-requirements.txt")
    (two / lock.name.replace(version, NEXT)).write_bytes(lock.read_bytes())
    text = (one / "install.sh").read_text("utf-8").replace(f"={version}\n", f"={NEXT}\n")
    text = text.replace(wheel.name, renamed.name)
    text = text.replace(sha256(wheel.read_bytes()).hexdigest(), sha256(renamed.read_bytes()).hexdigest())
    (two / "install.sh").write_text(text, "utf-8")
    write_manifest(one, version)
    write_manifest(two, NEXT)


def write_manifest(release: Path, version: str) -> None:
    """Write what a release's folder holds."""
    artefacts = [
        {
            "name": path.name,
            "platform": "linux-x64" if path.suffix == ".sh" else "any",
            "size": path.stat().st_size,
            "sha256": sha256(path.read_bytes()).hexdigest(),
        }
        for path in sorted(release.iterdir())
        if path.is_file()
    ]
    manifest = {"version": version, "notes": "The number has changed.", "artefacts": artefacts}
    (release / "manifest.json").write_text(json.dumps(manifest, indent=1), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
