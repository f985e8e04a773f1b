"""Read-only text with links. A link is opened in the browser only after its address was shown and confirmed."""

from PySide6.QtCore import QEvent, Qt, QUrl
from PySide6.QtGui import QContextMenuEvent, QDesktopServices, QGuiApplication, QKeyEvent, QMouseEvent, QTextCursor
from PySide6.QtWidgets import QMessageBox, QTextEdit, QWidget

from launcher.gui.labels import set_tooltip
from launcher.gui.translation import tr


class LinkText(QTextEdit):
    """Read-only text whose formats are set by code, never by HTML. A click on a link, or Enter, asks to open it."""

    def __init__(self) -> None:
        super().__init__()
        self.setReadOnly(True)
        self.setUndoRedoEnabled(False)
        self.setMouseTracking(True)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:  # noqa: N802 -- Qt's name
        """Show a hand over a link, and its address as a tooltip."""
        super().mouseMoveEvent(event)
        address = self.anchorAt(event.position().toPoint())
        self.viewport().setCursor(Qt.CursorShape.PointingHandCursor if address else Qt.CursorShape.IBeamCursor)
        set_tooltip(self.viewport(), address)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:  # noqa: N802
        """Ask whether to open the link that was clicked. Selecting a text with the mouse is not a click."""
        super().mouseReleaseEvent(event)
        address = self.anchorAt(event.position().toPoint())
        if address and event.button() == Qt.MouseButton.LeftButton and not self.textCursor().hasSelection():
            confirm_address(self, address)

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802
        """Ask on Enter whether to open the link at the cursor."""
        address = self.textCursor().charFormat().anchorHref()
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and address:
            confirm_address(self, address)
        else:
            super().keyPressEvent(event)

    def focusNextPrevChild(self, following: bool) -> bool:  # noqa: N802 -- Qt's signature
        """Move to the next link, or if there is none to the next widget."""
        return self._select_link(following=following) or super().focusNextPrevChild(following)

    def event(self, event: QEvent) -> bool:
        """Deselect a link that Tab has selected when the focus leaves."""
        if event.type() == QEvent.Type.FocusOut and self.textCursor().charFormat().isAnchor():
            cursor = self.textCursor()
            cursor.clearSelection()
            self.setTextCursor(cursor)
        return super().event(event)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:  # noqa: N802
        """Show the usual menu, for a link with its address to copy."""
        menu = self.createStandardContextMenu()
        address = self.anchorAt(event.pos()) or self.textCursor().charFormat().anchorHref()
        if address:
            menu.addSeparator()
            menu.addAction(tr("Open link …")).triggered.connect(lambda: confirm_address(self, address))
            menu.addAction(tr("Copy link address")).triggered.connect(
                lambda: QGuiApplication.clipboard().setText(address)
            )
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.popup(event.globalPos())

    def _select_link(self, *, following: bool) -> bool:
        """Select the link after or before the selected one, or the first or last; return whether there is one."""
        links = self._list_links()
        cursor = self.textCursor()
        if (selected := (cursor.selectionStart(), cursor.selectionEnd())) in links:
            number = links.index(selected) + (1 if following else -1)
        else:
            number = 0 if following else len(links) - 1
        if not 0 <= number < len(links):
            return False
        begin, end = links[number]
        cursor.setPosition(begin)
        cursor.setPosition(end, QTextCursor.MoveMode.KeepAnchor)
        self.setTextCursor(cursor)
        return True

    def _list_links(self) -> list[tuple[int, int]]:
        """Return the begin and end of each link."""
        links: list[tuple[int, int]] = []
        address, block = "", self.document().begin()
        while block.isValid():
            fragments = block.begin()
            while not fragments.atEnd():
                fragment = fragments.fragment()
                before, address = address, fragment.charFormat().anchorHref()
                end = fragment.position() + fragment.length()
                if address and address == before and links[-1][1] == fragment.position():
                    links[-1] = links[-1][0], end
                elif address:
                    links.append((fragment.position(), end))
                fragments += 1
            block = block.next()
        return links


def confirm_address(parent: QWidget, address: str) -> QMessageBox:
    """Show an address, and open it in the browser if the user confirms that."""
    url = QUrl(address, QUrl.ParsingMode.StrictMode)
    box = QMessageBox(QMessageBox.Icon.NoIcon, tr("Open link"), "", parent=parent)
    box.setTextFormat(Qt.TextFormat.PlainText)
    box.setText(tr("Open a page of {site} in the browser?", site=url.host(QUrl.ComponentFormattingOption.FullyEncoded)))
    box.setInformativeText(address)
    opens = box.addButton(tr("Open"), QMessageBox.ButtonRole.AcceptRole)
    copies = box.addButton(tr("Copy link address"), QMessageBox.ButtonRole.ActionRole)
    cancels = box.addButton(tr("Cancel"), QMessageBox.ButtonRole.RejectRole)
    box.setDefaultButton(cancels)
    box.setEscapeButton(cancels)
    opens.clicked.connect(lambda: QDesktopServices.openUrl(url))
    copies.clicked.connect(lambda: QGuiApplication.clipboard().setText(address))
    box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    box.open()
    return box
