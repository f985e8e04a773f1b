"""Hooks for mkdocs (mkdocs.yml), which add pages of the repository's root and a list of decisions to the pages of
docs/.
"""

import re
from pathlib import Path
from typing import Any

ROOT_PAGES = {"README.md": "index.md", "CHANGELOG.md": "CHANGELOG.md", "CONTRIBUTING.md": "CONTRIBUTING.md"}
"""Pages of the root, and their names on the site."""


def on_files(files: Any, config: Any) -> Any:  # noqa: ANN401 -- mkdocs is not installed in this environment
    """Add the pages of the root and the list of decisions."""
    from mkdocs.structure.files import File  # type: ignore[import-not-found, unused-ignore]

    docs = Path(config["docs_dir"])
    for name, on_site in ROOT_PAGES.items():
        text = (docs.parent / name).read_text("utf-8").replace("](docs/", "](")
        files.append(File.generated(config, on_site, content=text))
    files.append(File.generated(config, "decisions/index.md", content=list_decisions(docs / "decisions")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:  # noqa: ANN401 -- mkdocs is not installed in this environment
    """Give links to folders a page as their target, and replace links to files that the site lacks by their text."""
    return re.sub(r"\[([^]]+)\]\(\.\./[^)]+\)", r"\1", markdown.replace("](decisions/)", "](decisions/index.md)"))


def list_decisions(folder: Path) -> str:
    """Return a page with a link to each decision, by its number."""
    pages = [(path.name, path.read_text("utf-8").splitlines()[0].lstrip("# ")) for path in sorted(folder.glob("0*.md"))]
    return "\n".join(["# Decisions", "", *(f"- [{title}]({name})" for name, title in pages), ""])
