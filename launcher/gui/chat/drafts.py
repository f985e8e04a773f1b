"""Marks the drafted tokens of a reply: each draft position has a colour and an underline. The legend names them."""

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen, QTextCharFormat
from PySide6.QtWidgets import QHBoxLayout, QSizePolicy, QWidget

from launcher.gui import theme
from launcher.gui.chat.steps import VerificationSteps
from launcher.gui.labels import Label
from launcher.gui.translation import tr
from launcher.gui.widgets.flow import FlowLayout

_LINES = (
    (QTextCharFormat.UnderlineStyle.SingleUnderline, Qt.PenStyle.SolidLine, "accent"),
    (QTextCharFormat.UnderlineStyle.DashUnderline, Qt.PenStyle.DashLine, "good"),
    (QTextCharFormat.UnderlineStyle.DotLine, Qt.PenStyle.DotLine, "power"),
)
"""Underline of the first, the second, and of further draft positions: its style in texts, as a pen, and its colour."""
_SAMPLE = "ab"


def format_ordinal(number: int) -> str:
    """Return a draft position as text: 1st, 2nd, 3rd, 4th."""
    if number > 3:
        return tr("{n}th", n=number)
    return (tr("1st"), tr("2nd"), tr("3rd"))[number - 1]


def mark_draft(form: QTextCharFormat, position: int, *, background: bool = True) -> None:
    """Mark text from a draft by its position there, from 1. Without `background`, as in code, it is only underlined."""
    number = min(position, len(_LINES)) - 1
    if background:
        form.setBackground(QColor(theme.current().drafted[number]))
    if not form.isAnchor():  # links have an underline of their own
        style, _, role = _LINES[number]
        form.setUnderlineStyle(style)
        form.setUnderlineColor(theme.colour(role))


class _Sample(QWidget):
    """Two letters that are marked like text from a draft position; 0 for text of the model itself."""

    def __init__(self, position: int) -> None:
        super().__init__()
        self._position = position
        self.setFont(theme.font(theme.CAPTION_PX))
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:  # noqa: N802 -- Qt's name
        """Return the size of the letters with their margins."""
        metrics = self.fontMetrics()
        return QSize(metrics.horizontalAdvance(_SAMPLE) + theme.px(6), metrics.height() + theme.px(4))

    def paintEvent(self, _event: QPaintEvent) -> None:  # noqa: N802
        """Paint the letters."""
        with QPainter(self) as painter:
            box = QRectF(self.rect())
            if self._position:
                number = min(self._position, len(_LINES)) - 1
                painter.fillRect(box, QColor(theme.current().drafted[number]))
                _, pen_style, role = _LINES[number]
                y = box.bottom() - theme.px(2)
                painter.setPen(QPen(theme.colour(role), 1, pen_style))
                painter.drawLine(round(box.left()) + 2, round(y), round(box.right()) - 2, round(y))
            painter.setPen(theme.colour("text"))
            painter.drawText(box, int(Qt.AlignmentFlag.AlignCenter), _SAMPLE)


class DraftLegend(QWidget):
    """Legend of the draft positions in a reply, and how many of its tokens came from drafts."""

    def __init__(self, steps: VerificationSteps) -> None:
        super().__init__()
        from_drafts, tokens = steps.counts
        summary = tr(
            "{accepted:,} of the text's {tokens:,} tokens came from drafts", accepted=from_drafts, tokens=tokens
        )
        self.texts = [tr("Colours:"), tr("model itself")]
        flow = FlowLayout(self, gap=theme.px(theme.GAP_M))
        flow.add(_make_text(self.texts[0]))
        flow.add(make_entry(0, self.texts[1]))
        for position in range(1, min(steps.last_position, len(_LINES)) + 1):
            is_last = position == len(_LINES) and steps.last_position > position
            ordinal = format_ordinal(position)
            name = (
                tr("{ordinal} draft and later", ordinal=ordinal) if is_last else tr("{ordinal} draft", ordinal=ordinal)
            )
            self.texts.append(name)
            flow.add(make_entry(position, self.texts[-1]))
        self.texts.append(summary)
        flow.add(_make_text(summary))
        self.setAccessibleName(" · ".join(self.texts))


def _make_text(text: str) -> Label:
    label = Label(text)
    label.setObjectName("secondary")
    label.setFont(theme.font(theme.CAPTION_PX, tabular=True))
    return label


def make_entry(position: int, name: str, *, wraps: bool = False) -> QWidget:
    """Return letters that are marked like text from a draft position, with a text beside them."""
    entry = QWidget()
    row = QHBoxLayout(entry)
    row.setContentsMargins(0, 0, 0, 0)
    row.setSpacing(theme.px(6))
    row.addWidget(_Sample(position))
    text = _make_text(name)
    text.setWordWrap(wraps)
    row.addWidget(text, 1)
    return entry
