"""Whether a window can be shown: the display server of a Linux desktop."""

import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

_DISPLAY_TIMEOUT_S = 2.0


def is_display_reachable() -> bool:
    """Return True if there is a display server that accepts connections; without one Qt aborts."""
    if sys.platform != "linux":
        return True
    wayland, x11 = os.environ.get("WAYLAND_DISPLAY"), os.environ.get("DISPLAY")
    if wayland and Path(os.environ.get("XDG_RUNTIME_DIR", "/"), wayland).is_socket():
        return True
    found = re.fullmatch(r"(?:unix)?([^:]*):(\d+)(?:\.\d+)?", x11 or "")
    if found is None:
        return bool(x11)  # an unknown format: let Qt try
    host, number = found[1], int(found[2])
    if host:
        addresses: list[tuple[int, Any]] = [(socket.AF_INET, (host, 6000 + number))]
    else:
        path = f"/tmp/.X11-unix/X{number}"  # noqa: S108 -- where X servers listen
        addresses = [(socket.AF_UNIX, path), (socket.AF_UNIX, "\0" + path)]
    return any(_accepts_connections(family, address) for family, address in addresses)


def _accepts_connections(family: int, address: Any) -> bool:  # noqa: ANN401 -- a socket's address
    with socket.socket(family) as probe:
        probe.settimeout(_DISPLAY_TIMEOUT_S)
        try:
            probe.connect(address)
        except OSError:
            return False
    return True
