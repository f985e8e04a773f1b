"""Lists the contents of a tree, with their licences: the project, each package of its site-packages, and the
interpreter.

    python contents.py TREE VERSION SOURCE COPYRIGHT CONTENTS

TREE is as for prune.py, VERSION is that of its interpreter, and SOURCE is the interpreter's origin. Writes COPYRIGHT,
the licences in full, and CONTENTS, a line for each piece: name, version, licence, where from.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path

_HEAD = """\
MTP Launcher, and what its Debian package holds beside it. Each piece has a licence of its own.

Qt and PySide6 are used under the GNU Lesser General Public License, version 3, whose text is in
/usr/share/common-licenses/LGPL-3. They are shared libraries in /usr/lib/mtp-launcher/site-packages/PySide6, which you
may replace; their sources: https://code.qt.io. Beside Qt lies ICU (Unicode-3.0). xllamacpp holds llama.cpp and ggml
(MIT, Copyright (c) 2023-2026 The ggml authors). The licence of nvidia-ml-py stands at the head of pynvml.py.
cryptography holds OpenSSL (Apache-2.0), and cffi holds libffi (MIT, Copyright (c) 1996-2025 Anthony Green, Red Hat, Inc
and others)."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Something in the tree: its name, version, the short name of its licence, its texts, and where it comes from."""

    name: str
    version: str
    licence: str
    texts: tuple[str, ...]
    source: str


def wheels(site: Path) -> Iterator[Piece]:
    """Yield the packages that wheels have brought, by name."""
    for folder in sorted(site.glob("*.dist-info"), key=lambda each: each.name.lower()):
        about = Parser().parsestr((folder / "METADATA").read_text("utf-8"), headersonly=True)
        names = ("LICEN[CS]E*", "COPYING*", "NOTICE*", "AUTHORS*", "licenses/**/*")
        files = sorted({each for name in names for each in folder.glob(name) if each.is_file()})
        texts = tuple(each.read_text("utf-8", errors="replace").strip() for each in files)
        source = "this project" if about["Name"] == "mtp-launcher" else "a wheel of requirements.lock"
        yield Piece(about["Name"], about["Version"], licence(about), texts, source)


def licence(about: Message) -> str:
    """Return the short name of a package's licence, from its metadata."""
    if expression := about["License-Expression"]:
        return str(expression)
    classified = [each.split(" :: ")[-1] for each in about.get_all("Classifier", ()) if each.startswith("License ::")]
    first = next(iter((about["License"] or "").strip().splitlines()), "")
    return first if first and len(first) < 60 else ", ".join(classified) or "see its text"


def interpreter(tree: Path, version: str, source: str) -> Piece:
    """Return the interpreter as a piece."""
    [text] = tree.glob("lib/python3.*/LICENSE.txt")
    return Piece("CPython", version, "PSF-2.0", (text.read_text("utf-8").strip(),), source)


def main(tree: Path, version: str, source: str, copyright_file: Path, contents_file: Path) -> None:
    """Write both files."""
    pieces = [*wheels(tree / "site-packages"), interpreter(tree, version, source)]
    parts = [_HEAD]
    for each in pieces:
        texts = "\n\n".join(each.texts) or "See above."
        parts.append(f"{each.name} {each.version}\nLicence: {each.licence}\n\n{texts}")
    copyright_file.write_text(f"\n\n{'-' * 79}\n\n".join(parts) + "\n", "utf-8")
    lines = [f"{each.name} {each.version} | {each.licence} | {each.source}" for each in pieces]
    contents_file.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4]), Path(sys.argv[5]))
