"""Small GGUF files that are no models, as other programs write them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from gguf import GGUFWriter

TRUNK = ("token_embd.weight", "output_norm.weight", *(f"blk.0.{name}.weight" for name in ("attn_q", "ffn_up")))


def write_odd(
    path: Path,
    architecture: str | None,
    values: Mapping[str, str | int | Sequence[str]] | None = None,
    tensors: Sequence[str] = (),
    *,
    words: int = 0,
) -> Path:
    """Write a file of an architecture (None: without), with some keys, tensors of 32 numbers, and a vocabulary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = GGUFWriter(path, architecture or "")
    if architecture is None:
        writer.kv_data[0].pop("general.architecture", None)
    for key, value in (values or {}).items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_array(key, value)
    if words:
        writer.add_token_list([f"w{at}" for at in range(words)])
    for name in tensors:
        writer.add_tensor(name, np.zeros(32, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_draft(path: Path, architecture: str = "eagle3") -> Path:
    """Write a draft that looks like a model of one layer, as EAGLE-3 and DFlash drafts do."""
    names = {"block_count": 1, "context_length": 4_096, "embedding_length": 64, "feed_forward_length": 128}
    heads = {"attention.head_count": 4, "attention.head_count_kv": 2}
    values = {f"{architecture}.{name}": value for name, value in (names | heads).items()}
    return write_odd(path, architecture, values, TRUNK, words=64)
