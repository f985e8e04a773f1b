"""Builds a catalogue entry from the header of a model file that is not in the catalogue, and the files beside it."""

from collections import Counter
from math import prod
from pathlib import Path

from launcher.base.errors import GeometryUnknown
from launcher.models.catalogue import ModelEntry, ModelFile
from launcher.models.drafters import MTP
from launcher.models.geometry import Geometry, read_geometry
from launcher.models.gguf import GgufModel
from launcher.models.library import parse_quant
from launcher.models.side_files import find_side_files

_FILE_TYPES = {
    # enum llama_ftype in llama.h (build 11434).
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4_MOE",
}


def describe_file(model: GgufModel, name: str | None = None) -> ModelEntry:
    """Return a catalogue entry for a model file: one quantisation, no presets, and its path as the id.

    `name` is its name in another program's store, if it is in one; by default its header has the name. It drafts
    with the head inside or, without one, with the first drafter of the table for which there is a file. The
    geometry is None if the header lacks a number that the memory estimate needs.
    """
    path = Path(model.parts[0].path).absolute()
    side_files = find_side_files(model)
    own = None if model.has_mtp_head else next(iter(side_files.drafts), None)
    file = ModelFile(
        quant=parse_quant(path.name) or _quant_of_header(model) or path.stem or path.name,
        file=str(path),
        size_bytes=model.file_bytes,
        has_head=model.has_mtp_head,
    )
    return ModelEntry(
        id=str(path),
        name="".join(filter(str.isprintable, name or "")) or model.name,
        parameters_b=count_parameters(model) / 1e9 or None,
        native_context=model.trained_context or None,
        embedding=model.is_embedding,
        reranker=model.is_reranker,
        speculation=MTP.name if own is None else own.speculation,
        draft=own,
        drafts=tuple(each for each in side_files.drafts if each is not own),
        mmproj=side_files.projectors,
        geometry=geometry_or_none(model),
        files=(file,),
    )


def _quant_of_header(model: GgufModel) -> str | None:
    """Return the quantisation of a file whose name has none, as in Ollama's store: as stated, else by most bytes."""
    value = model.metadata.get("general.file_type")
    if isinstance(value, int) and value in _FILE_TYPES:
        return _FILE_TYPES[value]
    if model.path.suffix == ".gguf":
        return None
    totals: Counter[str] = Counter()
    for tensor in model.tensors:
        totals[tensor.quant] += tensor.n_bytes or 0
    return max(totals, key=totals.__getitem__, default=None)


def count_parameters(model: GgufModel) -> int:
    """Return the number of weights in all tensors."""
    return sum(prod(tensor.dimensions) for tensor in model.tensors)


def geometry_or_none(model: GgufModel) -> Geometry | None:
    """Return a model's geometry; None if its header lacks a number that the memory estimate needs."""
    try:
        return read_geometry(model)
    except GeometryUnknown:
        return None
