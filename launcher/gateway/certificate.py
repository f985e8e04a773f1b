"""The file with the certificate that clients on other computers trust; `authority.py` makes and uses it."""

import hashlib
import ssl
from pathlib import Path

from launcher.base.paths import state_dir


def certificate_path() -> Path:
    """Return the path of the certificate that clients on other computers trust. It holds no secret."""
    return state_dir() / "certificate.pem"


def read_fingerprint() -> str | None:
    """Return the SHA-256 fingerprint of the certificate as `openssl` writes it; None if there is none yet."""
    try:
        data = ssl.PEM_cert_to_DER_cert(certificate_path().read_text("ascii"))
    except (OSError, ValueError):
        return None
    return hashlib.sha256(data).digest().hex(":").upper()
