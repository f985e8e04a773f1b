"""A release of this program on a server of this computer."""

import hashlib
import itertools
import json
from typing import Any

import pytest

from launcher.updates.check import VARIABLE
from tools.fault_matrix.server import FileServer, Told

_RUNS = itertools.count()
WHEEL = "mtp_launcher-7.0.0-py3-none-any.whl"
CONTENT = bytes(range(256)) * 2_000


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
        self._monkeypatch.setenv(VARIABLE, address)
        return address

    def publish(self, version: str = "7.0.0", name: str = WHEEL, **changes: Any) -> None:  # noqa: ANN401
        """Put it there; `changes` are of the file as the manifest tells it."""
        (self.server.folder / name).write_bytes(CONTENT)
        told = {"name": name, "platform": "any", "size": len(CONTENT), "sha256": hashlib.sha256(CONTENT).hexdigest()}
        self.tell({"version": version, "notes": "Faster.\nQuieter.", "artefacts": [told | changes], "built": "anew"})

    def tell(self, manifest: object) -> None:
        """Put a manifest there, whatever it says."""
        (self.server.folder / "manifest.json").write_text(json.dumps(manifest), "utf-8")

    @property
    def told(self) -> Told:
        """What the server saw."""
        return self.server.told(self.run)
