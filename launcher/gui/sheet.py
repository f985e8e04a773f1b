"""Palette and style sheet, made of the theme's tokens."""

from pathlib import Path

from PySide6.QtGui import QColor, QPalette

from launcher.gui.theme import CARD_RADIUS, CELL_PADDING, CONTROL_HEIGHT, CONTROL_RADIUS, DENSE_HEIGHT, LIGHT, Theme, px

_ICONS = Path(__file__).with_name("icons")


def palette(theme: Theme) -> QPalette:
    """Return the palette of a theme."""
    made = QPalette()
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
        made.setColor(role, QColor(colour))
    for role in (QPalette.ColorRole.ButtonText, QPalette.ColorRole.Text, QPalette.ColorRole.WindowText):
        made.setColor(QPalette.ColorGroup.Disabled, role, QColor(theme.secondary))
    return made


def sheet(theme: Theme) -> str:
    """Return the style sheet of a theme at the current text scale."""
    return _surfaces(theme) + _buttons(theme) + _fields(theme) + _lists(theme) + _bars(theme)


def _surfaces(t: Theme) -> str:
    return f"""
    QToolTip {{ background: {t.raised}; color: {t.text}; border: 1px solid {t.border}; padding: {px(4)}px; }}
    #rail {{ background: {t.card}; border: none; border-right: 1px solid {t.border}; }}
    #card, #chip {{ background: {t.card}; border: 1px solid {t.border}; border-radius: {px(CARD_RADIUS)}px; }}
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


def _buttons(t: Theme) -> str:
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
    """


def _fields(t: Theme) -> str:
    radius = f"border-radius: {px(CONTROL_RADIUS)}px"
    return f"""
    QLineEdit, QSpinBox, QDoubleSpinBox {{ background: {t.card}; color: {t.text}; border: 1px solid {t.control};
        {radius}; padding: 0 {px(8)}px; min-height: {px(CONTROL_HEIGHT) - 2}px; }}
    QLineEdit, QPlainTextEdit, QTextEdit {{ placeholder-text-color: {t.secondary}; }}
    QLineEdit:focus, QSpinBox:focus, QDoubleSpinBox:focus, QComboBox:focus {{ border: 2px solid {t.accent}; }}
    QLineEdit:disabled, QSpinBox:disabled, QDoubleSpinBox:disabled {{ color: {t.secondary}; border-color: {t.border}; }}
    QSpinBox::up-button, QSpinBox::down-button, QDoubleSpinBox::up-button, QDoubleSpinBox::down-button {{
        width: 0; border: none; }}
    QSpinBox QLineEdit, QDoubleSpinBox QLineEdit, QComboBox QLineEdit {{ border: none; min-height: 0; }}
    QComboBox {{ background: {t.card}; color: {t.text}; border: 1px solid {t.control}; {radius};
        padding: 0 {px(28)}px 0 {px(8)}px; min-height: {px(CONTROL_HEIGHT) - 2}px; }}
    QComboBox:disabled {{ color: {t.secondary}; border-color: {t.border}; }}
    QComboBox::drop-down {{ border: none; width: {px(28)}px; }}
    QComboBox::down-arrow {{ image: url({_icon(t, "open")}); width: {px(14)}px; height: {px(14)}px; }}
    QComboBox QAbstractItemView {{ background: {t.card}; border: 1px solid {t.border}; padding: {px(4)}px; }}
    QComboBox QAbstractItemView::item {{ min-height: {px(DENSE_HEIGHT)}px; }}
    QCheckBox, QRadioButton {{ spacing: {px(8)}px; min-height: {px(CONTROL_HEIGHT) - 4}px; {radius};
        border: 2px solid transparent; background: transparent; }}
    QCheckBox::indicator, QRadioButton::indicator {{ width: {px(14)}px; height: {px(14)}px; background: {t.card};
        border: 1px solid {t.control}; border-radius: {px(4)}px; }}
    QRadioButton::indicator {{ border-radius: {px(14) // 2 + 1}px; }}
    QCheckBox::indicator:checked {{ background: {t.accent}; border-color: {t.accent};
        image: url({_icon(t, "tick")}); }}
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


def _lists(t: Theme) -> str:
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


def _bars(t: Theme) -> str:
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


def _icon(theme: Theme, name: str) -> str:
    """Return the path of an icon as a style sheet writes it."""
    return (_ICONS / f"{name}-{'light' if theme is LIGHT else 'dark'}.svg").as_posix()
