"""This computer's addresses in the local network, and how to open its firewall for other computers."""

import ipaddress
import socket
from contextlib import suppress

import psutil

_VIRTUAL_PREFIXES = ("docker", "br-", "veth", "virbr", "podman", "cni", "lxc", "vmnet", "vboxnet", "vethernet (")
"""Name prefixes of interfaces that lead only to containers and virtual machines of this computer."""
_CONTAINERS_NAMES = ("host.docker.internal", "gateway.docker.internal", "host.containers.internal")
"""Host names of this computer inside the containers of Docker and Podman."""
_HOME_DOMAINS = ("local", "lan", "home", "internal", "localdomain", "home.arpa", "fritz.box")
"""Domains of names that routers and mDNS give to computers, and under which no stranger can have one."""
_PROBE_ADDRESS = ("192.0.2.1", 9)
"""A documentation address (RFC 5737). Connecting a UDP socket to it looks up the route and sends nothing."""


def list_lan_addresses() -> tuple[str, ...]:
    """Return this computer's IPv4 addresses on its networks, the default route's address first; empty if none."""
    states = psutil.net_if_stats()
    found: list[str] = []
    for interface, addresses in psutil.net_if_addrs().items():
        is_up = interface in states and states[interface].isup
        if not is_up or interface.lower().startswith(_VIRTUAL_PREFIXES):
            continue
        ipv4 = [each.address for each in addresses if each.family == socket.AF_INET]
        found.extend(address for address in ipv4 if _is_reachable(address))
    default = _default_route_address()
    if default in found:
        found.insert(0, default)
    return tuple(dict.fromkeys(found))


def list_own_names() -> frozenset[str]:
    """Return the names by which other computers and containers may reach this one, in lower case."""
    name = socket.gethostname().lower()
    label = name.partition(".")[0]
    return frozenset({name, label, *(f"{label}.{each}" for each in _HOME_DOMAINS), *_CONTAINERS_NAMES})


def firewall_hint(port: int, *, system: str, wsl: int | None, wsl_mirrored: bool = False) -> str:
    """Return how to let other computers reach `port`, with commands on lines of their own; empty if nothing is needed.

    `system` is `Host.kind`; `wsl` is WSL's version, 1 or 2, or None outside WSL. The commands follow Microsoft's
    documentation of New-NetFirewallRule, New-NetFirewallHyperVRule and WSL networking.
    """
    allow_port = (
        f"    New-NetFirewallRule -DisplayName 'MTP Launcher {port}' -Direction Inbound -Action Allow -Protocol TCP"
        f" -LocalPort {port} -Profile Private"
    )
    blocked = "Windows blocks other computers until you run this in PowerShell as administrator:"
    if system == "windows" or wsl == 1:
        return f"{blocked}\n{allow_port}"
    if wsl is None:
        return ""
    if wsl_mirrored:
        name = f"'MTP Launcher {port}'"
        return (
            f"{blocked}\n    New-NetFirewallHyperVRule -Name {name} -DisplayName {name} -Direction Inbound"
            f" -VMCreatorId '{{40E0AC32-46A5-438A-A0B2-2B479E8F2E90}}' -Protocol TCP -LocalPorts {port}"
        )
    return (
        "WSL's network is inside Windows: other computers cannot reach these addresses. Set networkingMode=mirrored"
        " under [wsl2] in .wslconfig and restart WSL, or forward the port in PowerShell as administrator:\n"
        f"    netsh interface portproxy add v4tov4 listenport={port} listenaddress=0.0.0.0 connectport={port}"
        f" connectaddress=$((wsl hostname -I).Split()[0])\n{allow_port}"
    )


def _is_reachable(address: str) -> bool:
    """Return True if other computers may reach this one by that address."""
    parsed = ipaddress.ip_address(address)
    return not (parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified)


def _default_route_address() -> str | None:
    """Return the address that this computer uses towards the internet, or None without a network."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(_PROBE_ADDRESS)
        return str(probe.getsockname()[0])
    return None
