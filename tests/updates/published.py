"""A release of this program on a server of this computer."""

import hashlib
import itertools
import json
from typing import Any

import pytest

from launcher.updates.check import RELEASES_VARIABLE
from launcher.updates.signature import RELEASE_KEY_VARIABLE
from tests.updates.signing import Maintainer
from tools.fault_matrix.server import FileServer, RunRecord

_RUNS = itertools.count()
SCRIPT = 'echo "$0" "$MTP_LAUNCHER_RELEASES" >"$(dirname "$0")/ran"\n'
CONTENT = f"{SCRIPT}exit 0\n{'x' * 500_000}".encode()


class Release:
    """A release in a folder of the server, published at an address of its own."""

    def __init__(self, server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server, self.run = server, f"run{next(_RUNS)}"
        self._monkeypatch = monkeypatch
        self.maintainer = Maintainer()
        monkeypatch.setenv(RELEASE_KEY_VARIABLE, self.maintainer.public_key)
        self.publish()
        self.use_address()

    def use_address(self, faults: str = "none") -> str:
        """Set the address at which the program looks for the release; it has these faults. Return the address."""
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
        """Publish the release with one file. `changes` change what the manifest says of the file."""
        (self.server.folder / name).write_bytes(content)
        values = {
            "name": name,
            "platform": "any",
            "size": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        self.publish_manifest(
            {"version": version, "notes": "Faster.\nQuieter.", "artefacts": [values | changes], "built": "anew"}
        )

    def publish_manifest(self, manifest: object) -> None:
        """Publish a signed manifest with any content."""
        self.put_signed("manifest.json", json.dumps(manifest).encode(), self.maintainer)

    def put_signed(self, name: str, content: bytes, signer: Maintainer) -> None:
        """Publish a file and its signature."""
        (self.server.folder / name).write_bytes(content)
        (self.server.folder / f"{name}.minisig").write_text(signer.sign(content), "utf-8")

    @property
    def record(self) -> RunRecord:
        """The requests that the server received."""
        return self.server.read_record(self.run)
