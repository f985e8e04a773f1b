"""Models that are broken in one known way each, made from a sound one by changing bytes."""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np

Change = Callable[[bytes], bytes]


def _replace_bytes(old: bytes, new: bytes, most: int = -1) -> Change:
    assert len(old) == len(new)

    def change(data: bytes) -> bytes:
        assert old in data
        return data.replace(old, new, most)

    return change


def _set_tensor_type(name: bytes, number: int) -> Change:
    """Give a tensor a type by number: after its name come the number of dimensions, these, and the type."""

    def change(data: bytes) -> bytes:
        at = data.index(name) + len(name)
        dimensions = int.from_bytes(data[at : at + 4], "little")
        at += 4 + 8 * dimensions
        return data[:at] + number.to_bytes(4, "little") + data[at + 4 :]

    return change


def _set_dimension(name: bytes, size: int) -> Change:
    def change(data: bytes) -> bytes:
        at = data.index(name) + len(name) + 4
        return data[:at] + size.to_bytes(8, "little") + data[at + 8 :]

    return change


CHANGES: dict[str, Change] = {
    "page.gguf": lambda _: b"<!DOCTYPE html><html><head><title>Sign in</title></head><body></body></html>",
    "pointer.gguf": lambda _: b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 8632064\n",
    "empty.gguf": lambda _: b"",
    "two-thirds.gguf": lambda data: data[: len(data) * 2 // 3],
    "last-bytes-missing.gguf": lambda data: data[:-100],
    "header-only.gguf": lambda data: data[:30_000],
    "tiny-rest.gguf": lambda data: data[:700],
    "version-1.gguf": lambda data: data[:4] + (1).to_bytes(4, "little") + data[8:],
    "version-9.gguf": lambda data: data[:4] + (9).to_bytes(4, "little") + data[8:],
    "new-architecture.gguf": _replace_bytes(b"qwen35moe", b"qwen95moe"),
    "new-tokenizer.gguf": _replace_bytes(b"\x06\0\0\0\0\0\0\0qwen35", b"\x06\0\0\0\0\0\0\0qwen95"),
    "new-quant.gguf": _set_tensor_type(b"blk.1.ffn_up_exps.weight", 97),
    "fork-quant.gguf": _set_tensor_type(b"blk.0.attn_qkv.weight", 152),
    "head-renamed.gguf": _replace_bytes(b"blk.4.nextn.eh_proj", b"blk.4.nexta.eh_proj"),
    "tensor-renamed.gguf": _replace_bytes(b"blk.2.ffn_gate_inp.weight", b"blk.2.ffn_hate_inp.weight"),
    "wrong-shape.gguf": _set_dimension(b"blk.0.attn_gate.weight", 192),
    "bad-template.gguf": _replace_bytes(b"{%- ", b"{%! ", 3),
}


def make_broken_models(model: Path, folder: Path) -> None:
    """Write every broken file, a projector and two parts of a split model into `folder`."""
    data = model.read_bytes()
    for name, change in CHANGES.items():
        (folder / name).write_bytes(change(data))
    _write_projector(folder / "mmproj.gguf")
    (folder / "alone-00001-of-00003.gguf").write_bytes(_make_part(data, 0))
    (folder / "second-00002-of-00003.gguf").write_bytes(_make_part(data, 1))


def _write_projector(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    for name, number in (("image_size", 32), ("patch_size", 16), ("embedding_length", 32), ("block_count", 1)):
        writer.add_uint32(f"clip.vision.{name}", number)
    writer.add_uint32("clip.vision.feed_forward_length", 64)
    writer.add_uint32("clip.vision.projection_dim", 32)
    writer.add_uint32("clip.vision.attention.head_count", 2)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    writer.add_string("clip.projector_type", "tomorrow")
    writer.add_tensor("v.patch_embd.weight", np.zeros((32, 3, 16, 16), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _make_part(data: bytes, number: int) -> bytes:
    """Return a model that calls itself part `number`, from 0, of three."""
    keys = b""
    for name, kind, value in (("no", 2, number), ("count", 2, 3), ("tensors.count", 5, 96)):
        key = f"split.{name}".encode()
        keys += len(key).to_bytes(8, "little") + key + kind.to_bytes(4, "little")
        keys += value.to_bytes(2 if kind == 2 else 4, "little")
    count = int.from_bytes(data[16:24], "little") + 3
    return data[:16] + count.to_bytes(8, "little") + keys + data[24:]
