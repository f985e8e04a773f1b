"""Writes a model file with a complete header, and a hole in place of the data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

from .models import Model, n_bytes


def write(path: Path, name: str, model: Model) -> None:
    """Write `model`, called `name`, to `path`: of its full size, but ten KB on disk if the file system supports holes.

    It has no vocabulary ("no_vocab"), so it is for a dry run only. Raises OSError.
    """
    writer = GGUFWriter(path, model.architecture)
    writer.add_name(name)
    writer.add_tokenizer_model("no_vocab")
    for key, value in model.metadata.items():
        if isinstance(value, list):
            writer.add_array(f"{model.architecture}.{key}", value)
        elif isinstance(value, float):
            writer.add_float32(f"{model.architecture}.{key}", value)
        else:
            writer.add_uint32(f"{model.architecture}.{key}", value)
    data_bytes = 0
    for tensor, (shape, quant) in model.tensors.items():
        size = n_bytes(shape, quant)
        kind = GGMLQuantizationType[quant]
        writer.add_tensor_info(tensor, shape[::-1], np.dtype(np.float32), size, raw_dtype=kind)
        data_bytes += GGUFWriter.ggml_pad(size, writer.data_alignment)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    if writer.fout is None:
        raise OSError(f"{path} was not opened")
    file = writer.fout[0]
    file.truncate(GGUFWriter.ggml_pad(file.tell(), writer.data_alignment) + data_bytes)
    writer.close()
