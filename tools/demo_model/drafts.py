"""Drafts for the demo model, in the layouts that llama.cpp loads: a small model, EAGLE-3, DFlash and DSpark.

The small model and DSpark's Markov head know which token follows which in the corpus, so that some of their drafts are
accepted. The others have random weights: engines load them, and accept next to nothing without --spec-synth-rates.

Names of keys and tensors: llama.cpp b11549, src/llama-arch.cpp, src/models/eagle3.cpp and dflash.cpp.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Literal

import gguf
import numpy as np

from .network import Floats
from .text import SPECIAL_TOKENS, list_dialogues, list_vocabulary_texts, read_corpus
from .tokenizer import Tokenizer

DraftKind = Literal["model", "eagle3", "dflash", "dspark"]
RANK = 96
"""Width of the small model and of the Markov head."""
BLOCK = 8
"""Tokens that DFlash and DSpark draft at once, with the one before them."""
_HEADS, _HEAD_WIDTH, _FFN = 2, 64, 128
_ARCHITECTURES: dict[DraftKind, str] = {"model": "llama", "dspark": "dflash"}


def write_draft(
    path: Path, kind: DraftKind, target: Path, *, hidden: int | None = None, outputs: int = 0, seed: int = 1
) -> None:
    """Write a draft for the model `target`, whose vocabulary it gets; for models of another `hidden` size if given.

    Of a small model `hidden` is its own size. `outputs`: EAGLE-3 drafts only so many of the words, by a matrix of its
    own.
    """
    reader = gguf.GGUFReader(target)
    name = reader.fields["general.architecture"].contents()
    own, blocks = (int(reader.fields[f"{name}.{key}"].contents()) for key in ("embedding_length", "block_count"))
    hidden = width = hidden or (RANK if kind == "model" else own)
    heads = reader.fields.get(f"{name}.nextn_predict_layers")
    words = len(reader.fields["tokenizer.ggml.tokens"].contents())
    architecture = _ARCHITECTURES.get(kind, kind)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(f"{kind} for {reader.fields['general.name'].contents()}")
    _add_metadata(writer, architecture, width)
    for field in reader.fields.values():
        if field.name.startswith("tokenizer.ggml."):
            element = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=element)
    if kind != "model":
        layers = blocks - (int(heads.contents()) if heads else 0)
        writer.add_array(f"{architecture}.target_layers", [1, layers // 2, layers - 1])
    if kind == "eagle3":
        writer.add_uint32("eagle3.target_hidden_size", hidden)
    if architecture == "dflash":
        writer.add_uint32("dflash.block_size", BLOCK)
        writer.add_mask_token_id(words - 1)
        writer.add_array("dflash.rope.dimension_sections", [_HEAD_WIDTH // 2, 0, 0, 0])
    if kind == "dspark":
        writer.add_bool("dflash.sample_from_anchor", True)
        writer.add_bool("dflash.has_confidence_head", False)
    tensors = _make_tensors(kind, hidden, width, words, np.random.default_rng(seed))
    if outputs:
        tensors["output.weight"] = np.random.default_rng(seed).standard_normal((outputs, width))
        writer.add_tensor("d2t", np.arange(outputs, dtype=np.int64))
    for tensor, values in tensors.items():
        is_matrix = values.ndim > 1
        writer.add_tensor(tensor, values.astype(np.float16 if is_matrix else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_metadata(writer: gguf.GGUFWriter, architecture: str, width: int) -> None:
    counts = {
        "context_length": 262_144,
        "embedding_length": width,
        "block_count": 1,
        "feed_forward_length": _FFN,
        "attention.head_count": _HEADS,
        "attention.head_count_kv": 1,
        "attention.key_length": _HEAD_WIDTH,
        "attention.value_length": _HEAD_WIDTH,
        "rope.dimension_count": _HEAD_WIDTH,
    }
    for key, value in counts.items():
        writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)


def _make_tensors(
    kind: DraftKind, hidden: int, width: int, words: int, chance: np.random.Generator
) -> dict[str, Floats]:
    """Return the tensors by name. The layer adds nothing where the following token alone decides."""

    def fill(*shape: int) -> Floats:
        knows_words = kind in ("model", "dspark")
        return np.zeros(shape) if knows_words else chance.standard_normal(shape) / np.sqrt(shape[-1])

    read = 2 * width if kind == "eagle3" else width
    keys = _HEADS * _HEAD_WIDTH
    block = {
        "attn_norm": np.ones(width),
        "attn_q": fill(keys, read),
        "attn_k": fill(_HEAD_WIDTH, read),
        "attn_v": fill(_HEAD_WIDTH, read),
        "attn_output": fill(width, keys),
        "ffn_norm": np.ones(width),
        "ffn_gate": fill(_FFN, width),
        "ffn_up": fill(_FFN, width),
        "ffn_down": fill(width, _FFN),
    }
    if kind == "eagle3":
        block["attn_norm_2"] = np.ones(width)
    if kind in ("dflash", "dspark"):
        block |= {"attn_q_norm": np.ones(_HEAD_WIDTH), "attn_k_norm": np.ones(_HEAD_WIDTH)}
    found = {f"blk.0.{name}.weight": values for name, values in block.items()} | {"output_norm.weight": np.ones(width)}
    if kind != "model":
        found["fc.weight"] = fill(width, 3 * hidden)
    if kind in ("dflash", "dspark"):
        found["enc.output_norm.weight"] = np.ones(width)
    if kind in ("model", "dspark"):
        first, then = follow_words(words, width if kind == "model" else RANK)
        names = ("token_embd", "output") if kind == "model" else ("markov_w1", "markov_w2")
        found |= {f"{name}.weight": values for name, values in zip(names, (first, then), strict=True)}
    if kind == "dspark":
        found["output.weight"] = np.zeros((words, width))
    return found


def follow_words(words: int, rank: int) -> tuple[Floats, Floats]:
    """Return two matrices [words, rank] whose product is largest where a token follows another most often."""
    corpus = read_corpus()
    tokenizer = Tokenizer.train(list_vocabulary_texts(corpus), SPECIAL_TOKENS)
    counts = np.zeros((words, words))
    for dialogue in list_dialogues(corpus):
        for before, after in pairwise(tokenizer.encode(dialogue.prompt + dialogue.reply)):
            counts[before, after] += 1
    codes: Floats = np.random.default_rng(0).choice(np.array([-1.0, 1.0]), size=(words, rank))
    return codes[counts.argmax(1)], codes
