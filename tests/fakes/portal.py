"""A settings portal on the session bus, like xdg-desktop-portal: answers Read, and emits SettingChanged.

    python tests/fakes/portal.py NAMESPACE KEY VALUE

VALUE is a JSON boolean or integer. Prints "ready"; then each line of JSON on standard input becomes the setting's new
value. Other settings do not exist.
"""

import json
import sys

from PySide6.QtCore import ClassInfo, QCoreApplication, QObject, QSocketNotifier, Slot
from PySide6.QtDBus import QDBusConnection, QDBusMessage, QDBusVariant

PATH, INTERFACE = "/org/freedesktop/portal/desktop", "org.freedesktop.portal.Settings"


@ClassInfo(**{"D-Bus Interface": INTERFACE})
class Portal(QObject):
    """The object that is called."""

    def __init__(self, namespace: str, key: str, value: object) -> None:
        super().__init__()
        self._key = namespace, key
        self._value = value

    @Slot("QString", "QString", result="QDBusVariant")
    def Read(self, namespace: str, key: str) -> QDBusVariant:  # noqa: N802 -- the portal's name
        """Return a setting."""
        return QDBusVariant(QDBusVariant(self._value if (namespace, key) == self._key else "unknown"))

    def change(self) -> None:
        """Read a new value from standard input, and emit SettingChanged."""
        line = sys.stdin.readline()
        if not line:
            QCoreApplication.quit()
            return
        self._value = json.loads(line)
        signal = QDBusMessage.createSignal(PATH, INTERFACE, "SettingChanged")
        signal.setArguments([*self._key, QDBusVariant(self._value)])
        QDBusConnection.sessionBus().send(signal)


def main() -> None:
    """Serve until the input ends."""
    application = QCoreApplication(sys.argv)
    portal = Portal(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
    bus = QDBusConnection.sessionBus()
    assert bus.registerObject(PATH, portal, QDBusConnection.RegisterOption.ExportAllSlots)
    assert bus.registerService("org.freedesktop.portal.Desktop")
    notifier = QSocketNotifier(sys.stdin.fileno(), QSocketNotifier.Type.Read)
    notifier.activated.connect(portal.change)
    print("ready", flush=True)
    application.exec()


if __name__ == "__main__":
    main()
