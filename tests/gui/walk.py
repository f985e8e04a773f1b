"""Lists controls and accessible objects of a page, and finds texts and widgets that are cut off."""

import html
import re
from collections.abc import Iterator

from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QAccessible, QAccessibleInterface, QFont, QFontMetrics
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractScrollArea,
    QAbstractSlider,
    QAbstractSpinBox,
    QCheckBox,
    QComboBox,
    QHeaderView,
    QLabel,
    QLineEdit,
    QPushButton,
    QRadioButton,
    QScrollArea,
    QScrollBar,
    QStyle,
    QStyleOptionButton,
    QStyleOptionComboBox,
    QStyleOptionFrame,
    QTableView,
    QWidget,
)

from launcher.gui.labels import ElidedLabel
from launcher.gui.logs.view import LogView
from launcher.gui.widgets.row_table import RowTable

CONTROLS = (QAbstractButton, QAbstractSlider, QAbstractSpinBox, QComboBox, QLineEdit)
_BOLD_WHEN_DOWN = ("segment", "page")
_MOST_ROWS = 50
"""Rows of a table that are measured."""
_INNER = 2
"""Pixels that a border or a rounded edge may take on either side."""


def interfaces(root: QWidget) -> Iterator[tuple[QAccessibleInterface, str]]:
    """Yield the accessible objects under a widget, each with its path."""
    todo = [(QAccessible.queryAccessibleInterface(root), type(root).__name__)]
    while todo:
        each, path = todo.pop()
        if each is None or not each.isValid() or each.state().invisible:
            continue
        yield each, path
        for at in range(each.childCount()):
            child = each.child(at)
            if child is not None and child.isValid():
                owner = child.object()
                todo.append((child, f"{path} > {type(owner).__name__ if owner else 'part'}"))


def controls(root: QWidget) -> list[QWidget]:
    """Return the controls under a widget that can be seen and used."""
    return [
        each
        for each in root.findChildren(QWidget)
        if isinstance(each, CONTROLS)
        and not isinstance(each, QScrollBar)
        and each.isVisible()
        and each.isEnabled()
        and not isinstance(each.parent(), QAbstractSpinBox | QComboBox | QAbstractScrollArea)
    ]


def list_clipped_texts(root: QWidget) -> list[str]:
    """Return the clipped texts under a widget, each with the number of missing pixels."""
    found = []
    for each in root.findChildren(QWidget):
        if not each.isVisible() or not each.width() or not each.height():
            continue
        lack = _missing_pixels(each)
        if lack is not None and max(lack) > 0:
            text = each.currentText() if isinstance(each, QComboBox) else each.text() or each.placeholderText()  # type: ignore[attr-defined]
            found.append(f"{type(each).__name__} {text[:60]!r} lacks {lack[0]} x {lack[1]} px")
    return found


def clipped_cells(root: QWidget) -> list[str]:
    """Return the clipped column titles and table cells under a widget, and the tables whose columns have no room.

    Cells of a column that is stretched may be elided if their tooltips have the whole text. Logs are left out, because
    their long lines are scrolled.
    """
    found = []
    for table in root.findChildren(QTableView):
        model, head = table.model(), table.horizontalHeader()
        if not table.isVisible() or model is None or isinstance(table, LogView):
            continue
        if (lack := head.length() - table.viewport().width()) > 0:
            found.append(f"{table.accessibleName()}: its columns lack {lack} px")
        for column in range(model.columnCount()):
            if table.isColumnHidden(column):
                continue
            width = head.sectionSize(column)
            gives_way = head.sectionResizeMode(column) == QHeaderView.ResizeMode.Stretch
            title = str(model.headerData(column, Qt.Orientation.Horizontal) or "")
            if head.isVisible() and (lack := _title_width(table, column, title) - width) > 0:
                found.append(f"{table.accessibleName()}: the title {title!r} lacks {lack} px")
            for row in range(min(model.rowCount(), _MOST_ROWS)):
                index = model.index(row, column)
                text = str(index.data() or "")
                lack = table.sizeHintForIndex(index).width() - width
                has_tip = text in html.unescape(str(index.data(Qt.ItemDataRole.ToolTipRole) or ""))
                if text and lack > 0 and not (gives_way and has_tip):
                    found.append(f"{table.accessibleName()}: {text[:60]!r} under {title!r} lacks {lack} px")
    return found


def _title_width(table: QTableView, column: int, title: str) -> int:
    """Return the width that a column's title needs. Qt's own figure is that of bold text."""
    head = table.horizontalHeader()
    if isinstance(table, RowTable):
        return head.fontMetrics().horizontalAdvance(title) + 2 * table.text_inset
    return head.sectionSizeHint(column)


def _missing_pixels(widget: QWidget) -> tuple[int, int] | None:
    """Return the pixels that a text lacks in width and height; None if it cannot be clipped."""
    if isinstance(widget, QComboBox):
        option = QStyleOptionComboBox()
        widget.initStyleOption(option)
        room = widget.style().subControlRect(
            QStyle.ComplexControl.CC_ComboBox, option, QStyle.SubControl.SC_ComboBoxEditField, widget
        )
        needed = widget.fontMetrics().horizontalAdvance(widget.currentText())
        return needed - room.width() - 1, widget.fontMetrics().height() - room.height()
    if isinstance(widget, QLineEdit) and not widget.text():
        needed = widget.fontMetrics().horizontalAdvance(widget.placeholderText())
        room = widget.style().subElementRect(QStyle.SubElement.SE_LineEditContents, _frame_option(widget), widget)
        return needed + 2 * _INNER - room.width(), widget.fontMetrics().height() - room.height()
    text = getattr(widget, "text", None)
    if isinstance(widget, ElidedLabel) or not callable(text) or not text():
        return None
    if isinstance(widget, QLabel):
        if type(widget).sizeHint is not QLabel.sizeHint or type(widget).paintEvent is not QLabel.paintEvent:
            return None  # a label that paints its own text has a test of its own
        if widget.wordWrap():
            longest = max(widget.fontMetrics().horizontalAdvance(word) for word in _unbreakable_parts(widget.text()))
            width = longest + 2 * widget.margin() + _margins(widget)
            return width - widget.width(), widget.heightForWidth(widget.width()) - widget.height() - 1
        hint = widget.sizeHint()
        return hint.width() - widget.width() - 1, hint.height() - widget.height() - 1
    if isinstance(widget, QCheckBox | QRadioButton):
        hint = widget.sizeHint()
        return hint.width() - widget.width() - _INNER, hint.height() - widget.height() - _INNER
    if isinstance(widget, QAbstractButton):
        font = widget.font()
        if widget.objectName() == "primary" or (widget.isChecked() and widget.objectName() in _BOLD_WHEN_DOWN):
            font.setWeight(QFont.Weight.DemiBold)  # set by the style sheet, which does not change the widget's font
        metrics = QFontMetrics(font)
        lines = widget.text().split("\n")
        width = max(metrics.size(Qt.TextFlag.TextShowMnemonic, line).width() for line in lines)
        return width - _text_area(widget).width(), metrics.height() * len(lines) - widget.height()
    return None


def _frame_option(field: QLineEdit) -> QStyleOptionFrame:
    option = QStyleOptionFrame()
    field.initStyleOption(option)
    return option


def _unbreakable_parts(text: str) -> list[str]:
    """Return the parts of a text between which a line may be broken."""
    return re.split(r"\s+|(?<=[/-])(?=\w)|(?<=[\u3000-\u9fff\uff00-\uffef])", text)


def _text_area(button: QAbstractButton) -> QRect:
    """Return where a button's text is painted: within its border and padding."""
    if not isinstance(button, QPushButton):
        return button.rect().adjusted(_INNER, 0, -_INNER, 0)
    option = QStyleOptionButton()
    button.initStyleOption(option)
    return button.style().subElementRect(QStyle.SubElement.SE_PushButtonContents, option, button)


def _margins(label: QLabel) -> int:
    margins = label.contentsMargins()
    return margins.left() + margins.right()


def hidden_by_parents(root: QWidget) -> list[str]:
    """Return the labels and controls that stick out of their parents, except in scroll areas."""
    found = [
        f"{area.accessibleName() or type(area.parent()).__name__} is {lack} px too narrow, and cannot be scrolled"
        for area in root.findChildren(QScrollArea)
        if area.isVisible() and area.horizontalScrollBarPolicy() == Qt.ScrollBarPolicy.ScrollBarAlwaysOff
        if (lack := area.widget().width() - area.viewport().width()) > _INNER
    ]
    for each in root.findChildren(QWidget):
        if not isinstance(each, (QLabel, *CONTROLS)) or not each.isVisible():
            continue
        parent = each.parentWidget()
        if parent is None or isinstance(parent, QAbstractScrollArea | QAbstractSpinBox | QComboBox | QLineEdit):
            continue
        if not parent.rect().adjusted(-_INNER, -_INNER, _INNER, _INNER).contains(each.geometry()):
            text = getattr(each, "text", str)()
            found.append(f"{type(each).__name__} {text[:60]!r} sticks out of {type(parent).__name__}")
    return found
