"""Reduced motion as the system asks for it: on Linux over a real session bus, on Windows by a system call."""

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QObject
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from launcher.gui import motion, theme
from launcher.gui.application import apply_system_motion
from tests.conftest import FAKES

on_a_bus = pytest.mark.skipif(sys.platform != "linux", reason="only Linux desktops have a session bus")
_SET_CLIENT_AREA_ANIMATION = 0x1043
_CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>session</type><listen>unix:tmpdir={folder}</listen>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/>
</policy></busconfig>
"""


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A session bus for these tests: Qt keeps its connection to the first one."""
    folder = tmp_path_factory.mktemp("bus")
    config = folder / "bus.conf"
    config.write_text(_CONFIG.format(folder=folder))
    command = ["dbus-daemon", f"--config-file={config}", "--print-address", "--nofork"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as daemon:
        assert daemon.stdout is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DBUS_SESSION_BUS_ADDRESS", daemon.stdout.readline().strip())
            yield
        daemon.terminate()


@on_a_bus
@pytest.mark.parametrize(
    ("namespace", "key", "less", "usual"),
    [
        ("org.gnome.desktop.interface", "enable-animations", "false", "true"),
        ("org.freedesktop.appearance", "reduced-motion", "1", "0"),
    ],
)
def test_motion_follows_the_desktop(
    usual_theme: None,
    namespace: str,
    key: str,
    less: str,
    usual: str,
    bus: None,
    home: Path,
    qapp: QApplication,
    qtbot: QtBot,
) -> None:
    blinks = qapp.cursorFlashTime()
    theme.set_motion(None)
    theme.apply_theme(qapp, theme.current())
    holder = QObject()
    command = [sys.executable, FAKES / "portal.py", namespace, key, less]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as portal:
        assert portal.stdin is not None
        assert portal.stdout is not None
        assert portal.stdout.readline() == "ready\n"
        motion.follow_system_motion(holder, apply_system_motion)
        qtbot.waitUntil(motion.is_motion_reduced)
        assert qapp.cursorFlashTime() == 0
        portal.stdin.write(f"{usual}\n")
        portal.stdin.flush()
        qtbot.waitUntil(lambda: not motion.is_motion_reduced())
        assert qapp.cursorFlashTime() == blinks
    holder.deleteLater()


@on_a_bus
def test_without_a_portal_motion_stays_on(bus: None, qapp: QApplication, qtbot: QtBot) -> None:
    watcher = motion.PortalWatcher(qapp, pytest.fail)
    qtbot.waitUntil(lambda: not watcher.children())  # the portal has answered both questions
    assert not motion.is_motion_reduced()
    watcher.deleteLater()


@pytest.mark.parametrize("animated", [False, True])
def test_windows_is_asked_and_other_systems_animate(animated: bool) -> None:
    if sys.platform != "win32":
        assert motion.read_client_area_animation()
        return
    set_parameter = ctypes.windll.user32.SystemParametersInfoW
    before = motion.read_client_area_animation()
    assert set_parameter(_SET_CLIENT_AREA_ANIMATION, 0, ctypes.c_void_p(animated), 0)  # 0: not stored beyond this login
    try:
        assert motion.read_client_area_animation() is animated
    finally:
        set_parameter(_SET_CLIENT_AREA_ANIMATION, 0, ctypes.c_void_p(before), 0)
