"""A .wslconfig for running models: what is there, with the few lines that matter changed. Nothing is written.

What WSL does without a setting: microsoft/WSL, src/windows/common/WslCoreConfig.cpp (memory is half of the computer's).
"""

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.base.errors import LauncherError
from launcher.machine.host import Host
from launcher.machine.wsl import SETTINGS, WslSettings, parse_settings

WHERE = "%UserProfile%\\.wslconfig"
RESTART = "Then run `wsl --shutdown` in Windows, which ends every distribution."
_GIB = 2**30
_FOR_WINDOWS_GIB = 4
"""What Windows and its desktop are left at least."""
_CLIP = Path("/mnt/c/Windows/System32/clip.exe")
_HARMFUL = {
    "wsl2.gpusupport": "it keeps the GPU from WSL",
    "wsl2.guiapplications": "it keeps windows of Linux programs from the screen",
}
"""Switches that must not be off, and why."""
_OFF = ("false", "0")


class WslOnly(LauncherError):
    """Something that only WSL 2 has was asked for elsewhere."""

    code = "wsl_only"


class ClipboardUnreachable(LauncherError):
    """The clipboard of Windows cannot be reached from here."""

    code = "clipboard_unreachable"


@dataclass(frozen=True, slots=True)
class Suggestion:
    """The text of a whole .wslconfig, and each change to what is there with its reason."""

    text: str
    changes: tuple[str, ...]


def memory_for_wsl(memory_bytes: int) -> int:
    """Return how many GiB WSL could have that now has so much, by itself half of the computer's.

    Three quarters of the computer's, but as much as leaves Windows 4 GiB, and never less than now.
    """
    computer = 2 * memory_bytes / _GIB
    return max(round(min(0.75 * computer, computer - _FOR_WINDOWS_GIB)), int(memory_bytes / _GIB), 1)


def suggest(host: Host, settings: Sequence[WslSettings]) -> Suggestion | None:
    """Return what the settings file should be on this computer; None outside WSL 2 and where it is good as it is.

    Where several users of Windows have a file, nobody knows whose is meant: then it is one to begin with.
    """
    if host.wsl != 2:
        return None
    text = ""
    if len(settings) == 1:
        try:
            text = settings[0].path.read_text("utf-8-sig", "replace")
        except OSError:
            return None
    return _suggested(host.memory_bytes, text)


def copy(suggestion: Suggestion, clip: Path = _CLIP) -> None:
    """Put the text on the clipboard of Windows. Raises ClipboardUnreachable."""
    program = shutil.which("clip.exe") or str(clip)
    text = suggestion.text.replace("\n", "\r\n")
    data = (
        text.encode("ascii") if text.isascii() else text.encode("utf-16")
    )  # with a mark of its order, else a code page
    try:
        subprocess.run([program], input=data, check=True, capture_output=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        raise ClipboardUnreachable(
            f"The clipboard of Windows cannot be reached: {error}.",
            "Are programs of Windows switched off in /etc/wsl.conf ([interop])? `mtp-launcher doctor` prints the text.",
        ) from error


def _suggested(memory_bytes: int, text: str) -> Suggestion | None:
    changes: list[str] = []
    lines = list(_mended(text.splitlines(), changes))
    wanted, now = memory_for_wsl(memory_bytes), memory_bytes / _GIB
    if "wsl2.memory" not in parse_settings(Path(WHERE), "\n".join(lines)).values and wanted > now + 0.5:
        lines = _added(lines, f"memory={wanted}GB")
        changes.append(
            f"memory={wanted}GB: WSL has {now:.1f} GiB now, half of the computer's. What a large model leaves to the "
            "processor lies there."
        )
    return Suggestion("\n".join(lines) + "\n", tuple(changes)) if changes else None


def _mended(lines: Sequence[str], changes: list[str]) -> Iterator[str]:
    """Yield the lines, without what WSL does not know or what harms."""
    section = ""
    for line in lines:
        bare = line.partition("#")[0].strip()
        if header := re.fullmatch(r"\[(.*)\]", bare):
            section = header[1].strip().lower()
        elif bare:
            name, _, value = (part.strip() for part in bare.partition("="))
            full = f"{section}.{name.lower()}"
            if name.lower() not in SETTINGS.get(section, frozenset()):
                changes.append(f"{name} is gone: WSL knows no such setting{f' in [{section}]' if section else ''}.")
                continue
            if full in _HARMFUL and value.lower() in _OFF:
                changes.append(f"{name}={value} is gone: {_HARMFUL[full]}.")
                continue
            if full == "wsl2.memory" and value == "0":  # which is as if it were not there
                continue
        yield line


def _added(lines: Sequence[str], line: str) -> list[str]:
    """Return the lines with one more below [wsl2]."""
    for at, each in enumerate(lines):
        if re.fullmatch(r"(?i)\s*\[\s*wsl2\s*\]\s*(#.*)?", each):
            return [*lines[: at + 1], line, *lines[at + 1 :]]
    return [*lines, *([""] if lines and lines[-1].strip() else []), "[wsl2]", line]
