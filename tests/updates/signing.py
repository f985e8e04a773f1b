"""A maintainer's keys, and files that they have signed, in minisign's format."""

import base64
import hashlib
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_SHORT = b"Ed"
_DIGESTED = b"ED"


@dataclass(frozen=True, slots=True)
class Maintainer:
    """Somebody with a key pair, the same for the same number."""

    number: int = 1

    @property
    def _secret(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"test %d" % self.number).digest())

    @property
    def _identifier(self) -> bytes:
        return self.number.to_bytes(8, "little")

    @property
    def public_key(self) -> str:
        """The line of a minisign.pub file."""
        return base64.b64encode(_SHORT + self._identifier + self._secret.public_key().public_bytes_raw()).decode()

    def sign(self, content: bytes, comment: str = "a test") -> str:
        """Return what `minisign -S` would write."""
        of_file = self._secret.sign(hashlib.blake2b(content).digest())
        of_comment = self._secret.sign(of_file + comment.encode())
        first = base64.b64encode(_DIGESTED + self._identifier + of_file).decode()
        second = base64.b64encode(of_comment).decode()
        return f"untrusted comment: no matter what\n{first}\ntrusted comment: {comment}\n{second}\n"
