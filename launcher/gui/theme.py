"""The look in one place: colours by role, spacing, type, and the style sheet that is made of them."""

from dataclasses import dataclass

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QFont, QFontDatabase, QGuiApplication, QPalette
from PySide6.QtWidgets import QApplication

GAP_S, GAP, GAP_M, GAP_L, GAP_XL = 4, 8, 12, 16, 24
CONTROL_HEIGHT = 32
SELECTABLE = Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
CAPTION_PX, BODY_PX, SECTION_PX, TITLE_PX, SMALL_READOUT_PX, READOUT_PX = 12, 13, 15, 20, 24, 32


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours by role. Text roles are at least 4.5:1 on their surfaces, curves and glyphs at least 3:1.

    The meanings are the Okabe-Ito set, a step darker or lighter where a theme needs it.
    """

    window: str
    card: str
    raised: str
    border: str
    text: str
    secondary: str
    accent: str
    on_accent: str
    good: str
    attention: str
    bad: str
    rate: str
    acceptance: str
    temperature: str
    clock: str


LIGHT = Theme(
    window="#F4F6F8",
    card="#FFFFFF",
    raised="#EEF1F4",
    border="#D9DFE5",
    text="#14191E",
    secondary="#55616D",
    accent="#0B6BCB",
    on_accent="#FFFFFF",
    good="#008560",
    attention="#B57400",
    bad="#C85200",
    rate="#0072B2",
    acceptance="#008560",
    temperature="#C85200",
    clock="#55616D",
)
DARK = Theme(
    window="#101418",
    card="#171C21",
    raised="#1F262C",
    border="#2B333B",
    text="#E7EBEF",
    secondary="#A5B0BA",
    accent="#5AB0FF",
    on_accent="#0B1116",
    good="#1DBE90",
    attention="#E69F00",
    bad="#F07A2B",
    rate="#56B4E9",
    acceptance="#1DBE90",
    temperature="#F07A2B",
    clock="#A5B0BA",
)


_held: list[Theme] = []


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
    palette = QPalette()
    roles = {
        QPalette.ColorRole.Window: theme.window,
        QPalette.ColorRole.Base: theme.card,
        QPalette.ColorRole.AlternateBase: theme.raised,
        QPalette.ColorRole.Button: theme.card,
        QPalette.ColorRole.WindowText: theme.text,
        QPalette.ColorRole.Text: theme.text,
        QPalette.ColorRole.ButtonText: theme.text,
        QPalette.ColorRole.PlaceholderText: theme.secondary,
        QPalette.ColorRole.Highlight: theme.accent,
        QPalette.ColorRole.HighlightedText: theme.on_accent,
        QPalette.ColorRole.ToolTipBase: theme.raised,
        QPalette.ColorRole.ToolTipText: theme.text,
        QPalette.ColorRole.Link: theme.accent,
    }
    for role, colour in roles.items():
        palette.setColor(role, QColor(colour))
    palette.setColor(QPalette.ColorGroup.Disabled, QPalette.ColorRole.ButtonText, QColor(theme.secondary))
    application.setPalette(palette)
    application.setStyleSheet(_sheet(theme))


_scale: list[float] = [1.0]


def px(pixels: float) -> int:
    """Return a length at the text scale, in pixels."""
    return round(pixels * _scale[0])


def set_scale(percent: float) -> None:
    """Take a text scale of 80 to 200 %; what is built from then on has it."""
    _scale[0] = min(max(percent, 80.0), 200.0) / 100


def font(pixels: int, *, bold: bool = False, tabular: bool = False) -> QFont:
    """Return the system's font at a size in pixels; `tabular` gives every digit the same width."""
    result = QFont(QGuiApplication.font())
    result.setPixelSize(px(pixels))
    if bold:
        result.setWeight(QFont.Weight.DemiBold)
    if tabular:
        result.setFeature(QFont.Tag("tnum"), 1)
    return result


def monospace(pixels: int = CAPTION_PX) -> QFont:
    """Return the system's fixed-width font, for logs, commands and code."""
    result = QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont)
    result.setPixelSize(px(pixels))
    return result


def _sheet(theme: Theme) -> str:
    return f"""
    QToolTip {{ background: {theme.raised}; color: {theme.text}; border: 1px solid {theme.border}; padding: 4px; }}
    #rail {{ background: {theme.card}; border: none; border-right: 1px solid {theme.border}; }}
    #card, #chip {{ background: {theme.card}; border: 1px solid {theme.border}; border-radius: 8px; }}
    #card QLabel, #chip QLabel, #rail QLabel {{ background: transparent; }}
    QLabel#secondary {{ color: {theme.secondary}; }}
    QLabel#problem {{ background: {theme.card}; border: 1px solid {theme.bad}; border-radius: 6px;
        padding: 8px 12px; }}
    #card QLabel:disabled {{ color: {theme.secondary}; }}
    QPushButton {{ background: {theme.card}; border: 1px solid {theme.border}; border-radius: 6px;
        padding: 0 14px; min-height: {CONTROL_HEIGHT - 2}px; }}
    QPushButton:hover, QPushButton:checked {{ background: {theme.raised}; }}
    QPushButton:disabled {{ color: {theme.secondary}; background: transparent; }}
    QPushButton#primary {{ background: {theme.accent}; border-color: {theme.accent}; color: {theme.on_accent};
        font-weight: 600; }}
    QPushButton#primary:disabled {{ background: {theme.raised}; border-color: {theme.border};
        color: {theme.secondary}; }}
    QPushButton#page {{ background: transparent; border: none; text-align: left; padding: 0 12px; }}
    QPushButton#fold {{ background: transparent; border: none; color: {theme.secondary}; text-align: left;
        padding: 0; min-height: 20px; }}
    QPushButton#page:checked {{ background: {theme.raised}; font-weight: 600; }}
    QPushButton:focus, QPlainTextEdit:focus, QTextEdit:focus {{ border: 2px solid {theme.accent}; }}
    QPushButton#page:focus, QPushButton#fold:focus, QTextEdit#reply:focus, QLabel:focus {{
        border: 2px solid {theme.accent}; border-radius: 6px; }}
    QPushButton#primary:focus {{ border: 2px solid {theme.text}; }}
    QPlainTextEdit#prompt {{ background: {theme.card}; border: 1px solid {theme.border}; border-radius: 8px;
        padding: 6px; }}
    QPlainTextEdit#prompt:focus {{ border: 2px solid {theme.accent}; }}
    QPlainTextEdit#log {{ background: {theme.card}; border: 1px solid {theme.border}; border-radius: 8px;
        padding: 4px 8px; }}
    #card QLabel#bubble {{ background: {theme.raised}; border: none; border-radius: 8px; }}
    QTextEdit#reply {{ background: transparent; border: none; }}
    QScrollArea, #conversation {{ background: transparent; border: none; }}
    QScrollBar:vertical {{ background: transparent; width: 10px; margin: 0; }}
    QScrollBar::handle:vertical {{ background: {theme.border}; border-radius: 4px; min-height: 32px; margin: 1px; }}
    QScrollBar:horizontal {{ background: transparent; height: 10px; margin: 0; }}
    QScrollBar::handle:horizontal {{ background: {theme.border}; border-radius: 4px; min-width: 32px; margin: 1px; }}
    QScrollBar::add-line, QScrollBar::sub-line {{ height: 0; width: 0; }}
    QSplitter::handle {{ background: transparent; }}
    """
