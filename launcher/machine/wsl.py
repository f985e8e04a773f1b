"""Reads .wslconfig, the settings file of the Windows Subsystem for Linux, from inside WSL, and suggests changes.

Names and meaning of settings: microsoft/WSL, src/windows/common/WslCoreConfig.{h,cpp} and configfile.cpp.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.base.errors import LauncherError
from launcher.base.messages import command_name, message
from launcher.machine.host import Host
from launcher.machine.nvidia import WSL_LIBRARY
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
KNOWN_SETTINGS: Mapping[str, frozenset[str]] = {
    section: frozenset(names.lower().split()) for section, names in _ALL_SETTINGS.items()
}
"""The settings that WSL supports, by section, in lower case: WSL ignores case."""
_WINDOWS_USERS = "mnt/c/Users"


@dataclass(frozen=True, slots=True)
class UnknownSetting:
    """A line of a settings file that WSL ignores with a warning."""

    line: int
    name: str


@dataclass(frozen=True, slots=True)
class WslSettings:
    """A parsed .wslconfig: its values by "section.name" in lower case, and the lines that WSL would ignore."""

    path: Path
    values: Mapping[str, str]
    unknown: tuple[UnknownSetting, ...]


def read_wsl_settings(root: Path = ROOT) -> tuple[WslSettings, ...]:
    """Return the settings files of the Windows users whose folders are readable from here."""
    found = []
    try:
        paths = sorted(root.glob(f"{_WINDOWS_USERS}/*/.wslconfig"))
    except OSError:
        return ()
    for path in paths:
        try:
            text = path.read_text("utf-8-sig", "replace")
        except OSError:
            continue
        found.append(parse_wslconfig(path, text))
    return tuple(found)


def find_missing_paths(root: Path = ROOT) -> tuple[str, ...]:
    """Return which paths of WSL, where this program looks for Windows and its driver, do not exist here."""
    paths = [str(_CLIP_PROGRAM).lstrip("/"), _WINDOWS_USERS, *([WSL_LIBRARY] if (root / "dev/dxg").exists() else [])]
    return tuple(f"/{path}" for path in paths if not (root / path).exists())


def parse_wslconfig(path: Path, text: str) -> WslSettings:
    """Parse a .wslconfig. If a name is set twice, the first value counts."""
    values: dict[str, str] = {}
    unknown = []
    for line, section, name, value in _parse_lines(text):
        if name.lower() in KNOWN_SETTINGS.get(section, frozenset()):
            values.setdefault(f"{section}.{name.lower()}", value)
        else:
            unknown.append(UnknownSetting(line, f"{section}.{name}" if section else name))
    return WslSettings(path, values, tuple(unknown))


def _parse_lines(text: str) -> Iterator[tuple[int, str, str, str]]:
    """Yield the line number, section, name and value of each setting."""
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.partition("#")[0].strip()
        header = re.fullmatch(r"\[(.*)\]", bare)
        if header:
            section = header[1].strip().lower()
        elif bare:
            name, _, value = bare.partition("=")
            yield number, section, name.strip(), value.strip()


# The rest suggests a .wslconfig for running models: the existing file with a few lines changed. It is never written.

WSLCONFIG_PATH = "%UserProfile%\\.wslconfig"
RESTART_HINT = message("Then run `wsl --shutdown` in Windows, which ends every distribution.")
_GIB = 2**30
_WINDOWS_GIB = 4
"""Memory that Windows and its desktop need at least."""
_CLIP_PROGRAM = Path("/mnt/c/Windows/System32/clip.exe")
_HARMFUL = {
    "wsl2.gpusupport": "it keeps the GPU from WSL",
    "wsl2.guiapplications": "it keeps windows of Linux programs from the screen",
}
"""Switches that must stay on, and the effect of turning each off."""
_OFF_VALUES = ("false", "0")


class WslOnly(LauncherError):
    """A feature of WSL 2 was requested on another system."""

    code = "wsl_only"


class ClipboardUnreachable(LauncherError):
    """The Windows clipboard cannot be reached from here."""

    code = "clipboard_unreachable"


@dataclass(frozen=True, slots=True)
class WslconfigSuggestion:
    """The complete text of a .wslconfig, and each change from the existing file with its reason."""

    text: str
    changes: tuple[str, ...]


def suggest_wsl_memory(memory_bytes: int) -> int:
    """Return the memory in GiB to give to WSL, which has `memory_bytes` now.

    WSL gets three quarters of the computer's memory, but leaves Windows 4 GiB, and never less than it has now. WSL does
    not know the computer's memory, which is assumed to be twice its own: by default WSL has half (WslCoreConfig.cpp).
    """
    computer_gib = 2 * memory_bytes / _GIB
    return max(round(min(0.75 * computer_gib, computer_gib - _WINDOWS_GIB)), int(memory_bytes / _GIB), 1)


def suggest_wslconfig(host: Host, settings: Sequence[WslSettings]) -> WslconfigSuggestion | None:
    """Return the suggested settings file for this computer; None outside WSL 2 or if the file needs no change.

    If several Windows users have a file, it is unknown which one applies, and the suggestion is a new file.
    """
    if host.wsl != 2:
        return None
    text = ""
    if len(settings) == 1:
        try:
            text = settings[0].path.read_text("utf-8-sig", "replace")
        except OSError:
            return None
    return _make_suggestion(host.memory_bytes, text)


def copy_to_clipboard(suggestion: WslconfigSuggestion, clip: Path = _CLIP_PROGRAM) -> None:
    """Copy the text to the Windows clipboard. Raises ClipboardUnreachable."""
    program = shutil.which("clip.exe") or str(clip)
    text = suggestion.text.replace("\n", "\r\n")
    # Python writes UTF-16 with a byte order mark; without one, clip.exe would assume a code page.
    data = text.encode("ascii") if text.isascii() else text.encode("utf-16")
    try:
        subprocess.run([program], input=data, check=True, capture_output=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        raise ClipboardUnreachable(
            message("The clipboard of Windows cannot be reached: {error}.", error=error),
            message(
                "Windows programs may be disabled in /etc/wsl.conf ([interop]).[ {command} prints the text.]",
                command=command_name("doctor"),
            ),
        ) from error


def _make_suggestion(memory_bytes: int, text: str) -> WslconfigSuggestion | None:
    changes: list[str] = []
    lines = list(_drop_bad_lines(text.splitlines(), changes))
    wanted, now = suggest_wsl_memory(memory_bytes), memory_bytes / _GIB
    if "wsl2.memory" not in parse_wslconfig(Path(WSLCONFIG_PATH), "\n".join(lines)).values and wanted > now + 0.5:
        lines = _insert_setting(lines, f"memory={wanted}GB")
        changes.append(
            message(
                "memory={wanted}GB: WSL has {now:.1f} GiB now, half of this computer's memory. Layers of a "
                "large model that do not fit on the GPU need it.",
                wanted=wanted,
                now=now,
            )
        )
    return WslconfigSuggestion("\n".join(lines) + "\n", tuple(changes)) if changes else None


def _drop_bad_lines(lines: Sequence[str], changes: list[str]) -> Iterator[str]:
    """Yield the lines without settings that WSL does not support or that do harm, and add each removal to `changes`."""
    section = ""
    for line in lines:
        bare = line.partition("#")[0].strip()
        if header := re.fullmatch(r"\[(.*)\]", bare):
            section = header[1].strip().lower()
        elif bare:
            name, _, value = (part.strip() for part in bare.partition("="))
            full = f"{section}.{name.lower()}"
            if name.lower() not in KNOWN_SETTINGS.get(section, frozenset()):
                changes.append(
                    message(
                        "{name} was removed: WSL has no such setting{section}.",
                        name=name,
                        section=(f" in [{section}]" if section else ""),
                    )
                )
                continue
            if full in _HARMFUL and value.lower() in _OFF_VALUES:
                changes.append(
                    message("{name}={value} was removed: {harmful}.", name=name, value=value, harmful=_HARMFUL[full])
                )
                continue
            if full == "wsl2.memory" and value == "0":  # 0 means the default
                continue
        yield line


def _insert_setting(lines: Sequence[str], line: str) -> list[str]:
    """Return the lines with one more below [wsl2]."""
    for at, each in enumerate(lines):
        if re.fullmatch(r"(?i)\s*\[\s*wsl2\s*\]\s*(#.*)?", each):
            return [*lines[: at + 1], line, *lines[at + 1 :]]
    return [*lines, *([""] if lines and lines[-1].strip() else []), "[wsl2]", line]
