"""Reads whether the system asks for less motion: on Linux from the desktop portal, on Windows from Windows itself."""

import sys
from collections.abc import Callable

from PySide6.QtCore import SLOT, QObject, Slot

_reduced: list[bool] = [False]

# The settings portal: https://flatpak.github.io/xdg-desktop-portal/docs/doc-org.freedesktop.portal.Settings.html
_SERVICE, _PATH = "org.freedesktop.portal.Desktop", "/org/freedesktop/portal/desktop"
_INTERFACE = "org.freedesktop.portal.Settings"
_REDUCED_MOTION = "org.freedesktop.appearance", "reduced-motion"
"""A number: 1 for less motion."""
_ANIMATIONS = "org.gnome.desktop.interface", "enable-animations"
"""A truth value, which GNOME has had for longer: False for less motion."""

_GET_CLIENT_AREA_ANIMATION = 0x1042
"""Windows' SPI_GETCLIENTAREAANIMATION: "Animation effects" of the accessibility settings."""


def is_motion_reduced() -> bool:
    """Return whether the system asks for less motion, as far as it was read."""
    return _reduced[0]


def follow_system_motion(parent: QObject, changed: Callable[[], object]) -> None:
    """Read what the system asks for, now and whenever it changes; `changed` is called when it differs from before."""
    if sys.platform == "win32":
        from PySide6.QtGui import QGuiApplication

        def read_windows(*_: object) -> None:
            _set_reduced(not read_client_area_animation(), changed)

        QGuiApplication.instance().applicationStateChanged.connect(read_windows)  # type: ignore[union-attr]
        read_windows()
    elif sys.platform == "linux":
        PortalWatcher(parent, changed)


def _set_reduced(reduced: bool, changed: Callable[[], object]) -> None:
    if reduced != _reduced[0]:
        _reduced[0] = reduced
        changed()


def read_client_area_animation() -> bool:
    """Return whether Windows lets windows animate what they show; True if that is unknown."""
    if sys.platform != "win32":
        return True
    import ctypes

    animates = ctypes.c_int(1)
    ctypes.windll.user32.SystemParametersInfoW(_GET_CLIENT_AREA_ANIMATION, 0, ctypes.byref(animates), 0)
    return bool(animates.value)


class PortalWatcher(QObject):
    """Reads both settings of the portal without waiting for it, and follows their changes.

    Without a session bus, a portal or a setting, motion stays on.
    """

    def __init__(self, parent: QObject, changed: Callable[[], object]) -> None:
        super().__init__(parent)
        from PySide6.QtDBus import QDBusConnection, QDBusMessage, QDBusPendingCallWatcher

        self._changed = changed
        self._values: dict[tuple[str, str], object] = {}
        self._bus = QDBusConnection.sessionBus()
        if not self._bus.isConnected():
            return
        slot = SLOT("handle_signal(QString,QString,QDBusVariant)")
        self._bus.connect(_SERVICE, _PATH, _INTERFACE, "SettingChanged", self, slot)  # type: ignore[call-overload]
        for key in (_REDUCED_MOTION, _ANIMATIONS):
            call = QDBusMessage.createMethodCall(_SERVICE, _PATH, _INTERFACE, "Read")
            call.setArguments(list(key))
            watcher = QDBusPendingCallWatcher(self._bus.asyncCall(call), self)
            watcher.finished.connect(lambda done, key=key: self._handle_reply(key, done))

    def _handle_reply(self, key: tuple[str, str], watcher: object) -> None:
        arguments = watcher.reply().arguments()  # type: ignore[attr-defined]
        watcher.deleteLater()  # type: ignore[attr-defined]
        if arguments and not isinstance(arguments[0], str):  # the argument of an error is a text
            self._take_value(key, arguments[0])

    @Slot("QString", "QString", "QDBusVariant")
    def handle_signal(self, namespace: str, name: str, value: object) -> None:
        """Take a changed setting."""
        self._take_value((namespace, name), value)

    def _take_value(self, key: tuple[str, str], value: object) -> None:
        if key not in (_REDUCED_MOTION, _ANIMATIONS):
            return
        while hasattr(value, "variant"):  # a variant in a variant
            value = value.variant()
        self._values[key] = value
        asks = self._values.get(_REDUCED_MOTION) == 1 or self._values.get(_ANIMATIONS) is False
        _set_reduced(asks, self._changed)
