"""What can be downloaded: the catalogue, with how each file fits this computer, or an address of one's own."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Slot
from PySide6.QtWidgets import QComboBox, QLineEdit

from launcher.gui import theme
from launcher.gui.labels import Label, set_tip
from launcher.gui.models import words
from launcher.gui.models.columns import offer_columns
from launcher.gui.models.shelf import Offer, Offers
from launcher.gui.models.table import Table
from launcher.gui.widgets import Card, ComboBox
from launcher.gui.widgets.blocks import make_button
from launcher.gui.widgets.flow import Flow
from launcher.gui.words import tr

_MODEL = 1


class OffersPanel(Card):
    """Tells what is to be put into the queue."""

    def __init__(self, download: Callable[[str], object]) -> None:
        super().__init__()
        self._download = download
        self._offers: tuple[Offer, ...] = ()
        self.family = ComboBox()
        self.family.setAccessibleName(tr("Model"))
        self.family.setToolTip(tr("Show one model of the catalogue only"))
        self.family.addItem(tr("All models"), None)
        self.family.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.family.setMinimumContentsLength(16)
        self.table: Table[Offer] = Table(tr("Files of the catalogue"), offer_columns(), stretch=_MODEL)
        self.table.setMinimumHeight(theme.px(34 * 8))
        self.why = Label(tr("What fits this computer is being worked out."))
        self.why.setObjectName("secondary")
        self.why.setWordWrap(True)
        self.button = make_button(tr("Download"), self._get, primary=True)
        self.button.setToolTip(tr("Put it at the end of the queue"))
        self.button.setEnabled(False)
        self.other = QLineEdit()
        self.other.setPlaceholderText(tr("OWNER/NAME:FILE.gguf, or an address and its SHA-256"))
        self.other.setAccessibleName(tr("Another file"))
        self.other.setToolTip(tr("A file of the hub, or an https address, a space and the SHA-256 that its page names"))
        self.other.setMinimumWidth(theme.px(220))
        self.add = make_button(tr("Add to the queue"), self._get_other)
        self.add.setToolTip(tr("Download what is written beside it"))
        self.add.setEnabled(False)
        top, below = Flow(gap=theme.px(theme.GAP)), Flow(gap=theme.px(theme.GAP))
        self.family.setMinimumWidth(theme.px(180))
        top.add(self.family, wide=True)
        top.add(self.button)
        below.add(self.other, wide=True)
        below.add(self.add)
        self.body.addLayout(top)
        self.body.addWidget(self.table, 1)
        self.body.addWidget(self.why)
        self.body.addLayout(below)
        self.table.chosen.connect(self._show)
        self.table.opened.connect(lambda _offer: self._get())
        self.family.activated.connect(self._choose)
        self.other.textChanged.connect(lambda text: self.add.setEnabled(bool(text.strip())))
        self.other.returnPressed.connect(self._get_other)

    def show_offers(self, found: Offers) -> None:
        """Show the catalogue."""
        self._offers = found.offers
        if self.family.count() == 1:
            for model, name in {offer.model: offer.name for offer in found.offers}.items():
                self.family.addItem(name, model)
        self._choose(self.family.currentIndex())
        if found.problem:
            self.why.setText(found.problem)

    @Slot(int)
    def _choose(self, _index: int) -> None:
        model = self.family.currentData()
        rows = [offer for offer in self._offers if model in (None, offer.model)]
        self.table.show_rows(rows, lambda offer: offer.what)
        if model is None and rows and self.table.row is rows[0]:
            best = next((offer for offer in rows if offer.fit == "FITS"), rows[0])
            self.table.choose(best)

    @Slot(object)
    def _show(self, offer: Offer | None) -> None:
        self.button.setEnabled(offer is not None and not offer.here)
        if offer is not None:
            self.why.setText(offer.why)
            size = words.size(offer.bytes) if offer.bytes else tr("a size that is not known yet")
            set_tip(self.button, tr("Put {what} at the end of the queue: {size}", what=offer.what, size=size))

    def _get(self) -> None:
        offer = self.table.row
        if offer is not None and not offer.here:
            self._download(offer.what)

    def _get_other(self) -> None:
        if text := self.other.text().strip():
            self._download(text)
            self.other.clear()
