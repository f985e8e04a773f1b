"""Pairs a model with the files that belong to it, by their headers: what drafts for it, and vision projectors.

A head is made for one model: it has that model's architecture, hidden size, vocabulary and number of blocks, but not
its blocks (`convert_hf_to_gguf.py --mtp`); Gemma's assistants have an architecture of their own, and name the hidden
size of their model. EAGLE-3, DFlash and DSpark read the states of some of the model's layers: they name these layers,
and are made for its hidden size and vocabulary. llama.cpp aborts with one that was made for another model (b11549).
Any smaller model of the same vocabulary could draft, but is used only if the user or its name says so. A projector's
output is as wide as its model's hidden size. Names only say which files to read first.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from launcher.base.errors import LauncherError, ModelUnexpected
from launcher.base.messages import as_message, message
from launcher.base.paths import models_dir
from launcher.models.catalogue import CompanionFile
from launcher.models.drafters import DRAFTERS, HEAD_FILE, MODEL_FILE, Drafter, drafter_with, find_drafter
from launcher.models.file_kinds import is_head_alone, recognise_file, recognise_name
from launcher.models.geometry import read_target_layers
from launcher.models.gguf import GgufModel, MtpHead, part_names, read_model
from launcher.models.library import find_stored_side_files, parse_quant
from launcher.models.library_index import read_index
from launcher.models.server_settings import name_setting

_ASSISTANT = "-assistant"
_MOST_UNNAMED = 4
"""Files with any other name are read only if a folder has at most this many, because reading takes long."""
_MOST_NAMED = 12
"""Models in a draft's folder that are compared with it, at most."""
_MOST_OTHER_TOKENS = 128
"""SPEC_VOCAB_MAX_SIZE_DIFFERENCE of llama.cpp's common/speculative.cpp (b11549)."""
_NO_LETTER, _QUANT_END = re.compile(r"[^a-z0-9]"), re.compile(r"[-_.](?:UD-)?(?:I?Q\d\w*|BF16|F16|F32|MXFP4)?\.gguf$")
_DRAFT = re.compile(r"(?<![a-z])draft(?:er)?(?![a-z])", re.IGNORECASE)
"""What the name of a small model says if it is there to draft."""
USUAL_DRAFT_QUANT = "Q8_0"


@dataclass(frozen=True, slots=True)
class SideFiles:
    """The files that were paired with a model, as companions of its catalogue entry: of each drafter the best one."""

    drafts: tuple[CompanionFile, ...] = ()
    projectors: tuple[CompanionFile, ...] = ()


def find_side_files(trunk: GgufModel) -> SideFiles:
    """Return the drafts and the projectors for a local model: those that its store lists, or that lie beside it or in
    its repository's folder. A head is left out if the model's own file has one.
    """
    if not isinstance(trunk.path, Path):  # the model's header came from the hub
        return SideFiles()
    path = trunk.path.absolute()
    found: list[tuple[Drafter, GgufModel]] = []
    projectors: list[GgufModel] = []
    listed = find_stored_side_files(path)
    others = [each for each in _find_candidates(path, trunk.file_bytes) if each not in listed]
    for each in _read_all([*listed, *others]):
        if is_projector_of(each, trunk):
            projectors.append(each)
        elif (drafter := drafter_for(each, trunk, is_named=each.path in listed)) is not None:
            found.append((drafter, each))
    quant = parse_quant(path.name)
    # Sibling models of one size and vocabulary are told by names alone.
    found.sort(
        key=lambda each: (
            each[1].path not in listed,
            _compare_names(each[1].path.name, path.name),
            *draft_preference(each[1].path.name, each[1].file_bytes, quant),
        )
    )
    drafts = dict(reversed(found))  # the best one of each drafter stays
    named = trunk.metadata.get("general.basename")
    # Projectors of the same group stay sorted by name.
    projectors.sort(key=lambda each: each.metadata.get("general.basename") != named)
    return SideFiles(
        tuple(as_draft(drafter, drafts[drafter]) for drafter in DRAFTERS.values() if drafter in drafts),
        tuple(map(_as_companion, projectors)),
    )


def drafter_for(side: GgufModel, trunk: GgufModel, *, is_named: bool = False) -> Drafter | None:
    """Return the drafter that a file is for a model; None if it does not fit, or is none.

    A model is one only if a store names it as the draft, or its name says so. A head is none for a model that has one.
    """
    kind, drafter = recognise_file(side), recognise_drafter(side)
    is_called = says_draft(side.path.name) and side.file_bytes < trunk.file_bytes
    is_wanted = kind is not None or is_named or is_called
    has_own = drafter is not None and drafter.uses_head and trunk.mtp_head is MtpHead.PRESENT
    if drafter is None or not is_wanted or has_own or find_mismatch(side, trunk):
        return None
    return drafter


def recognise_drafter(side: GgufModel) -> Drafter | None:
    """Return the drafter that uses such a file, for whichever model; None if none does."""
    kind = recognise_file(side)
    return drafter_with(kind.name if kind else MODEL_FILE)


def find_drafts_beside(path: Path) -> tuple[CompanionFile, ...]:
    """Return the drafts for the local model at `path`, whose header is read only if there are side files."""
    path = path.absolute()
    may_have = find_stored_side_files(path) or _find_candidates(path, 0)
    return find_side_files(read_model(path)).drafts if may_have else ()


def says_draft(name: str) -> bool:
    """Return whether a model's name says that it is there to draft."""
    return bool(_DRAFT.search(name))


def foreign_draft_error(draft: Path, model: str, why: str) -> ModelUnexpected:
    """Return the error for a file that cannot draft for a model, with the reason if `why` is not empty."""
    return ModelUnexpected(
        message(
            "{name} cannot draft for {model}[: {why}].",
            name=draft.name,
            model=model,
            why=as_message(why) if why else None,
        ),
        message(
            "Name a file that was made for this model, or a smaller model of the same vocabulary; or start it with "
            "{mtp_off}.",
            mtp_off=name_setting("draft", 0),
        ),
        path=str(draft),
    )


def find_mismatch(side: GgufModel, trunk: GgufModel, spec_type: str | None = None) -> str:
    """Return why a file cannot draft for a model, by `spec_type` if given; "" if it can as far as headers tell."""
    kind, drafter = recognise_file(side), recognise_drafter(side)
    if kind is not None and drafter is None:
        return message("it is {what}", what=kind.what)
    if spec_type and drafter is not None and not find_drafter(spec_type, drafter.files).uses_any(drafter.files):
        return message("it is for {drafter}, not for {wanted}", drafter=drafter.spec_type, wanted=spec_type)
    if kind is None:
        return _compare_vocabularies(side, trunk)
    if kind.name == HEAD_FILE:
        return "" if is_head_of(side, trunk) else message("it is the head of another model")
    hidden, layers = side.read_count("target_hidden_size"), read_target_layers(side)
    hidden, wanted = hidden or side.read_count("embedding_length"), trunk.read_count("embedding_length")
    if not layers:
        return message("its header does not say which layers it reads")
    if hidden is None:
        return message("its header does not say how wide its models are")
    if hidden != wanted:
        return message(
            "it is for models that are {hidden:,} wide, and this one is {wanted:,}", hidden=hidden, wanted=wanted or 0
        )
    if max(layers) > _count_blocks(trunk):
        return message(
            "it reads layer {layer}, and the model has {count}", layer=max(layers), count=_count_blocks(trunk)
        )
    if not _may_be_equal(side.vocabulary, trunk.vocabulary):
        return _other_vocabulary(side, trunk)
    return ""


def _compare_vocabularies(side: GgufModel, trunk: GgufModel) -> str:
    """Return in which way a model's vocabulary differs too much, as `common_speculative_are_compatible` sees it.

    The texts of the tokens are compared by the engine alone.
    """
    if side.is_embedding:
        return message("it generates no text")
    tokenizers = [model.metadata.get("tokenizer.ggml.model") for model in (side, trunk)]
    if tokenizers[0] != tokenizers[1]:
        return message("its tokenizer is {found} in place of {wanted}", found=tokenizers[0], wanted=tokenizers[1])
    for name in ("bos", "eos"):
        adds = [model.metadata.get(f"tokenizer.ggml.add_{name}_token", False) for model in (side, trunk)]
        ids = [model.metadata.get(f"tokenizer.ggml.{name}_token_id") for model in (side, trunk)]
        if adds[0] != adds[1] or (adds[0] and ids[0] != ids[1]):
            return message("its vocabulary has another {name} token", name=name.upper())
    if side.vocabulary is None or trunk.vocabulary is None:
        return message("its header has no vocabulary")
    is_near = abs(side.vocabulary - trunk.vocabulary) <= _MOST_OTHER_TOKENS
    return "" if is_near else _other_vocabulary(side, trunk)


def _other_vocabulary(side: GgufModel, trunk: GgufModel) -> str:
    return message(
        "its vocabulary has {found:,} tokens in place of {wanted:,}", found=side.vocabulary, wanted=trunk.vocabulary
    )


def name_models_for(side: GgufModel) -> tuple[str, ...]:
    """Return the names of the models for which a local draft can be used: those in its folder, by their headers; else
    the one that its header says it was made from.
    """
    if isinstance(side.path, Path):
        path = side.path.absolute()
        others = [each for each in _list_files(path) if each != path and not recognise_name(each.name)]
        found = [each.path.name for each in _read_all(others[:_MOST_NAMED]) if drafter_for(side, each) is not None]
        if found:
            return tuple(found)
    base = side.metadata.get("general.base_model.0.name")
    return (base,) if isinstance(base, str) and base else ()


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


def _compare_names(draft: str, trunk: str) -> int:
    """Return how many letters a draft's name has besides those of its model's name, many if it does not hold them."""
    found, wanted = (_NO_LETTER.sub("", _QUANT_END.sub("", name).casefold()) for name in (draft, trunk))
    return len(found) - len(wanted) if wanted and wanted in found else sys.maxsize


def draft_preference(name: str, file_bytes: int, quant: str | None) -> tuple[bool, bool, int]:
    """Return the order of drafts for a model of `quant`: its own quantisation, the usual one, the smallest."""
    own_quant = parse_quant(name)
    return own_quant != quant, own_quant != USUAL_DRAFT_QUANT, file_bytes


def as_draft(drafter: Drafter, model: GgufModel) -> CompanionFile:
    """Return a file as a draft of a model's entry."""
    return replace(_as_companion(model), speculation=drafter.name)


def _as_companion(model: GgufModel) -> CompanionFile:
    return CompanionFile(file=str(model.path), size_bytes=model.file_bytes)


def _read_all(paths: Iterable[Path]) -> Iterator[GgufModel]:
    """Yield the headers of files; those that cannot be read are left out."""
    for each in paths:
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
    named = [
        each
        for each in others
        if kinds.get(each) in ("draft", "mmproj") or recognise_name(each.name) or says_draft(each.name)
    ]
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
