"""The desktop window. The only package that imports Qt."""

import sys

from PySide6 import QtCore  # noqa: F401 -- the first import of Qt

# PySide6 reads the source of every module that is imported after it, and keeps the lines, to find out whether it uses
# Qt's names in another spelling ("features"). None does here; without that the window is there 0.05 s sooner.
if (features := sys.modules.get("shibokensupport.feature")) is not None:
    vars(features)["_mod_uses_pyside"] = lambda _module: False
