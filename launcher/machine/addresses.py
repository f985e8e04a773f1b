"""The addresses by which other computers of the network reach this one, and what may stand between."""

import ipaddress
import socket
from contextlib import suppress

import psutil

_INNER = ("docker", "br-", "veth", "virbr", "podman", "cni", "lxc", "vmnet", "vboxnet", "vethernet (")
"""How the interfaces to a computer's own containers and virtual machines are called."""
_ELSEWHERE = ("192.0.2.1", 9)
"""An address for documentation (RFC 5737): the way there is the way out, and nothing is sent."""


def lan_addresses() -> tuple[str, ...]:
    """Return this computer's IPv4 addresses in its networks, that of the way out first; empty when it has none."""
    states = psutil.net_if_stats()
    found = [
        each.address
        for name, addresses in psutil.net_if_addrs().items()
        if name in states and states[name].isup and not name.lower().startswith(_INNER)
        for each in addresses
        if each.family == socket.AF_INET and _reaches_us(each.address)
    ]
    first = _way_out()
    return tuple(sorted(dict.fromkeys(found), key=lambda address: address != first))


def firewall_hint(port: int, *, system: str, wsl: int | None, wsl_mirrored: bool = False) -> str:
    """Return what lets other computers through to a port, commands on lines of their own; empty if none is needed.

    `system` is that of machine.host. The commands are those of Microsoft's documentation of New-NetFirewallRule,
    New-NetFirewallHyperVRule and of WSL's networking.
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


def _way_out() -> str | None:
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(_ELSEWHERE)
        return str(probe.getsockname()[0])
    return None
