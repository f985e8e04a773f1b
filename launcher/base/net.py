"""Proxy, redirects, certificates and error messages shared by all HTTP clients."""

import ipaddress
import os
import re
import socket
import ssl
import sys
import urllib.request
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urljoin, urlsplit

import certifi
import truststore

from launcher import __version__
from launcher.base.errors import BadOption, ProxyUnusable, Refused, Unreachable, Untrusted
from launcher.base.messages import join_messages, message

USER_AGENT = f"mtp-launcher/{__version__}"
"""The name by which servers know this program."""
CONVERSATION_HEADER = "X-Conversation"
"""The request header in which the window names a chat, so that deleting the chat deletes what is kept of it on disk."""
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/cert.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
)
"""Paths of the trusted certificates in Linux distributions (from Go's crypto/x509, root_linux.go)."""


def host_name(url: str) -> str:
    """Return the host name of a URL for messages, "The server" if there is none.

    The rest of the URL may contain a signature or a password.
    """
    try:
        return urlsplit(url if "://" in url else f"http://{url}").hostname or message("The server")
    except ValueError:
        return message("The server")


def url_origin(url: str) -> tuple[str, str | None, int | None]:
    """Return the origin of a URL: scheme, host and port (RFC 6454). Raises ValueError."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def redirect_target(url: str, location: str) -> str:
    """Return the target of a redirect from `url`. Raises Refused if it is invalid, or leads from https to http."""
    try:
        target = urljoin(url, location)
        scheme = url_origin(target)[0]
    except ValueError as error:
        raise Refused(
            message("{url} redirects to an invalid address.", url=host_name(url)), message("Try again later.")
        ) from error
    if urlsplit(url).scheme == "https" and scheme != "https":
        raise Refused(
            message("{url} redirects to an unencrypted address.", url=host_name(url)), message("Use another server.")
        )
    return target


def strip_secrets(url: str) -> str:
    """Return a URL without user, query and fragment, which may contain passwords and signatures. Raises BadOption."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise BadOption(
            message("Not a valid web address: {error}.", error=error),
            message("Use an address that begins with https://."),
        ) from error
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy and how to log in there. One of the kind socks5 also resolves host names."""

    kind: Literal["http", "socks5"]
    host: str
    port: int
    user: str | None = None
    password: str = ""

    @property
    def netloc(self) -> str:
        """Host and port as in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


_PROXY = re.compile(
    r"(?:(?P<scheme>[a-z][a-z0-9+.-]*)://)?(?:(?P<user>[^:]*)(?::(?P<password>.*))?@)?"
    r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<host>[^:@/?#\s]+))(?::(?P<port>[0-9]{1,5}))?(?:/.*)?",
    re.IGNORECASE | re.DOTALL,
)
"""The address of a proxy. Its password may contain any character: the last @ ends it."""
_PROXY_KINDS: dict[str, tuple[Literal["http", "socks5"], int]] = {
    "http": ("http", 80),
    "socks5": ("socks5", 1080),
    "socks5h": ("socks5", 1080),
    "socks": ("socks5", 1080),  # as GNOME writes it into all_proxy
}
"""The kind of a proxy and its usual port, by the scheme of its address."""
_CHECK_PROXY = message("Check HTTPS_PROXY, HTTP_PROXY and ALL_PROXY.")
GIVE_PROXY_LOGIN = message("Write the login before the host in its address: USER:PASSWORD@HOST:PORT.")


def find_proxy(url: str) -> Proxy | None:
    """Return the environment's proxy for a URL (on Windows also the system's), None if there is none.

    A proxy for the URL's scheme comes before that for all. Raises ProxyUnusable.
    """
    proxies, scheme = urllib.request.getproxies(), url.partition(":")[0].lower()
    address = proxies.get(scheme) or proxies.get("all")
    return None if not address or _needs_no_proxy(url, proxies.get("no", "")) else _parse_proxy(address)


def _parse_proxy(address: str) -> Proxy:
    match = _PROXY.fullmatch(address.strip())
    if match is None or int(match["port"] or 1) not in range(1, 65536):
        raise ProxyUnusable(message("The address of the proxy set in the environment is not valid."), _CHECK_PROXY)
    scheme, host = (match["scheme"] or "http").lower(), match["address"] or match["host"]
    if scheme not in _PROXY_KINDS:
        raise ProxyUnusable(
            message("The proxy {proxy} uses {scheme}, which is not supported.", proxy=host, scheme=scheme),
            message("Set HTTPS_PROXY to an address that begins with http:// or socks5://."),
        )
    kind, usual_port = _PROXY_KINDS[scheme]
    user = match["user"]
    return Proxy(
        kind,
        host,
        int(match["port"] or usual_port),
        None if user is None else unquote(user),
        unquote(match["password"] or ""),
    )


def _needs_no_proxy(url: str, exceptions: str) -> bool:
    """Return True if the system, or an entry of `exceptions` (no_proxy), excepts the server of a URL.

    An entry is a host name with or without a dot or *. before it, an address or a network, each perhaps with a port.
    """
    host = host_name(url)
    return urllib.request.proxy_bypass(host) or any(
        _excepts(entry.lower(), host, url_origin(url)[2]) for entry in re.split(r"[\s,;]+", exceptions)
    )


def _excepts(entry: str, host: str, port: int | None) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        name = entry.removesuffix(f":{port}").strip("[]").removeprefix("*").removeprefix(".")
        return entry == "*" or (bool(name) and f".{host}".endswith(f".{name}"))


def is_sent_token(url: str, target: str) -> bool:
    """Return True if `target` may be sent the token for `url`: on the same server, or the same host by https."""
    origin, to = url_origin(url), url_origin(target)
    return origin == to or (origin[:2] == ("http", to[1]) and to[0] == "https" and (origin[2], to[2]) == (80, 443))


def make_tls_context() -> ssl.SSLContext:
    """Return a TLS context that trusts the system's certificates, or those of SSL_CERT_FILE and SSL_CERT_DIR.

    On Windows the system itself verifies, so it can fetch missing root certificates. A Linux without certificates uses
    those of certifi. Raises Unreachable if the variables name nothing readable.
    """
    file, folder = os.environ.get("SSL_CERT_FILE") or None, os.environ.get("SSL_CERT_DIR") or None
    try:
        if file or folder:
            return _make_context(file, folder)
        if sys.platform == "linux" and not _system_has_certificates():
            return _certifi_context()
        return _make_context(None, None)
    except OSError as error:
        raise Unreachable(
            message("The certificates set in the environment cannot be used: {error}.", error=error),
            message("Check SSL_CERT_FILE and SSL_CERT_DIR."),
        ) from error


@cache  # reading them takes 50 ms
def _certifi_context() -> ssl.SSLContext:
    return _make_context(certifi.where(), None)


def _make_context(file: str | None, folder: str | None) -> ssl.SSLContext:
    context = truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if file or folder:
        context.load_verify_locations(cafile=file, capath=folder)
    return context


def _system_has_certificates() -> bool:
    default = ssl.get_default_verify_paths()
    folder = Path(default.capath) if default.capath else None
    return any(Path(file).is_file() for file in (default.cafile, *_BUNDLES) if file) or (
        folder is not None and any(folder.glob("*.[0-9]"))
    )


def setup_error(error: Exception, url: str) -> Unreachable:
    """Return the error for an unusable proxy or certificate setup, or an unusable address `url`."""
    why = str(error).rstrip(".")
    return Unreachable(
        message("Cannot connect to {host}: {error}.", host=host_name(url), error=why),
        join_messages(message("Check the address."), _CHECK_PROXY, message("Check SSL_CERT_FILE and SSL_CERT_DIR.")),
    )


def proxy_error(url: str, reason: str) -> Unreachable:
    """Return the error of a proxy that answered, but did not connect to the server of `url`."""
    proxy = find_proxy(url)
    wants_login = re.search(r"\b407\b|auth|login|password|methods", reason, re.IGNORECASE)
    return (ProxyUnusable if wants_login else Unreachable)(
        message(
            "The proxy {proxy} does not connect to {host}: {reason}.",
            proxy=proxy.host if proxy else host_name(""),
            host=host_name(url),
            reason=reason.rstrip("."),
        ),
        GIVE_PROXY_LOGIN if wants_login else _CHECK_PROXY,
    )


def connection_error(
    url: str,
    error: BaseException,
    *,
    connecting: bool = False,
    hint: str = message("Check the internet connection."),
) -> Unreachable:
    """Return the error for a failed connection to `url`; `connecting` if it failed before it was established.

    `hint` is the next step unless a proxy or a certificate may be the cause.
    """
    host, proxy = host_name(url), find_proxy(url)
    if proxy:
        hint = message("The connection uses the proxy {proxy}.", proxy=proxy.host)
    cause: BaseException = error
    while not isinstance(cause, OSError) and (cause.__cause__ or cause.__context__):
        cause = cause.__cause__ or cause.__context__ or cause
    if isinstance(cause, ssl.SSLError):
        why = getattr(cause, "verify_message", "") or cause.reason or cause
        hint = message("Check the clock; behind an inspecting proxy, set SSL_CERT_FILE to its certificate.")
        kind = Untrusted if isinstance(cause, ssl.SSLCertVerificationError) else Unreachable
        return kind(message("Cannot make a secure connection to {host}: {why}.", host=host, why=why), hint)
    while proxy and isinstance(inner := cause.__cause__ or cause.__context__, OSError):  # python-socks wraps it
        cause = inner
    # Only the proxy's name is resolved here, and only the proxy connected to.
    if proxy and isinstance(cause, socket.gaierror | ConnectionRefusedError):
        return Unreachable(
            message("The proxy {proxy} cannot be reached: {reason}.", proxy=proxy.host, reason=_error_text(cause)),
            _CHECK_PROXY,
        )
    if isinstance(cause, socket.gaierror):
        return Unreachable(message("The host name {host} cannot be resolved.", host=host), hint)
    if isinstance(cause, TimeoutError):
        return Unreachable(message("{host} did not respond in time.", host=host), hint)
    if connecting:
        return Unreachable(message("{host} cannot be reached: {reason}.", host=host, reason=_error_text(cause)), hint)
    return Unreachable(
        message("The connection to {host} was lost: {reason}.", host=host, reason=_error_text(error)),
        join_messages(message("Try again."), hint),
    )


def _error_text(error: BaseException) -> str:
    """Return an error's text without its number."""
    return str(getattr(error, "strerror", None) or error).rstrip(".")
