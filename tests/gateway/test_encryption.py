"""Sharing with TLS: the installation's own certificate, no TLS on the loopback address, TLS on all others."""

import asyncio
import hashlib
import socket
import ssl
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509

from launcher.gateway.access import Access
from launcher.gateway.authority import Authority, load_authority
from launcher.gateway.certificate import certificate_path, read_fingerprint
from launcher.gateway.gateway import Gateway
from launcher.machine.addresses import list_lan_addresses

KEY = "d" * 43
OTHERS = ("127.0.0.2", *list_lan_addresses()[:1])
"""Addresses on which the gateway treats clients as those of other computers."""
NAMES = ("desktop", "desktop.local")


@pytest.fixture
def authority(home: Path) -> Authority:
    return load_authority(NAMES, ("192.0.2.7",))


def test_the_certificate_is_created_once_with_a_private_key_file(home: Path, authority: Authority) -> None:
    assert read_fingerprint() == hashlib.sha256(der(authority)).digest().hex(":").upper()
    assert load_authority((), ()).certificate == authority.certificate
    state = home / "state"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in state.glob("certificate*.pem*")}
    assert modes == dict.fromkeys(("certificate.pem", "certificate-key.pem", "certificate-key.pem.copy"), 0o600)
    assert "PRIVATE" not in certificate_path().read_text()
    assert "key" not in repr(authority)
    certificate_path().unlink()
    load_authority((), ())
    assert read_fingerprint() == hashlib.sha256(der(authority)).digest().hex(":").upper()


def der(authority: Authority) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return authority.certificate.public_bytes(Encoding.DER)


@pytest.mark.parametrize("content", [b"", b"-----BEGIN CERTIFICATE-----\n", b"\xff" * 100])
def test_a_damaged_certificate_is_restored_from_its_copy(home: Path, authority: Authority, content: bytes) -> None:
    (home / "state" / "certificate-key.pem").write_bytes(content)
    assert load_authority((), ()).certificate == authority.certificate


def test_no_private_key_stays_in_the_runtime_folder(home: Path, authority: Authority) -> None:
    assert authority.make_context("192.168.1.5", NAMES).minimum_version is ssl.TLSVersion.TLSv1_2
    assert not [path for path in home.rglob("*.pem") if path.parent != home / "state"]


@pytest.mark.parametrize(
    ("host", "trusted"),
    [
        ("192.168.1.5", True),
        ("desktop", True),
        ("desktop.local", True),
        ("localhost", True),
        ("192.168.1.6", False),
        ("evil.example", False),
    ],
)
async def test_clients_that_trust_the_certificate_check_the_name(
    authority: Authority, host: str, trusted: bool
) -> None:
    assert await connects(authority.make_context("192.168.1.5", NAMES), host) is trusted


async def test_the_certificate_cannot_sign_other_names_and_addresses(authority: Authority) -> None:
    """A stolen key cannot be used to imitate a site of the internet."""
    signed = authority._sign(authority.key.public_key(), "203.0.113.9", ("evil.example", "desktop"))
    named = signed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert sorted(named.get_values_for_type(x509.DNSName)) == ["desktop", "localhost"]
    assert named.get_values_for_type(x509.IPAddress) == []
    limits = authority.certificate.extensions.get_extension_for_class(x509.NameConstraints)
    assert limits.critical
    assert await connects(authority.make_context("192.0.2.7", ()), "192.0.2.7"), "an address that it was made for"


async def connects(context: ssl.SSLContext, host: str) -> bool:
    """Return whether a client that trusts the certificate, and does strict checks, accepts a server as `host`."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    client = ssl.create_default_context(cafile=str(certificate_path()))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    port = server.sockets[0].getsockname()[1]
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname=host)
    except ssl.SSLError:
        return False
    else:
        writer.close()
        return True
    finally:
        server.close()


@pytest.fixture
async def port(authority: Authority) -> AsyncIterator[int]:
    """The port of a shared gateway that encrypts."""
    gateway = Gateway(Access({"default": KEY}, NAMES))
    with socket.create_server(("0.0.0.0", 0)) as listener:
        listener.setblocking(False)
        await gateway.listen([listener], lambda address: asyncio.to_thread(authority.make_context, address, NAMES))
        yield listener.getsockname()[1]
        await gateway.close()


async def ask(host: str, port: int, tls: ssl.SSLContext | None) -> bytes:
    """Return the answer to a request without a key."""
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(host, port, ssl=tls)
        writer.write(f"GET /v1/models HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
        try:
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()


async def test_connections_of_this_computer_need_no_tls(port: int) -> None:
    assert (await ask("127.0.0.1", port, None)).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("address", OTHERS)
async def test_connections_of_other_computers_need_tls(port: int, address: str) -> None:
    trusting = ssl.create_default_context(cafile=str(certificate_path()))
    trusting.check_hostname = False  # the certificate names private addresses only, and a container may have another
    assert (await ask(address, port, trusting)).startswith(b"HTTP/1.1 401 ")
    assert not (await ask(address, port, None)).startswith(b"HTTP")
    with pytest.raises(ssl.SSLCertVerificationError):
        await ask(address, port, ssl.create_default_context())


async def test_an_aborted_handshake_does_no_harm(port: int) -> None:
    for host in ("127.0.0.1", *OTHERS):
        for sent in (b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n"):
            _, writer = await asyncio.open_connection(host, port)
            writer.write(sent)
            writer.close()
    assert (await ask("127.0.0.1", port, None)).startswith(b"HTTP/1.1 401 ")
