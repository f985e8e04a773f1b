"""Command line: `python -m tools.demo_model` rebuilds the demo model that ships with the program."""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from . import fit, write
from .network import Trunk
from .tensors import Shape, make_tensors
from .text import SPECIAL_TOKENS, list_vocabulary_texts, read_corpus
from .tokenizer import Tokenizer

RESOURCES = Path(__file__).parents[2] / "resources" / "demo"
FILE_NAME = "mtp-demo.gguf"
SLOW_EXPERTS, SLOW_EXPERT_WIDTH = 2, 1024
"""Experts of a slowed-down model. All of them are used for each token, so that the file is no larger than needed."""


@dataclass(frozen=True)
class Recipe:
    """Parameters that decide the content of the model, besides the corpus."""

    shape: Shape = field(default_factory=Shape)
    steps: int = 300
    sharpness: float = 1.4
    draft_noise: float = 0.0
    seed: int = 1


def build(path: Path, recipe: Recipe) -> str:
    """Write the model to `path` and return one line on how well it learned."""
    corpus = read_corpus()
    tokenizer = Tokenizer.train(list_vocabulary_texts(corpus), SPECIAL_TOKENS)
    rows = write.vocabulary_rows(tokenizer)
    trunk = Trunk.make(tokenizer, corpus, rows, recipe.seed)
    found = fit.make_examples(tokenizer, corpus, trunk)
    output, loss = fit.fit_output_matrix(found, rows, recipe.steps, recipe.sharpness)
    projection, quality = fit.fit_head_projection(trunk, found, recipe.draft_noise, recipe.seed)
    write.write(path, tokenizer, dict(make_tensors(trunk, output, projection, recipe.shape)), recipe.shape)
    return f"{len(tokenizer)} tokens, {len(found.features)} examples, loss {loss:.3f}, head R2 {quality:.2f}"


def ship(recipe: Recipe, made_by: str) -> Path:
    """Write the compressed model and a description with its checksums into the program's resources."""
    RESOURCES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, FILE_NAME)
        print(build(path, recipe), file=sys.stderr)
        model = path.read_bytes()
    packed = lzma.compress(model, preset=9 | lzma.PRESET_EXTREME)
    target = RESOURCES / "demo.gguf.xz"
    target.write_bytes(packed)
    facts = {
        "name": write.NAME,
        "file": FILE_NAME,
        "size_bytes": len(model),
        "sha256": hashlib.sha256(model).hexdigest(),
        "compressed_sha256": hashlib.sha256(packed).hexdigest(),
        "license": write.LICENSE,
        "made_by": made_by,
    }
    (RESOURCES / "demo.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return target


def main(arguments: list[str] | None = None) -> None:
    """Read the command line and build."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo_model", description=__doc__)
    parser.add_argument("--out", type=Path, help="write this GGUF instead of the shipped resource")
    parser.add_argument("--no-mtp", action="store_true", help="leave out the draft head")
    parser.add_argument("--slow", type=int, default=0, metavar="N", help="add N groups of four idle blocks")
    parser.add_argument("--draft-noise", type=float, default=0.0, metavar="X", help="make the head worse (try 0.5)")
    parser.add_argument("--steps", type=int, default=Recipe.steps, help="steps of the fit (default %(default)s)")
    chosen = parser.parse_args(arguments)
    shape = Shape(head=not chosen.no_mtp)
    if chosen.slow:
        shape = replace(shape, dead_groups=chosen.slow, experts=SLOW_EXPERTS, expert_width=SLOW_EXPERT_WIDTH)
    recipe = Recipe(shape=shape, steps=chosen.steps, draft_noise=chosen.draft_noise)
    if chosen.out:
        print(build(chosen.out, recipe), file=sys.stderr)
        target = chosen.out
    else:
        words = sys.argv[1:] if arguments is None else arguments
        target = ship(recipe, " ".join(["python -m tools.demo_model", *words]))
    print(f"{target}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
