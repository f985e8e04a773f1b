"""Signatures of releases, in minisign's format (https://jedisct1.github.io/minisign/): Ed25519 over BLAKE2b.

Whoever publishes a release signs its manifest, with the secret key that only they have. Installed programs have the
public key, and use nothing of a release before the signature of its manifest is verified.

A key is replaced by a statement that the former one has signed: release-keys.json beside the manifest, with a number
that grows and the keys that count from then on.
"""

import base64
import binascii
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from launcher.base.errors import LauncherError
from launcher.base.files import make_private_folder, write_atomically
from launcher.base.kept_files import KeptFile
from launcher.base.messages import message
from launcher.base.paths import state_dir
from launcher.base.validation import BaseModel, Field, ValidationError

RELEASE_KEY = ""
"""The maintainer's public key, as `minisign -G` prints it. Empty is a placeholder: such a build trusts no release."""
RELEASE_KEY_VARIABLE = "MTP_LAUNCHER_RELEASE_KEY"
"""Environment variable with a public key to use instead of RELEASE_KEY, for releases of one's own."""
MANIFEST = "manifest.json"
"""The manifest's file name, in the folder of the files that it lists."""
SIGNATURE_SUFFIX = ".minisig"
KEYS_FILE = "release-keys.json"
_KEY_ALGORITHM, _SIGNATURE_ALGORITHM = b"Ed", b"ED"
"""As minisign names them: ED is Ed25519 over a file's BLAKE2b digest of 64 bytes."""
_NOT_SIGNED = message("The release information is not signed by this program's maintainer, so nothing of it is used.")
_REMEDY = message("Try again later. If this persists, report it to the project, and do not install those files.")
_ID_BYTES, _KEY_BYTES, _SIGNATURE_BYTES = 8, 32, 64


class SignatureWrong(LauncherError):
    """A file of a release is not signed by its maintainer."""

    code = "signature_wrong"


class UnknownSigner(SignatureWrong):
    """A file is signed by a key that is not trusted."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key and the identifier by which signatures name it."""

    identifier: bytes
    key: bytes

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return the key of a minisign.pub file, or of its second line. Raises ValueError if it is none."""
        raw = base64.b64decode(text.strip().splitlines()[-1], validate=True)
        if len(raw) != len(_KEY_ALGORITHM) + _ID_BYTES + _KEY_BYTES or not raw.startswith(_KEY_ALGORITHM):
            raise ValueError("not a public key of minisign")
        return cls(raw[2 : 2 + _ID_BYTES], raw[2 + _ID_BYTES :])


@dataclass(frozen=True, slots=True)
class Signature:
    """The content of a .minisig file. `comment` is signed, too."""

    identifier: bytes
    of_file: bytes
    comment: str
    of_comment: bytes

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return the signature of a .minisig file. Raises ValueError if it is none."""
        _, first, comment, second = text.strip("\r\n").splitlines()
        raw, of_comment = (base64.b64decode(line, validate=True) for line in (first, second))
        if not raw.startswith(_SIGNATURE_ALGORITHM) or len(raw) != 2 + _ID_BYTES + _SIGNATURE_BYTES:
            raise ValueError("not a signature of minisign")
        if not comment.startswith("trusted comment: "):
            raise ValueError("no trusted comment")
        return cls(raw[2 : 2 + _ID_BYTES], raw[2 + _ID_BYTES :], comment.removeprefix("trusted comment: "), of_comment)


class KeysStatement(BaseModel):
    """The content of release-keys.json: the keys that count from now on, and a number that grows with each change."""

    number: int = Field(ge=1)
    keys: tuple[str, ...] = Field(min_length=1, max_length=10)


class _TrustedKeys(KeysStatement):
    """A statement that was verified. `root` is the program's own key at that time: with another one it is void."""

    root: str


_KEPT_KEYS: KeptFile[_TrustedKeys | None] = KeptFile(
    "The list of keys that sign releases",
    _TrustedKeys.model_validate_json,
    lambda: None,
    consequence="the key of this program counts",
)


def release_key() -> str:
    """Return the public key of the releases' maintainer as text; empty if this build has none."""
    return os.environ.get(RELEASE_KEY_VARIABLE) or RELEASE_KEY


def verify_signature(content: bytes, signature: str, keys: tuple[PublicKey, ...]) -> str:
    """Return the signed comment of a file's signature.

    Raises UnknownSigner if the signature names another key, and SignatureWrong if it is invalid or of other content.
    """
    try:
        found = Signature.from_text(signature)
    except (ValueError, binascii.Error) as error:
        raise SignatureWrong(_NOT_SIGNED, _REMEDY) from error
    signer = next((key for key in keys if key.identifier == found.identifier), None)
    if signer is None:
        raise UnknownSigner(_NOT_SIGNED, _REMEDY)
    public = Ed25519PublicKey.from_public_bytes(signer.key)
    try:
        public.verify(found.of_file, hashlib.blake2b(content).digest())
        public.verify(found.of_comment, found.of_file + found.comment.encode())
    except InvalidSignature as error:
        raise SignatureWrong(_NOT_SIGNED, _REMEDY) from error
    return found.comment


def verify_manifest(content: bytes, fetch: Callable[[str], bytes | None]) -> None:
    """Check that a release's manifest is signed by a key that counts. Raises SignatureWrong.

    `fetch` returns a file of the release's folder by its name, None if there is none: the signature, and if its key is
    unknown, the statement about new keys, which is verified and kept.
    """
    signature = _as_text(fetch(MANIFEST + SIGNATURE_SUFFIX))
    try:
        verify_signature(content, signature, _load_keys())
    except UnknownSigner:
        statement = fetch(KEYS_FILE)
        if statement is None:
            raise
        verify_signature(statement, _as_text(fetch(KEYS_FILE + SIGNATURE_SUFFIX)), _load_keys())
        _accept_keys(statement)
        verify_signature(content, signature, _load_keys())


def _as_text(content: bytes | None) -> str:
    return (content or b"").decode(errors="replace")


def _keys_file() -> Path:
    return state_dir() / KEYS_FILE


def _kept_statement() -> _TrustedKeys | None:
    try:
        kept = _KEPT_KEYS.load(_keys_file())
    except OSError:
        return None
    return kept if kept is not None and kept.root == release_key() else None


def _load_keys() -> tuple[PublicKey, ...]:
    kept = _kept_statement()
    found = []
    for text in kept.keys if kept else (release_key(),):
        try:
            found.append(PublicKey.from_text(text))
        except (ValueError, IndexError):
            continue
    return tuple(found)


def _accept_keys(content: bytes) -> None:
    """Keep a verified statement about keys. Raises SignatureWrong if it is an old one, or names no key."""
    kept = _kept_statement()
    try:
        statement = KeysStatement.model_validate_json(content)
        for text in statement.keys:
            PublicKey.from_text(text)
    except (ValidationError, ValueError, IndexError) as error:
        raise SignatureWrong(_NOT_SIGNED, _REMEDY) from error
    if kept is not None and statement.number <= kept.number:
        raise SignatureWrong(_NOT_SIGNED, _REMEDY)
    make_private_folder(_keys_file().parent)
    trusted = _TrustedKeys(number=statement.number, keys=statement.keys, root=release_key())
    write_atomically(_keys_file(), trusted.model_dump_json().encode())
