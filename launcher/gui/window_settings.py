"""Settings file for the window's state: geometry, panes, last page. Not for app settings."""

from PySide6.QtCore import QSettings

from launcher.base.paths import state_dir


def open_window_settings() -> QSettings:
    """Open the settings file for the window's state."""
    return QSettings(str(state_dir() / "window.ini"), QSettings.Format.IniFormat)
