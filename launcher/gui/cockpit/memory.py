"""The memory that the wished-for settings take, by part."""

from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Slot

from launcher.gui import theme
from launcher.gui.cockpit.state import SettingsState
from launcher.gui.labels import Elided, set_tip
from launcher.gui.widgets import Badge, Card, MemoryBar
from launcher.gui.words import tr

if TYPE_CHECKING:
    from launcher.preview import Preview

_MIB = 2**20


class MemoryCard(Card):
    """The bar with its verdict; it moves with the sliders."""

    def __init__(self, state: SettingsState) -> None:
        super().__init__(tr("Memory"))
        self._state = state
        self.badge = Badge()
        self.bar = MemoryBar()
        self._place = Elided()
        self._place.setObjectName("secondary")
        self._place.setFont(theme.font(theme.CAPTION_PX, tabular=True))
        self.head.insertWidget(1, self.badge)
        self._place.setAlignment(Qt.AlignmentFlag.AlignRight)
        self.head.addWidget(self._place, 100)
        side, end = theme.px(theme.GAP_L), theme.px(theme.GAP_M)
        self.body.setContentsMargins(side, end, side, end)
        self.body.setSpacing(theme.px(theme.GAP))
        self.body.addWidget(self.bar)
        state.previewed.connect(self.show_state)
        self.show_state()

    def show_legend(self, *, shows: bool) -> None:
        """Name each part under the bar, or only where the pointer is."""
        self.bar.show_legend(shows=shows)

    @Slot()
    def show_state(self) -> None:
        """Show the estimate of what is wished for."""
        preview = self._state.preview
        if preview is None or preview.estimate is None or not preview.basis.total_mib:
            self._show_unknown(preview)
            return
        basis, parts = preview.basis, preview.estimate.parts
        shown = (
            ("weights", tr("weights"), parts.weights),
            ("kv", tr("KV"), parts.kv),
            ("state", tr("state"), parts.recurrent),
            ("draft", tr("draft"), parts.draft_kv + parts.draft_compute),
            ("compute", tr("compute"), parts.compute + parts.staging),
            ("driver", tr("driver") if preview.setting.backend != "cpu" else tr("process"), parts.overhead),
            ("vision", tr("vision"), parts.mmproj),
        )
        total, others, margin = (each * _MIB for each in (basis.total_mib, basis.others_mib, basis.margin_mib))
        self.bar.show_parts(shown, total, others, margin, needed=preview.estimate.needed)
        self.badge.show_status(preview.status.value if preview.status else "")
        self.badge.setVisible(preview.status is not None)
        place = tr("host memory") if preview.setting.backend == "cpu" else basis.place
        self._place.setText(tr("{place} · {needed:,} MiB needed", place=place, needed=preview.needed_mib))
        set_tip(self, _origin(preview))

    def _show_unknown(self, preview: "Preview | None") -> None:
        self.badge.hide()
        self._place.setText("")
        if preview is None:
            self.bar.show_unknown(tr("Shown as soon as a model runs."))
        else:
            reason = preview.basis.unknown or " ".join(preview.basis.notes)
            self.bar.show_unknown(reason or tr("No formula knows this model."))


def _origin(preview: "Preview") -> str:
    """Say where the numbers come from."""
    basis = preview.basis
    exact = preview.estimate is not None and preview.estimate.exact
    said = [
        tr("By formula, from the model's header.") if exact else tr("By formula; some parts are a guess."),
        tr("What others use was read when the server was last looked at."),
        tr("The dashed line is the margin of {mib:,} MiB that should stay free.", mib=basis.margin_mib),
    ]
    return "\n".join([*said, *basis.notes])
