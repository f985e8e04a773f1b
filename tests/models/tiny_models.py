"""Small models of architectures that the memory formula does not know, or knows in part, which llama.cpp loads."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gguf import (
    GGML_QUANT_SIZES,
    GGMLQuantizationType,
    GGUFReader,
    GGUFValueType,
    GGUFWriter,
    LlamaFileType,
    PoolingType,
    ReaderTensor,
)
from gguf.quants import quantize

_TEMPLATE = "tokenizer.chat_template"
_HIDDEN, _FFN, _LAYERS, _WORDS = 384, 1_536, 4, 1_000


def _zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, dtype=np.float32)


def _begin(path: Path, architecture: str, name: str, *, context: int, heads: int) -> GGUFWriter:
    writer = GGUFWriter(path, architecture)
    writer.add_name(name)
    writer.add_context_length(context)
    writer.add_embedding_length(_HIDDEN)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_FFN)
    writer.add_head_count(heads)
    writer.add_tensor("token_embd.weight", _zeros(_WORDS, _HIDDEN))
    return writer


def _end(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_bert(path: Path) -> None:
    """Write an encoder, which keeps no cache: there is no formula for it."""
    writer = _begin(path, "bert", "Tiny bert", context=512, heads=12)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(PoolingType.MEAN)
    writer.add_tokenizer_model("bert")
    writer.add_token_list(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{at}" for at in range(_WORDS - 5))])
    writer.add_token_types([3, 2, 3, 3, 3] + [1] * (_WORDS - 5))
    writer.add_token_type_count(2)
    writer.add_unk_token_id(1)
    writer.add_sep_token_id(3)
    writer.add_pad_token_id(0)
    writer.add_mask_token_id(4)
    writer.add_tensor("token_types.weight", _zeros(2, _HIDDEN))
    writer.add_tensor("position_embd.weight", _zeros(512, _HIDDEN))
    writer.add_tensor("token_embd_norm.weight", _zeros(_HIDDEN))
    writer.add_tensor("token_embd_norm.bias", _zeros(_HIDDEN))
    for block in range(_LAYERS):
        for name, rows, columns in (
            *((each, _HIDDEN, _HIDDEN) for each in ("attn_q", "attn_k", "attn_v", "attn_output")),
            ("ffn_up", _FFN, _HIDDEN),
            ("ffn_down", _HIDDEN, _FFN),
        ):
            writer.add_tensor(f"blk.{block}.{name}.weight", _zeros(rows, columns))
            writer.add_tensor(f"blk.{block}.{name}.bias", _zeros(rows))
        for name in ("attn_output_norm", "layer_output_norm"):
            writer.add_tensor(f"blk.{block}.{name}.weight", _zeros(_HIDDEN))
            writer.add_tensor(f"blk.{block}.{name}.bias", _zeros(_HIDDEN))
    _end(writer)


def write_pooled(source: Path, path: Path, pooling: PoolingType = PoolingType.LAST) -> None:
    """Write a copy of a model with a pooling type in its header."""
    writer, tensors = _begin_copy(source, path)
    writer.add_pooling_type(pooling)
    _end_copy(writer, tensors)


def write_headless(source: Path, path: Path) -> None:
    """Write a copy of a model without its MTP head, which is its last block."""
    writer, tensors = _begin_copy(source, path, leave_out=("block_count", "nextn_predict_layers"))
    blocks = max(int(tensor.name.split(".")[1]) for tensor in tensors if tensor.name.startswith("blk."))
    writer.add_block_count(blocks)
    _end_copy(writer, [tensor for tensor in tensors if not tensor.name.startswith(f"blk.{blocks}.")])


def write_templated(source: Path, path: Path, template: str) -> None:
    """Write a copy of a model with another chat template."""
    writer, tensors = _begin_copy(source, path, leave_out=(_TEMPLATE,))
    writer.add_chat_template(template)
    _end_copy(writer, tensors)


def write_trained(source: Path, path: Path, context: int) -> None:
    """Write a copy of a model with another trained context."""
    writer, tensors = _begin_copy(source, path, leave_out=("context_length",))
    writer.add_context_length(context)
    _end_copy(writer, tensors)


def write_quantized(source: Path, path: Path, quant: GGMLQuantizationType, file_type: LlamaFileType) -> None:
    """Write a copy of a model whose matrices are quantised, as far as their rows are whole blocks."""
    writer, tensors = _begin_copy(source, path, leave_out=("general.file_type",))
    writer.add_file_type(file_type)
    block = GGML_QUANT_SIZES[quant][0]
    for tensor in tensors:
        is_matrix = len(tensor.shape) > 1 and tensor.shape[0] % block == 0
        if is_matrix and tensor.tensor_type is GGMLQuantizationType.F16:
            writer.add_tensor(tensor.name, quantize(tensor.data.astype("float32"), quant), raw_dtype=quant)
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    _end(writer)


def _begin_copy(source: Path, path: Path, leave_out: Sequence[str] = ()) -> tuple[GGUFWriter, list[ReaderTensor]]:
    """Return a writer of a model file with the fields of `source`, and the tensors of `source`.

    Fields whose name is in `leave_out`, with or without the architecture before it, are left out.
    """
    reader = GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(path, architecture)
    left_out = {"general.architecture", *leave_out, *(f"{architecture}.{name}" for name in leave_out)}
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name not in left_out:
            element = field.types[-1] if field.types[0] is GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=element)
    return writer, reader.tensors


def _end_copy(writer: GGUFWriter, tensors: Sequence[ReaderTensor]) -> None:
    for tensor in tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    _end(writer)


def write_decoder(path: Path, *, architecture: str = "stablelm", embedding: bool = False) -> None:
    """Write a dense decoder: of "stablelm" the formula does not know the compute graph, of "qwen3" it does."""
    heads = 6
    writer = _begin(path, architecture, f"Tiny {architecture}", context=4_096, heads=heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_eps(1e-5)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(_HIDDEN // heads)
    if architecture == "stablelm":
        writer.add_parallel_residual(False)
    if embedding:
        writer.add_pooling_type(PoolingType.LAST)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"w{at}" for at in range(_WORDS)])
    writer.add_token_types([1] * _WORDS)
    writer.add_token_merges(["w 1"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_tensor("output.weight", _zeros(_WORDS, _HIDDEN))
    norms = ["output_norm"]
    for block in range(_LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            writer.add_tensor(f"blk.{block}.{name}.weight", _zeros(_HIDDEN, _HIDDEN))
        norms += [f"blk.{block}.attn_norm", f"blk.{block}.ffn_norm"]
        if architecture == "qwen3":
            for name in ("attn_q_norm", "attn_k_norm"):
                writer.add_tensor(f"blk.{block}.{name}.weight", _zeros(_HIDDEN // heads))
        writer.add_tensor(f"blk.{block}.ffn_up.weight", _zeros(_FFN, _HIDDEN))
        writer.add_tensor(f"blk.{block}.ffn_gate.weight", _zeros(_FFN, _HIDDEN))
        writer.add_tensor(f"blk.{block}.ffn_down.weight", _zeros(_HIDDEN, _FFN))
    for name in norms:
        writer.add_tensor(f"{name}.weight", _zeros(_HIDDEN))
        if architecture == "stablelm":
            writer.add_tensor(f"{name}.bias", _zeros(_HIDDEN))
    _end(writer)
