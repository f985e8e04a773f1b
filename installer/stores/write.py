#!/usr/bin/env python3
"""Writes the manifests of a release for package managers: winget, Scoop, Homebrew, AUR, Flathub, Docker, AppImage.

    write.py DIST URL FOLDER [--homepage ADDRESS]

DIST is what installer/release left, URL the folder that its files are published in. FOLDER gets the files of the
folders beside this one, with version, names and hashes of manifest.json in the places of @version@ and the like. PyPI
needs no manifest: the wheel is uploaded. How each is checked and handed in: docs/stores.md.
"""

import argparse
import json
import re
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
_FILES = {
    "deb": r"mtp-launcher_.*_amd64\.deb",
    "setup": r"mtp-launcher-.*-setup\.exe",
    "wheel": r"mtp_launcher-.*\.whl",
    "requirements": r"mtp_launcher-.*-requirements\.txt",
}
"""Placeholders for the files of a release, each with the pattern of the file's name."""
_SRCINFO = (
    *("pkgdesc", "pkgver", "pkgrel", "url", "arch", "license", "depends", "optdepends", "provides", "conflicts"),
    *("noextract", "options", "source", "sha256sums"),
)
"""The fields of .SRCINFO, in makepkg's order."""


def read_values(manifest: dict[str, object], url: str, homepage: str) -> dict[str, str]:
    """Return the values of the placeholders. Raises SystemExit if the release lacks a file."""
    values = {
        "version": str(manifest["version"]),
        "date": str(manifest["built"])[:10],
        "url": url,
        "homepage": homepage,
    }
    artefacts = manifest["artefacts"]
    assert isinstance(artefacts, list)
    for kind, pattern in _FILES.items():
        found = [each for each in artefacts if re.fullmatch(pattern, each["name"])]
        if len(found) != 1:
            sys.exit(f"The release has {len(found)} files like {pattern}.")
        digest = str(found[0]["sha256"])
        values |= {kind: found[0]["name"], f"{kind}_sha256": digest, f"{kind.upper()}_SHA256": digest.upper()}
    return values


def fill_places(text: str, values: dict[str, str]) -> str:
    """Return a text with its placeholders @name@ filled. Raises KeyError for a placeholder without a value."""
    return re.sub(r"@(\w+)@", lambda place: values[place[1]], text)


def write_srcinfo(pkgbuild: str) -> str:
    """Return the .SRCINFO of a PKGBUILD such as ours, as `makepkg --printsrcinfo` prints it."""
    name = re.search(r"^pkgname=(\S+)$", pkgbuild, re.MULTILINE)
    assert name
    lines = [f"pkgbase = {name[1]}"]
    for field in _SRCINFO:
        found = re.search(rf"^{field}=(\(.*?\)$|\"[^\"]*\"$|\S+$)", pkgbuild, re.MULTILINE | re.DOTALL)
        assert found, field
        whole = found[1]
        each_value = re.findall(r"['\"]([^'\"]*)['\"]", whole) or [whole]
        lines += [f"\t{field} = {value}" for value in each_value]
    return "\n".join([*lines, "", f"pkgname = {name[1]}", ""])


def main(arguments: list[str]) -> None:
    """Write them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dist", type=Path)
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--homepage", help="the project's address (default: URL)")
    options = parser.parse_args(arguments)
    url = options.url.rstrip("/")
    manifest = json.loads((options.dist / "manifest.json").read_text("utf-8"))
    values = read_values(manifest, url, options.homepage or url)
    for source in sorted(HERE.glob("*/*")):
        if source.suffix == ".pyc":
            continue
        target = options.folder / source.relative_to(HERE)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(fill_places(source.read_text("utf-8"), values), "utf-8", newline="\n")
        shutil.copymode(source, target)
    pkgbuild = (options.folder / "aur" / "PKGBUILD").read_text("utf-8")
    (options.folder / "aur" / ".SRCINFO").write_text(write_srcinfo(pkgbuild), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
