"""The Windows Subsystem for Linux: its settings file, as far as it can be seen from inside.

Names of settings and what they do: microsoft/WSL, src/windows/common/WslCoreConfig.{h,cpp} and configfile.cpp.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.machine.sysfs import ROOT

_ALL_SETTINGS = {
    "wsl2": """kernel kernelCommandLine kernelModules loadKernelModules loadDefaultKernelModules memory processors swap
        swapFile localhostForwarding nestedVirtualization virtio9p virtiofs virtio hostFileSystemAccess gpuSupport
        guiApplications systemDistro vmIdleTimeout kernelBootTimeout distributionStartTimeout mountDeviceTimeout
        debugConsole debugConsoleLogFile earlyBootLogging kernelDebugPort hardwarePerformanceCounters networkingMode
        vmSwitch macAddress dhcp dhcpTimeout ipv6 dnsProxy dnsTunneling firewall autoProxy safeMode defaultVhdSize
        crashDumpFolder maxCrashDumpCount isolateDistroCgroup telemetry""",
    "general": "distributionInstallPath instanceIdleTimeout",
    "experimental": """autoMemoryReclaim sparseVhd bestEffortDnsParsing dnsTunnelingIpAddress initialAutoProxyTimeout
        ignoredPorts hostAddressLoopback setVersionDebug swiotlb virtioFsAggregateShares networkingMode dnsTunneling
        firewall autoProxy""",
}
SETTINGS: Mapping[str, frozenset[str]] = {
    section: frozenset(names.lower().split()) for section, names in _ALL_SETTINGS.items()
}
"""The settings that WSL knows, by section, in lower case: it does not tell cases apart."""


@dataclass(frozen=True, slots=True)
class UnknownSetting:
    """A line of a settings file that WSL skips with a warning."""

    line: int
    name: str


@dataclass(frozen=True, slots=True)
class WslSettings:
    """A .wslconfig: its values by "section.name" in lower case, and what WSL would not know in it."""

    path: Path
    values: Mapping[str, str]
    unknown: tuple[UnknownSetting, ...]


def read_settings(root: Path = ROOT) -> tuple[WslSettings, ...]:
    """Return the settings files of the Windows users whose folders can be read from here."""
    found = []
    try:
        paths = sorted(root.glob("mnt/c/Users/*/.wslconfig"))
    except OSError:
        return ()
    for path in paths:
        try:
            text = path.read_text("utf-8-sig", "replace")
        except OSError:
            continue
        found.append(parse_settings(path, text))
    return tuple(found)


def parse_settings(path: Path, text: str) -> WslSettings:
    """Return what a .wslconfig says. Of a name that is set twice the first holds."""
    values: dict[str, str] = {}
    unknown = []
    for line, section, name, value in _lines(text):
        if name.lower() in SETTINGS.get(section, frozenset()):
            values.setdefault(f"{section}.{name.lower()}", value)
        else:
            unknown.append(UnknownSetting(line, f"{section}.{name}" if section else name))
    return WslSettings(path, values, tuple(unknown))


def _lines(text: str) -> Iterator[tuple[int, str, str, str]]:
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.partition("#")[0].strip()
        header = re.fullmatch(r"\[(.*)\]", bare)
        if header:
            section = header[1].strip().lower()
        elif bare:
            name, _, value = bare.partition("=")
            yield number, section, name.strip(), value.strip()
