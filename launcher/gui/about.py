"""The About page: the versions of all parts, in a form that can be pasted into a bug report."""

import platform
from collections.abc import Callable
from typing import TYPE_CHECKING

from PySide6 import __version__ as pyside_version
from PySide6.QtCore import Qt, QTimer, qVersion
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QGridLayout, QWidget

from launcher import __version__
from launcher.base.errors import LauncherError
from launcher.gui import theme
from launcher.gui.controller import Controller
from launcher.gui.labels import Label
from launcher.gui.translation import render, tr
from launcher.gui.updates import UpdatesCard
from launcher.gui.widgets.banner import Banner
from launcher.gui.widgets.blocks import Card, PageHead
from launcher.gui.widgets.flow import clear_layout, make_headed_column

if TYPE_CHECKING:
    from launcher.app.versions import Version

_COPIED_MS = 2_000
"""Time in milliseconds for which the button says "Copied"."""
_NAMES_WIDTH = 128
"""Column width in pixels, the same at any text scale: long names wrap."""


class AboutPage(QWidget):
    """Versions of the program, its libraries, the engine builds and the drivers. Contains no secrets."""

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._controller = controller
        self._versions: tuple[Version, ...] = ()
        head = PageHead(tr("About"), tr("A launcher for llama.cpp's server with MTP. MIT licence."))
        self._copy_button = head.add_button(tr("Copy report"), self.copy_report)
        self._copy_button.setToolTip(
            tr("Versions only: no paths, names or keys. As `mtp-launcher versions` prints them.")
        )
        self._copy_button.setEnabled(False)
        self._problem = Banner()
        self._card = Card(tr("Versions"))
        self._grid = QGridLayout()
        self._grid.setHorizontalSpacing(theme.px(theme.GAP_L))
        self._grid.setVerticalSpacing(theme.px(theme.GAP))
        self._grid.setColumnMinimumWidth(0, _NAMES_WIDTH)
        self._grid.setColumnStretch(1, 1)
        self._card.body.addLayout(self._grid)
        self._progress = Label(tr("Asking the engines and drivers for their versions …"))
        self._progress.setObjectName("secondary")
        self._progress.setWordWrap(True)
        self._card.body.addWidget(self._progress)
        self.updates = UpdatesCard(controller)
        column = make_headed_column(self, tr("Versions"), head, self._problem)
        column.addWidget(self.updates)
        column.addWidget(self._card)
        column.addStretch()

    def on_shown(self) -> None:
        """Read the versions and check for a newer release."""
        self.updates.on_shown()
        self._controller.bridge.run(_read_versions, done=self._show_versions, failed=self._show_error)

    @property
    def report(self) -> str:
        """The text that the button copies."""
        return "\n".join(f"{name}: {version}" for name, version in self._version_rows())

    def copy_report(self) -> None:
        """Copy the report to the clipboard."""
        QGuiApplication.clipboard().setText(self.report)
        self._copy_button.setText(tr("Copied"))
        QTimer.singleShot(_COPIED_MS, self._copy_button, lambda: self._copy_button.setText(tr("Copy report")))

    def _version_rows(self, translate_text: Callable[[str], str] = str) -> list[tuple[str, str]]:
        """Return rows of (name, version). `translate_text` is `render` for display; a report stays English."""
        versions = [
            (
                translate_text(each.component),
                each.version or tr("not known: {why}", why=translate_text(each.absent or "")),
            )
            for each in self._versions
        ]
        qt = f"{qVersion()}, PySide {pyside_version}, {QGuiApplication.platformName()}"
        rows = versions or [("MTP Launcher", __version__), ("Python", platform.python_version())]
        rows.insert(2, ("Qt", qt))  # after this program and Python, which are always the first two
        return rows

    def _show_versions(self, versions: "tuple[Version, ...]") -> None:
        self._versions = versions
        self._progress.hide()
        self._copy_button.setEnabled(True)
        clear_layout(self._grid)
        for row, (name, version) in enumerate(self._version_rows(render)):
            name_label, value = Label(name), Label(version)
            name_label.setObjectName("secondary")
            name_label.setWordWrap(True)
            value.setWordWrap(True)
            value.setTextInteractionFlags(theme.SELECTABLE)
            value.setAccessibleName(f"{name}: {version}")
            self._grid.addWidget(name_label, row, 0, Qt.AlignmentFlag.AlignTop)
            self._grid.addWidget(value, row, 1, Qt.AlignmentFlag.AlignTop)

    def _show_error(self, error: LauncherError) -> None:
        self._progress.hide()
        self._problem.show_message(str(error))


async def _read_versions() -> "tuple[Version, ...]":
    from launcher.app.versions import read_versions

    return await read_versions()
