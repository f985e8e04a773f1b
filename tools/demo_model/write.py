"""The GGUF file: metadata the engine needs, the vocabulary, and the tensors."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from . import tensors as weights
from .network import KEY_WIDTH, STATE, WIDTH
from .tensors import Shape, Tensor
from .text import SPECIAL_TOKENS, TEMPLATE_FILE, TURN_END
from .tokenizer import Tokenizer

ARCHITECTURE = "qwen35moe"
NAME, AUTHOR, LICENSE = "MTP demo", "MTP Launcher contributors", "MIT"
DESCRIPTION = (
    "A tiny model that writes a few paragraphs about MTP Launcher. It exercises a real engine, draft head included; "
    "it knows nothing else and shows no speed-up."
)
CONTEXT_TOKENS = 262144
ROW_MULTIPLE = 32


def vocabulary_rows(tokenizer: Tokenizer) -> int:
    """Return the number of tokens in the file: the tokenizer's, padded with unused ones."""
    return -(-len(tokenizer) // ROW_MULTIPLE) * ROW_MULTIPLE


def write(path: Path, tokenizer: Tokenizer, tensors: dict[str, Tensor], shape: Shape) -> None:
    """Write the model. Dead tensors become holes, if the file system supports sparse files."""
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    _add_metadata(writer, shape)
    _add_vocabulary(writer, tokenizer)
    for name, tensor in tensors.items():
        kind = gguf.GGMLQuantizationType.Q8_0 if tensor.dtype == np.uint8 else None
        writer.add_tensor_info(name, tensor.shape, tensor.dtype, tensor.nbytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    if writer.fout is None:
        raise OSError(f"{path} was not opened")
    file = writer.fout[0]
    for tensor in tensors.values():
        file.seek(gguf.GGUFWriter.ggml_pad(file.tell(), writer.data_alignment))
        if weights.is_dead(tensor):
            file.seek(tensor.nbytes, 1)
        else:
            file.write(tensor.tobytes())
    file.truncate(gguf.GGUFWriter.ggml_pad(file.tell(), writer.data_alignment))
    writer.close()


def _add_metadata(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_name(NAME)
    writer.add_author(AUTHOR)
    writer.add_license(LICENSE)
    writer.add_description(DESCRIPTION)
    writer.add_languages(["en"])
    writer.add_size_label("demo")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    counts = {
        "context_length": CONTEXT_TOKENS,
        "embedding_length": WIDTH,
        "block_count": shape.blocks,
        "full_attention_interval": weights.BLOCKS_PER_GROUP,
        "attention.head_count": weights.ATTENTION_HEADS,
        "attention.head_count_kv": 1,
        "attention.key_length": KEY_WIDTH,
        "attention.value_length": KEY_WIDTH,
        "rope.dimension_count": 16,
        "ssm.conv_kernel": weights.TAPS,
        "ssm.state_size": STATE,
        "ssm.group_count": weights.KEY_HEADS,
        "ssm.time_step_rank": weights.VALUE_HEADS,
        "ssm.inner_size": weights.VALUES,
        "expert_count": shape.experts,
        "expert_used_count": shape.experts_used,
        "expert_feed_forward_length": shape.expert_width,
        "expert_shared_feed_forward_length": weights.SHARED_EXPERT_WIDTH,
    }
    if shape.head:
        counts["nextn_predict_layers"] = 1
    for key, value in counts.items():
        writer.add_uint32(f"{ARCHITECTURE}.{key}", value)
    writer.add_array(f"{ARCHITECTURE}.rope.dimension_sections", [3, 3, 2, 0])
    writer.add_float32(f"{ARCHITECTURE}.rope.freq_base", 1e7)
    writer.add_float32(f"{ARCHITECTURE}.attention.layer_norm_rms_epsilon", 1e-6)


def _add_vocabulary(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    unused = [f"[unused {place}]" for place in range(vocabulary_rows(tokenizer) - len(tokenizer))]
    kinds = [gguf.TokenType.NORMAL] * len(tokenizer.tokens)
    for name in tokenizer.special:
        kinds.append(gguf.TokenType.CONTROL if name.startswith("<|") else gguf.TokenType.USER_DEFINED)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35")
    writer.add_token_list([*tokenizer.tokens, *tokenizer.special, *unused])
    writer.add_token_types([*kinds, *([gguf.TokenType.UNUSED] * len(unused))])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer.merges])
    writer.add_bos_token_id(tokenizer.ids[SPECIAL_TOKENS[0]])
    writer.add_eos_token_id(tokenizer.ids[TURN_END])
    writer.add_pad_token_id(tokenizer.ids[SPECIAL_TOKENS[0]])
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE_FILE.read_text(encoding="utf-8"))
