"""Columns of the tables on the Models page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from launcher.gui.labels import UNKNOWN
from launcher.gui.models.text import (
    display_name,
    file_state,
    format_date,
    format_size,
    head_state,
    offer_size,
    place_text,
    quant_text,
)
from launcher.gui.start.text import fit_legend
from launcher.gui.translation import tr
from launcher.gui.widgets.rows import Cell, Column

if TYPE_CHECKING:
    from launcher.gui.models.queries import CatalogueOffer
    from launcher.models.library import LocalModel

_FIT_ORDER = ("FITS", "TIGHT", "OFFLOADS", "TOO BIG")
_STATE_ORDER = ("good", "touched", "unverified", "missing", "damaged")


def file_columns(used: Mapping[str, float]) -> tuple[Column[LocalModel], ...]:
    """Return the columns for local files. `used` maps paths to their last use, in seconds since the epoch."""

    def make_head_cell(local: LocalModel) -> Cell:
        word, glyph, role = head_state(local)
        return Cell(word, word, glyph, role, tip=local.record.problem or word)

    def make_state_cell(local: LocalModel) -> Cell:
        word, glyph, role = file_state(local)
        tip = local.record.problem or (
            tr("verified {when}", when=format_date(local.verified_s)) if local.verified_s else word
        )
        return Cell(word, _STATE_ORDER.index(local.state.value), glyph, role, tip=tip)

    def make_last_use_cell(local: LocalModel) -> Cell:
        time_s = used.get(str(local.path))
        return Cell(format_date(time_s) if time_s else tr("never"), time_s or 0.0)

    return (
        Column(
            tr("Name"),
            tr("The model's name in the catalogue, else the file's"),
            lambda local: Cell(display_name(local), tip=str(local.path)),
        ),
        Column(tr("Quant"), tr("Quantisation of the weights"), lambda local: Cell(quant_text(local))),
        Column(
            tr("Size"),
            tr("Size of all its files"),
            lambda local: Cell(format_size(local.record.bytes), local.record.bytes),
            right=True,
        ),
        Column(
            tr("MTP head"),
            tr("Shows whether the file has an MTP head, which drafts tokens (--spec-type draft-mtp)"),
            make_head_cell,
            spare=2,
        ),
        Column(
            tr("Verified"),
            tr("Shows whether its SHA-256 was checked on this computer and matches"),
            make_state_cell,
            spare=3,
        ),
        Column(tr("Place"), tr("Folder that contains the file"), lambda local: Cell(place_text(local)), spare=4),
        Column(tr("Last used"), tr("When it was last loaded"), make_last_use_cell, spare=5),
    )


def offer_columns() -> tuple[Column[CatalogueOffer], ...]:
    """Return the columns for the catalogue."""

    def make_fit_cell(offer: CatalogueOffer) -> Cell:
        order = _FIT_ORDER.index(offer.fit) if offer.fit in _FIT_ORDER else len(_FIT_ORDER)
        return Cell(offer.fit or UNKNOWN, order, badge=offer.fit is not None, tip=offer.reason)

    def make_here_cell(offer: CatalogueOffer) -> Cell:
        return Cell(tr("here"), 0, "tick", "good") if offer.downloaded else Cell("", 1)

    return (
        Column(
            tr("Fit"),
            fit_legend(),
            make_fit_cell,
        ),
        Column(
            tr("Model"), tr("The model's name in the catalogue"), lambda offer: Cell(offer.name, tip=offer.download_id)
        ),
        Column(tr("Quant"), tr("Quantisation of the weights"), lambda offer: Cell(offer.quant)),
        Column(
            tr("Size"),
            tr("Download size"),
            lambda offer: Cell(offer_size(offer), offer.bytes or 0),
            right=True,
        ),
        Column(tr("Here"), tr("Shows whether it is already on this computer"), make_here_cell, spare=1),
    )
