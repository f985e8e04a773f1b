"""Pictures and files of a question: read in the background, shown as tiles above the prompt and in the question."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QBuffer, QIODevice, QMimeData, QObject, QSize, Qt, Signal
from PySide6.QtGui import QColor, QImage, QImageReader, QImageWriter, QKeyEvent, QMouseEvent, QPainter, QPixmap
from PySide6.QtWidgets import QDialog, QFrame, QHBoxLayout, QPushButton, QScrollArea, QVBoxLayout, QWidget

from launcher.base.errors import BadOption, LauncherError
from launcher.base.messages import message
from launcher.base.text import one_line
from launcher.conversations.attachments import Attachment, AttachmentKind, read_text_file
from launcher.gui import theme
from launcher.gui.chat.style import glyph_icon
from launcher.gui.labels import ElidedLabel, Label
from launcher.gui.late import catalogue_load, model_search, start_settings
from launcher.gui.translation import render, tr
from launcher.gui.widgets.flow import FlowLayout

if TYPE_CHECKING:
    from launcher.gui.controller import Controller

_MOST_FILES = 16
_LONGEST_SIDE = 2_048
"""Pictures are made smaller to this many pixels: projectors use fewer, and a request has all pictures of a chat."""
_JPEG_QUALITY = 90
_TILE_WIDTH, _PICTURE = 232, QSize(132, 84)
_SMALL_PICTURE = QSize(44, 44)
_SHOWN_NAME = 80


# Reading files.


def list_files(data: QMimeData) -> list[Path]:
    """Return the local files in pasted or dropped data; none if a model is among them, which the window opens."""
    files = [Path(url.toLocalFile()) for url in data.urls() if url.isLocalFile()]
    return [] if any(file.suffix.lower() == ".gguf" for file in files) else files


def find_image(data: QMimeData) -> QImage | None:
    """Return the picture in pasted or dropped data, such as a screenshot; None if the data has text or files."""
    if data.hasImage() and not data.hasText() and not data.urls():
        image = data.imageData()
        return image if isinstance(image, QImage) and not image.isNull() else None
    return None


def sees_pictures(controller: "Controller") -> bool:
    """Return whether the running model has a vision projector."""
    launch = controller.launch
    return launch is not None and (launch.options.mmproj is not None or "--mmproj" in launch.options.extra)


def is_picture(path: Path) -> bool:
    """Return whether a file is a picture that can be read here."""
    reader = QImageReader(str(path))
    reader.setDecideFormatFromContent(True)
    return reader.canRead()


def read_picture(path: Path) -> Attachment:
    """Read a picture, smaller if it is very large. Raises BadOption if it is broken."""
    name = one_line(path.name, _SHOWN_NAME)
    reader = QImageReader(str(path))
    reader.setDecideFormatFromContent(True)
    reader.setAutoTransform(True)
    size = reader.size()
    if size.isValid() and max(size.width(), size.height()) > _LONGEST_SIDE:
        reader.setScaledSize(size.scaled(_LONGEST_SIDE, _LONGEST_SIDE, Qt.AspectRatioMode.KeepAspectRatio))
    image = reader.read()
    if image.isNull():
        raise BadOption(
            message("{name} cannot be read: {why}.", name=name, why=reader.errorString()),
            message("Open it in another program, and copy the picture."),
        )
    return encode_picture(image, name)


def encode_picture(image: QImage, name: str) -> Attachment:
    """Return a picture as an attachment: as JPEG, or as PNG if it is transparent or small."""
    if max(image.width(), image.height()) > _LONGEST_SIDE:
        modes = Qt.AspectRatioMode.KeepAspectRatio, Qt.TransformationMode.SmoothTransformation
        image = image.scaled(_LONGEST_SIDE, _LONGEST_SIDE, *modes)
    as_png = image.hasAlphaChannel() or image.width() * image.height() < 512 * 512
    buffer = QBuffer()
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    writer = QImageWriter(buffer, b"png" if as_png else b"jpeg")
    if not as_png:
        writer.setQuality(_JPEG_QUALITY)
    writer.write(image)
    return Attachment(
        AttachmentKind.PICTURE,
        name,
        data=bytes(buffer.data().data()),
        media_type="image/png" if as_png else "image/jpeg",
        width=image.width(),
        height=image.height(),
    )


async def read_file(path: Path) -> Attachment:
    """Read a picture, a PDF or a text. Raises BadOption for others."""

    def has_pdf_head() -> bool:
        try:
            with path.open("rb") as file:
                return file.read(5) == b"%PDF-"
        except OSError:
            return False

    if await asyncio.to_thread(has_pdf_head):
        from launcher.app.pdf_reading import read_pdf

        return await read_pdf(path)
    if await asyncio.to_thread(is_picture, path):
        return await asyncio.to_thread(read_picture, path)
    return await asyncio.to_thread(read_text_file, path)


# Showing files.


def describe_size(attachment: Attachment) -> str:
    """Return pages, tokens or pixels of an attachment as a line."""
    parts = []
    if attachment.kind is AttachmentKind.PICTURE:
        parts.append(f"{attachment.width} × {attachment.height}")  # noqa: RUF001 -- the sign of sizes
    if attachment.pages:
        parts.append(tr("{count} pages", count=attachment.pages))
    if attachment.kind is AttachmentKind.TEXT:
        parts.append(tr("{count:,} tokens", count=attachment.tokens) if attachment.tokens else tr("tokens not counted"))
    return " · ".join(parts)


class AttachmentTile(QFrame):
    """A file with its picture or extension, its name and its size. With `removable` it has a button to remove it."""

    removed = Signal()

    def __init__(self, name: str, note: str, *, removable: bool = False) -> None:
        super().__init__()
        self.setObjectName("tile")
        self._attachment: Attachment | None = None
        self.picture = Label()
        self.picture.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._name, self.note = ElidedLabel(name, mode=Qt.TextElideMode.ElideMiddle), Label(note)
        self._name.setFont(theme.font(theme.CAPTION_PX, bold=True))
        self.note.setObjectName("secondary")
        self.note.setFont(theme.font(theme.CAPTION_PX, tabular=True))
        self._row = QHBoxLayout(self)
        gap = theme.px(theme.GAP)
        self._row.setContentsMargins(gap, gap, gap, gap)
        self._row.setSpacing(gap)
        texts = QVBoxLayout()
        texts.setSpacing(0)
        texts.addStretch()
        texts.addWidget(self._name)
        texts.addWidget(self.note)
        texts.addStretch()
        self._row.addWidget(self.picture)
        self._row.addLayout(texts, 1)
        self.remove_button = QPushButton()
        self.remove_button.setObjectName("quiet")
        self.remove_button.setIcon(glyph_icon("cross"))
        self.remove_button.setAccessibleName(tr("Remove {name}", name=name))
        self.remove_button.setToolTip(tr("Remove"))
        self.remove_button.clicked.connect(self.removed)
        self.remove_button.setVisible(removable)
        self._row.addWidget(self.remove_button, alignment=Qt.AlignmentFlag.AlignTop)
        self.setFixedWidth(theme.px(_TILE_WIDTH))
        self._removable = removable
        self._show_extension(name)
        self.setAccessibleName(f"{name}, {note}")

    def show_attachment(self, attachment: Attachment) -> None:
        """Show the picture or the size of a file that has been read."""
        self._attachment = attachment
        self.note.setText(describe_size(attachment))
        self.setAccessibleName(f"{attachment.name}, {self.note.text()}")
        if attachment.kind is not AttachmentKind.PICTURE:
            return
        pixmap = QPixmap()
        pixmap.loadFromData(attachment.data)
        most = _SMALL_PICTURE if self._removable else _PICTURE
        ratio = self.devicePixelRatioF()
        room = QSize(round(theme.px(most.width()) * ratio), round(theme.px(most.height()) * ratio))
        modes = Qt.AspectRatioMode.KeepAspectRatio, Qt.TransformationMode.SmoothTransformation
        if pixmap.width() > room.width() or pixmap.height() > room.height():
            pixmap = pixmap.scaled(room, *modes)
        pixmap.setDevicePixelRatio(ratio)
        self.picture.setPixmap(pixmap)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setToolTip(tr("Show the picture"))

    def warn(self, note: str) -> None:
        """Show a note in place of the size."""
        self.note.setText(note)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:  # noqa: N802 -- Qt's name
        """Show the picture in full size."""
        super().mouseReleaseEvent(event)
        self._open_picture()

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802
        """Show the picture on Enter and Space, remove the file on Del."""
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space):
            self._open_picture()
        elif event.key() == Qt.Key.Key_Delete and self._removable:
            self.removed.emit()
        else:
            super().keyPressEvent(event)

    def _open_picture(self) -> None:
        if self._attachment is not None and self._attachment.kind is AttachmentKind.PICTURE:
            show_picture(self, self._attachment)

    def _show_extension(self, name: str) -> None:
        """Paint a square with the file's extension, at most four letters."""
        ending = Path(name).suffix.removeprefix(".").upper()[:4] or "TXT"
        size = theme.px(36)
        pixmap = QPixmap(QSize(size, size) * 2)
        pixmap.setDevicePixelRatio(2)
        pixmap.fill(QColor(theme.current().raised))
        with QPainter(pixmap) as painter:
            painter.setPen(theme.colour("secondary"))
            painter.setFont(theme.font(10, bold=True))
            painter.drawText(0, 0, size, size, int(Qt.AlignmentFlag.AlignCenter), ending)
        self.picture.setPixmap(pixmap)


def show_picture(parent: QWidget, attachment: Attachment) -> QDialog:
    """Show a picture in a window of its own, in full size if the screen has room."""
    dialog = QDialog(parent)
    dialog.setWindowTitle(attachment.name)
    image = Label()
    pixmap = QPixmap()
    pixmap.loadFromData(attachment.data)
    image.setPixmap(pixmap)
    image.setAccessibleName(attachment.name)
    area = QScrollArea()
    area.setWidget(image)
    area.setAlignment(Qt.AlignmentFlag.AlignCenter)
    layout = QVBoxLayout(dialog)
    layout.setContentsMargins(0, 0, 0, 0)
    layout.addWidget(area)
    most = parent.screen().availableSize() * 0.8
    dialog.resize((pixmap.size() + QSize(24, 24)).boundedTo(most))
    dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    dialog.open()
    return dialog


@dataclass(eq=False, slots=True)
class _PendingFile:
    """A file of the next question. `attachment` is None while it is read.

    `is_unseen`: it is a picture, added while the running model could not see any.
    """

    tile: AttachmentTile
    attachment: Attachment | None = None
    is_unseen: bool = False


class AttachmentBar(QWidget):
    """The files of the next question, as tiles. They are read in the background."""

    failed = Signal(object)
    """LauncherError: a file cannot be added."""
    unseen = Signal()
    """A picture was added that the running model cannot see."""

    def __init__(self) -> None:
        super().__init__()
        self.setAccessibleName(tr("Attached files"))
        self._flow = FlowLayout(self, gap=theme.px(theme.GAP))
        self._files: list[_PendingFile] = []
        self.hide()

    @property
    def is_reading(self) -> bool:
        """Whether a file is still being read."""
        return any(file.attachment is None for file in self._files)

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """The files that have been read."""
        return tuple(file.attachment for file in self._files if file.attachment is not None)

    def show_files(self, attachments: Iterable[Attachment]) -> None:
        """Show files that have been read, such as those of a question that is edited."""
        self.clear()
        for attachment in attachments:
            self._add(attachment.name).attachment = attachment
            self._files[-1].tile.show_attachment(attachment)

    def clear(self) -> None:
        """Remove all files."""
        for file in list(self._files):
            self._remove(file)

    def remove_unseen(self) -> None:
        """Remove the pictures that were added while the model could not see any."""
        for file in [each for each in self._files if each.is_unseen]:
            self._remove(file)

    def add_files(self, controller: "Controller", paths: Sequence[Path]) -> None:
        """Read files and add those that can be read; `failed` reports the others."""
        for path in paths:
            self._read(controller, path.name, read_file, path)

    def add_image(self, controller: "Controller", image: QImage) -> None:
        """Add a pasted picture."""
        name = tr("Picture")
        self._read(controller, name, encode_picture, image, name)

    def _read(self, controller: "Controller", name: str, read: Callable[..., Any], *args: object) -> None:
        if len(self._files) >= _MOST_FILES:
            self.failed.emit(BadOption(message("A question can have {count} files.", count=_MOST_FILES)))
            return
        file = self._add(one_line(name, _SHOWN_NAME))

        def finish(attachment: Attachment) -> None:
            if file in self._files:
                self._finish(controller, file, attachment)

        def fail(error: LauncherError) -> None:
            if file in self._files:
                self._remove(file)
                self.failed.emit(error)

        controller.bridge.run(read, *args, done=finish, failed=fail)

    def _add(self, name: str) -> _PendingFile:
        file = _PendingFile(AttachmentTile(name, tr("Reading …"), removable=True))
        file.tile.removed.connect(lambda: self._remove(file))
        self._files.append(file)
        self._flow.add(file.tile)
        self.show()
        return file

    def _finish(self, controller: "Controller", file: _PendingFile, attachment: Attachment) -> None:
        file.attachment = attachment
        file.tile.show_attachment(attachment)
        if attachment.kind is AttachmentKind.PICTURE and not sees_pictures(controller):
            file.is_unseen = True
            self.unseen.emit()
        if attachment.kind is not AttachmentKind.TEXT:
            return

        def show_tokens(count: int) -> None:
            if file not in self._files:
                return
            file.attachment = replace(attachment, tokens=count)
            file.tile.show_attachment(file.attachment)
            context = controller.launch.context if controller.launch is not None else 0
            if context and count > context:
                file.tile.warn(tr("{count:,} tokens: the context has {context:,}", count=count, context=context))

        controller.count_tokens(attachment.text, show_tokens)

    def _remove(self, file: _PendingFile) -> None:
        if file in self._files:
            self._files.remove(file)
            self._flow.removeWidget(file.tile)
            file.tile.hide()
            file.tile.deleteLater()
            self.setVisible(bool(self._files))
            self.updateGeometry()


class ProjectorFinder(QObject):
    """Finds a vision projector for the running model on this computer."""

    found = Signal(object)
    """Path of the projector."""
    missing = Signal(str)
    """Why there is none, as text."""

    def __init__(self, controller: "Controller", parent: QObject) -> None:
        super().__init__(parent)
        self._controller = controller

    def find(self) -> None:
        """Start the search. Ends with the signal `found` or `missing`."""
        name = self._controller.served_name

        def find_file() -> Path:
            return model_search.find_projector(model_search.select_model(name, catalogue_load.load_catalogue()))

        self._controller.bridge.run(
            find_file,
            done=self.found.emit,
            failed=lambda error: self.missing.emit(render(error.title)),
        )

    def restart_with(self, projector: Path) -> None:
        """Load the running model again, with a projector."""
        launch = self._controller.launch
        if launch is not None:
            options = replace(launch.options, mmproj=projector)
            name = self._controller.served_name
            self._controller.start(name, start=start_settings.ResolvedStart(name, options))
