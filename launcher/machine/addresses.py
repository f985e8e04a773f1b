"""LAN addresses of this computer, and firewall instructions for reaching it."""

import ipaddress
import socket
from contextlib import suppress

import psutil

_VIRTUAL_PREFIXES = ("docker", "br-", "veth", "virbr", "podman", "cni", "lxc", "vmnet", "vboxnet", "vethernet (")
"""Prefixes of network interfaces to containers and virtual machines on this computer."""
_PROBE_ADDRESS = ("192.0.2.1", 9)
"""A documentation address (RFC 5737), used to find the default route; nothing is sent to it."""


def list_lan_addresses() -> tuple[str, ...]:
    """Return this computer's IPv4 addresses in its networks, that of the default route first; empty if it has none."""
    states = psutil.net_if_stats()
    found = [
        each.address
        for name, addresses in psutil.net_if_addrs().items()
        if name in states and states[name].isup and not name.lower().startswith(_VIRTUAL_PREFIXES)
        for each in addresses
        if each.family == socket.AF_INET and _reaches_us(each.address)
    ]
    first = _default_route_address()
    return tuple(sorted(dict.fromkeys(found), key=lambda address: address != first))


def firewall_hint(port: int, *, system: str, wsl: int | None, wsl_mirrored: bool = False) -> str:
    """Return instructions for letting other computers reach a port, commands on separate lines; empty if none are
    needed.

    `system` is `Host.kind`. The commands follow Microsoft's documentation of New-NetFirewallRule,
    New-NetFirewallHyperVRule and WSL networking.
    """
    allow = (
        f"    New-NetFirewallRule -DisplayName 'MTP Launcher {port}' -Direction Inbound -Action Allow -Protocol TCP"
        f" -LocalPort {port} -Profile Private"
    )
    closed = "Windows lets nobody in until it is told to, in PowerShell as administrator:"
    if system == "windows" or wsl == 1:
        return f"{closed}\n{allow}"
    if wsl is None:
        return ""
    if wsl_mirrored:
        name = f"'MTP Launcher {port}'"
        return (
            f"{closed}\n    New-NetFirewallHyperVRule -Name {name} -DisplayName {name} -Direction Inbound"
            f" -VMCreatorId '{{40E0AC32-46A5-438A-A0B2-2B479E8F2E90}}' -Protocol TCP -LocalPorts {port}"
        )
    return (
        "These addresses lie inside of Windows, where other computers do not reach them. Set networkingMode=mirrored"
        " under [wsl2] in .wslconfig and restart WSL, or hand the port on, in PowerShell as administrator:\n"
        f"    netsh interface portproxy add v4tov4 listenport={port} listenaddress=0.0.0.0 connectport={port}"
        f" connectaddress=$((wsl hostname -I).Split()[0])\n{allow}"
    )


def _reaches_us(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    return not (parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified)


def _default_route_address() -> str | None:
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(_PROBE_ADDRESS)
        return str(probe.getsockname()[0])
    return None
