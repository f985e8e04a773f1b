"""What every way to another computer shares: its proxy, its certificates, and sentences for what goes wrong."""

import os
import socket
import ssl
import sys
import urllib.request
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import certifi
import truststore

from launcher.base.errors import BadOption, Refused, Unreachable, Untrusted

_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/cert.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
)
"""Where Linux distributions keep the trusted certificates (the list of Go's crypto/x509, root_linux.go)."""


def host_of(url: str) -> str:
    """Return a server's name alone: the rest of an address may hold a signature or a password."""
    try:
        return urlsplit(url if "://" in url else f"http://{url}").hostname or "The server"
    except ValueError:
        return "The server"


def origin(url: str) -> tuple[str, str | None, int | None]:
    """Return what makes two addresses one server's: scheme, host and port (RFC 6454). Raises ValueError."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def redirected(url: str, location: str) -> str:
    """Return where the answer of `url` leads with that Location. Raises Refused for no address, or away from https."""
    try:
        target = urljoin(url, location)
        scheme = origin(target)[0]
    except ValueError as error:
        raise Refused(f"{host_of(url)} leads to what is no web address.", "Try again later.") from error
    if urlsplit(url).scheme == "https" and scheme != "https":
        raise Refused(f"{host_of(url)} leads to an address without encryption.", "Use another server.")
    return target


def without_secrets(url: str) -> str:
    """Return an address without user, query and fragment, which may hold passwords and signatures. Raises BadOption."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise BadOption(f"There is no such web address: {error}.", "It begins with https://.") from error
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def proxy_for(url: str) -> str | None:
    """Return the environment's proxy for an address (on Windows also the system's), None where there is none."""
    proxies, scheme = urllib.request.getproxies(), url.partition(":")[0].lower()
    return None if urllib.request.proxy_bypass(host_of(url)) else proxies.get(scheme, proxies.get("all"))


def tls_context() -> ssl.SSLContext:
    """Return a context that trusts whom the system trusts, and SSL_CERT_FILE and SSL_CERT_DIR.

    On Windows the system itself verifies, so roots that it fetches when they are first needed are there. On a Linux
    without certificates those of certifi serve. Raises Unreachable when the variables name nothing that can be read.
    """
    context = truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    file, folder = os.environ.get("SSL_CERT_FILE") or None, os.environ.get("SSL_CERT_DIR") or None
    try:
        if file or folder:
            context.load_verify_locations(cafile=file, capath=folder)
        elif sys.platform == "linux" and not _system_has_certificates():
            context.load_verify_locations(cafile=certifi.where())
    except OSError as error:
        raise Unreachable(
            f"The certificates that the environment names cannot be used: {error}.",
            "See SSL_CERT_FILE and SSL_CERT_DIR.",
        ) from error
    return context


def _system_has_certificates() -> bool:
    default = ssl.get_default_verify_paths()
    folder = Path(default.capath) if default.capath else None
    return any(Path(file).is_file() for file in (default.cafile, *_BUNDLES) if file) or (
        folder is not None and any(folder.glob("*.[0-9]"))
    )


def unusable(error: Exception, url: str | None = None) -> Unreachable:
    """Return the error for a proxy or certificates, or the address `url`, with which nothing can be asked at all."""
    what = (
        "The environment's proxy or certificates cannot be used" if url is None else f"{host_of(url)} cannot be asked"
    )
    hint = "See HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, SSL_CERT_FILE and SSL_CERT_DIR."
    return Unreachable(f"{what}: {str(error).rstrip('.')}.", hint if url is None else f"Check the address. {hint}")


def unreachable(url: str, error: BaseException, *, connecting: bool = False) -> Unreachable:
    """Return the error for what broke off the way to `url`; `connecting` while there was no connection yet."""
    host, proxy = host_of(url), proxy_for(url)
    way = f"The way there leads through the proxy {host_of(proxy)}." if proxy else "Is this computer online?"
    cause: BaseException = error
    while not isinstance(cause, OSError) and (cause.__cause__ or cause.__context__):
        cause = cause.__cause__ or cause.__context__ or cause
    if isinstance(cause, ssl.SSLError):
        why = getattr(cause, "verify_message", "") or cause.reason or cause
        clock = "Check the clock; behind an inspecting proxy, set SSL_CERT_FILE to its certificate."
        kind = Untrusted if isinstance(cause, ssl.SSLCertVerificationError) else Unreachable
        return kind(f"There is no secure connection to {host}: {why}.", clock)
    if isinstance(cause, socket.gaierror):
        return Unreachable(f"The name {host} is not known.", way)
    if isinstance(cause, TimeoutError):
        return Unreachable(f"{host} did not answer in time.", way)
    if connecting:
        return Unreachable(f"{host} cannot be reached: {_words(cause)}.", way)
    return Unreachable(f"The connection to {host} broke off: {_words(error)}.", f"Try again. {way}")


def _words(error: BaseException) -> str:
    """Return what an error says, without its number."""
    return str(getattr(error, "strerror", None) or error).rstrip(".")
