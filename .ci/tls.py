"""Sends a request over TLS between a client and a server of aiohttp, with a certificate made by cryptography.

Run by a bundled Python: it ends with an error if one of the packages, or one of their compiled modules, is missing.
"""
# ruff: noqa: S101, T201, TID251

import asyncio
import importlib
import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from aiohttp import ClientSession, web
from cryptography import x509
from cryptography.hazmat.backends.openssl import backend
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

ADDRESS = "127.0.0.1"
COMPILED = [
    *("aiohttp._http_parser", "aiohttp._http_writer", "aiohttp._websocket.mask", "aiohttp._websocket.reader_c"),
    *("frozenlist._frozenlist", "multidict._multidict", "propcache._helpers_c", "yarl._quoting_c"),
]
"""Modules that have a slower replacement in Python, so that their absence would go unnoticed."""


def make_certificate() -> tuple[bytes, bytes]:
    """Return a self-signed certificate for this computer, and its key, both as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "proof")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    own_addresses = x509.SubjectAlternativeName([x509.IPAddress(ip_address(ADDRESS))])
    certificate = builder.add_extension(own_addresses, critical=False).sign(key, hashes.SHA256())
    kind = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    return certificate.public_bytes(pem), key.private_bytes(pem, *kind)


async def ask(certificate: bytes, key: bytes) -> str:
    """Return what the server answers, and the version of TLS."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "both.pem"
        file.write_bytes(certificate + key)
        serving.load_cert_chain(file)

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        return web.Response(text=str(request.transport.get_extra_info("ssl_object").version()))

    application = web.Application()
    application.router.add_get("/", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, ADDRESS, 0, ssl_context=serving).start()
    trusted = ssl.create_default_context(cadata=certificate.decode())
    url = f"https://{ADDRESS}:{runner.addresses[0][1]}/"
    async with ClientSession() as session, session.get(url, ssl=trusted) as reply:
        text = await reply.text()
    await runner.cleanup()
    return text


for module in COMPILED:
    importlib.import_module(module)
print(f"{asyncio.run(ask(*make_certificate()))}, certificate by {backend.openssl_version_text()}")
