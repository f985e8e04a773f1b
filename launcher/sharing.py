"""At which addresses other computers reach a server that is shared, and what may stand between."""

from dataclasses import dataclass

from launcher.machine.addresses import firewall_hint, lan_addresses
from launcher.machine.host import read_host
from launcher.machine.wsl import read_settings


@dataclass(frozen=True, slots=True)
class Sharing:
    """`urls` are the base addresses for other computers, without a path, that of the way out first.

    `hint` is what lets other computers through to the port, commands on lines of their own; empty if none is needed.
    """

    urls: tuple[str, ...]
    hint: str


def shared_urls(port: int) -> tuple[str, ...]:
    """Return the base addresses of a server on `port` for other computers, without a path."""
    return tuple(f"http://{address}:{port}" for address in lan_addresses())


def sharing(port: int) -> Sharing:
    """Return how a server on `port` is reached, as this computer's networks are now."""
    host = read_host()
    mirrored = any(each.values.get("wsl2.networkingmode", "").lower() == "mirrored" for each in read_settings())
    return Sharing(shared_urls(port), firewall_hint(port, system=host.kind, wsl=host.wsl, wsl_mirrored=mirrored))
