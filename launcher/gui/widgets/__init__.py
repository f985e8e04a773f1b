"""Building blocks of the window. They show given values in the theme's style and emit the user's actions."""

from launcher.gui.widgets.badge import Badge, paint_badge
from launcher.gui.widgets.banner import Banner
from launcher.gui.widgets.blocks import Card, EmptyState, PageHead
from launcher.gui.widgets.combo_box import ComboBox
from launcher.gui.widgets.drop_target import DropTarget
from launcher.gui.widgets.glyphs import Glyph, paint_glyph
from launcher.gui.widgets.memory_bar import MemoryBar
from launcher.gui.widgets.progress import ProgressLine
from launcher.gui.widgets.read_age import ReadAge
from launcher.gui.widgets.segmented import Segmented
from launcher.gui.widgets.slider import SliderField

__all__ = [
    "Badge",
    "Banner",
    "Card",
    "ComboBox",
    "DropTarget",
    "EmptyState",
    "Glyph",
    "MemoryBar",
    "PageHead",
    "ProgressLine",
    "ReadAge",
    "Segmented",
    "SliderField",
    "paint_badge",
    "paint_glyph",
]
