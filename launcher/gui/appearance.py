"""Appearance of the window: language, theme, text size and motion, changed while it is open."""

from PySide6.QtCore import QLibraryInfo, QLocale, QTranslator
from PySide6.QtWidgets import QApplication

from launcher.app.settings_declared import LANGUAGE, MOTION, TEXT_SCALE, THEME, VALUE_SYSTEM
from launcher.app.settings_file import AppSettingValue
from launcher.gui import theme, translation

_qt_translators: list[QTranslator] = []
"""The installed translator of Qt's own texts, if there is one."""


def choose_language(application: QApplication, language: str | None) -> None:
    """Choose the language of new texts, Qt's own (file dialog, context menus) included; None is the system's."""
    translation.choose_language(language)
    while _qt_translators:
        application.removeTranslator(_qt_translators.pop())
    if translation.chosen_language() != "en":
        translator = QTranslator(application)
        folder = QLibraryInfo.path(QLibraryInfo.LibraryPath.TranslationsPath)
        if translator.load(QLocale(translation.chosen_language()), "qtbase", "_", folder):
            application.installTranslator(translator)
            _qt_translators.append(translator)


def needs_new_widgets(name: str, value: AppSettingValue) -> bool:
    """Return whether a new value of an app setting changes texts or lengths, which widgets get when they are built."""
    if name == LANGUAGE:
        before = translation.chosen_language()
        return translation.find_language(_chosen(value)) != before
    return name == TEXT_SCALE and theme.text_scale() != float(value) / 100


def apply_setting(application: QApplication, name: str, value: AppSettingValue) -> None:
    """Apply a new value of an app setting, if it is one of those for the look."""
    if name == LANGUAGE:
        choose_language(application, _chosen(value))
    elif name == TEXT_SCALE:
        theme.set_scale(float(value))
    elif name == THEME:
        theme.choose_theme(_chosen(value))
    elif name == MOTION:
        theme.set_motion(None if value == VALUE_SYSTEM else False)
    else:
        return
    theme.apply_theme(application, theme.current())


def _chosen(value: AppSettingValue) -> str | None:
    """Return a chosen value; None for the system's."""
    return None if value == VALUE_SYSTEM else str(value)
