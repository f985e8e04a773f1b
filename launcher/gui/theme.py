"""The look's tokens in one place: colours by role, lengths, type. sheet.py makes a style sheet of them."""

from dataclasses import dataclass

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QFont, QFontDatabase, QGuiApplication
from PySide6.QtWidgets import QApplication

GAP_S, GAP, GAP_M, GAP_L, GAP_XL, GAP_XXL = 4, 8, 12, 16, 24, 32
CONTROL_HEIGHT, DENSE_HEIGHT, BADGE_HEIGHT, BAR_HEIGHT = 32, 28, 20, 24
CARD_RADIUS, CONTROL_RADIUS = 8, 6
CELL_PADDING = 6
"""Left and right of a table's texts; their style adds some pixels of its own."""
SELECTABLE = Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
CAPTION_PX, BODY_PX, SECTION_PX, TITLE_PX, SMALL_READOUT_PX, READOUT_PX = 12, 13, 15, 20, 24, 32
LEAST_SCALE, MOST_SCALE = 80, 200
"""Of text, in per cent."""


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours by role. Text roles are at least 4.5:1 on their surfaces, curves and glyphs at least 3:1.

    The meanings are the Okabe-Ito set, a step darker or lighter where a theme needs it. The series are moved from it as
    far as it takes to be told apart with each of the three common deficiencies. `memory` goes from what a model must
    have to what it may.
    """

    window: str
    card: str
    raised: str
    border: str
    control: str
    text: str
    secondary: str
    accent: str
    on_accent: str
    good: str
    attention: str
    bad: str
    information: str
    rate: str
    acceptance: str
    temperature: str
    power: str
    clock: str
    ours: str
    others: str
    limit: str
    memory: tuple[str, str, str, str, str]
    driver: str
    on_memory: tuple[str, str, str, str, str]
    drafted: tuple[str, str]
    """Behind the tokens of one draft step, and of the next."""


LIGHT = Theme(
    window="#F4F6F8",
    card="#FFFFFF",
    raised="#EEF1F4",
    border="#D9DFE5",
    control="#7A8794",
    text="#14191E",
    secondary="#55616D",
    accent="#0B6BCB",
    on_accent="#FFFFFF",
    good="#007A58",
    attention="#A86B00",
    bad="#C04F00",
    information="#1F7DB5",
    rate="#0072B2",
    acceptance="#065A3C",
    temperature="#C85200",
    power="#AD7A90",
    clock="#555B67",
    ours="#0072B2",
    others="#555B67",
    limit="#55616D",
    memory=("#0B4F8A", "#1F6FB5", "#4A90D0", "#84B1DE", "#B3D1EE"),
    driver="#9AA5AE",
    on_memory=("#FFFFFF", "#FFFFFF", "#14191E", "#14191E", "#14191E"),
    drafted=("#D8E9F8", "#D5EFE4"),
)
DARK = Theme(
    window="#101418",
    card="#171C21",
    raised="#1F262C",
    border="#2B333B",
    control="#6F7C88",
    text="#E7EBEF",
    secondary="#A5B0BA",
    accent="#5AB0FF",
    on_accent="#0B1116",
    good="#1DBE90",
    attention="#E69F00",
    bad="#F07A2B",
    information="#56B4E9",
    rate="#56B4E9",
    acceptance="#30916D",
    temperature="#EE741E",
    power="#B0739D",
    clock="#B5BDC3",
    ours="#56B4E9",
    others="#B5BDC3",
    limit="#A5B0BA",
    memory=("#2A6DAF", "#3F86CB", "#6AA6DF", "#93C1EB", "#BBDAF5"),
    driver="#6B7680",
    on_memory=("#FFFFFF", "#0B1116", "#0B1116", "#0B1116", "#0B1116"),
    drafted=("#17354F", "#173B30"),
)


_held: list[Theme] = []
_scale: list[float] = [1.0]
_still: list[bool] = [False]
_blink_ms: list[int] = []
"""How long the system lets a text cursor be seen and unseen."""
_unrolls: list[bool] = []
"""Whether the system wants effects at all: menus and lists that unroll, tips that fade."""
_STILL = "* { widget-animation-duration: 0; }"


def current() -> Theme:
    """Return the theme that is held to, else the one that fits the system's colour scheme."""
    if _held:
        return _held[0]
    dark = QGuiApplication.styleHints().colorScheme() == Qt.ColorScheme.Dark
    return DARK if dark else LIGHT


def choose(name: str | None) -> None:
    """Follow the system (None), or hold to "light" or "dark", also where the platform knows no colour schemes."""
    schemes = {None: Qt.ColorScheme.Unknown, "light": Qt.ColorScheme.Light, "dark": Qt.ColorScheme.Dark}
    QGuiApplication.styleHints().setColorScheme(schemes[name])
    _held[:] = [] if name is None else [DARK if name == "dark" else LIGHT]


def apply(application: QApplication, theme: Theme) -> None:
    """Give palette and style sheet of `theme` to the whole application."""
    from launcher.gui import sheet

    application.setFont(font(BODY_PX))
    application.setPalette(sheet.palette(theme))
    if not _blink_ms:
        _blink_ms.append(application.cursorFlashTime())
        _unrolls.append(QApplication.isEffectEnabled(Qt.UIEffect.UI_General))
    application.setCursorFlashTime(0 if _still[0] else _blink_ms[0])
    QApplication.setEffectEnabled(Qt.UIEffect.UI_General, _unrolls[0] and not _still[0])
    application.setStyleSheet(sheet.sheet(theme) + (_STILL if _still[0] else ""))


def colour(role: str) -> QColor:
    """Return the colour that a role such as "good" has in the current theme."""
    return QColor(getattr(current(), role))


def accent_of_icon() -> QColor:
    """Return the ground of the program's icon, which is the same in every theme."""
    return QColor(LIGHT.accent)


def px(pixels: float) -> int:
    """Return a length at the text scale, in pixels."""
    return round(pixels * _scale[0])


def scale() -> float:
    """Return the text scale, 0.8 to 2."""
    return _scale[0]


def set_scale(percent: float) -> None:
    """Take a text scale of 80 to 200 %; what is built from then on has it."""
    _scale[0] = min(max(percent, LEAST_SCALE), MOST_SCALE) / 100


def set_motion(wanted: bool | None) -> None:
    """Move things (True), hold them still (False), or do as the system says (None)."""
    _still[0] = not wanted if wanted is not None else _system_is_still()


def _system_is_still() -> bool:
    """Whether the system asks for less motion: Qt tells so only through the style's own animations."""
    application = QApplication.instance()
    if not isinstance(application, QApplication):
        return False
    style = application.style()
    return style.styleHint(style.StyleHint.SH_Widget_Animation_Duration) == 0


def font(pixels: int, *, bold: bool = False, tabular: bool = False) -> QFont:
    """Return the system's font at a size in pixels; `tabular` gives every digit the same width."""
    result = QFont(QGuiApplication.font())
    result.setPixelSize(px(pixels))
    result.setWeight(QFont.Weight.DemiBold if bold else QFont.Weight.Normal)
    if tabular:
        result.setFeature(QFont.Tag("tnum"), 1)
    return result


def monospace(pixels: int = CAPTION_PX) -> QFont:
    """Return the system's fixed-width font, for logs, commands and code."""
    result = QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont)
    result.setPixelSize(px(pixels))
    return result
