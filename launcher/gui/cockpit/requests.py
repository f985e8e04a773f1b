"""Requests of all clients, below the plots: client, reused share of the prompt, speed of the reply, and more."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QModelIndex, QObject, QPersistentModelIndex, QRectF, QSize, Qt, QTimer, Signal, Slot
from PySide6.QtGui import QIcon, QPainter, QPen, QPixmap
from PySide6.QtWidgets import QHeaderView, QStyledItemDelegate, QStyleOptionViewItem

from launcher.app import settings
from launcher.base.codec import from_json
from launcher.base.errors import LauncherError
from launcher.base.text import one_line
from launcher.engine.server.reread import Reread
from launcher.gui import theme
from launcher.gui.bridge import ReportProgress
from launcher.gui.chat.style import glyph_icon, make_dense_button
from launcher.gui.controller import Controller
from launcher.gui.labels import UNKNOWN, ElidedLabel, set_tooltip
from launcher.gui.late import failed_requests, running_servers
from launcher.gui.service import CHAT_PURPOSE
from launcher.gui.translation import join_sentences, mark, ntr, render, tr
from launcher.gui.widgets import Card
from launcher.gui.widgets.row_table import RowTable
from launcher.gui.widgets.rows import Cell, Column, TableRows
from launcher.runtime import WorkHandle

if TYPE_CHECKING:
    from launcher.engine.server.launch import Launch
    from launcher.gateway.vault import VaultUse

Record = Mapping[str, Any]
"""A request with the keys of docs/json.md."""

_MOST_KEPT = 200
_TILE, _GLYPH, _BAR_WIDTH, _BAR_HEIGHT = QSize(24, 22), 14, 44, 6
"""In pixels: size of a client's tile, of a state's glyph, and of the bar of the reused share."""
_MAX_NAME = 40
_UPDATE_MS = 100
"""Least time between two updates: requests of several clients change more often than anybody reads."""
_ANY_HEIGHT = 16_777_215
"""QWIDGETSIZE_MAX of Qt, which PySide does not have."""
_RETRY_MS = 2_000
_ENDS: Mapping[str, str] = {
    "complete": mark("ended"),
    "client left": mark("client left"),
    "refused": mark("refused"),
    "error": mark("failed"),
    "too long": mark("prompt too long"),
    "cut": mark("cut off by a restart"),
    "engine ended": mark("engine ended"),
}


class RequestFeed(QObject):
    """The last requests at the server's address, as they begin, go on and end."""

    changed = Signal()

    def __init__(self, controller: Controller, parent: QObject) -> None:
        super().__init__(parent)
        self._controller = controller
        self._records: dict[str, Record] = {}
        self._handle: WorkHandle[None] | None = None
        self._address = ""
        self._retry = QTimer(self, singleShot=True, interval=_RETRY_MS)
        self._retry.timeout.connect(lambda: self._follow_server(controller.launch))
        controller.launched.connect(self._follow_server)
        self._follow_server(controller.launch)

    @property
    def records(self) -> list[Record]:
        """The requests in progress, then the ended ones; the newest first."""
        newest = reversed(self._records.values())
        return sorted(newest, key=lambda record: record["end"] is not None)

    @Slot(object)
    def _follow_server(self, launch: object) -> None:
        address = self._controller.view.address if launch is not None else ""
        if address == self._address and self._handle is not None:
            return
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._address = address
        if not address:
            return

        async def follow(report: ReportProgress) -> None:
            found = running_servers.read_requests(f"http://{address}", count=_MOST_KEPT, follow=True, current=True)
            async for record in found:
                report(record)

        self._handle = self._controller.bridge.run(follow, reported=self._add, done=self._end, failed=self._end)

    @Slot(object)
    def _add(self, record: Record) -> None:
        self._records[record["id"]] = record
        while len(self._records) > _MOST_KEPT:
            del self._records[next(iter(self._records))]
        self.changed.emit()

    @Slot(object)
    def _end(self, _result: LauncherError | None) -> None:
        """Forget the requests in progress, and read again later if the server is still there."""
        self._handle = None
        self._address = ""
        self._records = {name: record for name, record in self._records.items() if record["end"] is not None}
        self.changed.emit()
        if self._controller.launch is not None:
            self._retry.start()


class _RequestDelegate(QStyledItemDelegate):
    """Paints the tile of a client, the bar of the reused share and the glyph of a state beside the texts."""

    def __init__(self, rows: TableRows[Record], table: RowTable) -> None:
        super().__init__(table)
        self._rows, self._table = rows, table
        self._icons: dict[tuple[str, ...], QIcon] = {}
        """Painted tiles and glyphs by what they show and the colour."""

    def initStyleOption(self, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex) -> None:  # noqa: N802 -- Qt's
        """Put a tile or a glyph before the text."""
        super().initStyleOption(option, index)
        cell = self._rows.cell_at(index)
        if cell.tile or cell.glyph:
            size = _TILE if cell.tile else QSize(_GLYPH, _GLYPH)
            option.features |= QStyleOptionViewItem.ViewItemFeature.HasDecoration
            option.decorationSize = QSize(theme.px(size.width()), theme.px(size.height()))
            option.icon = self._find_icon(cell)

    def sizeHint(self, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex) -> QSize:  # noqa: N802
        """Return the size of a cell: of its text and, if it has a bar, of both."""
        size = super().sizeHint(option, index)
        if self._rows.cell_at(index).share is None:
            return size
        return QSize(
            2 * self._table.text_inset + self._figure_width() + theme.px(_BAR_WIDTH + theme.GAP), size.height()
        )

    def paint(
        self, painter: QPainter, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex
    ) -> None:
        """Paint a cell, with the bar before its text."""
        super().paint(painter, option, index)
        share = self._rows.cell_at(index).share
        if share is None:
            return
        right = option.rect.right() - self._table.text_inset - self._figure_width() - theme.px(theme.GAP)
        width, height = theme.px(_BAR_WIDTH), theme.px(_BAR_HEIGHT)
        bar = QRectF(right - width, option.rect.center().y() - height / 2 + 1, width, height)
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(theme.colour("border"))
        painter.drawRoundedRect(bar, height / 2, height / 2)
        painter.setBrush(theme.colour("ours"))
        painter.setClipRect(QRectF(bar.left(), bar.top(), width * min(max(share, 0.0), 1.0), height))
        painter.drawRoundedRect(bar, height / 2, height / 2)
        painter.restore()

    def _figure_width(self) -> int:
        """Return the width of the widest share, so that the bars are below each other."""
        return self._table.fontMetrics().horizontalAdvance("100 %")

    def _find_icon(self, cell: Cell) -> QIcon:
        key = cell.tile, cell.glyph, theme.colour("text").name(), theme.colour(cell.role).name()
        if key not in self._icons:
            self._icons[key] = _paint_tile(cell.tile) if cell.tile else glyph_icon(cell.glyph, cell.role)
        return self._icons[key]


def _paint_tile(letters: str) -> QIcon:
    """Return a square with two letters."""
    size = QSize(theme.px(_TILE.width()), theme.px(_TILE.height()))
    picture = QPixmap(size * 2)
    picture.setDevicePixelRatio(2)
    picture.fill(Qt.GlobalColor.transparent)
    with QPainter(picture) as painter:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(theme.colour("border"), 1))
        painter.setBrush(theme.colour("raised"))
        box = QRectF(0.5, 0.5, size.width() - 1, size.height() - 1)
        painter.drawRoundedRect(box, theme.px(4), theme.px(4))
        painter.setPen(theme.colour("text"))
        painter.setFont(theme.font(11, bold=True))
        painter.drawText(box, int(Qt.AlignmentFlag.AlignCenter), letters)
    icon = QIcon()
    for mode in (QIcon.Mode.Normal, QIcon.Mode.Selected, QIcon.Mode.Active):
        icon.addPixmap(picture, mode)
    return icon


class RequestStrip(Card):
    """A summary of the requests, their table, and a line of details on the chosen one.

    Where there is no room for the table, it is shown only in place of the plots.
    """

    room_changed = Signal()
    """The user wants the table in place of the plots, or the plots again: see `shows_all`."""

    def __init__(self, controller: Controller) -> None:
        super().__init__(tr("Requests"))
        self.feed = RequestFeed(controller, self)
        self._controller = controller
        self._has_room = True
        self._kept = ""
        """What was kept on disk for the engine that was started last, until its first request."""
        self._known: set[str] = set()
        """The requests before that."""
        self._show_timer = QTimer(self, singleShot=True, interval=_UPDATE_MS)
        self._show_timer.timeout.connect(self.show_records)
        self._summary = ElidedLabel()
        self._summary.setObjectName("secondary")
        self._summary.setFont(theme.font(theme.CAPTION_PX, tabular=True))
        self.head.insertWidget(1, self._summary, 100)
        self.all_button = make_dense_button("", "")
        self.all_button.setCheckable(True)
        self.all_button.toggled.connect(self._handle_toggle)
        self.head.addWidget(self.all_button)
        columns = _request_columns()
        self.rows: TableRows[Record] = TableRows(columns, self)
        self.table = RowTable(tr("Requests"))
        self.table.measure_visible_rows()
        self.table.setModel(self.rows)
        self.table.setItemDelegate(_RequestDelegate(self.rows, self.table))
        head = self.table.horizontalHeader()
        head.setSectionResizeMode(len(columns) - 1, QHeaderView.ResizeMode.Stretch)
        self.table.selectionModel().selectionChanged.connect(lambda *_: self._show_details())
        self._details = ElidedLabel()
        self._details.setObjectName("secondary")
        self._details.setFont(theme.font(theme.CAPTION_PX, tabular=True))
        self._details.hide()
        self.table.horizontalHeader().setSectionsClickable(False)
        self.table.align_head()
        side, end = theme.px(theme.GAP_L), theme.px(theme.GAP)
        self.body.setContentsMargins(side, end, side, end)
        self.body.setSpacing(theme.px(theme.GAP_S))
        self.add_aligned(self.table, self.table.text_inset)
        self.body.addWidget(self._details)
        self._details.setContentsMargins(self.table.text_inset, 0, 0, 0)
        self.feed.changed.connect(self._show_soon)
        controller.launched.connect(self._read_kept)
        self._show_button()
        self.show_records()

    @property
    def shows_all(self) -> bool:
        """Whether the user wants the requests in place of the plots."""
        return self.all_button.isChecked()

    def set_has_room(self, has_room: bool) -> None:
        """Show the table, or if there is no room for it beside the plots, the summary alone."""
        self._has_room = has_room
        self._show_table()

    @Slot(bool)
    def _handle_toggle(self, _shows_all: bool) -> None:
        self._show_button()
        self._show_table()
        self.room_changed.emit()
        if self.table.isVisible():
            self.table.setFocus()

    def _show_button(self) -> None:
        shows_all = self.shows_all
        self.all_button.setText(tr("Show the plots") if shows_all else tr("Show all"))
        set_tooltip(self.all_button, "" if shows_all else tr("Show the requests in place of the plots"))

    def _show_table(self) -> None:
        """Show the table where it has room. The summary alone takes no more height than it needs."""
        shown = self._has_room or self.shows_all
        was_shown = not self.table.isHidden()
        self.table.setVisible(shown)
        self._show_details()
        self.setMaximumHeight(_ANY_HEIGHT if shown else self.sizeHint().height())
        if shown and not was_shown:
            self.show_records()

    @Slot(object)
    def _read_kept(self, launch: "Launch | None") -> None:
        if launch is not None:
            self._controller.bridge.run(settings.read_kept, launch, done=self._show_kept)

    def _show_kept(self, use: "VaultUse") -> None:
        self._kept, self._known = use.sentence, {each["id"] for each in self.feed.records}
        self.show_records()

    @Slot()
    def _show_soon(self) -> None:
        if not self._show_timer.isActive():
            self._show_timer.start()

    @Slot()
    def show_records(self) -> None:
        """Show the requests. The chosen one stays chosen."""
        records = self.feed.records
        chosen = self._chosen_id()
        if not self._known.issuperset(each["id"] for each in records):
            self._kept = ""  # a request has begun
        summary = _summarize_requests(records) if records else tr("No request yet.")
        self._summary.setText(join_sentences(render(self._kept), summary))
        if not self.table.isVisible():
            return
        self.rows.show_rows(records)
        self.table.show_columns()
        at = next((row for row, record in enumerate(records) if record["id"] == chosen), None)
        if at is not None:
            self.table.selectRow(at)
        self._show_details()

    def showEvent(self, event: Any) -> None:  # noqa: ANN401, N802 -- Qt's
        """Show the requests that came while the table was hidden."""
        super().showEvent(event)
        self.show_records()

    def _chosen_id(self) -> str | None:
        selected = self.table.selectionModel().selectedRows()
        return self.rows.rows[selected[0].row()]["id"] if selected else None

    def _show_details(self) -> None:
        """Show the details of the chosen request that have no column."""
        chosen = self._chosen_id()
        record = next((each for each in self.feed.records if each["id"] == chosen), None)
        self._details.setVisible(record is not None and not self.table.isHidden())
        if record is not None:
            self._details.setText(_describe_request(record))


def _summarize_requests(records: list[Record]) -> str:
    writing = sum(record["end"] is None for record in records)
    known = [record for record in records if record["reused_tokens"] is not None]
    read = sum(record["prompt_tokens"] or 0 for record in known)
    reused = sum(record["reused_tokens"] for record in known)
    parts = [ntr("1 in progress", "{n} in progress", writing)] if writing else []
    parts.append(ntr("1 request", "{n} requests", len(records)))
    if restored := _describe_restored(*records):
        parts.append(restored)
    if read:
        parts.append(tr("{share:.0f} % of the prompts reused", share=100 * reused / read))
    return " · ".join(parts)


def _describe_request(record: Record) -> str:
    parts = [record["path"], record["model"] or UNKNOWN, record["started"][11:19]]
    if record["reply_tokens"] is not None:
        parts.append(ntr("1 token written", "{n} tokens written", record["reply_tokens"]))
    if record["gaps_s"]:
        parts.append(tr("paused {seconds:.1f} s by restarts", seconds=sum(record["gaps_s"])))
    if restored := _describe_restored(record):
        parts.append(restored)
    reread = record["reread"]
    if reread:
        parts.append(tr("{tokens:,} tokens read again", tokens=reread["tokens"]))
        parts.append(render(from_json(Reread, reread).explanation))
    return " · ".join([*_explain_failure(record), *parts])


def _describe_restored(*records: Record) -> str:
    """Return what of the prompts of requests came from disk, and what that saved; "" if nothing did."""
    restored = [each for each in records if each.get("restored_tokens")]
    if not restored:
        return ""
    tokens, seconds, spared = (
        sum(each[key] for each in restored) for key in ("restored_tokens", "restored_s", "spared_s")
    )
    return tr(
        "{tokens:,} tokens from disk in {seconds:.1f} s instead of about {spared:.0f} s",
        tokens=tokens,
        seconds=max(seconds, 0.1),  # not "in 0.0 s"
        spared=spared,
    )


def _explain_failure(record: Record) -> list[str]:
    """Return why a request failed: the message, and if it names a known cause, that and what to do."""
    if not record.get("message"):
        return []
    found = failed_requests.diagnose_record(record)
    cause = [] if found is None else [f"{render(found.title)} {render(found.hint)}"]
    return [*cause, record["message"]]


def _client_cell(record: Record) -> Cell:
    who = record["who"]
    agent = (who["user_agent"] or "").partition(" (")[0].partition("/")[0]
    name = tr("Chat") if agent == CHAT_PURPOSE else one_line(agent or who["key"] or UNKNOWN, _MAX_NAME)
    return Cell(name, tip=who["user_agent"] or "", tile=_abbreviate_name(name))


def _abbreviate_name(name: str) -> str:
    """Return two letters for a client: the first letters of two words, or the first two letters of a single word."""
    words = re.split(r"[\s_-]+", name.strip())
    return (words[0][:1] + words[1][:1].lower() if len(words) > 1 else name[:1].upper() + name[1:2]).strip()


def _key_cell(record: Record) -> Cell:
    return Cell(one_line(record["who"]["key"] or UNKNOWN, _MAX_NAME))


def _number_cell(value: float | None, text: str) -> Cell:
    return Cell(UNKNOWN if value is None else text.format(value), dim=value is None)


def _reuse_cell(record: Record) -> Cell:
    read, reused = record["prompt_tokens"], record["reused_tokens"]
    share = reused / read if read and reused is not None else None
    cell = _number_cell(None if share is None else 100 * share, "{:.0f} %")
    return cell._replace(share=share, tip=_describe_restored(record))


def _acceptance_cell(record: Record) -> Cell:
    drafted, accepted = record["draft_n"], record["draft_n_accepted"]
    return _number_cell(100 * (accepted or 0) / drafted if drafted else None, "{:.0f} %")


def _state_cell(record: Record) -> Cell:
    end, handovers = record["end"], record["handovers"]
    if end is not None:
        good = end == "complete"
        text: str = tr(_ENDS[end]) if end in _ENDS else str(end)
        if record.get("status") is not None:
            text = f"{text} ({record['status']})"
        if handovers:
            text = f"{text}, {ntr('1 restart', '{n} restarts', handovers)}"
        restored = _describe_restored(record)
        if restored:
            text = f"{text}, {tr('from disk')}"
        glyph, role = ("tick", "good") if good else ("triangle", "attention")
        tip = "\n".join(filter(None, [*_explain_failure(record), restored]))
        return Cell(text, tip=tip, glyph=glyph, role=role)
    states = {"waiting": tr("waiting"), "running": tr("writing"), "paused": tr("paused")}
    return Cell(states.get(str(record["state"]), ""), glyph="dot", role="information")


def _first_token_cell(record: Record) -> Cell:
    return _number_cell(record["first_token_s"], "{:.2f} s")


def _request_columns() -> list[Column[Record]]:
    return [
        Column(tr("Who"), "", _client_cell),
        Column(tr("Key"), "", _key_cell, spare=5),
        Column(tr("Prompt, tokens"), "", lambda each: _number_cell(each["prompt_tokens"], "{:,}"), right=True, spare=2),
        Column(tr("Reused"), "", _reuse_cell, right=True, spare=4),
        Column(tr("First token"), "", _first_token_cell, right=True, spare=3),
        Column(tr("Tokens/s"), "", lambda each: _number_cell(each["tokens_per_second"], "{:,.1f}"), right=True),
        Column(tr("Accepted"), "", _acceptance_cell, right=True, spare=1),
        Column(tr("State"), "", _state_cell),
    ]
