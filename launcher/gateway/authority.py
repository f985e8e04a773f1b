"""The certificate of this installation, with which a shared gateway encrypts.

One certificate is made once and kept: clients on other computers are told to trust it. It can sign for addresses of
private networks and for this computer's names only, so that a stolen key cannot be used to imitate a web site. With it
the gateway signs a certificate for each address at which it is reached, because those change.
"""

import ipaddress
import re
import secrets
import ssl
import tempfile
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from launcher.base.files import make_private_folder, write_atomically
from launcher.base.kept_files import KeptFile, hold_file_lock
from launcher.base.paths import runtime_dir, state_dir
from launcher.gateway.certificate import certificate_path

_PRIVATE_NETWORKS = (
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "::1/128",
    "fc00::/7",
    "fe80::/10",
)
_KEPT_FOR = timedelta(days=3650)
_SIGNED_FOR = timedelta(days=825)
"""The longest time that Apple's systems accept, even if the user trusts the authority."""
_CLOCKS_DIFFER = timedelta(days=1)
_LOCK_S = 10.0
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,62}[a-z0-9])?")
_MARK = b"-----BEGIN CERTIFICATE-----"


def _check_pem(data: bytes) -> bytes:
    """Return the content of the kept file. Raises ValueError if it is not a private key and its certificate."""
    key, certificate = (
        serialization.load_pem_private_key(data, None),
        x509.load_pem_x509_certificate(data[data.index(_MARK) :]),
    )
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ValueError("the key belongs to another certificate")
    return data


_FILE: KeptFile[bytes | None] = KeptFile(
    "The certificate for other computers", _check_pem, lambda: None, private=True, has_second_copy=True
)


@dataclass(frozen=True, slots=True)
class Authority:
    """The certificate of this installation and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    def make_context(self, address: str, names: Collection[str]) -> ssl.SSLContext:
        """Return a context for TLS connections to `address` of this computer, or to one of `names`. Raises OSError."""
        key = ec.generate_private_key(ec.SECP256R1())
        chain = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        chain += self._sign(key.public_key(), address, names).public_bytes(serialization.Encoding.PEM)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # OpenSSL reads keys only from files. Only this user can read this one, which is deleted at once.
        with tempfile.NamedTemporaryFile(dir=make_private_folder(runtime_dir()), suffix=".pem", delete=False) as file:
            file.write(chain)
        try:
            context.load_cert_chain(file.name)
        finally:
            Path(file.name).unlink(missing_ok=True)
        return context

    def _sign(self, key: ec.EllipticCurvePublicKey, address: str, names: Collection[str]) -> x509.Certificate:
        """Return a certificate for an address and names, without those that this authority may not sign for."""
        limits = self.certificate.extensions.get_extension_for_class(x509.NameConstraints).value.permitted_subtrees
        known = {each.value for each in limits or () if isinstance(each, x509.DNSName)}
        addresses = [each.value for each in limits or () if isinstance(each, x509.IPAddress)]
        alternatives: list[x509.GeneralName] = [x509.DNSName(each) for each in sorted(known & {*names, "localhost"})]
        number = ipaddress.ip_address(address)
        if any(number in each for each in addresses if isinstance(each, ipaddress.IPv4Network | ipaddress.IPv6Network)):
            alternatives.append(x509.IPAddress(number))
        return (
            _begin_certificate("MTP Launcher", self.certificate.subject, key, _SIGNED_FOR)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )


def load_authority(names: Collection[str], addresses: Collection[str]) -> Authority:
    """Return the certificate of this installation.

    It is made at the first call, for this computer's `names` and `addresses` and for private networks.

    Raises OSError if it cannot be kept.
    """
    path = make_private_folder(state_dir()) / "certificate-key.pem"
    with hold_file_lock(path, _LOCK_S):
        data = _FILE.load(path)
        if data is None:
            data = _make_authority(names, addresses)
            _FILE.save(path, data)
    key = serialization.load_pem_private_key(data, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)  # noqa: S101 -- checked by _check_pem
    certificate = x509.load_pem_x509_certificate(data[data.index(_MARK) :])
    text = certificate.public_bytes(serialization.Encoding.PEM)
    if not certificate_path().is_file() or certificate_path().read_bytes() != text:
        write_atomically(certificate_path(), text)
    return Authority(certificate, key)


def _make_authority(names: Collection[str], addresses: Collection[str]) -> bytes:
    """Return a new private key and its certificate as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    named = [x509.DNSName(each) for each in sorted({*names, "localhost"}) if _NAME.fullmatch(each)]
    networks = [x509.IPAddress(ipaddress.ip_network(each)) for each in (*_PRIVATE_NETWORKS, *addresses)]
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"MTP Launcher {secrets.token_hex(4)}")])
    usage = dict.fromkeys(
        (
            "digital_signature",
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "crl_sign",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    certificate = (
        _begin_certificate(subject, subject, key.public_key(), _KEPT_FOR)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(key_cert_sign=True, **usage), critical=True)
        .add_extension(x509.NameConstraints([*named, *networks], None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + certificate.public_bytes(serialization.Encoding.PEM)


def _begin_certificate(
    subject: x509.Name | str, issuer: x509.Name, key: ec.EllipticCurvePublicKey, valid_for: timedelta
) -> x509.CertificateBuilder:
    if isinstance(subject, str):
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, subject)])
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + valid_for)
    )
