"""Checks on Linux that a display server (X11 or Wayland) accepts connections, which a window needs."""

import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

_DISPLAY_TIMEOUT_S = 2.0
_QT_CHOICE = "wayland;xcb"


def is_display_reachable(platforms: str = "") -> bool:
    """Return True if there is a display server that accepts connections; without one Qt aborts.

    `platforms` are the plugins of Qt that may be used, in Qt's notation: "wayland;xcb:OPTION"; "" leaves it to Qt. Some
    need no display server.
    """
    if sys.platform != "linux":
        return True
    checks = {"xcb": _is_x11_reachable, "wayland": _is_wayland_reachable}
    choices = (platforms or _QT_CHOICE).split(";")
    names = [re.split("[:-]", each)[0] for each in choices]  # xcb of "xcb:OPTION", wayland of "wayland-egl"
    return any(name not in checks or checks[name]() for name in names)


def _is_wayland_reachable() -> bool:
    if sys.platform != "linux":  # for the type checker: Windows has no AF_UNIX
        return False
    name = os.environ.get("WAYLAND_DISPLAY", "")
    path = Path(os.environ.get("XDG_RUNTIME_DIR", "/"), name)
    return bool(name) and _accepts_connections(socket.AF_UNIX, str(path))


def _is_x11_reachable() -> bool:
    if sys.platform != "linux":
        return False
    x11 = os.environ.get("DISPLAY", "")
    found = re.fullmatch(r"(?:unix)?([^:]*):(\d+)(?:\.\d+)?", x11)
    if found is None:
        return ":" in x11  # an unknown format: let Qt try
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
