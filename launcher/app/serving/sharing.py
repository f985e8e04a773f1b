"""Addresses of a shared server for other computers, and the commands that open the firewall for it."""

from dataclasses import dataclass
from pathlib import Path

from launcher.gateway.certificate import certificate_path, read_fingerprint
from launcher.machine.addresses import firewall_hint, list_lan_addresses
from launcher.machine.host import read_host
from launcher.machine.wsl import read_wsl_settings


@dataclass(frozen=True, slots=True)
class ShareInfo:
    """The address at which other computers reach a server.

    `urls` are its base addresses, without a path; the address of the default route is first. `hint` is how to open the
    port in a firewall, with commands on separate lines; empty if that is not needed. `certificate` is the file that
    clients on other computers must trust, `fingerprint` its SHA-256 as `openssl` writes it; None without encryption.
    """

    urls: tuple[str, ...]
    hint: str
    certificate: Path | None = None
    fingerprint: str | None = None


def shared_urls(port: int, *, encrypted: bool = False) -> tuple[str, ...]:
    """Return the base addresses of a server on `port` for other computers, without a path."""
    return tuple(f"{'https' if encrypted else 'http'}://{address}:{port}" for address in list_lan_addresses())


def read_share_info(port: int, *, encrypted: bool = False) -> ShareInfo:
    """Return how other computers reach a server on `port`, from this computer's current networks."""
    host = read_host()
    mirrored = any(each.values.get("wsl2.networkingmode", "").lower() == "mirrored" for each in read_wsl_settings())
    hint = firewall_hint(port, system=host.kind, wsl=host.wsl, wsl_mirrored=mirrored)
    urls = shared_urls(port, encrypted=encrypted)
    if not encrypted:
        return ShareInfo(urls, hint)
    return ShareInfo(urls, hint, certificate_path(), read_fingerprint())
