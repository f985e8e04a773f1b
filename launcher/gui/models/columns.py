"""The columns of the page's tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from launcher.gui.models import words
from launcher.gui.widgets.number import UNKNOWN
from launcher.gui.widgets.rows import Cell, Column
from launcher.gui.words import tr

if TYPE_CHECKING:
    from launcher.gui.models.shelf import Offer
    from launcher.models.library import LocalModel

_FITS = ("FITS", "TIGHT", "OFFLOADS", "TOO BIG")
_STATES = ("good", "touched", "unverified", "missing", "damaged")


def file_columns(used: Mapping[str, float]) -> tuple[Column[LocalModel], ...]:
    """Return the columns of the files here; `used` is filled later."""

    def head(local: LocalModel) -> Cell:
        word, glyph, role = words.head_of(local)
        return Cell(word, word, glyph, role, tip=local.record.problem or word)

    def state(local: LocalModel) -> Cell:
        word, glyph, role = words.state_of(local)
        tip = local.record.problem or (
            tr("verified {when}", when=words.when(local.verified_s)) if local.verified_s else word
        )
        return Cell(word, _STATES.index(local.state.value), glyph, role, tip=tip)

    def last(local: LocalModel) -> Cell:
        time_s = used.get(str(local.path))
        return Cell(words.when(time_s) if time_s else tr("never"), time_s or 0.0)

    return (
        Column(
            tr("Name"),
            tr("The model's name in the catalogue, else the file's"),
            lambda local: Cell(words.name_of(local), tip=str(local.path)),
        ),
        Column(tr("Quant"), tr("How the weights are stored"), lambda local: Cell(words.quant_of(local))),
        Column(
            tr("Size"),
            tr("Bytes of all its files"),
            lambda local: Cell(words.size(local.record.bytes), local.record.bytes),
            right=True,
        ),
        Column(
            tr("MTP head"),
            tr("Whether the file holds an MTP head, which drafts tokens (--spec-type draft-mtp)"),
            head,
            spare=2,
        ),
        Column(tr("Verified"), tr("Whether its SHA-256 was computed here, and is what it should be"), state, spare=3),
        Column(tr("Place"), tr("Whose folder it lies in"), lambda local: Cell(words.place_of(local)), spare=4),
        Column(tr("Last used"), tr("When it was served last"), last, spare=5),
    )


def offer_columns() -> tuple[Column[Offer], ...]:
    """Return the columns of the catalogue."""

    def fit(offer: Offer) -> Cell:
        order = _FITS.index(offer.fit) if offer.fit in _FITS else len(_FITS)
        return Cell(offer.fit or UNKNOWN, order, badge=offer.fit is not None, tip=offer.why)

    def here(offer: Offer) -> Cell:
        return Cell(tr("here"), 0, "tick", "good") if offer.here else Cell("", 1)

    return (
        Column(
            tr("Fit"),
            tr("FITS: with memory to spare. TIGHT: with less than should stay free. OFFLOADS: experts on the CPU."),
            fit,
        ),
        Column(tr("Model"), tr("The model's name in the catalogue"), lambda offer: Cell(offer.name, tip=offer.what)),
        Column(tr("Quant"), tr("How the weights are stored"), lambda offer: Cell(offer.quant)),
        Column(
            tr("Size"),
            tr("Bytes to download"),
            lambda offer: Cell(words.size(offer.bytes), offer.bytes or 0),
            right=True,
        ),
        Column(tr("Here"), tr("Whether it is on this computer already"), here, spare=1),
    )
