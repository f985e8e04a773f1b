"""`python -m tools.random_projector FILE [--embedding N]`: writes a tiny vision projector with random weights.

It is of LLaVA's kind ("mlp"): a vision transformer of one block, and two matrices that lead to the embedding of a text
model, by default the demo's. With it a model's description of a picture is meaningless, but the engine does everything
that it does with a real one: it loads the projector, encodes the picture, and puts its vectors into the prompt.
"""

import argparse
from pathlib import Path

import gguf
import numpy as np

_IMAGE, _PATCH = 56, 14
"""Sides of the picture and of a patch, in pixels: 16 patches are 16 tokens."""
_WIDTH, _HEADS, _HIDDEN = 64, 2, 128
"""Width of the vision transformer, its attention heads, and the width between the matrices of its block."""
_SEED, _SPREAD = 7, 0.02


def write_projector(file: Path, embedding: int) -> None:
    """Write a projector for text models with embeddings of this length."""
    writer = gguf.GGUFWriter(file, "clip")
    writer.add_name("random projector")
    writer.add_type("mmproj")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_bool("clip.has_text_encoder", False)
    writer.add_string("clip.projector_type", "mlp")
    writer.add_bool("clip.use_gelu", True)
    numbers = {
        "image_size": _IMAGE,
        "patch_size": _PATCH,
        "embedding_length": _WIDTH,
        "feed_forward_length": _HIDDEN,
        "projection_dim": embedding,
        "block_count": 1,
        "attention.head_count": _HEADS,
    }
    for name, number in numbers.items():
        writer.add_uint32(f"clip.vision.{name}", number)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    for name, tensor in _make_tensors(embedding).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _make_tensors(embedding: int) -> dict[str, np.ndarray]:
    """Return random matrices, and layer norms that change nothing."""
    random = np.random.default_rng(_SEED)

    def draw(*shape: int) -> np.ndarray:
        return (_SPREAD * random.standard_normal(shape)).astype(np.float32)

    tensors = {
        "v.patch_embd.weight": draw(_WIDTH, 3, _PATCH, _PATCH),
        "v.position_embd.weight": draw((_IMAGE // _PATCH) ** 2 + 1, _WIDTH),
        "v.class_embd": draw(_WIDTH),
        "mm.0.weight": draw(embedding, _WIDTH),
        "mm.0.bias": draw(embedding),
        "mm.2.weight": draw(embedding, embedding),
        "mm.2.bias": draw(embedding),
        "v.blk.0.ffn_up.weight": draw(_HIDDEN, _WIDTH),
        "v.blk.0.ffn_up.bias": draw(_HIDDEN),
        "v.blk.0.ffn_down.weight": draw(_WIDTH, _HIDDEN),
        "v.blk.0.ffn_down.bias": draw(_WIDTH),
    }
    for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
        tensors[f"v.blk.0.{name}.weight"] = draw(_WIDTH, _WIDTH)
        tensors[f"v.blk.0.{name}.bias"] = draw(_WIDTH)
    for name in ("v.pre_ln", "v.post_ln", "v.blk.0.ln1", "v.blk.0.ln2"):
        tensors[f"{name}.weight"] = np.ones(_WIDTH, np.float32)
        tensors[f"{name}.bias"] = np.zeros(_WIDTH, np.float32)
    return tensors


def read_demo_embedding() -> int:
    """Return the length of the demo model's embeddings."""
    from launcher.engine.demo import unpack_demo_model

    reader = gguf.GGUFReader(unpack_demo_model())
    architecture = reader.fields["general.architecture"].contents()
    return int(reader.fields[f"{architecture}.embedding_length"].contents())


def main() -> int:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--embedding", type=int, help="of the text model; by default the demo's")
    options = parser.parse_args()
    write_projector(options.file, options.embedding or read_demo_embedding())
    print(options.file, options.file.stat().st_size)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
