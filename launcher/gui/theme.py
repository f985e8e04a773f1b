"""Design tokens: colours by role, lengths and fonts; and the palette and style sheet made from them."""

from pathlib import Path
from typing import NamedTuple

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QFont, QFontDatabase, QGuiApplication, QPalette
from PySide6.QtWidgets import QApplication

from launcher.gui.motion import is_motion_reduced

GAP_S, GAP, GAP_M, GAP_L, GAP_XL, GAP_XXL = 4, 8, 12, 16, 24, 32
CONTROL_HEIGHT, DENSE_HEIGHT, BADGE_HEIGHT, BAR_HEIGHT = 32, 28, 20, 24
CARD_RADIUS, CONTROL_RADIUS = 8, 6
CELL_PADDING = 6
"""Left and right padding of table texts; the style adds some pixels."""
NO_MAXIMUM = 16_777_215
"""Maximum width of a widget without a limit: Qt's QWIDGETSIZE_MAX."""
SELECTABLE = Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
CAPTION_PX, BODY_PX, PROSE_PX, SECTION_PX, TITLE_PX, READOUT_PX = 12, 13, 14, 15, 20, 32
LEAST_SCALE, MOST_SCALE = 80, 200
"""Smallest and largest text scale, in per cent."""


class Theme(NamedTuple):
    """Colours by role. Text roles have at least 4.5:1 contrast on their surfaces, curves and glyphs at least 3:1.

    The colours with a meaning (`good` to `information`) are the Okabe-Ito set, a shade darker or lighter where a theme
    needs it. The colours of curves (`rate` to `limit`) deviate from it as far as needed to be distinguishable with each
    of the three common colour vision deficiencies. `memory` has a shade for each part of a model's memory, from
    required parts to optional ones.
    """

    window: str
    card: str
    raised: str
    selected: str
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
    drafted: tuple[str, str, str]
    """Backgrounds of tokens from drafts: of the first position, the second, and further ones."""
    code_keyword: str
    code_name: str
    code_string: str
    code_number: str


LIGHT = Theme(
    window="#F4F6F8",
    card="#FFFFFF",
    raised="#EEF1F4",
    selected="#E7F1FB",
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
    drafted=("#D8E9F8", "#D5EFE4", "#F2E4EC"),
    code_keyword="#7A3DB8",
    code_name="#0B5CAD",
    code_string="#0A664A",
    code_number="#8F4300",
)
DARK = Theme(
    window="#101418",
    card="#171C21",
    raised="#1F262C",
    selected="#1A2B3A",
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
    drafted=("#17354F", "#173B30", "#3D2B38"),
    code_keyword="#CFA2EE",
    code_name="#7CC0FF",
    code_string="#6CCFA8",
    code_number="#F0A868",
)


def _sharpen(theme: Theme) -> Theme:
    """Return a theme for people who ask the system for more contrast: faint colours become those of texts."""
    return theme._replace(secondary=theme.text, border=theme.secondary, control=theme.text, limit=theme.text)


LIGHT_CONTRAST, DARK_CONTRAST = _sharpen(LIGHT), _sharpen(DARK)

# State of the process, in lists so that functions can replace it without `global`.
_chosen_theme: list[Theme] = []
_scale: list[float] = [1.0]
_reduced_motion: list[bool] = [False]
_high_contrast: list[bool] = [False]
_blink_ms: list[int] = []
"""The system's cursor flash time, in milliseconds."""
_system_effects: list[bool] = []
"""The system setting for effects: unrolling menus and lists, fading tooltips."""
_NO_ANIMATION_SHEET = "* { widget-animation-duration: 0; }"


def current() -> Theme:
    """Return the chosen theme, else the one for the system's colour scheme; with more contrast if that was set."""
    scheme = QGuiApplication.styleHints().colorScheme
    dark = _chosen_theme[0] is DARK if _chosen_theme else scheme() == Qt.ColorScheme.Dark
    if _high_contrast[0]:
        return DARK_CONTRAST if dark else LIGHT_CONTRAST
    return DARK if dark else LIGHT


def set_contrast(high: bool | None) -> None:
    """Set high contrast or the usual one. None follows the system, whose choice Qt reports from 6.10 on."""
    if high is None:
        read_hints = getattr(QGuiApplication.styleHints(), "accessibility", None)
        high = read_hints is not None and read_hints().contrastPreference() == Qt.ContrastPreference.HighContrast
    _high_contrast[0] = high


def choose_theme(name: str | None) -> None:
    """Choose "light", "dark", or the system's scheme (None); also on platforms without colour schemes."""
    schemes = {None: Qt.ColorScheme.Unknown, "light": Qt.ColorScheme.Light, "dark": Qt.ColorScheme.Dark}
    QGuiApplication.styleHints().setColorScheme(schemes[name])
    _chosen_theme[:] = [] if name is None else [DARK if name == "dark" else LIGHT]


def apply_theme(application: QApplication, theme: Theme) -> None:
    """Apply a theme's palette and style sheet to the application."""
    application.setFont(font(BODY_PX))
    application.setPalette(make_palette(theme))
    if not _blink_ms:
        _blink_ms.append(application.cursorFlashTime())
        _system_effects.append(QApplication.isEffectEnabled(Qt.UIEffect.UI_General))
    application.setCursorFlashTime(0 if _reduced_motion[0] else _blink_ms[0])
    QApplication.setEffectEnabled(Qt.UIEffect.UI_General, _system_effects[0] and not _reduced_motion[0])
    sheet = make_style_sheet(theme) + (_NO_ANIMATION_SHEET if _reduced_motion[0] else "")
    if application.styleSheet() != sheet:
        application.setStyleSheet("")  # a sheet that replaces another one takes Qt four times as long
        application.setStyleSheet(sheet)


def colour(role: str) -> QColor:
    """Return the current theme's colour for a role such as "good"."""
    return QColor(getattr(current(), role))


def mix_colours(colour: QColor, other: QColor, share: float) -> QColor:
    """Return an opaque mixture of two colours; `share` (0 to 1) is the share of the second one."""
    pairs = ((colour.red(), other.red()), (colour.green(), other.green()), (colour.blue(), other.blue()))
    return QColor(*(round(one + (two - one) * share) for one, two in pairs))


def icon_background() -> QColor:
    """Return the background of the program's icon, the same in every theme."""
    return QColor(LIGHT.accent)


def px(pixels: float) -> int:
    """Return a length at the text scale, in pixels."""
    return round(pixels * _scale[0])


def text_scale() -> float:
    """Return the text scale, 0.8 to 2."""
    return _scale[0]


def set_scale(percent: float) -> None:
    """Set the text scale, 80 to 200 %. It applies to widgets built afterwards."""
    _scale[0] = min(max(percent, LEAST_SCALE), MOST_SCALE) / 100


def set_motion(animated: bool | None) -> None:
    """Turn animations on (True), off (False), or follow the system (None)."""
    _reduced_motion[0] = _system_reduces_motion() if animated is None else not animated


def _system_reduces_motion() -> bool:
    """Return whether the system asks for less motion, by its own setting or by the style's animation duration."""
    if is_motion_reduced():
        return True
    application = QApplication.instance()
    if not isinstance(application, QApplication):
        return False
    style = application.style()
    return style.styleHint(style.StyleHint.SH_Widget_Animation_Duration) == 0


def font(pixels: int, *, bold: bool = False, tabular: bool = False) -> QFont:
    """Return the system font at a size in pixels. `tabular` gives all digits the same width."""
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


# Palette and style sheet made from the theme.

_ICONS = Path(__file__).with_name("icons")


def make_palette(theme: Theme) -> QPalette:
    """Return a theme's palette."""
    result = QPalette()
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
        QPalette.ColorRole.Accent: theme.accent,
        QPalette.ColorRole.Mid: theme.border,
        QPalette.ColorRole.Light: theme.raised,
        QPalette.ColorRole.Dark: theme.border,
    }
    for role, colour in roles.items():
        result.setColor(role, QColor(colour))
    for role in (QPalette.ColorRole.ButtonText, QPalette.ColorRole.Text, QPalette.ColorRole.WindowText):
        result.setColor(QPalette.ColorGroup.Disabled, role, QColor(theme.secondary))
    return result


def make_style_sheet(theme: Theme) -> str:
    """Return a theme's style sheet at the current text scale."""
    return _surface_rules(theme) + _button_rules(theme) + _field_rules(theme) + _list_rules(theme) + _bar_rules(theme)


def _surface_rules(t: Theme) -> str:
    return f"""
    QToolTip {{ background: {t.raised}; color: {t.text}; border: 1px solid {t.border}; padding: {px(4)}px; }}
    #rail {{ background: {t.card}; border: none; border-right: 1px solid {t.border}; }}
    #card, #chip {{ background: {t.card}; border: 1px solid {t.border}; border-radius: {px(CARD_RADIUS)}px; }}
    #plotRow {{ background: transparent; border-top: 1px solid {t.border}; }}
    #card QLabel, #chip QLabel, #rail QLabel, #banner QLabel {{ background: transparent; }}
    #banner {{ background: {t.card}; border: 1px solid {t.border}; border-radius: {px(CARD_RADIUS)}px; }}
    #banner[meaning="bad"] {{ border-color: {t.bad}; }}
    #banner[meaning="attention"] {{ border-color: {t.attention}; }}
    #banner[meaning="good"] {{ border-color: {t.good}; }}
    #banner[meaning="information"] {{ border-color: {t.information}; }}
    #panel {{ background: {t.card}; border: none; }}
    #line {{ background: {t.border}; border: none; }}
    QLabel#secondary {{ color: {t.secondary}; }}
    QLabel#problem {{ background: {t.card}; border: 1px solid {t.bad}; border-radius: {px(CONTROL_RADIUS)}px;
        padding: {px(8)}px {px(12)}px; }}
    #card QLabel:disabled {{ color: {t.secondary}; }}
    #card QLabel#bubble {{ background: {t.raised}; border: none; border-radius: {px(CARD_RADIUS)}px; }}
    QLabel:focus {{ border: 2px solid {t.accent}; border-radius: {px(CONTROL_RADIUS)}px; }}
    QScrollArea, #conversation, #plain {{ background: transparent; border: none; }}
    QSplitter::handle {{ background: transparent; }}
    QSplitter::handle:hover, QSplitter::handle:focus {{ background: {t.raised}; }}
    QMenu {{ background: {t.card}; border: 1px solid {t.border}; padding: {px(4)}px; }}
    QMenu::item {{ padding: {px(6)}px {px(16)}px; border-radius: {px(4)}px; }}
    QMenu::item:selected {{ background: {t.raised}; color: {t.text}; }}
    QMenu::item:disabled {{ color: {t.secondary}; }}
    QMenu::separator {{ height: 1px; background: {t.border}; margin: {px(4)}px {px(8)}px; }}
    """


def _button_rules(t: Theme) -> str:
    radius = f"border-radius: {px(CONTROL_RADIUS)}px"
    return f"""
    QPushButton {{ background: {t.card}; color: {t.text}; border: 1px solid {t.border}; {radius};
        padding: 0 {px(14)}px; min-height: {px(CONTROL_HEIGHT) - 2}px; }}
    QPushButton:hover, QPushButton:checked {{ background: {t.raised}; }}
    QPushButton:pressed {{ background: {t.border}; }}
    QPushButton:disabled {{ color: {t.secondary}; background: transparent; }}
    QPushButton:focus {{ border: 2px solid {t.accent}; padding: 0 {px(14) - 1}px; }}
    QPushButton#dense {{ min-height: {px(DENSE_HEIGHT) - 2}px; padding: 0 {px(10)}px; }}
    QPushButton#dense:checked {{ border-color: {t.accent}; }}
    QPushButton#dense:focus {{ padding: 0 {px(10) - 1}px; }}
    QPushButton#primary {{ background: {t.accent}; border-color: {t.accent}; color: {t.on_accent}; font-weight: 600; }}
    QPushButton#primary:disabled {{ background: {t.raised}; border-color: {t.border}; color: {t.secondary}; }}
    QPushButton#primary:focus {{ border: 2px solid {t.text}; }}
    QPushButton#page {{ background: transparent; border: none; text-align: left; padding: 0 {px(12)}px;
        color: {t.secondary}; }}
    QPushButton#page:hover {{ background: {t.raised}; }}
    QPushButton#page:checked {{ background: {t.raised}; color: {t.text}; font-weight: 600; }}
    QPushButton#page:focus {{ border: 2px solid {t.accent}; {radius}; padding: 0 {px(12) - 2}px; }}
    QPushButton#fold, QPushButton#quiet {{ background: transparent; border: none; color: {t.secondary};
        text-align: left; padding: 0; min-height: {px(20)}px; }}
    QPushButton#quiet {{ padding: 0 {px(6)}px; min-height: {px(DENSE_HEIGHT) - 2}px; {radius}; }}
    QPushButton#quiet:hover {{ background: {t.raised}; color: {t.text}; }}
    QPushButton#foot {{ background: transparent; border: none; {radius}; color: {t.secondary}; text-align: left;
        padding: 0 {px(12)}px; min-height: {px(DENSE_HEIGHT) - 2}px; }}
    QPushButton#foot:hover {{ background: {t.raised}; color: {t.text}; }}
    QPushButton#foot:focus {{ border: 2px solid {t.accent}; padding: 0 {px(12) - 2}px; }}
    QPushButton#fold:focus, QPushButton#quiet:focus {{ border: 2px solid {t.accent}; {radius}; }}
    QPushButton#fold:focus {{ padding: 0; }}
    QPushButton#quiet:focus {{ padding: 0 {px(6) - 2}px; }}
    QPushButton#segment {{ border-radius: 0; margin-left: -1px; padding: 0 {px(12)}px;
        min-height: {px(DENSE_HEIGHT) - 2}px; }}
    QPushButton#segment[end="first"] {{ margin-left: 0; border-top-left-radius: {px(CONTROL_RADIUS)}px;
        border-bottom-left-radius: {px(CONTROL_RADIUS)}px; }}
    QPushButton#segment[end="last"] {{ border-top-right-radius: {px(CONTROL_RADIUS)}px;
        border-bottom-right-radius: {px(CONTROL_RADIUS)}px; }}
    QPushButton#segment[end="only"] {{ margin-left: 0; {radius}; }}
    QPushButton#segment:checked {{ background: {t.raised}; border: 1px solid {t.accent}; font-weight: 600; }}
    QPushButton#segment:focus {{ border: 2px solid {t.accent}; padding: 0 {px(12) - 1}px; }}
    QPushButton::menu-indicator {{ image: none; width: 0; }}
    QPushButton[opens="menu"] {{ padding-right: {px(20)}px; }}
    QPushButton[opens="menu"]:focus {{ padding-right: {px(20) - 1}px; }}
    QPushButton[opens="menu"]::menu-indicator {{ image: url({_icon_path(t, "open")}); width: {px(14)}px;
        height: {px(14)}px; subcontrol-origin: border; subcontrol-position: right center; right: {px(10)}px; }}
    """


def _field_rules(t: Theme) -> str:
    radius = f"border-radius: {px(CONTROL_RADIUS)}px"
    return f"""
    QLineEdit, QSpinBox, QDoubleSpinBox {{ background: {t.card}; color: {t.text}; border: 1px solid {t.control};
        {radius}; padding: 0 {px(8)}px; min-height: {px(CONTROL_HEIGHT) - 2}px; }}
    QLineEdit, QPlainTextEdit, QTextEdit {{ placeholder-text-color: {t.secondary}; }}
    QLineEdit:focus, QSpinBox:focus, QDoubleSpinBox:focus, QComboBox:focus {{ border: 2px solid {t.accent}; }}
    QLineEdit#dense {{ min-height: {px(DENSE_HEIGHT) - 2}px; padding: 0 {px(6)}px; }}
    QLineEdit[refused="true"] {{ border: 2px solid {t.bad}; }}
    QLineEdit:disabled, QSpinBox:disabled, QDoubleSpinBox:disabled {{ color: {t.secondary}; border-color: {t.border}; }}
    QSpinBox::up-button, QSpinBox::down-button, QDoubleSpinBox::up-button, QDoubleSpinBox::down-button {{
        width: 0; border: none; }}
    QSpinBox QLineEdit, QDoubleSpinBox QLineEdit, QComboBox QLineEdit {{ border: none; min-height: 0; }}
    QComboBox {{ background: {t.card}; color: {t.text}; border: 1px solid {t.control}; {radius};
        padding: 0 {px(28)}px 0 {px(8)}px; min-height: {px(CONTROL_HEIGHT) - 2}px; }}
    QComboBox:disabled {{ color: {t.secondary}; border-color: {t.border}; }}
    QComboBox::drop-down {{ border: none; width: {px(28)}px; }}
    QComboBox::down-arrow {{ image: url({_icon_path(t, "open")}); width: {px(14)}px; height: {px(14)}px; }}
    QComboBox QAbstractItemView {{ background: {t.card}; border: 1px solid {t.border}; padding: {px(4)}px; }}
    QComboBox QAbstractItemView::item {{ min-height: {px(DENSE_HEIGHT)}px; }}
    QCheckBox, QRadioButton {{ spacing: {px(8)}px; min-height: {px(CONTROL_HEIGHT) - 4}px; {radius};
        border: 2px solid transparent; background: transparent; }}
    QCheckBox::indicator, QRadioButton::indicator {{ width: {px(14)}px; height: {px(14)}px; background: {t.card};
        border: 1px solid {t.control}; border-radius: {px(4)}px; }}
    QRadioButton::indicator {{ border-radius: {px(14) // 2 + 1}px; }}
    QCheckBox::indicator:checked {{ background: {t.accent}; border-color: {t.accent};
        image: url({_icon_path(t, "tick")}); }}
    QRadioButton::indicator:checked {{ border-color: {t.accent}; background: qradialgradient(cx: 0.5, cy: 0.5,
        radius: 0.5, fx: 0.5, fy: 0.5, stop: 0.55 {t.accent}, stop: 0.65 {t.card}); }}
    QCheckBox::indicator:disabled, QRadioButton::indicator:disabled {{ border-color: {t.border};
        background: {t.raised}; }}
    QCheckBox:focus, QRadioButton:focus {{ border: 2px solid {t.accent}; {radius}; }}
    QPlainTextEdit, QTextEdit {{ background: {t.card}; border: 1px solid {t.border}; border-radius: {px(CARD_RADIUS)}px;
        padding: {px(4)}px {px(8)}px; }}
    QPlainTextEdit:focus, QTextEdit:focus {{ border: 2px solid {t.accent}; }}
    QPlainTextEdit#prompt {{ border: 1px solid {t.control}; padding: {px(6)}px; }}
    QPlainTextEdit#prompt:focus {{ border: 2px solid {t.accent}; }}
    QTextEdit#reply {{ background: transparent; border: none; padding: 0; }}
    QTextEdit#reply:focus {{ border: 2px solid {t.accent}; {radius}; }}
    """


def _list_rules(t: Theme) -> str:
    return f"""
    QAbstractItemView {{ background: {t.card}; border: none; outline: none; selection-background-color: {t.raised};
        selection-color: {t.text}; alternate-background-color: {t.card}; gridline-color: {t.border}; }}
    QTableView, QTreeView, QListView {{ border: 1px solid transparent; }}
    QTableView:focus, QTreeView:focus, QListView:focus {{ border: 2px solid {t.accent};
        border-radius: {px(CONTROL_RADIUS)}px; }}
    RowTable:focus {{ border: 1px solid transparent; }}
    QTableView::item, QTreeView::item {{ border-bottom: 1px solid {t.border};
        padding: 0 {px(CELL_PADDING)}px; }}
    QTableView::item:selected, QTreeView::item:selected, QListView::item:selected {{ background: {t.raised};
        color: {t.text}; }}
    QHeaderView {{ background: {t.card}; border: none; }}
    QHeaderView::section {{ background: {t.card}; color: {t.secondary}; border: none;
        border-bottom: 1px solid {t.border}; padding: {px(4)}px {px(CELL_PADDING)}px;
        font-weight: 400; text-align: left; }}
    QTableCornerButton::section {{ background: {t.card}; border: none; }}
    """


def _bar_rules(t: Theme) -> str:
    return f"""
    QScrollBar:vertical {{ background: transparent; width: {px(10)}px; margin: 0; }}
    QScrollBar::handle:vertical {{ background: {t.control}; border-radius: {px(3)}px; min-height: {px(32)}px;
        margin: 2px {px(2)}px; }}
    QScrollBar:horizontal {{ background: transparent; height: {px(10)}px; margin: 0; }}
    QScrollBar::handle:horizontal {{ background: {t.control}; border-radius: {px(3)}px; min-width: {px(32)}px;
        margin: {px(2)}px 2px; }}
    QScrollBar::add-line, QScrollBar::sub-line {{ height: 0; width: 0; }}
    QAbstractScrollArea::corner {{ background: transparent; border: none; }}
    QScrollBar::add-page, QScrollBar::sub-page {{ background: transparent; }}
    """


def _icon_path(theme: Theme, name: str) -> str:
    """Return an icon's path for a style sheet."""
    return (_ICONS / f"{name}-{'light' if theme.window == LIGHT.window else 'dark'}.svg").as_posix()
