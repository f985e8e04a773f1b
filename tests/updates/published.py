"""A release of this program on a server of this computer."""

import hashlib
import itertools
import json
from typing import Any

import pytest

from launcher.updates.check import RELEASES_VARIABLE
from tools.fault_matrix.server import FileServer, Told

_RUNS = itertools.count()
SCRIPT = 'echo "$0" "$MTP_LAUNCHER_RELEASES" >"$(dirname "$0")/ran"\n'
CONTENT = f"{SCRIPT}exit 0\n{'x' * 500_000}".encode()


class Release:
    """A release in a folder of the server, told under an address of its own."""

    def __init__(self, server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server, self.run = server, f"run{next(_RUNS)}"
        self._monkeypatch = monkeypatch
        self.publish()
        self.at()

    def at(self, faults: str = "none") -> str:
        """Let the program look for it at an address with faults."""
        address = self.server.url(self.run, faults, "").rstrip("/")
        self._monkeypatch.setenv(RELEASES_VARIABLE, address)
        return address

    def publish(
        self,
        version: str = "7.0.0",
        content: bytes = CONTENT,
        name: str = "install.sh",
        **changes: Any,  # noqa: ANN401 -- any JSON value
    ) -> None:
        """Put it there, with one file; `changes` are of that as the manifest tells it."""
        (self.server.folder / name).write_bytes(content)
        told = {"name": name, "platform": "any", "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        self.tell({"version": version, "notes": "Faster.\nQuieter.", "artefacts": [told | changes], "built": "anew"})

    def tell(self, manifest: object) -> None:
        """Put a manifest there, whatever it says."""
        (self.server.folder / "manifest.json").write_text(json.dumps(manifest), "utf-8")

    @property
    def told(self) -> Told:
        """What the server saw."""
        return self.server.told(self.run)
