"""Builds a catalogue entry from the header of a model file that is not in the catalogue."""

from pathlib import Path

from launcher.base.errors import GeometryUnknown
from launcher.models.catalogue import ModelEntry, ModelFile
from launcher.models.geometry import Geometry, read_geometry
from launcher.models.gguf import GgufModel
from launcher.models.library import quant_of


def describe_file(model: GgufModel) -> ModelEntry:
    """Return a catalogue entry for a model file: one quantisation, no presets, and its path as the id.

    The geometry is None if the header lacks a number that the memory estimate needs.
    """
    path = Path(model.parts[0].path).absolute()
    file = ModelFile(
        quant=quant_of(path.name) or path.stem or path.name,
        file=str(path),
        size_bytes=model.file_bytes,
        has_head=model.has_mtp_head,
    )
    return ModelEntry(
        id=str(path),
        name=model.name,
        native_context=model.trained_context or None,
        speculation="mtp",
        geometry=_geometry_or_none(model),
        files=(file,),
    )


def _geometry_or_none(model: GgufModel) -> Geometry | None:
    try:
        return read_geometry(model)
    except GeometryUnknown:
        return None
