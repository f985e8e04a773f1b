"""Addresses of servers as users write them."""

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from launcher.base.errors import BadOption
from launcher.base.messages import message
from launcher.base.text import shown_address


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Address of a server: `url` without a final /v1. `local` is True if it is on this computer."""

    url: str
    local: bool

    @property
    def exposes_key(self) -> bool:
        """True if an API key would be sent unencrypted over the network."""
        return not self.local and self.url.startswith("http://")

    @property
    def registry_url(self) -> str:
        """The address as the registry of running servers writes it."""
        return self.url.replace("//localhost:", "//127.0.0.1:")


def parse_address(text: str) -> ServerAddress:
    """Parse an address as users write it.

    Raises BadOption if the address is invalid or has a password, and for a single word, which may be no address at all.
    """
    no_address = BadOption(
        message("`{text}` is not the address of a server.", text=shown_address(text)),
        message("Write it like http://127.0.0.1:8080."),
    )
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port
    except ValueError:  # the error's text may quote a password
        raise no_address from None
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise no_address
    if parts.username is not None or parts.query or parts.fragment:
        raise BadOption(
            message("The address may hold only a server and a path."),
            message("Pass the API key with --api-key-env or --key-file."),
        )
    if "://" not in text and port is None and "." not in host and not _is_local(host):
        raise no_address
    path = parts.path.rstrip("/").removesuffix("/v1").removesuffix("/chat/completions").removesuffix("/v1")
    return ServerAddress(urlunsplit((parts.scheme, parts.netloc, path, "", "")), _is_local(host))


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
