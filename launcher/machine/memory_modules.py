"""The bandwidth of host memory, by the modules that the firmware lists (SMBIOS).

On Linux only root may read the firmware's table, but udev keeps what it says of memory where all may read it (systemd
249 and newer). Windows hands the table to every program. A container sees neither.
"""

import ctypes
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from launcher.machine.sysfs import ROOT, read_text

_UDEV_FACTS = "run/udev/data/+dmi:id"
_DEVICE = re.compile(r"^E:MEMORY_DEVICE_(\d+)_(\w+)=(.*)$", re.MULTILINE)
_CHANNELS = (
    re.compile(r"CHANNEL[ _-]?([A-Z0-9]+)", re.IGNORECASE),
    re.compile(r"DIMM[ _-]?([A-Z])[0-9 ]*$", re.IGNORECASE),
)
"""Where the names of a module and its bank tell its channel: "P0 CHANNEL A", "ChannelB-DIMM0", "DIMM_A2"."""
_DESKTOP_CHANNELS, _DESKTOP_MODULES = 2, 4
"""Channels of computers with few modules, where their names do not tell them."""
_MEMORY_DEVICE, _END = 17, 127
_TABLE = int.from_bytes(b"RSMB", "big")


class MemoryModule(NamedTuple):
    """A memory module: its width in bits, its rate in millions of transfers a second, and the names of its place."""

    width_bits: int
    rate_mt_s: int
    place: str

    @property
    def channel(self) -> str | None:
        """The channel, None if the names do not tell it."""
        found = next((match for each in _CHANNELS if (match := each.search(self.place))), None)
        if found is None:
            return None
        controller = re.search(r"controller ?(\d)", self.place, re.IGNORECASE)
        return f"{controller[1] if controller else ''}{found[1].upper()}"


def read_host_bandwidth(root: Path = ROOT) -> float | None:
    """Return the bandwidth of host memory as its modules state it, in 10^9 bytes per second; None if unknown."""
    if sys.platform == "win32":
        table = _read_windows_table()
        return sum_bandwidth(parse_smbios(table[8:])) if table else None
    return sum_bandwidth(parse_udev(read_text(root / _UDEV_FACTS) or ""))


def sum_bandwidth(modules: Iterable[MemoryModule]) -> float | None:
    """Return the bandwidth of all channels together, None without modules. Modules of one channel take turns."""
    known = list(modules)
    if not known:
        return None
    rate = min(each.rate_mt_s for each in known)
    channels = {each.channel: each.width_bits for each in known}
    if None in channels:
        few = len(known) <= _DESKTOP_MODULES and known[0].width_bits >= 64
        width = known[0].width_bits * (min(len(known), _DESKTOP_CHANNELS) if few else len(known))
    else:
        width = sum(channels.values())
    return width / 8 * rate / 1_000


def parse_udev(text: str) -> Iterator[MemoryModule]:
    """Yield the modules that udev's record of the firmware lists."""
    facts: dict[str, dict[str, str]] = {}
    for device, name, value in _DEVICE.findall(text):
        facts.setdefault(device, {})[name] = value.strip()
    for each in facts.values():
        width, rate = each.get("DATA_WIDTH", ""), each.get("CONFIGURED_SPEED_MTS") or each.get("SPEED_MTS", "")
        if each.get("PRESENT") != "0" and width.isdigit() and rate.isdigit():
            yield MemoryModule(int(width), int(rate), f"{each.get('BANK_LOCATOR', '')} {each.get('LOCATOR', '')}")


def parse_smbios(table: bytes) -> Iterator[MemoryModule]:
    """Yield the modules in the structures of an SMBIOS table (DMTF DSP0134, type 17)."""
    at = 0
    while at + 4 <= len(table):
        kind, length = table[at], table[at + 1]
        end = table.find(b"\0\0", at + length)
        if length < 4 or kind == _END or end < 0:
            return
        if kind == _MEMORY_DEVICE and length > 0x16:
            structure, texts = table[at : at + length], table[at + length : end].split(b"\0")
            width, rate = _number(structure, 0x0A), _number(structure, 0x20) or _number(structure, 0x15)
            if _number(structure, 0x0C) and 0 < width < 0xFFFF and 0 < rate < 0xFFFF:
                yield MemoryModule(width, rate, f"{_text(structure, texts, 0x11)} {_text(structure, texts, 0x10)}")
        at = end + 2


def _number(structure: bytes, offset: int) -> int:
    field = structure[offset : offset + 2]
    return int.from_bytes(field, "little") if len(field) == 2 else 0


def _text(structure: bytes, texts: list[bytes], offset: int) -> str:
    index = structure[offset]
    return texts[index - 1].decode("latin-1") if 0 < index <= len(texts) else ""


def _read_windows_table() -> bytes:
    """Return the firmware's table after a header of 8 bytes, as Windows hands it out; empty if it does not."""
    if sys.platform != "win32":
        return b""
    read = ctypes.windll.kernel32.GetSystemFirmwareTable
    size = read(_TABLE, 0, None, 0)
    buffer = ctypes.create_string_buffer(size)
    return buffer.raw if size and read(_TABLE, 0, buffer, size) == size else b""
