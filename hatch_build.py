"""Compiles the translations when the package is built, and when a checkout is installed."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class TranslationsHook(BuildHookInterface):
    """Makes the .mo file beside each .po file. Without Babel there is none, and the window is in English."""

    def initialize(self, _version: str, _build_data: dict[str, Any]) -> None:
        """Run before the files are collected."""
        try:
            from babel.messages.mofile import write_mo
            from babel.messages.pofile import read_po
        except ImportError:
            self.app.display_warning("Babel is not installed: the window will be in English only.")
            return
        for po in sorted(Path(self.root, "resources", "locale").glob("*/LC_MESSAGES/*.po")):
            with po.open("rb") as source, po.with_suffix(".mo").open("wb") as compiled:
                write_mo(compiled, read_po(source))
