"""Compiles the translations when the package is built or installed, and makes its description of the README."""

import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface


class TranslationsHook(BuildHookInterface):
    """Makes the .mo file beside each .po file. Without Babel there is none, and the window is in English."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Run before the files are collected; `version` is "standard" or "editable"."""
        self._compile_translations()
        if self.target_name == "wheel" and version == "standard":
            resources = Path(self.root, "resources")
            for file in sorted(each for each in resources.rglob("*") if each.is_file() and each.suffix != ".po"):
                inside = Path("launcher/_data/resources") / file.relative_to(resources)
                build_data["force_include"][str(file)] = inside.as_posix()

    def _compile_translations(self) -> None:
        try:
            from babel.messages.mofile import write_mo
            from babel.messages.pofile import read_po
        except ImportError:
            self.app.display_warning("Babel is not installed: the window will be in English only.")
            return
        for po in sorted(Path(self.root, "resources", "locale").glob("*/LC_MESSAGES/*.po")):
            with po.open("rb") as source, po.with_suffix(".mo").open("wb") as compiled:
                write_mo(compiled, read_po(source))


class DescriptionHook(MetadataHookInterface):
    """Makes the description of the package: the README, with links that also work where no repository is around it."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Run before the metadata is read."""
        readme = Path(self.root, "README.md").read_text("utf-8")
        address = metadata.get("urls", {}).get("Repository")
        metadata["readme"] = {"content-type": "text/markdown", "text": _absolute_links(readme, address)}


def _absolute_links(markdown: str, repository: str | None) -> str:
    """Lead the relative links of a page to files of the repository; without an address, keep only their words."""
    picture = re.compile(r"!\[[^]]*\]\((?![a-z]+:)([^)]+)\)\n*")
    link = re.compile(r"(?<!!)\[([^]]+)\]\((?![a-z]+:|#)([^)]+)\)")
    if repository is None:
        return link.sub(r"\1", picture.sub("", markdown))
    base = repository.rstrip("/")
    markdown = picture.sub(lambda found: found[0].replace(f"({found[1]}", f"({base}/raw/HEAD/{found[1]}"), markdown)
    return link.sub(rf"[\1]({base}/blob/HEAD/\2)", markdown)
