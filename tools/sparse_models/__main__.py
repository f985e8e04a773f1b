"""Command line: `python -m tools.sparse_models FOLDER` writes model files with real shapes but without data."""

from __future__ import annotations

import argparse
from pathlib import Path

from .models import NAMES, model
from .write import write


def main(arguments: list[str] | None = None) -> None:
    """Read the command line and write."""
    parser = argparse.ArgumentParser(prog="python -m tools.sparse_models", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the files go, each called after its model")
    parser.add_argument("--model", action="append", choices=NAMES, metavar="NAME", help=f"one of {', '.join(NAMES)}")
    chosen = parser.parse_args(arguments)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    for name in chosen.model or NAMES:
        path = chosen.folder / f"{name}.gguf"
        write(path, name, model(name))
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
