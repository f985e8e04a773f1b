"""Opens an empty PySide6 window. Prints the seconds from the start of the process to its first paint, as JSON."""

import json

from PySide6.QtCore import QTimer
from PySide6.QtGui import QPaintEvent
from PySide6.QtWidgets import QApplication, QWidget

from launcher.base.units import process_age_s


class EmptyWindow(QWidget):
    """Prints the time of its first paint, then ends the process."""

    _painted = False

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802 -- Qt's name
        super().paintEvent(event)
        if not self._painted:
            self._painted = True
            print(json.dumps({"painted_s": process_age_s()}), flush=True)
            QTimer.singleShot(0, QApplication.quit)


def main() -> None:
    """Open the window at the size of the program's own window."""
    application = QApplication([])
    window = EmptyWindow()
    window.resize(1_280, 800)
    window.show()
    application.exec()


if __name__ == "__main__":
    main()
