"""Pairs a model with the files that belong to it, by their headers: its separate MTP head and vision projectors.

A head is made for one model: it has that model's architecture, hidden size, vocabulary and number of blocks, but not
its blocks (`convert_hf_to_gguf.py --mtp`); Gemma's assistants have an architecture of their own, and name the hidden
size of their model. A projector's output is as wide as its model's hidden size. Names only say which files to read
first.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from launcher.base.errors import LauncherError
from launcher.base.paths import models_dir
from launcher.models.catalogue import CompanionFile
from launcher.models.file_kinds import is_head_alone, recognise_file, recognise_name
from launcher.models.gguf import GgufModel, MtpHead, part_names, read_model
from launcher.models.library import find_stored_side_files, parse_quant
from launcher.models.library_index import read_index

_ASSISTANT = "-assistant"
_MOST_UNNAMED = 4
"""Files with any other name are read only if a folder has at most this many, because reading takes long."""
USUAL_HEAD_QUANT = "Q8_0"


@dataclass(frozen=True, slots=True)
class SideFiles:
    """The files that were paired with a model, as companions of its catalogue entry."""

    head: CompanionFile | None = None
    projectors: tuple[CompanionFile, ...] = ()


def find_side_files(trunk: GgufModel) -> SideFiles:
    """Return the head and the projectors for a local model: those that its store lists, or that lie beside it or in its
    repository's folder. No head is looked for if the model's own file has one.
    """
    if not isinstance(trunk.path, Path):  # the model's header came from the hub
        return SideFiles()
    path = trunk.path.absolute()
    heads: list[GgufModel] = []
    projectors: list[GgufModel] = []
    for each in _read_candidates(path, trunk.file_bytes):
        if is_projector_of(each, trunk):
            projectors.append(each)
        elif trunk.mtp_head is not MtpHead.PRESENT and is_head_of(each, trunk):
            heads.append(each)
    quant = parse_quant(path.name)
    head = min(heads, key=lambda each: head_preference(each.path.name, each.file_bytes, quant), default=None)
    named = trunk.metadata.get("general.basename")
    # Projectors of the same group stay sorted by name.
    projectors.sort(key=lambda each: each.metadata.get("general.basename") != named)
    return SideFiles(_as_companion(head) if head else None, tuple(map(_as_companion, projectors)))


def is_head_of(side: GgufModel, trunk: GgufModel) -> bool:
    """Return whether a file is an MTP head that was made for a model, and nothing more."""
    if not _may_be_equal(side.vocabulary, trunk.vocabulary) or not trunk.read_count("embedding_length"):
        return False
    if side.architecture == f"{trunk.architecture}{_ASSISTANT}":
        return side.read_count("embedding_length_out") == trunk.read_count("embedding_length")
    return (
        is_head_alone(side)
        and side.architecture == trunk.architecture
        and side.read_count("embedding_length") == trunk.read_count("embedding_length")
        and _count_blocks(side) == _count_blocks(trunk)
    )


def is_projector_of(side: GgufModel, trunk: GgufModel) -> bool:
    """Return whether a file is a projector whose output has a model's hidden size."""
    hidden, kind = trunk.read_count("embedding_length"), recognise_file(side)
    if not hidden or kind is None or kind.role != "mmproj":
        return False
    widths = (side.metadata.get(f"clip.{kind}.projection_dim") for kind in ("vision", "audio"))
    if hidden in widths:
        return True
    # LLaVA's key has the encoder's own width.
    return any(tensor.name.startswith("mm.") and hidden in tensor.dimensions for tensor in side.tensors)


def _count_blocks(model: GgufModel) -> int:
    """Return the number of a model's blocks without those of its heads."""
    return (model.block_count or 0) - model.promised_heads


def _may_be_equal(one: int | None, other: int | None) -> bool:
    """Return whether two counts are equal, or one is unknown: a head may lack the vocabulary."""
    return None in (one, other) or one == other


def head_preference(name: str, file_bytes: int, quant: str | None) -> tuple[bool, bool, int]:
    """Return the order of heads for a model of `quant`: its own quantisation, then the usual one, then the smallest."""
    head_quant = parse_quant(name)
    return head_quant != quant, head_quant != USUAL_HEAD_QUANT, file_bytes


def _as_companion(model: GgufModel) -> CompanionFile:
    return CompanionFile(file=str(model.path), size_bytes=model.file_bytes)


def _read_candidates(path: Path, trunk_bytes: int) -> Iterator[GgufModel]:
    """Yield the headers of the files that may belong to a model; files that cannot be read are left out."""
    listed = find_stored_side_files(path)
    for each in listed or _find_candidates(path, trunk_bytes):
        try:
            stat = each.stat()
            yield _read_once(each, stat.st_size, stat.st_mtime_ns)
        except (OSError, LauncherError):
            continue


@lru_cache(maxsize=32)
def _read_once(path: Path, _size: int, _modified_ns: int) -> GgufModel:
    return read_model(path)


def _find_candidates(path: Path, trunk_bytes: int) -> list[Path]:
    """Return the files beside a model that may be drafts or projectors, by the index or by their names.

    Smaller files with any other name are included if there are few.
    """
    parts = part_names(path.name) or (path.name,)
    others = [each for each in _list_files(path) if each.name not in parts]
    index, _ = read_index()
    kinds = {record.path: record.kind for record in index.records if record.problem is None}
    named = [each for each in others if kinds.get(each) in ("draft", "mmproj") or recognise_name(each.name)]
    unnamed = [each for each in others if each not in kinds and each not in named and part_names(each.name) is None]
    smaller = [each for each in unnamed if _file_size(each) < trunk_bytes] if len(unnamed) <= _MOST_UNNAMED else []
    return [*named, *smaller]


def _list_files(path: Path) -> Iterable[Path]:
    """Return the GGUF files in a model's folder; in all folders of its repository if it lies in one."""
    folder = _repository_folder(path)
    try:
        return sorted(folder.rglob("*.gguf") if folder else path.parent.glob("*.gguf"))
    except OSError:
        return ()


def _repository_folder(path: Path) -> Path | None:
    """Return the folder of a repository's files: OWNER/NAME in ours, or a commit in the hub's layout."""
    ours = models_dir()
    if path.is_relative_to(ours) and len(path.relative_to(ours).parts) > 2:
        return ours.joinpath(*path.relative_to(ours).parts[:2])
    return next((each for each in path.parents if each.parent.name == "snapshots"), None)


def _file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
