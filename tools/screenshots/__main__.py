"""`python -m tools.screenshots [FOLDER]`: every page in both themes, all languages and three sizes.

The demo is served and asked in one window for each theme and language; the window is then led through its pages and
sizes. A chosen few go, with colours that fit a palette, to docs/screenshots with `--docs`.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from launcher.base.messages import LANGUAGES
from launcher.gui.pages import PAGES

THEMES = ("light", "dark")
DOCS = Path(__file__).parents[2] / "docs" / "screenshots"
_LIMIT_S = 2_400


def main() -> int:
    """Take the pictures, each theme and language in a process of its own; return 1 when one could not be taken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("build/screenshots"))
    parser.add_argument("--docs", action="store_true", help="take the chosen few for docs/screenshots")
    parser.add_argument("--themes", nargs="+", choices=THEMES, default=THEMES)
    parser.add_argument("--languages", nargs="+", choices=tuple(LANGUAGES), default=tuple(LANGUAGES))
    parser.add_argument("--pages", nargs="+", default=[spec.name for spec in PAGES], help="of these alone")
    options = parser.parse_args()
    folder = DOCS if options.docs else options.folder
    folder.mkdir(parents=True, exist_ok=True)
    languages = ("en",) if options.docs else options.languages
    failed = 0
    for theme in options.themes:
        for language in languages:
            pages = ",".join(options.pages)
            child = [sys.executable, "-m", "tools.screenshots.child", str(folder), theme, language, pages]
            child += ["--docs"] if options.docs else []
            environment = os.environ | {"QT_QPA_PLATFORM": "offscreen"}
            done = subprocess.run(child, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
            print(done.stdout, end="")
            if done.returncode:
                print(done.stderr[-2_000:], file=sys.stderr)
                failed = 1
    taken = sorted(folder.glob("*.png"))
    print(json.dumps({"pictures": len(taken), "bytes": sum(path.stat().st_size for path in taken)}))
    return failed


if __name__ == "__main__":
    sys.exit(main())
