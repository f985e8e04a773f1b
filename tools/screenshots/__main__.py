"""`python -m tools.screenshots [FOLDER]`: a tour in pictures, with one page to look through them: FOLDER/index.html.

Pictures are taken of all pages in their states, in both themes, all languages and three sizes, with a simulated
graphics card of 24 GB. With `--docs` only the pictures of docs/screenshots are taken, without the simulated card.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from launcher.base.messages import LANGUAGES
from launcher.gui.pages import PAGES
from tools.screenshots.card import build_driver
from tools.screenshots.gallery import write_gallery

THEMES = ("light", "dark")
DOCS = Path(__file__).parents[2] / "docs" / "screenshots"
_LIMIT_S = 2_400


def main() -> int:
    """Take the pictures, each theme and language in a process of its own; return 1 when one could not be taken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("build/screenshots"))
    parser.add_argument("--docs", action="store_true", help="take only the pictures of docs/screenshots")
    parser.add_argument("--themes", nargs="+", choices=THEMES, default=THEMES)
    parser.add_argument("--languages", nargs="+", choices=tuple(LANGUAGES), default=tuple(LANGUAGES))
    names = [spec.name for spec in PAGES]
    parser.add_argument("--pages", nargs="+", choices=names, default=names, help="of these alone")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once (default: 2)")
    options = parser.parse_args()
    pages = ",".join(options.pages)
    with tempfile.TemporaryDirectory(prefix="mtp-launcher-") as driver:
        environment = os.environ | {"QT_QPA_PLATFORM": "offscreen"}
        if options.docs:
            folder = DOCS
            children = [["docs_pictures", str(folder), theme, pages] for theme in options.themes]
        else:
            folder = options.folder.absolute()
            environment |= build_driver(Path(driver))
            looks = [(theme, language) for language in options.languages for theme in options.themes]
            children = [["tour", str(folder), theme, language, pages] for theme, language in looks]
        folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(1 if options.docs else options.jobs) as pool:
            ended = list(pool.map(lambda words: _take_pictures(words, environment), children))
    report: dict[str, object] = (
        {} if options.docs else {"page": str(folder / "index.html"), "listed": write_gallery(folder)}
    )
    taken = sorted(folder.glob("*.png"))
    print(json.dumps({**report, "pictures": len(taken), "bytes": sum(path.stat().st_size for path in taken)}))
    return int(not all(ended))


def _take_pictures(words: list[str], environment: dict[str, str]) -> bool:
    """Run a process that takes pictures. Return whether it took all of them."""
    module, *arguments = words
    command = [sys.executable, "-X", "faulthandler", "-m", f"tools.screenshots.{module}", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    print(done.stdout, end="", flush=True)
    if done.returncode:
        print(done.stderr[-2_000:], file=sys.stderr)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
