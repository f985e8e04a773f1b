"""The valid headers that the fuzzer changes."""

from __future__ import annotations

import lzma
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from launcher.base.paths import shipped_file
from launcher.models.gguf import read_header, read_raw_header
from tools.sparse_models.models import model
from tools.sparse_models.write import write

from .pieces import Pieces, take_apart

_MODELS = ("qwen35moe-35b-q4_k_m", "qwen35-27b-q4_k_m", "qwen35-9b-q4_k_m-nomtp", "gemma3-12b-q4_k")
_MIDDLE = re.compile(r"blk\.(?!0\.|3\.|40\.|64\.)\d+\.")
"""Blocks that are left out, so that more cases run in a second. The other blocks have one of each kind."""


@dataclass(frozen=True, slots=True)
class Seeds:
    """Headers of single files, and those of the parts of one split model."""

    files: tuple[Pieces, ...]
    parts: tuple[Pieces, ...]


def make_seeds(folder: Path) -> Seeds:
    """Write the models to `folder` (they take little room) and return their headers."""
    demo = folder / "demo.gguf"
    demo.write_bytes(lzma.decompress(shipped_file("resources", "demo", "demo.gguf.xz").read_bytes()))
    paths = [demo]
    for name in _MODELS:
        paths.append(folder / f"{name}.gguf")
        whole = model(name)
        tensors = {tensor: shape for tensor, shape in whole.tensors.items() if not _MIDDLE.match(tensor)}
        write(paths[-1], name, replace(whole, tensors=tensors))
    return Seeds(tuple(map(_pieces, paths)), tuple(map(_pieces, _split(folder))))


def _split(folder: Path) -> list[Path]:
    writer = GGUFWriter(folder / "split.gguf", "qwen35moe", split_max_tensors=2)
    writer.add_block_count(2)
    writer.add_uint32("qwen35moe.nextn_predict_layers", 1)
    for name in (
        "token_embd.weight",
        "blk.0.attn_q.weight",
        "blk.1.attn_q.weight",
        "blk.1.nextn.eh_proj.weight",
        "out",
    ):
        writer.add_tensor(name, np.zeros((2, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob("split-*.gguf"))


def _pieces(path: Path) -> Pieces:
    return take_apart(read_raw_header(read_header(path)))
