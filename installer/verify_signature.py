"""Verifies a file by its minisign signature: python -I verify_signature.py PACKAGES KEY FILE; 1 if it is not KEY's.

PACKAGES is a folder that holds `cryptography`, KEY as minisign prints it; FILE.minisig is the signature. install.sh and
install.ps1 include this (installer/stamp.py), for systems that know no Ed25519. It may use nothing of the program.
"""

import sys
from base64 import b64decode
from hashlib import blake2b
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


def is_signed(key: str, file: Path) -> bool:
    """Return True if the signature beside a file was made with the key, over the file and over the signature's
    comment."""
    try:
        _, named, comment, second = file.with_name(f"{file.name}.minisig").read_text("utf-8").splitlines()
        raw_key, raw = b64decode(key, validate=True), b64decode(named, validate=True)
        # The algorithm in two bytes, the key's name in eight, then the key of 32 bytes, or the signature of 64.
        if (raw_key[:2], raw[:2]) != (b"Ed", b"ED") or raw_key[2:10] != raw[2:10]:
            return False
        if not comment.startswith("trusted comment: "):
            return False
        public, signature = Ed25519PublicKey.from_public_bytes(raw_key[10:]), raw[10:]
        public.verify(signature, blake2b(file.read_bytes()).digest())
        public.verify(b64decode(second, validate=True), signature + comment.partition(": ")[2].encode())
    except (ValueError, InvalidSignature):
        return False
    return True


sys.exit(0 if is_signed(sys.argv[2], Path(sys.argv[3])) else 1)
